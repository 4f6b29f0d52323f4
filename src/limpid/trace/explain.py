"""Any entry of a step explained: how it was made, what it led to, how its gradient came back, how it was updated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from limpid.errors import ConfigError
from limpid.maths.chain import Chain, Link
from limpid.maths.linear import Linear
from limpid.maths.operation import Array
from limpid.maths.rounding import rounded, unit_roundoff
from limpid.maths.update import Arrays, UpdateInput, clip_scale, rule
from limpid.quantities import parameters
from limpid.trace.entries import GRADIENT, Entry, Reader, derive_entry, derive_gradient
from limpid.trace.entries.entry import Index, Key
from limpid.trace.local import outline
from limpid.trace.names import our_name
from limpid.trace.record import Record
from limpid.trace.worked import Worked, derivation

PATH = 200
"""No walk through a step is longer: it follows one entry per operation."""


class Step(Protocol):
    """What can be explained: operations in order, the arrays that they made, and gradients."""

    @property
    def links(self) -> Sequence[Link]: ...

    def names(self) -> list[str]: ...
    def value(self, name: str) -> Array: ...
    def gradient(self, name: str) -> Array | None: ...
    def gradient_scale(self, name: str) -> float: ...
    def learned(self, name: str) -> bool: ...
    def taken(self, link: Link, part: Array) -> Array: ...
    def unit(self, name: str) -> float: ...
    def word(self, token: int) -> str: ...
    def update(self, name: str, index: Index) -> tuple[str, ...]: ...


class Recorded:
    """A recorded step: the engine's numbers."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.links = outline(record)
        self._mapped = lru_cache(maxsize=None)(record.mapped)

    def _place(self, name: str) -> str | None:
        places = (f"{place}/{name}" for place in ("plain", "before", "batch"))
        return next((place for place in places if place in self.record.names), None)

    def names(self) -> list[str]:
        plain = [
            name.split("/", 1)[1] for name in self.record.names if name.startswith(("plain/", "before/", "batch/"))
        ]
        return [name for name in plain if not name.startswith(("grad(", "m/", "v/"))]

    def value(self, name: str) -> Array:
        place = self._place(name)
        if place is None:
            raise ConfigError(f"the step has no quantity {name!r}")
        return self._mapped(place)

    def learned(self, name: str) -> bool:
        return f"before/{name}" in self.record.names

    def gradient(self, name: str) -> Array | None:
        where = f"plain/grad({name})"
        return self._mapped(where) if where in self.record.names else None

    def gradient_scale(self, name: str) -> float:
        """Gradients of quantities are recorded as the loss scale made them, those of parameters without it."""
        return 1.0 if self.learned(name) else 1 / self.record.loss_scale

    def taken(self, link: Link, part: Array) -> Array:
        """What an operation makes of a part of its input: matrix products round it to the compute format."""
        return rounded(part, self.record.compute_format) if isinstance(link.operation, Linear) else part

    def unit(self, name: str) -> float:
        place = self._place(name)
        return unit_roundoff(self.record.format(place)) if place else 0.0

    def word(self, token: int) -> str:
        return str(self.record.meta["token_texts"].get(str(token), "?"))

    def update(self, name: str, index: Index) -> tuple[str, ...]:
        """The gradient that training used, clipped, through the update rule."""
        record = self.record
        parameter = next(one for one in parameters(record.config.model) if one.name == name)
        how = rule(record.config.update, parameter)
        if not record.meta["updated"]:
            kept = float(self._mapped(f"after/{name}")[index])
            return ("a gradient of this step is not finite, so that nothing moved", f"the engine has {kept:.8g}")
        gradient = self._mapped(f"fast/grad({name})")
        g = float(gradient[index])
        limit, norm = record.config.update.max_grad_norm, float(record.exact("fast/grad_norm"))
        scale = clip_scale(norm, limit)
        why = f"the global norm {norm:.6g} exceeds {limit:g}" if scale < 1 else f"not clipped, the norm is {norm:.6g}"
        clipped = f"g = {g:.8g} · {scale:.8g} = {g * scale:.8g}   {why}"
        before = self._mapped(f"before/{name}")
        moments = {kind: self._mapped(f"before/{kind}/{name}") for kind in how.moments}
        given = UpdateInput(
            before, scale * gradient.astype(np.float64), moments, record.meta["learning_rate"],
            record.meta["update_number"], parameter.decayed,
        )  # fmt: skip
        lines = how.derivation(given, index)
        after = float(self._mapped(f"after/{name}")[index])
        return clipped, *lines, f"the engine has {after:.8g}"


