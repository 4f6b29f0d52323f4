"""A recorded step done again by the mathematics, once as it was and once with something changed: what becomes of it."""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from limpid.maths.attention import CausalSoftmax
from limpid.maths.chain import Chain
from limpid.maths.operation import Array, Operation
from limpid.maths.rounding import FORMATS, rounded
from limpid.maths.schedule import learning_rate
from limpid.maths.step import update
from limpid.maths.update import Arrays, clip
from limpid.quantities import parameters
from limpid.tracing.names import AROUND, our_name
from limpid.tracing.record import Record
from limpid.tracing.stations import block, station
from limpid.view.answers import Refused
from limpid.view.differences import difference
from limpid.view.documents.compare import BeforeAfter, ChangedRow, WhatIfDocument
from limpid.view.folder import NotThere
from limpid.view.pairs import Pair
from limpid.view.slices import parsed
from limpid.view.steps import Steps

MOST_FLOPS = 3e10
"""Of the forward pass of a step that is done again while the page waits, twice: ten seconds on one core."""
MOST_CHANGES = 100
HELD, HELD_BYTES = 2, 1 << 30
"""Results that slices can still be asked of, where they take no more than this together; else the newest."""
Kind = Literal["forward", "backward", "update"]


@dataclass(frozen=True)
class Seen(CausalSoftmax):
    """The softmax of attention with single keys shown or hidden against its mask."""

    changes: tuple[tuple[int, int, bool], ...] = ()  # query, key, whether it is seen

    def visible(self, queries: int, keys: int) -> Array:
        seen = super().visible(queries, keys).copy()
        for query, key, see in self.changes:
            if query < queries and key < keys:
                seen[query, key] = see
        if not seen.any(-1).all():
            raise Refused("a query would see no key at all: leave it one")
        return seen


@dataclass
class ChangedChain(Chain):
    """A chain whose masks are changed, and which rounds every quantity and every gradient to a format."""

    seen: tuple[tuple[int, int, bool], ...] = ()
    format: Any = None

    def apply(self, name: str, operation: Operation, *inputs: str) -> str:
        if self.seen and isinstance(operation, CausalSoftmax):
            operation = Seen(operation.window, operation.causal, self.seen)
        super().apply(name, operation, *inputs)
        if self.format is not None and np.asarray(self.values[name]).dtype.kind == "f":
            self.values[name] = rounded(np.asarray(self.values[name]), self.format)
        return name

    def backward(self, output: str) -> dict[str, Array]:
        found = super().backward(output)
        return found if self.format is None else {name: rounded(one, self.format) for name, one in found.items()}


@dataclass(frozen=True)
class Done:
    """One step by the mathematics: every array by its name, grad(NAME) and update(NAME) among them."""

    arrays: Mapping[str, Array]
    loss: float
    grad_norm: float


@dataclass
class Changes:
    """What is to be another than it was recorded."""

    arrays: dict[str, Array]  # parameters and the batch
    rate: float
    seen: list[tuple[int, int, bool]] = field(default_factory=list)
    format: Any = None

    def take(self, record: Record, change: Any) -> None:
        """Add one change.

        Raises  Refused for what cannot be changed so
        """
        how = TAKE.get(str(change.get("kind"))) if isinstance(change, dict) else None
        if how is None:
            raise Refused(f"a change has one of the kinds {', '.join(TAKE)}")
        try:
            how(self, record, change)
        except (KeyError, TypeError, IndexError) as error:
            raise Refused(f"a change of the kind {change['kind']} lacks something, or lies outside: {error}") from error

    def _weight(self, record: Record, change: dict[str, Any]) -> None:
        asked = parsed(str(change["entry"]))
        name = our_name(asked.name, [one.name for one in record.trained])
        self._set(name, asked.of(self.arrays[name].shape)[0], _number(change["value"]))

    def _token(self, record: Record, change: dict[str, Any]) -> None:
        name, token = f"{change['kind']}s", change["token"]
        least = -100 if name == "targets" else 0
        if type(token) is not int or not least <= token < record.config.model.vocab_size:
            raise Refused(f"token is {str(token)[:40]}: the vocabulary has {record.config.model.vocab_size}")
        self._set(name, (_whole(change["row"]), _whole(change["position"])), token)

    def _rate(self, record: Record, change: dict[str, Any]) -> None:
        self.rate = _number(change["value"])
        if self.rate < 0:
            raise Refused(f"a learning rate of {self.rate:g} is negative")

    def _visible(self, record: Record, change: dict[str, Any]) -> None:
        self.seen.append((_whole(change["query"]), _whole(change["key"]), change["see"] is True))

    def _precision(self, record: Record, change: dict[str, Any]) -> None:
        self.format = None if change["format"] == "fp64" else FORMATS[change["format"]]

    def _set(self, name: str, index: tuple[int | slice, ...], value: float) -> None:
        array = self.arrays[name]
        if len(index) != array.ndim or any(isinstance(part, slice) for part in index):
            raise Refused(f"{name} has shape {list(array.shape)}: name one entry of it")
        self.arrays[name] = array.copy()
        self.arrays[name][index] = value


