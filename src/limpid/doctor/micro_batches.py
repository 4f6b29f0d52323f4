"""What the user's loop calls a batch: micro-batches, with token ids, labels and masks where they say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from limpid.doctor.calls import ID_NAMES, LABEL_NAMES, MASK_NAMES, Call, is_ids, parameters_of

Array = np.ndarray
OLD_LOG_PROBABILITIES = (
    "old_log_probabilities", "old_log_probs", "old_logprobs", "old_logps", "old_per_token_logps",
    "sampling_per_token_logps",
)  # fmt: skip
ANSWER_MASKS = ("completion_mask", "response_mask", "action_mask", "loss_mask", "assistant_masks")


@dataclass
class Micro:
    """One micro-batch as the user holds it: integers only."""

    ids: Tensor | None
    labels: Tensor | None  # as given; a transformers model shifts them itself
    mask: Tensor | None
    given: Any  # the user's own object
    rows: tuple[int, ...] = ()  # which row of the data each is, where the loop says

    @property
    def shifted_by_model(self) -> bool:
        """Whether labels are given by name, to a model that shifts them itself."""
        return hasattr(self.given, "keys")

    @property
    def without_advantage(self) -> bool:
        """Whether every answer that is learned from has an advantage of 0."""
        advantages = self._held("advantages")
        return advantages is not None and not bool((advantages != 0).any())

    @property
    def without_targets(self) -> bool:
        """Whether the mask of what is learned leaves nothing."""
        mask = self._held("mask")
        return mask is not None and not bool((mask != 0).any())

    @property
    def numbers(self) -> Tensor | None:
        """Its first tensor where that has rows of four floating numbers or more, (row, …)."""
        given = self.given
        held = given if isinstance(given, Tensor) else given[0] if isinstance(given, tuple | list) and given else None
        if isinstance(given, Mapping):
            held = next(
                (given[name] for name in (*ID_NAMES, "pixel_values", "images", "features") if name in given), None
            )
        held = _tensor(held)
        if not isinstance(held, Tensor) or not held.is_floating_point() or held.ndim < 2 or len(held) < 2:
            return None
        return held if held[0].numel() >= 4 else None

    @property
    def measured(self) -> Tensor | None:
        """The same where numbers hardly repeat, so that few of the rows are alike."""
        held = self.numbers
        few = None if held is None else held.detach().reshape(len(held), -1)[:8, :64]
        return held if few is not None and len(few.unique()) > few.numel() // 2 else None

    @property
    def is_rewarded(self) -> bool:
        """Whether its answers were drawn, and have rewards or advantages."""
        return self.is_drawn or any(self._held(name) is not None for name in ("rewards", "advantages"))

    @property
    def answer_mask(self) -> Array | None:
        """1 where a token belongs to an answer that is learned, (row, position), as the batch has it."""
        mask = self.array("mask", *ANSWER_MASKS)
        return None if mask is None or mask.ndim != 2 else mask > 0

    @property
    def answer_ids(self) -> Array | None:
        """The token that each position of the mask is about: the next one of rows that are shifted already."""
        shifted = self.array("targets")
        return shifted if shifted is not None else self.array("completion_ids", "responses", *ID_NAMES)

    def array(self, *names: str) -> Array | None:
        """The first of these that the batch holds."""
        held = next((tensor for name in names if (tensor := self._held(name)) is not None), None)
        if held is None:
            return None
        found: Array = (held.detach().float() if held.is_floating_point() else held.detach()).cpu().numpy()
        return found

    @property
    def is_drawn(self) -> bool:
        """Whether its rows are answers that a policy gave: several updates are made on one draw of them."""
        return any(self._held(name) is not None for name in OLD_LOG_PROBABILITIES)

    def _held(self, name: str) -> Tensor | None:
        """An array of the batch by its name."""
        held = _tensor(self._arrays[name]) if name in self._arrays else None
        return held if isinstance(held, Tensor) else None

    @cached_property
    def _arrays(self) -> Mapping[str, Any]:
        arrays = getattr(self.given, "arrays", self.given)
        return arrays if isinstance(arrays, Mapping) else {}


def nothing_to_learn(micros: Sequence[Micro]) -> bool:
    """Whether the rewards of these give a policy no gradient, whatever the model."""
    return bool(micros) and all(micro.without_targets or micro.without_advantage for micro in micros)


def micro_batches(batch: Any) -> list[Micro]:
    """Whatever a loop calls a batch, as a list of micro-batches."""
    if batch is None:
        return []
    if isinstance(batch, Tensor):
        return [Micro(batch if is_ids(batch) else None, None, None, batch)]
    if isinstance(batch, Mapping) or hasattr(batch, "keys"):
        entry = {name: _tensor(batch[name]) for name in batch}
        ids = _first(entry, ID_NAMES)
        ids = ids if is_ids(ids) else None  # neither measured numbers nor (row, choice, position)
        return [Micro(ids, _labels(entry), _first(entry, MASK_NAMES), batch)]
    if isinstance(getattr(batch, "arrays", None), Mapping):
        entry = {name: _tensor(array) for name, array in batch.arrays.items()}
        rows = tuple(getattr(batch, "rows", ()))
        return [Micro(_first(entry, ID_NAMES), _labels(entry), None, batch, rows)]
    if isinstance(batch, tuple | list) and batch:
        if all(_is_array(entry) for entry in batch):
            tensors = [_tensor(entry) for entry in batch]
            same = len(tensors) > 1 and all(is_ids(t) for t in tensors[:2]) and tensors[0].shape == tensors[1].shape
            if isinstance(batch, tuple) or same or not all(is_ids(t) for t in tensors):  # as DataLoader collates them
                ids = tensors[0] if is_ids(tensors[0]) else None
                labels = next((t for t in tensors[1:] if t.dtype != torch.bool), None)
                labels = None if labels is None or labels.is_floating_point() else labels
                return [Micro(ids, labels, None, batch)]
        return [micro for entry in batch for micro in micro_batches(entry)]
    return [Micro(None, None, None, batch)]


def call_for(model: nn.Module, micro: Micro, device: torch.device) -> Call:
    """The call that a plain loop would make on this batch."""
    given = micro.given
    if isinstance(given, Mapping) or hasattr(given, "keys"):
        tensors = {name: _tensor(given[name]) for name in given}
        tensors = {name: v.to(device) if isinstance(v, Tensor) else v for name, v in tensors.items()}
        return Call((), tensors)
    ids = micro.ids if micro.ids is not None else given[0] if isinstance(given, tuple | list) else given
    takes_labels = micro.labels is not None and "".join(parameters_of(model)[1:2]) in LABEL_NAMES
    args = (ids, micro.labels) if takes_labels else (ids,)
    return Call(tuple(a.to(device) if isinstance(a, Tensor) else a for a in args), {})


def _first(entry: dict[str, Any], names: tuple[str, ...]) -> Tensor | None:
    return next((entry[name] for name in names if isinstance(entry.get(name), Tensor) and entry[name].ndim >= 2), None)


def _labels(entry: dict[str, Any]) -> Tensor | None:
    """A label for each position, or a class for each row."""
    classes = (entry[name] for name in LABEL_NAMES if isinstance(entry.get(name), Tensor) and entry[name].ndim == 1)
    labels = _first(entry, LABEL_NAMES)
    return labels if labels is not None else next((t for t in classes if not t.is_floating_point()), None)


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor) or type(value).__module__ == "numpy"


def _tensor(value: Any) -> Any:
    if type(value).__module__ == "numpy" and hasattr(value, "dtype") and value.dtype.kind in "iuf":
        kept = value.astype("int64") if value.dtype.kind == "u" else value
        return torch.as_tensor(kept)
    return value