class Computed:
    """The worked model's step: the mathematics alone."""

    def __init__(self, step: Worked, words: Sequence[str]) -> None:
        self.step, self.words = step, words
        self.chain: Chain = step.chain
        self.links: Sequence[Link] = self.chain.links
        self.gradients: Arrays = step.gradients

    def names(self) -> list[str]:
        return list(self.chain.values)

    def value(self, name: str) -> Array:
        return self.chain.values[name]

    def learned(self, name: str) -> bool:
        return name in self.step.before

    def gradient(self, name: str) -> Array | None:
        return self.gradients.get(name)

    def gradient_scale(self, name: str) -> float:
        return 1.0

    def taken(self, link: Link, part: Array) -> Array:
        return part

    def unit(self, name: str) -> float:
        return unit_roundoff(np.float64)

    def word(self, token: int) -> str:
        return self.words[token]

    def update(self, name: str, index: Index) -> tuple[str, ...]:
        return f"g = {float(self.gradients[name][index]):.8g}, not clipped", *derivation(self.step, name, index)


@dataclass(frozen=True)
class Place:
    """An entry by its address, and its number."""

    name: str
    index: Index
    value: float
    note: str = ""

    @property
    def address(self) -> str:
        return f"{self.name}[{', '.join(map(str, self.index))}]" if self.index else self.name


@dataclass(frozen=True)
class Passed:
    """What one operation passed back to an entry."""

    link: Link
    derivation: Entry


@dataclass(frozen=True)
class Explained:
    """Everything there is to say about one entry."""

    at: Place
    made: tuple[Link, Entry] | None  # None where it was given: a parameter, the batch
    off: float | None  # engine - derived, in roundings of the format in which the engine keeps it
    came_from: list[Place]
    went_to: list[str]
    gradient: float | None
    passed: list[Passed] = field(default_factory=list)
    to_tokens: list[Place] = field(default_factory=list)  # the strongest way back, entry by entry
    to_loss: list[Place] = field(default_factory=list)  # the strongest way on: gradients, from here to the loss
    update: tuple[str, ...] = ()


def explain(step: Step, asked: str) -> Explained:
    """Explain NAME[i, j, …]; without an index, the entry of the largest magnitude.

    Raises  ConfigError for an unknown name, or an index that lies outside
    """
    name, index = address(step, asked)
    values = step.value(name)
    link = _maker(step, name)
    derivation = None if link is None else derive_entry(link.operation, index, _reader(step, link))
    value = float(values[index])
    bars = step.gradient(name)
    return Explained(
        at=Place(name, index, value, _note(step, name, value)),
        made=None if link is None or derivation is None else (link, derivation),
        off=None if derivation is None else _roundings(value, derivation.value, step.unit(name)),
        came_from=[] if link is None or derivation is None else _places(step, link, derivation),
        went_to=[other.name for other in step.links if name in other.inputs],
        gradient=None if bars is None else float(bars[index]) * step.gradient_scale(name),
        passed=[] if bars is None else _passed(step, name, index),
        to_tokens=_to_tokens(step, name, index),
        to_loss=[] if bars is None else _to_loss(step, name, index),
        update=step.update(name, index) if step.learned(name) else (),
    )


def address(step: Step, asked: str) -> tuple[str, Index]:
    """The name and the entry that were asked for; gradients, moments and updates are told with their parameter."""
    found = re.fullmatch(r"(.*?)\s*(?:\[([^\]]*)\])?", asked.strip())
    name, inside = (found.group(1), found.group(2)) if found else (asked, None)
    name = our_name(name, step.names())
    name = re.sub(r"^(?:grad|m|v|update)\((.+)\)$", r"\1", name)
    shape = step.value(name).shape
    if inside is None or not inside.strip():
        largest = np.nan_to_num(np.abs(np.asarray(step.value(name)).astype(np.float64)), nan=np.inf)
        return name, tuple(int(i) for i in np.unravel_index(int(np.argmax(largest)), shape))
    try:
        index = tuple(int(part) for part in inside.split(","))
    except ValueError as error:
        raise ConfigError(f"[{inside}] is no index: write integers with commas between, as in {name}[0, 1]") from error
    fits = len(index) == len(shape) and all(-size <= i < size for i, size in zip(index, shape, strict=True))
    if not fits:
        raise ConfigError(f"{name} has shape {shape}: [{inside}] lies outside; give {len(shape)} indices from 0")
    return name, tuple(i % size for i, size in zip(index, shape, strict=True))


def _maker(step: Step, name: str) -> Link | None:
    return next((link for link in step.links if link.name == name), None)