TAKE: dict[str, Callable[[Changes, Record, dict[str, Any]], None]] = {
    "weight": Changes._weight,
    "token": Changes._token,
    "target": Changes._token,
    "rate": Changes._rate,
    "visible": Changes._visible,
    "precision": Changes._precision,
}


@dataclass
class WhatIf:
    """What was asked last, with every array of both sides."""

    steps: Steps
    _held: dict[str, tuple[Done, Done]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, asked: dict[str, Any]) -> WhatIfDocument:
        """Do a step of small size again with changes.

        Raises  Refused for a step that is too large, and for changes that cannot be made
        """
        run, step, changes = asked.get("run"), asked.get("step"), asked.get("changes")
        if not isinstance(run, str) or type(step) is not int or not isinstance(changes, list) or not changes:
            raise Refused("a question of what if has run, step, and changes, of which there is one at least")
        if len(changes) > MOST_CHANGES:
            raise Refused(f"{len(changes)} changes: at most {MOST_CHANGES} are made at once")
        arrays = self.steps.arrays(run, step)
        record = arrays.trace.record
        flops = arrays.flops()
        if flops > MOST_FLOPS:
            raise Refused(f"the step takes {flops:.2g} FLOPs forward, and {MOST_FLOPS:.0g} are done again at most", 413)
        given = {one: record.exact(f"before/{one}") for one in _parameters(record)} | record.batch()
        config = record.config
        rate = learning_rate(int(record.meta["step"]), config.run.max_steps, config.update)
        other = Changes(dict(given), rate)
        for change in changes:
            other.take(record, change)
        with self._lock, np.errstate(all="ignore"):
            before, after = done(record, Changes(given, rate)), done(record, other)
            name = secrets.token_hex(8)
            self._held[name] = before, after
            while len(self._held) > (HELD if sum(map(_bytes, self._held.values())) <= HELD_BYTES else 1):
                del self._held[next(iter(self._held))]
        rows = tuple(
            _row(record, one, before.arrays[one], after.arrays[one]) for one in before.arrays if one in after.arrays
        )
        return WhatIfDocument(
            name, BeforeAfter(before.loss, after.loss), BeforeAfter(before.grad_norm, after.grad_norm), rows
        )

    def pair(self, result: str, name: str) -> Pair:
        """An array after what was changed, and before.

        Raises  NotThere, Refused
        """
        if result not in self._held:
            raise NotThere("this result is held no more: ask again")
        before, after = (done.arrays.get(name) for done in self._held[result])
        if before is None or after is None:
            raise Refused(f"the step has no {name[:80]!r}", 404)
        return Pair(name, np.asarray(after), np.asarray(before))


def _bytes(sides: tuple[Done, Done]) -> int:
    return sum(array.nbytes for side in sides for array in side.arrays.values())


def done(record: Record, changes: Changes) -> Done:
    """Forward, backward and update in float64, with what was changed."""
    config = record.config
    chain = ChangedChain(dict(changes.arrays), seen=tuple(changes.seen), format=changes.format)
    end = record.objective.chain(chain, config.model)
    gradients = chain.backward(end)
    trained = [one.name for one in record.trained]
    clipped, norm = clip({name: gradients[name] for name in trained}, config.update.max_grad_norm)
    moments: Arrays = {
        name.removeprefix("before/"): record.exact(name)
        for name in record.names
        if name.startswith("before/") and name.count("/") == 2
    }
    number = int(record.meta["update_number"])
    moved = chain.values
    if math.isfinite(norm):  # else nothing moves
        moved, _ = update(chain.values, clipped, moments, config, changes.rate, number)
    arrays = {link.name: np.asarray(chain.values[link.name]) for link in chain.links}
    arrays |= {f"grad({name})": np.asarray(one) for name, one in reversed(gradients.items())}
    arrays |= {f"update({name})": np.asarray(moved[name]) for name in trained}
    return Done(arrays, float(chain.values[end]), float(norm))


def _row(record: Record, name: str, before: Array, after: Array) -> ChangedRow:
    found = difference(after, before)
    around = AROUND.fullmatch(name)
    kind: Kind = "forward" if around is None else "backward" if around[1] == "grad" else "update"
    about = name if around is None else around[2]
    return ChangedRow(
        name, station(about), block(about), kind, tuple(before.shape), record.axes(about),
        found.relative, found.largest, found.index, found.b, found.a, found.not_finite,
    )  # fmt: skip


def _parameters(record: Record) -> Iterator[str]:
    return (one.name for one in parameters(record.config.model))


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise Refused(f"{str(value)[:40]} is no finite number")
    return float(value)


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise Refused(f"{str(value)[:40]} is no place: they start at 0")
    return int(value)
