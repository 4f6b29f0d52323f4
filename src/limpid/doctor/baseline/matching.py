"""Which tensor of one step is which of another, where modules have been renamed, wrapped or put together otherwise."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from limpid.doctor.baseline.step_sketch import Kind, Moment, Place, StepSketch

BY_PASS = (Kind.GIVEN, Kind.OUTPUT, Kind.SCORED, Kind.TARGET, Kind.LOSS)


class Pair(NamedTuple):
    """One tensor, then and now."""

    then: Moment
    now: Moment


class Matched(NamedTuple):
    """Pairs in the order of the later step, and what has no other."""

    pairs: list[Pair]
    gone: list[Moment]
    new: list[Moment]


def matched(then: StepSketch, now: StepSketch) -> Matched:
    """Weights, the batch, the forward passes, losses, gradients and updates of two steps."""
    pairs: list[Pair] = []
    parameters = _by_name(then.of(Kind.WEIGHT), now.of(Kind.WEIGHT))
    names = {pair.now.place.name: pair.then.place.name for pair in parameters}
    pairs += parameters + _by_name(then.of(Kind.BUFFER), now.of(Kind.BUFFER)) + list(_batch(then, now))
    forward: list[Pair] = []
    for before, after in _passes(then, now):
        forward += _in_order(_of_pass(then, before), _of_pass(now, after))
    pairs += forward
    back = {moment.place: moment for moment in then.of(Kind.BACK)}
    outputs = {pair.now.place: pair.then.place for pair in forward if pair.now.place.kind == Kind.OUTPUT}
    for moment in now.of(Kind.BACK):
        known = outputs.get(moment.place._replace(kind=Kind.OUTPUT))
        if known is not None and known._replace(kind=Kind.BACK) in back:
            pairs.append(Pair(back[known._replace(kind=Kind.BACK)], moment))
    for kind in (Kind.GRADIENT, Kind.UPDATE):
        by_name = {moment.place.name: moment for moment in then.of(kind)}
        for moment in now.of(kind):
            held = by_name.get(names.get(moment.place.name, ""))
            if held is not None:
                pairs.append(Pair(held, moment))
    had, have = {id(pair.then) for pair in pairs}, {id(pair.now) for pair in pairs}
    return Matched(pairs, [m for m in then.moments if id(m) not in had], [m for m in now.moments if id(m) not in have])


def _by_name(then: Sequence[Moment], now: Sequence[Moment]) -> list[Pair]:
    """By name; what is left in order by shape where that fits all of it, else by what it holds."""
    known = {moment.place.name: moment for moment in then}
    same = {m.place.name: Pair(known[m.place.name], m) for m in now if m.place.name in known}
    gone = [m for m in then if m.place.name not in same]
    new = [m for m in now if m.place.name not in same]
    left = _aligned(gone, new, _shape)
    if not len(left) == len(gone) == len(new):
        left = _aligned(gone, new, _content)
    by_now = {id(pair.now): pair for pair in (*same.values(), *left)}
    return [by_now[id(moment)] for moment in now if id(moment) in by_now]


def _batch(then: StepSketch, now: StepSketch) -> Iterator[Pair]:
    known = {moment.place.tensor: moment for moment in then.of(Kind.BATCH)}
    for moment in now.of(Kind.BATCH):
        if moment.place.tensor in known:
            yield Pair(known[moment.place.tensor], moment)


def _of_pass(step: StepSketch, number: int) -> list[Moment]:
    return [m for m in step.of(*BY_PASS) if m.place.forward == number]


def _passes(then: StepSketch, now: StepSketch) -> list[tuple[int, int]]:
    """Forward passes with the same inputs, in whatever order they come; else in theirs."""
    first, second = (_inputs(step) for step in (then, now))
    if sorted(first.values()) == sorted(second.values()):
        left = list(first)
        found = []
        for number, key in second.items():
            match = next(one for one in left if first[one] == key)
            left.remove(match)
            found.append((match, number))
        return found
    return list(zip(first, second, strict=False))


def _inputs(step: StepSketch) -> dict[int, tuple[str, ...]]:
    """What tells the inputs of each pass from others'."""
    found: dict[int, list[str]] = {}
    for moment in step.of(Kind.GIVEN):
        if moment.is_of_batch and moment.sketch is not None:
            key = f"{moment.sketch.shape} {' '.join(f'{x:.5g}' for x in moment.sketch.sums)}"
            found.setdefault(moment.place.forward, []).append(key)
    return {number: tuple(sorted(keys)) for number, keys in found.items()}


def _in_order(then: list[Moment], now: list[Moment]) -> list[Pair]:
    """By names where they agree; what lies in between by kind and shape."""
    by_name = SequenceMatcher(None, [_named(m.place) for m in then], [_named(m.place) for m in now], False)
    pairs: list[Pair] = []
    for tag, i, j, k, l in by_name.get_opcodes():
        if tag == "equal":
            pairs += [Pair(a, b) for a, b in zip(then[i:j], now[k:l], strict=True)]
        elif tag == "replace":
            pairs += _aligned(then[i:j], now[k:l], lambda m: (m.place.kind, m.place.name == "", _shape(m)))
    return pairs


def _aligned(then: Sequence[Moment], now: Sequence[Moment], key: object) -> list[Pair]:
    assert callable(key)
    a, b = [key(m) for m in then], [key(m) for m in now]
    return [
        Pair(then[i + n], now[k + n])
        for i, k, size in SequenceMatcher(None, a, b, False).get_matching_blocks()
        for n in range(size)
    ]


def _named(place: Place) -> Hashable:
    return place.kind, place.name, place.call, place.tensor


def _content(moment: Moment) -> Hashable:
    kept = moment.sketch
    return () if kept is None else (kept.shape, f"{kept.norm:.5g} {kept.total:.5g}")


def _shape(moment: Moment) -> Hashable:
    return () if moment.sketch is None else moment.sketch.shape
