"""Which tensor of one step is which of another, where modules have been renamed, wrapped or put together otherwise."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
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
    parameters = _by_name(_in_use(then), _in_use(now))
    names = {pair.now.place.name: pair.then.place.name for pair in parameters}
    pairs += parameters + _by_name(then.of(Kind.BUFFER), now.of(Kind.BUFFER))
    pairs += _inputs_of(then.of(Kind.BATCH), now.of(Kind.BATCH), by_form=False)  # as the loop reports it, in any form
    forward: list[Pair] = []
    for before, after in _passes(then, now):
        forward += _inputs_of(_given(then, before), _given(now, after))
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
    """By name; what is left by what it holds, else in order of use where the shapes of all fit."""
    known = {moment.place.name: moment for moment in then}
    same = {m.place.name: Pair(known[m.place.name], m) for m in now if m.place.name in known}
    gone = [m for m in then if m.place.name not in same]
    new = [m for m in now if m.place.name not in same]
    left = _paired(gone, new, _content)
    if len(left) < max(len(gone), len(new)):
        by_shape = _aligned(gone, new, _shape)
        left = by_shape if len(by_shape) == len(gone) == len(new) else left
    by_now = {id(pair.now): pair for pair in (*same.values(), *left)}
    return [by_now[id(moment)] for moment in now if id(moment) in by_now]


def _in_use(step: StepSketch) -> list[Moment]:
    """Weights in the order in which the first pass uses their modules, whatever order they were made in."""
    used: dict[str, int] = {}
    for moment in step.of(Kind.GIVEN, Kind.OUTPUT, Kind.BACK):
        if moment.place.kind == Kind.OUTPUT and moment.place.forward == 0:
            used.setdefault(moment.place.name, len(used))
    last = len(used)
    return sorted(step.of(Kind.WEIGHT), key=lambda m: used.get(m.place.name.rpartition(".")[0], last))


def _inputs_of(then: Sequence[Moment], now: Sequence[Moment], by_form: bool = True) -> list[Pair]:
    """By name; what is left by what it holds, whatever it is called, else by its form."""
    pairs: list[Pair] = []
    for key in (_called, _content, *([_form] if by_form else [])):
        had, have = {id(pair.then) for pair in pairs}, {id(pair.now) for pair in pairs}
        pairs += _paired([m for m in then if id(m) not in had], [m for m in now if id(m) not in have], key)
    by_now = {id(pair.now): pair for pair in pairs}
    return [by_now[id(m)] for m in now if id(m) in by_now]


def _paired(then: Sequence[Moment], now: Sequence[Moment], key: Callable[[Moment], Hashable]) -> list[Pair]:
    """What has the same key, in whatever order; of several the first."""
    known: dict[Hashable, list[Moment]] = {}
    for moment in then:
        known.setdefault(key(moment), []).append(moment)
    return [Pair(known[key(moment)].pop(0), moment) for moment in now if known.get(key(moment))]


def _given(step: StepSketch, number: int) -> list[Moment]:
    """What the whole model is given."""
    return [m for m in step.of(Kind.GIVEN) if m.place.forward == number and not m.place.name]


def _of_pass(step: StepSketch, number: int) -> list[Moment]:
    """What comes of it."""
    return [m for m in step.of(*BY_PASS) if m.place.forward == number and (m.place.kind != Kind.GIVEN or m.place.name)]


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
            found.setdefault(moment.place.forward, []).append(f"{moment.sketch.shape} {moment.sketch.key}")
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


def _aligned(then: Sequence[Moment], now: Sequence[Moment], key: Callable[[Moment], Hashable]) -> list[Pair]:
    a, b = [key(m) for m in then], [key(m) for m in now]
    return [
        Pair(then[i + n], now[k + n])
        for i, k, size in SequenceMatcher(None, a, b, False).get_matching_blocks()
        for n in range(size)
    ]


def _named(place: Place) -> Hashable:
    return place.kind, place.name, place.call, place.tensor


def _content(moment: Moment) -> Hashable:
    return moment.sketch is not None and (moment.sketch.shape, moment.sketch.key)


def _called(moment: Moment) -> Hashable:
    return moment.place.tensor


def _form(moment: Moment) -> Hashable:
    return moment.sketch is not None and (moment.sketch.format, moment.sketch.shape)


def _shape(moment: Moment) -> Hashable:
    return () if moment.sketch is None else moment.sketch.shape
