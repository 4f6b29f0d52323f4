"""What is known of a step whose loss or gradient is not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from limpid.doctor.finding import Finding
from limpid.doctor.model_info import ModelInfo, local
from limpid.doctor.replay.non_finite import Origin
from limpid.doctor.replay.step_replay import RecordedPass, ReplayResult, replay
from limpid.doctor.rule import Rule


@dataclass(frozen=True)
class BrokenStep:
    """One pass of a step that broke; it is repeated when somebody first asks what that shows."""

    info: ModelInfo
    recorded: RecordedPass | None  # None where the call of the model was not seen
    step: int | None
    loss: float

    @property
    def what(self) -> str:
        """What is not finite, in words."""
        if not math.isfinite(self.loss):
            return f"the loss is {self.loss}"
        return f"a gradient is not finite (the loss, {self.loss:.4g}, is)"

    @cached_property
    def bad_parameters(self) -> Mapping[str, int]:
        """How many elements are not finite already before the forward pass, by parameter."""
        if self.recorded is None:
            return {}
        counts = {name: int((~torch.isfinite(local(p.detach()))).sum()) for name, p in self.info.parameters.items()}
        return {name: count for name, count in counts.items() if count}

    @cached_property
    def _result(self) -> ReplayResult | None:
        if self.recorded is None or self.bad_parameters or self.info.sharded:
            return None
        return replay(self.recorded)

    @property
    def replayed(self) -> bool:
        return self._result is not None

    @property
    def origin(self) -> Origin | None:
        """The first operation whose inputs are finite and whose output is not."""
        return None if self._result is None else self._result.origin

    @property
    def logits_finite(self) -> bool:
        return self._result is not None and self._result.logits_finite

    @property
    def labels(self) -> Tensor | None:
        if self.recorded is None:
            return None
        micro = self.recorded.micro
        return micro.labels if micro is not None and micro.labels is not None else self.recorded.call.labels

    @property
    def overflowed(self) -> bool:
        """Whether the operation's value, in float64, is beyond its format."""
        origin = self.origin
        return origin is not None and origin.exact_largest is not None and origin.exact_largest > origin.limit

    @property
    def evidence(self) -> dict[str, Any]:
        origin = self.origin
        if origin is None:
            return {}
        return {
            "operation": origin.op,
            "largest_input": origin.largest,
            "inputs": list(origin.inputs),
            "backward": origin.backward,
        }

    def overflow(self, rule: Rule, value: str, cause: str, fix: str = "") -> Finding:
        """The finding for a value that outgrew its format."""
        origin = self.origin
        assert origin is not None
        return rule.finding(
            severity="fault",
            step=self.step,
            where=origin.module,
            says=f"{self.what}: {origin.module} {value} reached {origin.exact_largest:.3g} > {origin.limit:.5g} "
            f"({str(origin.dtype).removeprefix('torch.')} maximum); the same product of the same numbers is finite in "
            "float64.",
            cause=cause,
            fix=fix,
            refuted_by=f"a largest value below {origin.limit:.5g}",
            evidence=self.evidence | {"value": origin.exact_largest, "limit": origin.limit},
        )
