"""States that recurrent layers are given, and whether rows of tokens go on where those of the batch before ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limpid.doctor.calls import find_rows
from limpid.doctor.description.words import number, share

if TYPE_CHECKING:
    from limpid.doctor.calls import Call
    from limpid.doctor.step_record import StepRecord

ALL = 0.95
"""Share of the rows that go on from which on it is told of a loop without states."""
ROOM = 2**20
"""Entries of what a model returns that are kept until its next pass."""
FEWEST = 16
"""Rows below which nothing is told of them."""


@dataclass
class States:
    """Of passes with gradients, on steps that are looked at."""

    kinds: dict[str, Counter[str]] = field(default_factory=dict)  # what each layer was given, by name
    of_calls: dict[str, Counter[str]] = field(default_factory=dict)  # what the model was given of what it had returned
    rows: int = 0  # whose beginning was held against the row at their place in the batch before
    go_on: int = 0  # those that begin with the token, or the label, that this one ended with
    _last: dict[str, Tensor] = field(default_factory=dict)  # the state that came out last
    _made: list[Tensor] = field(default_factory=list)  # what the model returned beside its outputs
    _ends: list[Tensor] = field(default_factory=list)  # ids, and labels, of the batch before

    def passed(self, name: str, given: Any, made: Any, looks: bool) -> None:
        """A recurrent layer has been called."""
        begins, left = _state(given), _state(made)
        if looks:
            self.kinds.setdefault(name, Counter())[_kind(begins, self._last.get(name))] += 1
        if left is not None:
            self._last[name] = left.detach()

    def called(self, call: Call, looks: bool) -> None:
        """The model is called, with what it may have returned in the pass before."""
        rows = 0 if call.ids is None else len(call.ids)
        for name, begins in _several(call.names, call.args, call.kwargs) if looks and self._made else ():
            before = [one for one in self._made if one.shape == begins.shape and one.device == begins.device]
            if before:
                axis = 0 if len(begins) == rows else max(0, begins.ndim - 2)
                kinds = {_kind(begins, one, axis) for one in before}
                best = next(kind for kind in ("none", "last", "mixed", "other") if kind in kinds)
                self.of_calls.setdefault(name, Counter())[best] += 1

    def gave(self, output: Any) -> None:
        """What a pass with gradients returned; what it says of rows is no state."""
        self._made = []
        if hasattr(output, "some_logits") or not isinstance(output, tuple | list | Mapping):  # forms them when asked
            return
        entries = output if isinstance(output, Mapping) else {str(i): one for i, one in enumerate(output)}
        said = find_rows(output)
        found = [one for _, one in _several((), (), dict(entries)) if one is not said and one.numel() <= ROOM]
        self._made = [one.detach() for one in found]

    def take(self, record: StepRecord) -> None:
        """Add a step: its rows are looked at beside those of the one before."""
        before, self._ends = self._ends, []
        one = record.micros[0] if len(record.micros) == 1 else None
        if one is None or one.ids is None or one.ids.ndim != 2 or not one.ids.numel():
            return
        alike = one.labels is not None and one.labels.shape == one.ids.shape
        self._ends = [one.ids, one.labels] if alike and one.labels is not None else [one.ids]
        if not (record.sampled and before and len(before[0]) == len(one.ids)):
            return
        held = record.on_hosts([one.ids[:, 0], *(ends[:, -1] for ends in before)])
        if held:
            first, *ends = held
            self.rows += len(first)
            self.go_on += int(torch.stack([first == end for end in ends]).any(0).sum())

    def told(self) -> Iterator[str]:
        """In sentences, where a state was handed on."""
        handed = False
        handed_back = {
            f"the model, as {name},": kinds for name, kinds in self.of_calls.items() if kinds["last"] or kinds["mixed"]
        }
        for name, kinds in (self.kinds | handed_back).items():
            if set(kinds) == {"none"}:
                continue
            handed = True
            said = ", ".join(f"{WORDS[kind]} in {number(count)}" for kind, count in kinds.most_common())
            yield f"{name} is given a state; of {number(kinds.total())} passes looked at: {said}"
        if self.rows >= FEWEST and (handed or self.go_on >= ALL * self.rows):
            yield (
                f"a row begins with the token that ended the row at its place in the batch before in "
                f"{share(self.go_on / self.rows)} of {number(self.rows)} rows (texts that are read on, in pieces that "
                "overlap by one token, have it in all)"
            )


WORDS = {
    "none": "none, or zeros",
    "last": "the one that came out of the pass before, row for row",
    "mixed": "that one with its rows in another order",
    "other": "another one",
}


def _state(given: Any) -> Tensor | None:
    """The hidden state, of an LSTM the first of both."""
    first = given[0] if isinstance(given, tuple | list) and given else given
    return first if isinstance(first, Tensor) else None


def _several(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Tensors of measured numbers among arguments, one by one or several in a tuple or a list."""
    named = dict(zip(names or map(str, range(len(args))), args, strict=False)) | dict(kwargs)
    for name, one in named.items():
        for part in one if isinstance(one, tuple | list) else (one,):
            if isinstance(part, Tensor) and part.is_floating_point() and part.ndim > 1:
                yield name, part


def _kind(begins: Tensor | None, last: Tensor | None, axis: int = -2) -> str:
    """What a state is that a layer begins with, held against the one that came out last: rows along this axis."""
    if begins is None or not bool(begins.detach().any()):
        return "none"
    if last is None or last.shape != begins.shape or last.device != begins.device:
        return "other"
    if torch.equal(begins.detach(), last):
        return "last"
    rows = [one.detach().movedim(axis, 0).flatten(1) for one in (begins, last)]
    same = all(bool((rows[1] == row).all(1).any()) for row in rows[0])
    return "mixed" if same else "other"
