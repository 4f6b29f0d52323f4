"""The place of a change in words: what differs, by how much, in which way, and what follows behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from limpid.doctor.baseline.comparison import Comparison, Unlike, is_another_draw
from limpid.doctor.baseline.step_sketch import Kind

SHOWN = 3
"""Tensors that are named; all are in the evidence."""
ALIKE = 0.005
"""Within which factors are one factor."""


@dataclass(frozen=True)
class Told:
    """What a finding says of a change."""

    part: str
    where: str
    says: str
    cause: str
    certain: bool  # whether what is learned differs, too
    evidence: dict[str, Any] = field(default_factory=dict)


def told(comparison: Comparison) -> Told:
    """Of a step whose verdict is that it is apart."""
    first = comparison.unlike[0]
    kind = first.pair.now.place.kind
    if kind in (Kind.WEIGHT, Kind.BUFFER):
        part, where, says, cause = _of_weights(comparison)
    elif first.part in ("data", "labels"):
        part, where, says, cause = _of_batch(comparison, first)
    elif kind in (Kind.GIVEN, Kind.OUTPUT) and first.part != "loss":
        part, where, says, cause = _of_module(comparison, first)
    elif kind in (Kind.SCORED, Kind.LOSS, Kind.OUTPUT):
        part, where, says, cause = _of_loss(comparison, first)
    elif kind == Kind.BACK:
        part, where, says, cause = _of_backward(comparison, first)
    elif kind == Kind.GRADIENT:
        part, where, says, cause = _of_tensors(comparison, Kind.GRADIENT)
    else:
        part, where, says, cause = _of_tensors(comparison, Kind.UPDATE)
    behind = _behind(comparison, kind)
    says += f" Behind it: {behind}." if behind else ""
    says += "" if comparison.reaches else " Nothing that is learned differs."
    return Told(part, where, says, cause, comparison.reaches, {
        "part": part,
        "unlike": [f"{_named(one)}: {_how(one)}" for one in comparison.unlike[:64]],
        "gone": sorted({m.place.name for m in comparison.matched.gone if m.place.name})[:32],
        "new": sorted({m.place.name for m in comparison.matched.new if m.place.name})[:32],
    })  # fmt: skip


Words = tuple[str, str, str, str]
"""The part of the step, the place, what it says, the usual cause."""


def _of_weights(comparison: Comparison) -> Words:
    kind = comparison.unlike[0].pair.now.place.kind
    unlike = comparison.of(kind)
    if kind == Kind.WEIGHT and not comparison.random_as_then:  # others are drawn anew behind the one that changed
        drawn = [u for u in unlike if u.difference is not None and is_another_draw(u.difference)]
        unlike = [u for u in unlike if u not in drawn] or unlike
    what = "weights as the run begins" if kind == Kind.WEIGHT else "buffers as the step begins"
    total = sum(p.now.place.kind == kind for p in comparison.matched.pairs)
    says = f"the {what} differ in {len(unlike)} of {total} tensors: {_listed(unlike)}."
    return (
        "model",
        unlike[0].name,
        says,
        "another initialisation, another file that is loaded, or another order of keys",
    )


def _of_batch(comparison: Comparison, first: Unlike) -> Words:
    kinds = (Kind.BATCH, Kind.GIVEN, Kind.TARGET)
    unlike = [u for u in comparison.of(*kinds) if u.part in ("data", "labels") and u.pair.now.is_of_batch]
    same = [
        _named(Unlike(p, None))
        for p in comparison.matched.pairs
        if p.now.place.kind == Kind.GIVEN and p.now.is_of_batch and all(u.pair.now is not p.now for u in unlike)
    ]
    labels_alone = all(u.part == "labels" for u in unlike)
    part = "labels" if labels_alone else "data"
    beside = f", though {', '.join(dict.fromkeys(same[:SHOWN]))} and the weights are as they were" if same else (
        ", though the weights and the random numbers are as they were" if comparison.random_as_then else ""
    )  # fmt: skip
    says = f"the batch differs: {_listed(_once(unlike))}{beside}."
    return part, _named(first), says, "another preparation, order or column of the data"


def _of_module(comparison: Comparison, first: Unlike) -> Words:
    place = first.pair.now.place
    changed = "; ".join(_settings(comparison, place.name)) if place.kind == Kind.OUTPUT else ""
    if place.kind == Kind.OUTPUT:
        who = f"{place.name or 'the model'} gives something else: its output differs"
        though = "what it is given and its weights are as they were"
        where = place.name or "the model"
    else:
        where = place.name.rpartition(".")[0] or "the model"
        who = f"{where} computes something else: what {place.name} is given by it differs"
        though = "all outputs before it are as they were"
        changed = "; ".join(_settings(comparison, place.name.rpartition(".")[0]))
    new = [m.place.name for m in comparison.matched.new if m.place.kind == Kind.OUTPUT and m.place.name]
    gone = [m.place.name for m in comparison.matched.gone if m.place.kind == Kind.OUTPUT and m.place.name]
    calls = ""
    if gone:
        calls += f" No longer called: {_few(gone)}."
    if new:
        calls += f" Newly called: {_few(new)}."
    says = f"{who} ({_how(first)}), although {though}." + (f" Its settings: {changed}." if changed else "") + calls
    return "model", where, says, "a change in the code of this module, in its settings, or of a library's version"


def _of_loss(comparison: Comparison, first: Unlike) -> Words:
    place = first.pair.now.place
    of_batch = (Kind.BATCH, Kind.TARGET)
    labels = any(
        p.now.part == "labels" and p.now.place.kind in (*of_batch, Kind.GIVEN) for p in comparison.matched.pairs
    )
    same = "outputs and labels" if labels else "outputs"
    if place.kind == Kind.SCORED:
        says = f"what {place.name} is given differs ({_how(first)}), though the model's outputs are as they were."
        return "loss", place.name, says, "a change between the model's output and the loss"
    says = f"the same {same} have another loss: {_how(first)}."
    return (
        "loss",
        "the loss",
        says,
        "another formula, mask, weight, reduction or divisor of the loss"
        + ("" if labels else "; or other labels, which nobody showed the doctor"),
    )


def _of_backward(comparison: Comparison, first: Unlike) -> Words:
    at_output = [u for u in comparison.of(Kind.BACK) if not u.name]  # which may be a module's output, too
    first = at_output[0] if at_output else first
    place = first.pair.now.place
    if not place.name:
        says = f"the same loss has another gradient at the model's output ({_how(first)})."
        return "loss", "the loss", says, "a part of the loss that is detached, or has a backward pass of its own"
    order = [p.now.place for p in comparison.matched.pairs if p.now.place.kind == Kind.OUTPUT]
    at = next((i for i, p in enumerate(order) if p == place._replace(kind=Kind.OUTPUT)), len(order))
    after = next((p.name for p in order[at + 1 :] if not place.name.startswith(p.name)), "")
    says = f"the gradient that comes back to the output of {place.name} differs ({_how(first)}), although " + (
        f"that at the output of {after} and all outputs are as they were." if after else "the loss is as it was."
    )
    return "gradient", after or place.name, says, "a custom backward pass, a detach() or a hook between the two"


def _of_tensors(comparison: Comparison, kind: Kind) -> Words:
    """Gradients of parameters, or their updates."""
    unlike = comparison.of(kind)
    total = sum(p.now.place.kind == kind for p in comparison.matched.pairs)
    of = "gradient" if kind == Kind.GRADIENT else "update"
    factors = [u.factor for u in unlike]
    one = next((f for f in factors if f is not None), None)
    shared = one is not None and all(f is not None and abs(f / one - 1) < ALIKE for f in factors)
    if kind == Kind.GRADIENT and len(unlike) == total and all(u.pair.now.sketch is None for u in unlike):
        says = f"none of {total} tensors has a gradient any more, though the loss is as it was."
        return "loss", "the loss", says, "a loss that is detached, or made anew from its number"
    if shared and len(unlike) > 1:
        says = f"{of}s of {len(unlike)} of {total} tensors are {one:.4g} times what they were"
        says += "" if len(unlike) == total else f" ({_few([u.name for u in unlike])})"
    else:
        says = f"{of}s differ in {len(unlike)} of {total} tensors: {_listed(unlike)}"
    where = unlike[0].name if len(unlike) < total or total == 1 else f"all {of}s"
    if kind == Kind.UPDATE:
        return "update", where, f"the same gradients make other updates: {says}.", (
            "another rule, rate, decay or state of the optimizer, or what it is given to update"
        )  # fmt: skip
    return (
        "gradient",
        where,
        f"the same loss has other gradients: {says}.",
        ("gradients that are added up, cleared, clipped, scaled, frozen or detached otherwise"),
    )


def _behind(comparison: Comparison, kind: Kind) -> str:
    """What follows: outputs, loss, gradients, updates."""
    parts = []
    outputs = [u for u in comparison.of(Kind.OUTPUT) if not u.name and u.part == "model"]
    before = (Kind.WEIGHT, Kind.BUFFER, Kind.BATCH, Kind.GIVEN, Kind.OUTPUT)
    if outputs and kind in before and comparison.unlike[0] is not outputs[0]:
        parts.append(f"outputs ({_how(outputs[0])})")
    losses = comparison.of(Kind.LOSS)
    if losses and kind in (*before, Kind.TARGET, Kind.SCORED):
        parts.append(f"loss {_how(losses[0])}")
    for later, word in ((Kind.GRADIENT, "gradients"), (Kind.UPDATE, "updates")):
        unlike = comparison.of(later)
        if unlike and kind not in (later, Kind.UPDATE):
            total = sum(p.now.place.kind == later for p in comparison.matched.pairs)
            parts.append(f"{word} of {len(unlike)} of {total} tensors")
    return ", ".join(parts)


def _settings(comparison: Comparison, name: str) -> list[str]:
    """Plain attributes of a module that are others than they were."""
    for pair in comparison.matched.pairs:
        if pair.now.place.kind == Kind.OUTPUT and pair.now.place.name == name and (pair.now.plain or pair.then.plain):
            then, now = pair.then.plain, pair.now.plain
            return [
                f"{key} {now.get(key, 'none')}, then {then.get(key, 'none')}"
                for key in dict.fromkeys([*now, *then])
                if now.get(key) != then.get(key)
            ][:SHOWN]
    return []


def _once(unlike: Sequence[Unlike]) -> list[Unlike]:
    """One tensor is seen as the loop reports it, as the model is given it, and as a loss is."""
    found: list[Unlike] = []
    for one in unlike:
        kept = one.pair.now.sketch
        if kept is None or not any(
            other.pair.now.sketch is not None and other.pair.now.sketch.distance(kept) < 1e-9 for other in found
        ):
            found.append(one)
    return found


def _listed(unlike: Sequence[Unlike]) -> str:
    text = "; ".join(f"{_named(one)} ({_how(one)})" for one in unlike[:SHOWN])
    return text + (f"; and {len(unlike) - SHOWN} more" if len(unlike) > SHOWN else "")


def _few(names: Sequence[str]) -> str:
    different = list(dict.fromkeys(names))
    return ", ".join(different[:SHOWN]) + (", …" if len(different) > SHOWN else "")


def _named(one: Unlike) -> str:
    place = one.pair.now.place
    match place.kind:
        case Kind.BATCH:
            return f"batch[{place.tensor}]" if place.tensor.isdigit() or not place.tensor else place.tensor
        case Kind.TARGET:
            return f"target of {place.name}"
        case Kind.GIVEN | Kind.OUTPUT if not place.name:
            return place.tensor or "output"
        case Kind.LOSS:
            return "loss"
    return place.name


def _how(one: Unlike) -> str:
    if one.pair.now.place.kind == Kind.WEIGHT and one.difference is None:
        trained = one.pair.now.plain.get("trained")
        return "requires a gradient, then not" if trained else "requires no gradient, then it did"
    if one.difference is None:
        there = one.pair.now.sketch is not None
        none = "an update" if one.pair.now.place.kind == Kind.UPDATE else "a gradient"
        return f"{none}, then none" if there else f"no {none.partition(' ')[2]}, then one"
    return str(one.difference)
