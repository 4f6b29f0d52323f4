"""How the user's loop calls the model: arguments, token ids among them, what comes back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Array = np.ndarray
IGNORED = -100
ID_NAMES = ("input_ids", "tokens", "idx", "ids", "x", "inputs", "input")
LABEL_NAMES = ("labels", "targets", "target", "y", "label")
MASK_NAMES = ("attention_mask", "mask", "padding_mask")
OLD_LOG_PROBABILITIES = (
    "old_log_probabilities", "old_log_probs", "old_logprobs", "old_logps", "old_per_token_logps",
    "sampling_per_token_logps",
)  # fmt: skip
ANSWER_MASKS = ("completion_mask", "response_mask", "action_mask", "loss_mask", "assistant_masks")


def is_ids(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 2 and not value.is_floating_point() and value.dtype != torch.bool


@dataclass
class Call:
    """One call of the model, ready to be made again with other token ids."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: tuple[str, ...] = ()
    """What `forward` calls its positional arguments, where that is known."""

    @classmethod
    def to(cls, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """A call that the loop makes of the model."""
        return cls(args, kwargs, _parameters(model)[: len(args)])

    @property
    def ids(self) -> Tensor | None:
        """The token ids (batch, position), if there are any."""
        for name in ID_NAMES:
            if is_ids(self.kwargs.get(name)):
                return self.kwargs[name]
        return next((value for value in [*self.args, *self.kwargs.values()] if is_ids(value)), None)

    @property
    def all_ids(self) -> list[Tensor]:
        """All tensors that may be token ids and are not called labels."""
        named = [value for name, value in self.kwargs.items() if name not in LABEL_NAMES]
        return [value for value in [*self.args, *named] if is_ids(value)]

    @property
    def mask(self) -> Tensor | None:
        given = {**dict(zip(self.names, self.args, strict=False)), **self.kwargs}
        return next((given[name] for name in MASK_NAMES if isinstance(given.get(name), Tensor)), None)

    @property
    def positions(self) -> Tensor | None:
        positions = self.kwargs.get("position_ids")
        return positions if is_ids(positions) else None

    @property
    def labels(self) -> Tensor | None:
        """Labels that the model is given beside its inputs."""
        named = next((self.kwargs[name] for name in LABEL_NAMES if is_ids(self.kwargs.get(name))), None)
        if named is not None or self.names:
            positional = dict(zip(self.names, self.args, strict=False))
            return (
                named
                if named is not None
                else next((positional[name] for name in LABEL_NAMES if is_ids(positional.get(name))), None)
            )
        others = [value for value in self.args if is_ids(value)]
        return others[1] if len(others) > 1 else None

    @property
    def named_labels(self) -> Tensor | None:
        """Labels that the model is given by the name of transformers: it shifts them itself."""
        return self.kwargs["labels"] if is_ids(self.kwargs.get("labels")) else None

    def detached(self) -> Call:
        """The same call holding no graph."""
        return replace(
            self, args=tuple(map(_detached, self.args)), kwargs={k: _detached(v) for k, v in self.kwargs.items()}
        )

    def rows(self, chosen: slice | Tensor, positions: int | None = None, start: int = 0) -> Call:
        """The call for some rows only, and for so many positions of them: what has a batch axis is cut along it."""
        ids = self.ids
        if ids is None:
            return self
        batch, length = ids.shape

        def cut(value: Any) -> Any:
            if isinstance(value, Tensor) and value.ndim and value.shape[0] == batch:
                value = value[chosen]
                if positions is not None:
                    for axis in range(1, value.ndim):
                        if value.shape[axis] == length:
                            value = value.narrow(axis, start, min(positions, length - start))
            return value

        return replace(self, args=tuple(map(cut, self.args)), kwargs={k: cut(v) for k, v in self.kwargs.items()})

    def with_values(self, change: Callable[[Tensor], Tensor]) -> Call:
        """The same call on other numbers of a sequence or picture each, (row, …, …)."""

        def changed(value: Any) -> Any:
            return (
                change(value) if isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 2 else value
            )

        return replace(
            self, args=tuple(map(changed, self.args)), kwargs={k: changed(v) for k, v in self.kwargs.items()}
        )

    def with_ids(self, ids: Tensor, instead: Tensor | None = None) -> Call:
        """The same call on other token ids, in the place of these."""
        old = self.ids if instead is None else instead

        def swap(value: Any) -> Any:
            return ids if value is old else value

        return replace(self, args=tuple(map(swap, self.args)), kwargs={k: swap(v) for k, v in self.kwargs.items()})

    def without_loss(self) -> Call:
        """The call without labels by name, where the model takes them as an option."""
        return replace(self, kwargs={k: v for k, v in self.kwargs.items() if k != "labels"})

    def make(self, model: nn.Module) -> Any:
        """Call the model once more; functions that would be told of it, as of a pass of their own, are left out."""
        optional = {one.name for one in _signature(model) if one.default is None}
        told = {name for name, value in self.kwargs.items() if inspect.isroutine(value) and name in optional}
        return model(*self.args, **{name: value for name, value in self.kwargs.items() if name not in told})


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
    def measured(self) -> Tensor | None:
        """Its first tensor where that has rows of four measured numbers or more, (row, …): few of them are alike."""
        given = self.given
        held = given if isinstance(given, Tensor) else given[0] if isinstance(given, tuple | list) and given else None
        if isinstance(given, Mapping):
            held = next(
                (given[name] for name in (*ID_NAMES, "pixel_values", "images", "features") if name in given), None
            )
        held = _tensor(held)
        if not isinstance(held, Tensor) or not held.is_floating_point() or held.ndim < 2 or len(held) < 2:
            return None
        few = held.detach().reshape(len(held), -1)[:8, :64]
        return held if few.shape[1] >= 4 and len(few.unique()) > few.numel() // 2 else None

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
        arrays = getattr(self.given, "arrays", self.given)
        held = _tensor(arrays[name]) if isinstance(arrays, Mapping) and name in arrays else None
        return held if isinstance(held, Tensor) else None


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
        return [Micro(_first(entry, ID_NAMES), _labels(entry), _first(entry, MASK_NAMES), batch)]
    if isinstance(getattr(batch, "arrays", None), Mapping):
        entry = {name: _tensor(array) for name, array in batch.arrays.items()}
        rows = tuple(getattr(batch, "rows", ()))
        return [Micro(_first(entry, ID_NAMES), _labels(entry), None, batch, rows)]
    if isinstance(batch, tuple | list) and batch:
        if all(_is_array(entry) for entry in batch):
            tensors = [_tensor(entry) for entry in batch]
            same = len(tensors) > 1 and all(is_ids(t) for t in tensors[:2]) and tensors[0].shape == tensors[1].shape
            if isinstance(batch, tuple) or same or not is_ids(tensors[0]):
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
    takes_labels = micro.labels is not None and "".join(_parameters(model)[1:2]) in LABEL_NAMES
    args = (ids, micro.labels) if takes_labels else (ids,)
    return Call(tuple(a.to(device) if isinstance(a, Tensor) else a for a in args), {})


def find_logits(output: Any) -> Tensor | None:
    """The logits (…, vocabulary) in what a model returned; one number, such as a score or a value, is none."""
    if isinstance(output, Tensor):
        return output if _is_logits(output) else None
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(named, Tensor):
        return named if named.shape[-1:] != (1,) else None
    entries = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    return next((entry for entry in entries if isinstance(entry, Tensor) and _is_logits(entry)), None)


def find_rows(output: Any) -> Tensor | None:
    """The first numbers in what a model returned, logits before others."""
    logits = find_logits(output)
    if logits is not None or isinstance(output, Tensor):
        return output if logits is None else logits
    entries = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    return next((one for one in entries if isinstance(one, Tensor) and one.is_floating_point() and one.ndim), None)


def _is_logits(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.ndim >= 2 and tensor.shape[-1] > 1


def find_loss(output: Any) -> Tensor | None:
    """The loss in what a model returned."""
    named = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(named, Tensor) and named.numel() == 1:
        return named
    entries = output if isinstance(output, tuple | list) else ()
    return next((e for e in entries if isinstance(e, Tensor) and e.is_floating_point() and e.numel() == 1), None)


def takes_mask(model: nn.Module) -> bool:
    """Whether the model can be told which positions are padding."""
    return any("mask" in one.name for one in _signature(model))


def _signature(model: nn.Module) -> tuple[inspect.Parameter, ...]:
    """What `forward` takes; nothing where it does not say."""
    try:
        return tuple(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        return ()


def _parameters(model: nn.Module) -> tuple[str, ...]:
    """Names of what `forward` takes by position; none where it does not say."""
    parameters = _signature(model)
    return tuple(one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD))


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


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value
