"""A step on one screen: 24 lines of 80 columns, however many blocks the model has."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from limpid.columns import Cell, Columns
from limpid.terminal import command
from limpid.theme import BACKWARD, FAULT, FORWARD, GOOD, HEADING, QUIET, UPDATE, WARNING
from limpid.tracing.document import QuantityDocument, StepDocument, UpdateDocument
from limpid.tracing.stations import Station
from limpid.tracing.terminal import si
from limpid.tracing.terminal_verdict import NEAR, severity, verdict
from limpid.tracing.verdict import Beyond, Check, Holds, NotFinite, Unchecked, address

STATIONS: tuple[Station, ...] = ("embedding", "norm", "attention", "mlp", "logits", "loss")
"""Of the forward pass, in order; those of all blocks are one line."""
WORDS = {"mlp": "MLP"}


def show(step: StepDocument, console: Console, opened: Sequence[str]) -> None:
    """Print the step: verdict, the loss derived twice, a line for each station, and what to type next.

    opened   the words that name it to `limpid trace`
    """
    for part in (*_head(step), Text(), _stations(step), *_usual(step), *_next(step, opened)):
        console.print(part)


def _head(step: StepDocument) -> Iterator[Text]:
    learned = sum(math.prod(parameter.shape) for parameter in step.parameters)
    yield Text.assemble(
        (f"step {step.step} of {step.run}", HEADING),
        f" · {learned:,} parameters trained on {step.loss.labels:,} labels · {step.precision['compute']}",
    )
    found = step.verdict
    if found.verdict == "holds":
        written = 0 if step.written is None else len(step.written.checks)
        as_run = f", {written} with the run's own files" if written else ""
        said = f"  {found.within_bounds + written} of {found.checks + written} comparisons lie within rounding{as_run}"
        yield Text.assemble(("agrees", f"bold {GOOD}"), said)
    else:
        told = verdict(step)
        yield told[1:] if told.plain.startswith("\n") else told
    loss = step.loss
    unit = " nats per label" if loss.objective == "next_token" else ""
    yield Text.assemble(
        ("loss", f"bold {FORWARD}"), f"    {loss.value:.6f}{unit} by the engine, {loss.exact:.6f} redone in float64"
    )


def _stations(step: StepDocument) -> Columns:
    rows: list[list[Cell]] = []
    for own in STATIONS:
        made = [quantity for quantity in step.quantities if quantity.station == own]
        if made:
            rows.append([*_forward(own, made)])
    gradients = [one.backward for one in step.quantities if one.backward is not None]
    gradients += [one.gradient for one in step.parameters if one.gradient is not None]
    rows.append([Text("backward", BACKWARD), *_compared(gradients)])
    norm = [check for check in step.update.checks if check.name == "grad_norm"]
    rows.append([Text("clip", UPDATE), *_compared(norm, _clipped(step.update))])
    moved = [check for parameter in step.parameters for check in parameter.checks]
    moved += [check for check in step.update.checks if check.name != "grad_norm"]
    rows.append([Text("update", UPDATE), *_compared(moved)])
    return Columns(("station", "arrays", "numbers", "FLOP", "worst\n/ bound", "at"), rows, right=range(1, 5))


def _clipped(update: UpdateDocument) -> str:
    """The norm of the whole gradient, and what clipping made of it."""
    norm, limit = f"norm {update.grad_norm_before_clip:.4g}", update.max_grad_norm
    if limit is None:
        return f"{norm}, never clipped"
    return f"{norm} > {limit:g}: × {update.clip_scale:.4g}" if update.clip_scale < 1 else f"{norm}, limit {limit:g}"


def _forward(own: Station, made: list[QuantityDocument]) -> Iterator[Cell]:
    yield Text(WORDS.get(own, own), FORWARD)
    numbers, flops = sum(math.prod(one.shape) for one in made), sum(one.flops for one in made)
    yield from _compared([one.forward for one in made], numbers=numbers, flops=flops)


def _compared(checks: Sequence[Check], place: str = "", numbers: int = 0, flops: int = 0) -> Iterator[Cell]:
    """How many arrays and numbers, and where the comparison came nearest to failing."""
    if not checks:
        yield from ("", "", "", Text("not made", WARNING), place)
        return
    worst = max(checks, key=severity)
    yield f"{len(checks):,}"
    yield f"{numbers or sum(check.entries for check in checks):,}"
    yield si(flops).strip() if flops else ""
    yield _share(worst)
    yield place or (_address(worst) if worst.worst else "")


def _address(check: Check) -> str:
    return address(f"grad({check.name})" if check.kind == "backward" else check.name, check.index)


def _share(check: Check) -> Text:
    match check.verdict:
        case NotFinite() as origin:
            return Text("✗ not finite", f"bold {FAULT if origin.fault else WARNING}")
        case Beyond(share=share):
            return Text(f"✗ {share:.3g}", f"bold {FAULT}")
        case Unchecked():
            return Text("– not checked", WARNING)
        case Holds():
            return Text(f"✓ {check.worst:.2f}" if check.worst else "✓ equal", GOOD)


def _usual(step: StepDocument) -> Iterator[Text]:
    """Why a share of 1 is no near miss where results are rounded to few digits."""
    compute = step.precision["compute"]
    if step.verdict.worst.worst >= NEAR and compute in ("bf16", "fp16"):
        yield Text(f"1.00 of a bound is usual: it is one rounding of a result to {compute}", QUIET)


def _next(step: StepDocument, opened: Sequence[str]) -> Iterator[Text]:
    yield Text("\nnext", HEADING)
    first = step.verdict.first_disagreement or step.verdict.worst
    names = {quantity.name for quantity in step.quantities}
    ways = [("all of it", command("limpid", "trace", *opened))]
    if first.name in names:
        array = f"grad({first.name})" if first.kind == "backward" else first.name
        entry = address(first.name, first.index)
        ways.append(("the worst array", command("limpid", "trace", *opened, "--quantity", array)))
        ways.append(("one number, written out", command("limpid", "explain", *opened, entry)))
    width = max(len(way) for _, way in ways)
    for what, way in ways:
        yield Text.assemble(f"  {way:<{width}}  ", (what, QUIET))
