"""A step in a notebook: its verdict, its loss, and every quantity with the difference that rounding leaves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from limpid.html import folded, table, titled
from limpid.latex import readable
from limpid.tracing.document import QuantityDocument, StepDocument
from limpid.tracing.verdict import Check, address


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
