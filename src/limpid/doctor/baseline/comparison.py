"""The first tensor of a step that is not as it was although all before it is: the place of a change."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from limpid.doctor.baseline import tolerance
from limpid.doctor.baseline.difference import Difference
from limpid.doctor.baseline.matching import Matched, Pair, matched
from limpid.doctor.baseline.sketch import PACKED
from limpid.doctor.baseline.step_sketch import Kind, Moment, StepSketch
from limpid.doctor.rules.baseline import NOT_AS_BASELINE

GROWTH = 30.0
"""How much further outputs and gradients may lie apart, relative, than the weights that rounding has moved apart."""
LEAST_LOSS = 0.01
"""Sizes of terms that may cancel in a loss: a policy's is a mean of both signs."""
WHOLE = 0.01
"""Of whole numbers inside of a model, such as choices of experts, the relative distance that flips by rounding make."""
SCATTER = 5.0
"""Standard deviations within which two draws of one distribution have the same size."""
OF_PARAMETERS = (Kind.WEIGHT, Kind.GRADIENT, Kind.UPDATE)
Verdict = Literal["alike", "without effect", "apart", "another run", "other batches", "other random numbers"]


@dataclass(frozen=True)
class Unlike:
    """A tensor that was to be the same."""

    pair: Pair
    difference: Difference | None  # None where one of them is not there

    @property
    def part(self) -> str:
        return self.pair.now.part

    @property
    def name(self) -> str:
        return self.pair.now.place.name

    @property
    def factor(self) -> float | None:
        return None if self.difference is None else self.difference.factor