def _reader(step: Step, link: Link) -> Reader:
    """The arrays around one operation; an input that was left out has no shape."""

    def array(place: int) -> Array:
        if place == GRADIENT:
            bar = step.gradient(link.name)
            return np.zeros(step.value(link.name).shape) if bar is None else bar
        return step.value(link.inputs[place]) if place < len(link.inputs) else np.empty(())

    def read(place: int, key: Key) -> Array:
        part = np.asarray(array(place)[key]).astype(np.float64)
        return part * step.gradient_scale(link.name) if place == GRADIENT else step.taken(link, part)

    return Reader(read, lambda place: array(place).shape)


def _roundings(engine: float, derived: float, unit: float) -> float:
    if engine == derived or (np.isnan(engine) and np.isnan(derived)):
        return 0.0
    return (engine - derived) / (unit * abs(derived)) if derived else float("inf")


def _places(step: Step, link: Link, derivation: Entry) -> list[Place]:
    """The entries that it was made of, each once."""
    seen: dict[tuple[str, Index], Place] = {}
    for source in derivation.sources:
        name = link.inputs[source.place]
        if (name, source.index) not in seen:
            value = float(step.value(name)[source.index])
            seen[name, source.index] = Place(name, source.index, value, _note(step, name, value))
    if link.inputs and link.inputs[0] == "tokens":
        seen.update(_token(step, link, derivation))
    return list(seen.values())


def _token(step: Step, link: Link, derivation: Entry) -> dict[tuple[str, Index], Place]:
    row = derivation.sources[0].index[0]
    tokens = step.value("tokens")
    index = tuple(int(i) for i in np.argwhere(tokens == row)[0])
    return {("tokens", index): Place("tokens", index, float(row), repr(step.word(row)))}


def _note(step: Step, name: str, value: float) -> str:
    return repr(step.word(int(value))) if name in ("tokens", "targets") and value >= 0 else ""


def _passed(step: Step, name: str, index: Index) -> list[Passed]:
    """What every operation that used the entry passed back to it."""
    found = []
    for link in step.links:
        if step.gradient(link.name) is None:
            continue
        for place, used in enumerate(link.inputs):
            if used == name:
                found.append(Passed(link, derive_gradient(link.operation, place, index, _reader(step, link))))
    return found


def _to_tokens(step: Step, name: str, index: Index) -> list[Place]:
    """From entry to entry, each the largest contribution to the one before, until something that was given."""
    path: list[Place] = []
    link = _maker(step, name)
    while link is not None and len(path) < PATH:
        derivation = derive_entry(link.operation, index, _reader(step, link))
        choices = [source for source in derivation.sources if not step.learned(link.inputs[source.place])]
        choices = choices or list(derivation.sources)
        if not choices:
            break
        name, index = link.inputs[choices[0].place], choices[0].index
        value = float(step.value(name)[index])
        path.append(Place(name, index, value, _row_note(step, link, index)))
        link = _maker(step, name)
    return path


def _row_note(step: Step, link: Link, index: Index) -> str:
    """The token whose vector this is."""
    return f"the vector of {step.word(index[0])!r}" if link.inputs[0] == "tokens" else ""


def _to_loss(step: Step, name: str, index: Index) -> list[Place]:
    """Gradients from entry to entry, each the largest contribution to the one before, until the loss."""
    path: list[Place] = []
    while len(path) < PATH:
        passed = [found for found in _passed(step, name, index) if found.derivation.sources]
        if not passed:
            break
        strongest = max(passed, key=lambda found: np.nan_to_num(abs(found.derivation.sources[0].share), nan=np.inf))
        name, index = strongest.link.name, strongest.derivation.sources[0].index
        bars = step.gradient(name)
        value = float("nan") if bars is None else float(bars[index]) * step.gradient_scale(name)
        path.append(Place(f"grad({name})", index, value))
    return path


def in_json(found: Explained) -> dict[str, Any]:
    """The same as a document."""

    def place(one: Place) -> dict[str, Any]:
        return {"address": one.address, "value": one.value, **({"note": one.note} if one.note else {})}

    def derivation(link: Link, one: Entry) -> dict[str, Any]:
        return {
            "operation": type(link.operation).__name__,
            "quantity": link.name,
            "symbols": one.symbols,
            "numbers": one.numbers,
            "value": one.value,
        }

    return {
        **place(found.at),
        "made": None if found.made is None else derivation(*found.made),
        "roundings_off": found.off,
        "came_from": [place(one) for one in found.came_from],
        "went_to": found.went_to,
        "gradient": found.gradient,
        "passed": [derivation(one.link, one.derivation) for one in found.passed],
        "to_tokens": [place(one) for one in found.to_tokens],
        "to_loss": [place(one) for one in found.to_loss],
        "update": list(found.update),
    }
