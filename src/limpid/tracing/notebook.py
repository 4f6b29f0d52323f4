"""A step in a notebook: its verdict, its loss, every quantity with what rounding leaves of it; and one entry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from limpid.html import folded, table, titled
from limpid.latex import readable
from limpid.tracing.verdict import Check, address

if TYPE_CHECKING:
    from limpid.tracing.document import EntryDocument, QuantityDocument, StepDocument


def page(step: StepDocument) -> str:
    """The whole step, its stages folded."""
    verdict, loss = step.verdict, step.loss
    facts = [
        ("verdict", verdict.verdict if verdict.origin is None else f"{verdict.verdict}: {verdict.origin.explanation}"),
        ("within bounds", f"{verdict.within_bounds:,} of {verdict.checks:,} comparisons"),
        ("nearest to its bound", _found(verdict.worst)),
        ("loss", f"{loss.value:.6g} nats per label, {loss.exact:.6g} redone; {loss.labels:,} labels"),
        ("update", f"rate {step.update.learning_rate:.4g}, gradient norm {step.update.grad_norm_before_clip:.4g}"),
    ]
    if verdict.first_disagreement is not None:
        facts.insert(1, ("first disagreement", _found(verdict.first_disagreement)))
    named = {quantity.name: quantity for quantity in step.quantities}
    stages = (
        folded(stage.title, _quantities(named[name] for name in stage.quantities if name in named))
        for stage in step.stations
        if any(name in named for name in stage.quantities)
    )
    return titled(f"step {step.step:,} of {step.run}", table(facts), *stages, folded("update", _parameters(step)))


def entry_page(found: EntryDocument) -> str:
    """One entry: how it was made, what it came from and went into, its gradient and its update."""
    facts = [("value", f"{found.value:.8g} {found.note}".strip())]
    if found.made is not None:
        facts += [("equation", readable(found.made.equation)), ("", found.made.symbols), ("", found.made.numbers)]
    if found.went_to:
        facts.append(("went into", ", ".join(found.went_to)))
    facts.append(("gradient", "none" if found.gradient is None else f"{found.gradient:.8g}"))
    for passed in found.passed:
        facts += [(f"through {passed.quantity}", passed.symbols), ("", passed.numbers)]
    facts += [("update", line) for line in found.update]
    walks = {
        "came from": found.came_from, "back to the tokens": found.to_tokens, "on to the loss": found.to_loss,
        "weighed by": found.weighed_by,
    }  # fmt: skip
    parts = (
        folded(title, table(((one.address, f"{one.value:.6g}", one.note) for one in places), numbers=(1,)))
        for title, places in walks.items()
        if places
    )
    return titled(found.address, table(facts), *parts)


def _quantities(quantities: Iterable[QuantityDocument]) -> str:
    def rows() -> Iterator[tuple[str, str, str, str, str, str]]:
        for one in quantities:
            shape = "×".join(map(str, one.shape)) or "1"
            gradient = "" if one.grad_norm is None else f"{one.grad_norm:.4g}"
            yield one.name, readable(one.equation), shape, f"{one.statistics.rms:.4g}", gradient, _share(one.forward)

    header = ("quantity", "equation", "shape", "rms", "gradient's norm", "share of its bound")
    return table(rows(), header, numbers=(2, 3, 4, 5))


def _parameters(step: StepDocument) -> str:
    rows = (
        (one.name, "×".join(map(str, one.shape)), f"{one.grad_norm:.4g}", f"{one.relative_change:.3g}")
        for one in step.parameters
    )
    return table(rows, ("parameter", "shape", "gradient's norm", "relative change"), numbers=(1, 2, 3))


def _share(check: Check) -> str:
    return f"{check.worst:.2g}" if check.holds else check.verdict.verdict


def _found(check: Check) -> str:
    """A check's largest difference, where it is."""
    return f"{address(check.name, check.index)}: {check.engine:.6g}, redone {check.expected:.6g} ± {check.bound:.2g}"