@dataclass
class Comparison:
    """One step held against the same step of a run that worked."""

    then: StepSketch
    now: StepSketch
    first: bool  # whether it is the first step
    matched: Matched = field(init=False)
    unlike: list[Unlike] = field(init=False)

    def __post_init__(self) -> None:
        self.matched = matched(self.then, self.now)
        self.eps, self.terms = max(self.then.eps, self.now.eps), max(self.then.terms, self.now.terms)
        self.depth = sum(pair.now.place.kind == Kind.OUTPUT for pair in self.matched.pairs)
        self.moved = 0.0 if self.first else self._weights_apart()
        self.unlike = list(self._unlike())

    @property
    def verdict(self) -> Verdict:
        """What the step is to the other."""
        if not self.unlike:
            return "alike"
        if not self.reaches:
            return "without effect"
        if self.first and self._is_another_run:
            return "another run"
        first = self.unlike[0].pair.now
        of_batch = first.part in ("data", "labels") and first.place.kind in (Kind.GIVEN, Kind.BATCH, Kind.TARGET)
        redrawn = first.place.kind != Kind.TARGET and self._has_other_batches
        if of_batch and (redrawn or self._has_other_size):
            return "other batches"
        before = self.unlike[0].pair.then
        if first.drew and before.drew and first.drew != before.drew:
            return "other random numbers"
        return "apart"

    @property
    def random_as_then(self) -> bool:
        """Whether the generators of random numbers stood where they stood as the step began."""
        return self.then.random == self.now.random

    @property
    def reaches(self) -> bool:
        """Whether what is learned differs: an update; or the loss with a gradient, since some updates know no scale."""
        kinds = {unlike.pair.now.place.kind for unlike in self.unlike}
        if not any(pair.now.place.kind == Kind.UPDATE for pair in self.matched.pairs):
            return not kinds.isdisjoint((Kind.LOSS, Kind.GRADIENT))
        return Kind.UPDATE in kinds or {Kind.LOSS, Kind.GRADIENT} <= kinds

    def of(self, *kinds: Kind) -> list[Unlike]:
        return [unlike for unlike in self.unlike if unlike.pair.now.place.kind in kinds]

    @property
    def _is_another_run(self) -> bool:
        """Whether weights are others by nothing but their draw: all of them, or as random numbers are others, too."""
        weights = [unlike for unlike in self.of(Kind.WEIGHT) if unlike.difference is not None]
        pairs = [pair for pair in self.matched.pairs if pair.now.place.kind == Kind.WEIGHT]
        others = {id(unlike.pair.now) for unlike in weights}
        is_whole = all(id(pair.now) in others or _is_constant(pair.now) for pair in pairs)
        if not (weights or self._holds_other_numbers) or (self.random_as_then and not is_whole):
            return False
        return all(is_another_draw(unlike.difference) for unlike in weights if unlike.difference is not None)

    @property
    def _holds_other_numbers(self) -> bool:
        """Whether weights that have no other, such as three maps for one, are other numbers of the same size."""
        gone, new = (
            [m.sketch for m in moments if m.place.kind == Kind.WEIGHT and m.sketch is not None]
            for moments in (self.matched.gone, self.matched.new)
        )
        then, now = (math.sqrt(sum(one.norm**2 for one in kept)) for kept in (gone, new))
        same = math.isclose(then, now, rel_tol=1e-5)
        return bool(then and now) and not same and abs(math.log(now / then)) < math.log(NOT_AS_BASELINE["level"])

    @property
    def _has_other_batches(self) -> bool:
        """Whether all that is drawn of the data is another draw; where random numbers are as they were, of one law."""
        of_batch = (Kind.BATCH, Kind.GIVEN)
        pairs = [p for p in self.matched.pairs if p.now.place.kind in of_batch and p.now.is_of_batch]
        varied = [p for p in pairs if p.now.sketch is not None and not _is_constant(p.now)]
        others = {id(unlike.pair.now) for unlike in self.unlike}
        told = [u.difference for u in self.unlike if u.pair.now.place.kind in of_batch and u.pair.now.is_of_batch]
        return all(id(p.now) in others for p in varied) and all(
            d is not None
            and d.factor is None
            and d.line is None
            and d.then.shape[1:] == d.now.shape[1:]
            and (not self.random_as_then or is_of_one_law(d))
            for d in told
        )

    @property
    def _has_other_size(self) -> bool:
        """Whether what the model is given has more rows or fewer, and is else of the same form."""
        given = [
            (p.then.sketch.shape, p.now.sketch.shape)
            for p in self.matched.pairs
            if p.now.place.kind == Kind.GIVEN and p.now.is_of_batch and p.then.sketch and p.now.sketch
        ]
        rows = [(then[0], now[0]) for then, now in given if then and now]
        return any(then != now for then, now in rows) and all(then[1:] == now[1:] for then, now in given)

    def _weights_apart(self) -> float:
        """How far apart the weights have come, relative."""
        apart = size = 0.0
        for pair in self.matched.pairs:
            if pair.now.place.kind == Kind.WEIGHT and pair.then.sketch is not None and pair.now.sketch is not None:
                norm = max(pair.then.sketch.norm, pair.now.sketch.norm)
                apart += min(2.0, pair.now.sketch.distance(pair.then.sketch)) ** 2 * norm**2
                size += norm**2
        return math.sqrt(apart / size) if size else 0.0

    def _unlike(self) -> Iterator[Unlike]:
        calls = 0
        for pair in self.matched.pairs:
            kind = pair.now.place.kind
            calls += kind == Kind.OUTPUT
            if kind == Kind.WEIGHT and not self.first:
                continue
            then, now = pair.then.sketch, pair.now.sketch
            frees = kind == Kind.WEIGHT and pair.then.plain.get("trained") != pair.now.plain.get("trained")
            if then is None or now is None or frees:
                if then is not now:
                    yield Unlike(pair, None)
                continue
            if kind in OF_PARAMETERS and then.count == now.count:  # in another shape they may be the same numbers
                then = replace(then, shape=now.shape)
            near = self._near(pair, calls)
            difference = Difference(then, now, max(near, PACKED) if near else PACKED * now.is_counted)
            if difference.exists:
                yield Unlike(pair, difference)

    def _near(self, pair: Pair, calls: int) -> float:
        """The relative distance that rounding explains."""
        then, now, kind = pair.then.sketch, pair.now.sketch, pair.now.place.kind
        assert then is not None
        assert now is not None
        norm = max(then.norm, now.norm)
        from_outside = pair.now.is_of_batch
        if now.is_counted and then.is_counted:
            return 0.0 if from_outside or kind == Kind.BUFFER else WHOLE
        if kind == Kind.WEIGHT or from_outside:
            return tolerance.forward(self._eps_of(pair), 1, 1)
        spread = GROWTH * self.moved
        if kind in (Kind.GIVEN, Kind.OUTPUT, Kind.SCORED, Kind.BUFFER):
            return tolerance.forward(self.eps, self.terms, calls) + spread
        if kind == Kind.LOSS:
            near = tolerance.forward(self.eps, self.terms, self.depth) + spread
            return near * max(norm, LEAST_LOSS) / norm if norm else near
        near = tolerance.gradient(self.eps, self.terms, self.depth) + spread
        if kind == Kind.BACK or not norm:
            return near
        if kind == Kind.GRADIENT:
            return near * (1 + tolerance.FLOOR * self._rms_of_gradients * math.sqrt(now.count) / norm)
        return near + (pair.then.shaky + pair.now.shaky) / norm + 2 * math.sqrt(self.moved)

    def _eps_of(self, pair: Pair) -> float:
        """Of the coarser of two formats."""
        import torch

        kinds = [getattr(torch, one.format) for one in (pair.then.sketch, pair.now.sketch) if one is not None]
        return max((torch.finfo(kind).eps for kind in kinds if kind.is_floating_point), default=self.eps)

    @property
    def _rms_of_gradients(self) -> float:
        kept = [m.sketch for m in self.then.of(Kind.GRADIENT) if m.sketch is not None]
        count = sum(one.count for one in kept)
        return math.sqrt(sum(one.norm**2 for one in kept) / count) if count else 0.0


def _is_constant(moment: Moment) -> bool:
    """Whether all numbers are equal, as far as first and second moments tell: a mask of ones, positions of one row."""
    kept = moment.sketch
    return kept is None or not kept.norm or abs(kept.total**2 - kept.count * kept.norm**2) < 1e-9 * kept.total**2


def is_another_draw(difference: Difference) -> bool:
    """Whether a tensor may be another draw of one distribution: its size is the same within the scatter of a draw."""
    then, now = difference.then, difference.now
    if then.shape != now.shape or not then.norm or not now.norm or difference.rearranged:
        return False
    if difference.factor is not None or difference.line is not None:
        return False
    level = NOT_AS_BASELINE["size" if len(now.shape) < 2 else "level"]  # trained ones are no draws, and scatter further
    return abs(math.log(now.rms / then.rms)) < max(math.log(level), SCATTER / math.sqrt(now.count))


def is_of_one_law(difference: Difference) -> bool:
    """Whether two tensors may be draws of one distribution: mean and mean square are the same within their scatter."""
    then, now = difference.then, difference.now
    if then.shape != now.shape or not then.norm or not now.norm or difference.rearranged:
        return False
    near = SCATTER / math.sqrt(now.count)
    apart = abs(now.total / now.count - then.total / then.count) / max(then.rms, now.rms)
    return abs(math.log(now.rms / then.rms)) < near and apart < math.sqrt(2) * near
