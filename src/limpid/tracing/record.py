"""A recorded step, opened: tensors are read one by one, as they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from limpid.config import TrainConfig
from limpid.config.options import from_dict
from limpid.errors import CheckpointError, ConfigError
from limpid.maths.operation import Array
from limpid.maths.rounding import FORMATS
from limpid.maths.step import rule
from limpid.objectives import Objective
from limpid.objectives import from_document as objective_from
from limpid.quantities import Parameter, parameters, trained_parameters
from limpid.tracing.record_metadata import described
from limpid.tracing.tensor_file import WORDS, TensorFile

Place = Literal["fast", "plain"]
"""The path on which a quantity was formed. fast: the one that trains."""

LOST = {"tf32": 2.0**-10, "bf16": 2.0**-7}
"""Share of a float32 that a product may lose before it multiplies: 10 or 7 bits are kept behind the first, and the rest
cut off or rounded. By PyTorch's words of torch.backends.cuda.matmul.fp32_precision."""


@dataclass(frozen=True)
class Record(TensorFile):
    """One step: what it depended on, and what the engine computed. docs/record.md lists the tensors.

    Raises  CheckpointError for a file that is missing, cut short, foreign or newer than this limpid
    """

    def __post_init__(self) -> None:
        missing = [name for name in self._required() if name not in self.names]
        if missing:
            raise CheckpointError(f"{self.path} lacks {missing[0]}: it is not a whole recorded step")
        for name in {"batch/tokens", "batch/targets"} & self.names:
            if self.format(name) is not None:  # a format of numbers with a fraction
                raise CheckpointError(f"{self.path}: {name} is {WORDS[self.format(name)]}, expected whole numbers")

    @cached_property
    def trained(self) -> tuple[Parameter, ...]:
        """The parameters that the step moved."""
        return trained_parameters(self.config)

    @cached_property
    def objective(self) -> Objective:
        """What the step minimised; next-token prediction where the record does not say."""
        return objective_from(self.meta.get("objective", {"name": "next_token"}))

    @cached_property
    def meta(self) -> dict[str, Any]:
        """What the engine wrote beside the tensors."""
        return described(self.path, self.metadata.get("limpid"))

    @cached_property
    def config(self) -> TrainConfig:
        try:
            return from_dict(TrainConfig, self.meta["config"])
        except ConfigError as error:
            raise CheckpointError(
                f"{self.path} was recorded with options this limpid does not know: {error}"
            ) from error

    @cached_property
    def recorded_fast(self) -> bool:
        """Whether quantities of the fast path were recorded; an older record has its gradients of parameters only."""
        return any(f"fast/{quantity.name}" in self.names for quantity in self.objective.quantities(self.config.model)
                   if quantity.name != "loss")  # fmt: skip

    def formed_fast(self, name: str) -> bool:
        """Whether the fast path formed a quantity, and it was recorded."""
        return self.recorded_fast and f"fast/{name}" in self.names

    def place(self, name: str, path: Place = "fast") -> str:
        """The tensor of a quantity, parameter or array of the batch: that of this path if there is one.

        Raises  KeyError when the record has none
        """
        other = "plain" if path == "fast" else "fast"
        first = (path, other) if self.recorded_fast else ("plain",)
        places = (f"{where}/{name}" for where in (*first, "before", "batch"))
        found = next((place for place in places if place in self.names), None)
        if found is None:
            raise KeyError(name)
        return found

    def gradient_place(self, name: str) -> str | None:
        """The tensor of a gradient: that of the path that trains if there is one."""
        learned = f"before/{name}" in self.names
        paths = ("fast", "plain") if self.recorded_fast or learned else ("plain",)
        places = (f"{path}/grad({name})" for path in paths)
        return next((place for place in places if place in self.names), None)

    def axes(self, name: str) -> tuple[str, ...]:
        """What the axes of a quantity or parameter are called."""
        return self._axes.get(name, ())

    @cached_property
    def _axes(self) -> dict[str, tuple[str, ...]]:
        model = self.config.model
        formed = {quantity.name: quantity.axes for quantity in self.objective.quantities(model)}
        given = {
            name.removeprefix("batch/"): ("batch", "position")[: len(self.shape(name))]
            for name in self.names
            if name.startswith("batch/") and len(self.shape(name)) <= 2
        }
        return given | formed | {parameter.name: parameter.axes for parameter in parameters(model)}

    def has_rows(self, name: str) -> bool:
        """Whether the first axis of an array is that of the batch."""
        return f"batch/{name}" in self.names or self.axes(name)[:1] == ("batch",)

    @property
    def kernels(self) -> dict[str, Any]:
        """Which of several ways the fast path went: `attention`, `blocks`, `logits_rows`."""
        return dict(self.meta.get("kernels", {}))

    @property
    def labels(self) -> int:
        """Of the whole step: what the loss is a mean over."""
        return max(1, int(self.meta["labels"]))

    def _required(self) -> list[str]:
        self.meta  # noqa: B018  a foreign file is named before what it lacks
        parts = ["fast/grad({})", "after/{}"]
        parts += ["before/ema/{}", "after/ema/{}"] if self.config.update.ema_decay else []
        kinds = {parameter.name: rule(self.config.update, parameter).moments for parameter in self.trained}
        moments = [f"{kind}/{name}" for name, its_kinds in kinds.items() for kind in its_kinds]
        required = [part.format(parameter.name) for parameter in self.trained for part in parts]
        required += [f"before/{parameter.name}" for parameter in parameters(self.config.model)]
        required += [f"{when}/{moment}" for moment in moments for when in ("before", "after")]
        return required + [f"batch/{name}" for name in self.objective.fields]

    @property
    def parameters_format(self) -> Any:
        """Format of parameters and residual stream."""
        return FORMATS[self.meta["precision"]["parameters"]]

    @property
    def compute_format(self) -> Any:
        """Format of what goes into matrix products."""
        return FORMATS[self.meta["precision"]["compute"]]

    @property
    def summed_format(self) -> Any:
        """Format in which products are summed: float32 at least."""
        return FORMATS["fp64"] if self.compute_format == FORMATS["fp64"] else FORMATS["fp32"]

    @property
    def entering(self) -> float:
        """Share of each entry that may be lost where matrix products of float32 take less of it, as TF32 does."""
        if self.compute_format != FORMATS["fp32"]:
            return 0.0
        return LOST.get(self.meta.get("fp32_products", "ieee"), 0.0)

    @property
    def arithmetic(self) -> str:
        """What is to be said of every bound, in an empty or in a further clause."""
        if not self.entering:
            return ""
        return f"; products take {self.meta['fp32_products']} of float32: 2 · {self.entering:g} Σ|terms| more"

    @property
    def loss_scale(self) -> float:
        """What the gradients of quantities (not of parameters) are multiplied by."""
        return float(self.meta["loss_scale"])

    def micro_batches(self) -> list[slice]:
        """Which rows of the batch each micro-batch had; where their source names none, by its share of the tokens."""
        parts = self.meta["micro_batches"]
        rows = next(self.shape(name)[0] for name in sorted(self.names) if name.startswith("batch/"))
        tokens = sum(micro["tokens"] for micro in parts)
        counts = [len(micro["rows"]) or rows * micro["tokens"] // tokens for micro in parts]
        ends = np.cumsum(counts)
        return [slice(int(end) - count, int(end)) for end, count in zip(ends, counts, strict=True)]

    def batch(self) -> dict[str, Array]:
        """Tokens, targets, and the mask kept(NAME) of every dropout."""
        return {
            name.removeprefix("batch/"): self.exact(name) for name in sorted(self.names) if name.startswith("batch/")
        }
