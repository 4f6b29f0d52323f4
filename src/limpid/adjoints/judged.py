"""A backward pass by hand held against its forward pass, in float64 where it can be run so, else in its own format."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from limpid.adjoints.adjoint import Adjoint, Along, Verdict
from limpid.adjoints.again import Applied, Formats, copy, put_back, sums
from limpid.adjoints.directional import LUCK, along, is_symmetric
from limpid.adjoints.results import Gradients, is_same, is_told, towards, worst_of, wrong_of
from limpid.adjoints.surrogates import surrogate
from limpid.adjoints.ways import Own, Way, Wide

CHANGED = "done again on the same inputs it gives the right one: what it kept was changed in between"
COARSE = "it is coarser than its forward pass"


def judge(adjoint: Adjoint, applied: Applied, engine: Gradients, model: nn.Module) -> None:
    """Say what came of it; everything is put back.

    engine  x̄ of each tensor that it was given, in their order, as it came in the step
    """
    objects = [adjoint.kind, *(one for one in applied.leaves if not isinstance(one, Tensor))]
    with put_back(model, *objects):
        found = [one for place, one in zip(applied.places, engine, strict=True) if place in applied.owed]
        _judge(adjoint, applied, found)


def _judge(adjoint: Adjoint, applied: Applied, engine: Gradients) -> None:
    values = {place: copy(applied.leaves[place]) for place in applied.owed}
    with Formats() as formats:
        results = applied.forward({place: copy(one) for place, one in values.items()}, wide=False)
    for tensor in (*values.values(), *applied.gradients, *results):
        formats.meets(tensor)
    unit = formats.coarsest
    if not is_same(applied.made, sums(results), unit):
        adjoint.why = "done again on the same inputs, its forward pass gives other numbers"
        return
    if any(one is not None and not one.isfinite().all() for one in applied.gradients):
        adjoint.why = "the gradient that came to it is not finite"
        return
    if all(one is None or not torch.count_nonzero(one) for one in applied.gradients):
        adjoint.why = "the gradient that came to it is 0"
        return
    if not applied.owed:
        adjoint.why = "it owes gradients of complex numbers alone"
        return
    whys = []
    for way in (Wide(applied, unit, formats.drawn), Own(applied, unit, formats.drawn)):
        try:
            if way.holds_for(results):
                if _is_judged(way, adjoint, values, engine):
                    return
                whys.append("its format is too coarse, or its slope jumps too often, for differences")
        except Exception as error:  # the step goes on, whatever it is
            whys.append(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
            if way.is_begun:
                break
    adjoint.why = whys[-1]


def _is_judged(way: Way, adjoint: Adjoint, inputs: dict[int, Tensor], engine: Gradients) -> bool:
    """Whether there is a verdict."""
    given = {place: way.given(one) for place, one in inputs.items()}
    again = way.backward(given)
    found: list[Along] = []
    for values in (given, way.aside(given)):
        found = _along(way, values, again if values is given else way.backward(values))
        way.is_begun = True
        if all(map(is_told, found)):
            break
    wrong = wrong_of(found, len(given))
    told = all(map(is_told, found))
    if wrong or not told:
        meant = surrogate(way, given, again) or _symmetric(way, given, again)
        if meant:
            adjoint.verdict, adjoint.why = Verdict.SURROGATE, meant
            adjoint.along, adjoint.worst = found, worst_of(wrong or found)
            return True
    if wrong:
        adjoint.verdict, adjoint.along, adjoint.worst = Verdict.WRONG, found, worst_of(wrong)
        if adjoint.declare():
            _hold_engine(way, adjoint, inputs, given, again, engine)
        return True
    if not told:
        return False
    adjoint.verdict, adjoint.along, adjoint.worst = Verdict.HOLDS, found, worst_of(found)
    _hold_engine(way, adjoint, inputs, given, again, engine)
    return True


def _symmetric(way: Way, values: dict[int, Tensor], given: list[Tensor]) -> str:
    """Whether of matrices that are symmetric it is right as long as they stay so."""
    if not any(map(is_symmetric, values.values())):
        return ""
    found = _along(way, values, given, symmetric=True)
    holds = all(map(is_told, found)) and not wrong_of(found, len(given))
    return "of a symmetric matrix it is right along symmetric changes" if holds else ""


def _along(way: Way, values: dict[int, Tensor], given: list[Tensor], *, symmetric: bool = False) -> list[Along]:
    """All directions of all inputs."""
    middle = way.forward(values)
    scattered = list(way.bounds_of(values))
    found: list[Along] = []
    for number, (place, x) in enumerate(values.items()):
        forward = partial(way.moved, values, place)
        bounds = [one[number] for one in scattered]
        found += along(forward, x, middle, way.applied.gradients, given[number], bounds, number, way.step, symmetric)
    return found


def _hold_engine(
    way: Way,
    adjoint: Adjoint,
    inputs: dict[int, Tensor],
    given: dict[int, Tensor],
    again: list[Tensor],
    engine: Gradients,
) -> None:
    """Hold what came in the step against what the Function gives again, and that against float64."""
    owns = way.applied.backward(inputs, way.applied.gradients, wide=False)
    scattered = list(way.scattered(given))
    for number, (got, own, exact) in enumerate(zip(engine, owns, again, strict=True)):
        came = torch.zeros_like(own) if got is None else got.detach()
        scatter = max(float((one[number].double() - exact.double()).norm()) for one in scattered)
        size = float(exact.double().norm())
        bound = LUCK * (scatter + way.unit * size)
        coarse = LUCK * (LUCK * (scatter + way.forward_off * size) + way.unit * size)
        for one, other, most, why in ((came, own, bound, CHANGED), (own, exact, coarse, COARSE)):
            apart = towards(number, one, other, most)
            if apart.is_apart:
                adjoint.verdict, adjoint.along, adjoint.worst, adjoint.why = Verdict.WRONG, (), apart, why
                return
