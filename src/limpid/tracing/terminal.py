"""A step in the terminal: forward blue, backward red, update green. It renders the document and computes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from rich.console import Console
from rich.text import Text

from limpid.config import ModelConfig
from limpid.config.options import from_dict
from limpid.latex import readable
from limpid.quantities import parameters
from limpid.terminal import counted
from limpid.theme import ALARM, BACKWARD, FAULT, FORWARD, GOOD, HEADING, QUIET, UPDATE, WARNING
from limpid.tracing.document import LossDocument, QuantityDocument, StationDocument, StepDocument, VerdictDocument
from limpid.tracing.trace import Trace
from limpid.tracing.verdict import Beyond, Check, Holds, NotFinite, Unchecked, address

NEAR = 0.95
"""Share of a bound from which it is said why that is none too near."""
KINDS = {
    "forward": "quantities",
    "backward": "gradients",
    "update": "clipping, rate, moments and parameters",
}


def show(trace: Trace, console: Console, *, everything: bool = False, numbers: bool = False) -> None:
    """Print the whole step, stage by stage, and the verdict.

    everything   do not fold the blocks after the first
    numbers      print the arrays too: whole with `everything`, a corner otherwise
    """
    step = trace.step
    view = _View(trace if numbers else None, everything, step)
    for part in (
        _head(step),
        *([_another_step(step)] if _of_another_run(step) else []),
        *([_not_finite(step.verdict)] if step.verdict.not_finite else []),
        *view.forward(),
        _loss(step.loss),
        *view.backward(),
        *_update(step),
        verdict(step),
    ):
        console.print(part)


def _head(step: StepDocument) -> Text:
    model = step.config["model"]
    trained = sum(math.prod(parameter.shape) for parameter in step.parameters)
    every = sum(math.prod(parameter.shape) for parameter in parameters(from_dict(ModelConfig, model)))
    size = f"{every:,} parameters" + ("" if trained == every else f", {trained:,} of them trained")
    return Text.assemble(
        (f"step {step.step} of {step.run}", HEADING),
        f" · {step.loss.positions:,} tokens, {step.loss.labels:,} labels"
        f" · {counted(model['num_layers'], 'layer')} × {model['d_model']}: {size},"
        f" {step.update.optimizer_values:,} optimizer values"
        f" · {step.precision['compute']} with {step.precision['parameters']} parameters · redone in float64\n",
    )


class _View:
    """The forward and the backward pass, folded where blocks look alike."""

    def __init__(self, trace: Trace | None, everything: bool, step: StepDocument) -> None:
        self.trace, self.everything = trace, everything
        self.quantities = {quantity.name: quantity for quantity in step.quantities}
        self.parameters = {parameter.name: parameter for parameter in step.parameters}
        self.stages = [one for one in step.stations if one.station not in ("backward", "update")]

    def _folded(self, stage: StationDocument) -> bool:
        return bool(stage.block) and not self.everything

    def forward(self) -> Iterator[Text]:
        for stage in self.stages:
            own = [self.quantities[name] for name in stage.quantities]
            if self._folded(stage):
                worst = max(own, key=lambda quantity: severity(quantity.forward))
                yield Text.assemble(
                    (f"{stage.title:<20}", f"bold {FORWARD}"),
                    f"{len(own)} quantities as in block 0 · {si(stage.flops)}FLOP · ",
                    shown(worst.forward),
                    f" (worst: {_own(worst.name)})",
                )
                continue
            yield Text(f"\n{stage.title}", f"bold {FORWARD}")
            for quantity in own:
                yield from _quantity(quantity)
                yield from self._numbers(quantity.name)

    def backward(self) -> Iterator[Text]:
        yield Text("backward, from the loss to the tokens", f"bold {BACKWARD}")
        for stage in reversed(self.stages):
            own = [self.quantities[name] for name in reversed(stage.quantities)]
            checks = [check for quantity in own for check in self._gradient_checks(quantity)]
            if self._folded(stage) and checks:
                worst = max(checks, key=severity)
                norms = [quantity.grad_norm for quantity in own if quantity.grad_norm is not None]
                yield Text.assemble(
                    (f"{stage.title:<20}", f"bold {BACKWARD}"),
                    f"{len(checks)} gradients, norms {min(norms):.2e} … {max(norms):.2e} · ",
                    shown(worst),
                    f" (worst: {_own(worst.name)})",
                )
                continue
            yield Text(f"\n{stage.title}", f"bold {BACKWARD}")
            for quantity in own:
                yield from self._gradient(quantity)

    def _learned(self, quantity: QuantityDocument) -> list[str]:
        names = (f"{quantity.name}.{kind}" for kind in ("weight", "bias"))
        return [name for name in names if name in self.parameters]

    def _gradient_checks(self, quantity: QuantityDocument) -> Iterator[Check]:
        found = [quantity.backward, *(self.parameters[name].gradient for name in self._learned(quantity))]
        yield from (check for check in found if check is not None)

    def _gradient(self, quantity: QuantityDocument) -> Iterator[Text]:
        """The gradient of a quantity and of what is learned where it is made, then how it is passed on."""
        if quantity.grad_norm is None:
            return
        rows = [(quantity.name, quantity.shape, quantity.grad_norm, quantity.backward)]
        for name in self._learned(quantity):
            parameter = self.parameters[name]
            rows.append((name, parameter.shape, parameter.grad_norm, parameter.gradient))
        for name, shape, norm, check in rows:
            gradient = f"grad({_own(name)})"
            yield Text.assemble(
                (f"  {gradient:<31} ", BACKWARD), f"{_shape(shape):<14} norm {norm:.3e}  ", shown(check)
            )
            yield from self._numbers(f"grad({name})")
        for line in filter(None, quantity.adjoint):
            yield Text(f"      {readable(line)}", QUIET)

    def _numbers(self, name: str) -> Iterator[Text]:
        """The array itself, where it was asked for."""
        if self.trace is None:
            return
        array = self.trace.array(name)
        rows = array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)
        part = rows if self.everything else rows[:4, :8]
        with np.printoptions(formatter={"float": lambda x: f"{x:+.6f}"}, linewidth=200, threshold=10**6):
            text = str(part).replace("\n", "\n    ")
        yield Text("    " + text + ("" if part.size == array.size else " …"))


def _quantity(quantity: QuantityDocument) -> Iterator[Text]:
    """Two lines: the numbers, then where they come from."""
    numbers = quantity.statistics
    odd = f" {numbers.not_finite} NOT FINITE" if numbers.not_finite else ""
    cost = f"  {si(quantity.flops)}FLOP" if quantity.flops else ""
    yield Text.assemble(
        (f"  {_own(quantity.name):<23} ", FORWARD),
        f"{_shape(quantity.shape):<14} {quantity.format}  mean {numbers.mean:+.1e}  rms {numbers.rms:.2e}"
        f"  {numbers.smallest:.3g} … {numbers.largest:.3g}{odd}  ",
        shown(quantity.forward),
    )
    unit = f" · {quantity.unit}" if quantity.unit else ""
    yield Text(f"      {readable(quantity.equation)}   [{quantity.branch}{unit}]{cost}", QUIET)


def _own(name: str) -> str:
    """A name without its block."""
    return name.split(".", 2)[2] if name.startswith("blocks.") else name


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "scalar"


def _loss(loss: LossDocument) -> Text:
    """Which formula, over which tokens, with which weight; and the text itself."""
    text = Text.assemble(("\nthe loss\n", f"bold {FORWARD}"))
    if loss.objective == "next_token":
        text.append(
            f"L = -1/N Σ log p(next token) over N = {loss.labels:,} labels of {loss.positions:,} positions, "
            f"each with weight 1/N = {loss.weight:.3g}\n"
            f"  loss = {loss.value:.6f} nats per label, "
            f"as unsure as among {loss.perplexity:.4g} equally likely tokens\n"
        )
    else:
        text.append(f"{loss.objective}: {readable(loss.formula)}\n  loss = {loss.value:.6f}\n")
    if len(loss.micro_batches) > 1:
        for number, micro in enumerate(loss.micro_batches):
            text.append(f"  micro-batch {number}: {micro['labels']:,} labels add {float(micro['loss']):.6f}\n")
    text.append("the start of row 0, dim where expected, bright where it surprised: ")
    for word, nats in loss.rows[0][:48]:
        if nats is None:
            text.append("·", QUIET)
        else:
            style = QUIET if nats < 2 else f"bold {WARNING}" if nats > 6 else ""
            text.append(word.replace("\n", "⏎"), style)
    text.append("\nmost surprising: ")
    for label in loss.most_surprising:
        text.append(f"{label.text!r} {label.nats:.2f} nats (row {label.row}, position {label.position})  ")
    text.append("\n")
    return text


def _update(step: StepDocument) -> Iterator[Text]:
    update, limit = step.update, step.update.max_grad_norm
    clipped = "never clipped" if limit is None else f"at most {limit:g}: scaled by {update.clip_scale:.4f}"
    yield Text.assemble(
        ("\nupdate", f"bold {UPDATE}"),
        f"  update {update.number}, learning rate {update.learning_rate:.4e}\n"
        f"  global gradient norm {update.grad_norm_before_clip:.4f}, {clipped}",
    )
    for how in update.rules:
        several = len(update.rules) > 1
        of = f" for {len(how.parameters)} of {len(step.parameters)} parameters, such as {how.parameters[0]}"
        yield Text.assemble(
            (f"  {how.rule}{of if several else ''}\n  ", UPDATE),
            "\n  ".join(readable(line) for line in how.equations),
            (f"\n  {how.source}", QUIET),
        )
    width = max((len(parameter.name) for parameter in step.parameters), default=0) + 2
    for parameter in step.parameters:
        worst = max(parameter.checks, key=severity)
        yield Text.assemble(
            (f"  {parameter.name:<{width}}", UPDATE),
            f"{_shape(parameter.shape):<9} gradient {parameter.grad_norm:.2e}"
            f"  moved {parameter.relative_change:.1e} of its norm{'' if parameter.decayed else '  no decay'}  ",
            shown(worst),
        )


def severity(check: Check) -> tuple[int, float]:
    """What is worth showing first: not finite, beyond rounding, not checked, then the nearest to its bound."""
    return (Holds, Unchecked, Beyond, NotFinite).index(type(check.verdict)), check.worst


def shown(check: Check | None) -> Text:
    """How a check ended, in units of what rounding allows."""
    match None if check is None else check.verdict:
        case None:
            return Text("", QUIET)
        case NotFinite() as origin:
            style = ALARM if origin.fault else WARNING
            return Text(f"✗ NOT FINITE: {origin.count:,} from {origin.address} = {origin.value:g} on", style)
        case Beyond(share=share):
            return Text(f"✗ OFF by {share:.3g} bounds", ALARM)
        case Unchecked(why=why):
            return Text(f"– not checked: {why}", WARNING)
    return Text(f"✓ {check.worst:.2f} of bound" if check else "", GOOD)


def verdict(step: StepDocument) -> Text:
    """The line that counts: first what is not finite, then what rounding does not explain."""
    found = step.verdict
    if _of_another_run(step):
        return _another_step(step)
    counted = ", ".join(f"{count.holds} of {count.checks} {KINDS[count.kind]}" for count in found.counts)
    worst = found.worst
    if found.verdict == "holds":
        return Text.assemble(
            ("\nagrees", f"bold {GOOD}"),
            f"  {counted} lie within their rounding bounds; {_paths(found)}; "
            f"worst: {worst.name} ({worst.kind}), {worst.worst:.2f} of its bound",
            _at_the_bound(worst.worst, step.precision["compute"]),
            _as_written(step),
        )
    line = _not_finite(found)
    if found.first_disagreement is not None:
        first = found.first_disagreement
        line.append("\nDISAGREES", f"bold {FAULT}")
        line.append(f"  first at {first.name} ({first.kind}): {_written_out(step, first)}")
    line.append(f"\n  {counted} lie within their rounding bounds; {_paths(found)}")
    if found.not_checked:
        line.append(f"; {found.not_checked} not checked: input not finite")
    line.append(f"; worst: {worst.name} ({worst.kind}), {worst.worst:.3g} bounds")
    return line


def _at_the_bound(share: float, compute: str) -> str:
    """Why a share of 1 is no near miss where results are rounded to few digits."""
    if share < NEAR or compute not in ("bf16", "fp16"):
        return ""
    return (
        f"\n  rounding a result to {compute} once takes it up to half a unit off, and is the whole bound: 1.00 is usual"
    )


def _of_another_run(step: StepDocument) -> bool:
    """Whether this is not the step that its run took."""
    first = step.verdict.first_disagreement
    return first is not None and first.kind == "run"


def _another_step(step: StepDocument) -> Text:
    """What differs from what the run wrote down, before anything else: value, expectation, way out."""
    assert step.written is not None
    one = next(one for one in step.written.checks if not one.check.holds)
    check = one.check
    allowed = f", rounding allows ± {check.bound:.2g}" if check.bound else ""
    return Text.assemble(
        ("\nNOT THE RUN'S STEP", f"bold {FAULT}"),
        f"  {address(check.name, check.index)} is {check.engine:.12g} here, {check.expected:.12g} in "
        f"{one.written_in}{allowed}\n  {one.way_out}",
    )


def _as_written(step: StepDocument) -> str:
    """That it is the step that its run took, as far as that could be compared."""
    if step.written is None:
        return ""
    lines = [
        f"; batch, log and checkpoints of {step.written.run} say the same ({len(step.written.checks)} comparisons)"
    ]
    return "\n  not compared: ".join([*lines, *step.written.not_compared])


def _paths(found: VerdictDocument) -> str:
    """What was checked on which path."""
    if not found.fast:
        return "all on the plain path: this record has no quantities of the one that trains"
    beside = f", {found.plain} that its kernels never form beside it" if found.plain else ""
    return f"{found.fast} quantities on the path that trains{beside}"


def _not_finite(found: VerdictDocument) -> Text:
    """The first origin of what is not finite, and the others."""
    first, line = found.origin, Text()
    if first is None:
        return line
    line.append("\nNOT FINITE" if first.fault else "\nSKIPPED", f"bold {FAULT if first.fault else WARNING}")
    entries = "entry" if first.count == 1 else "entries"
    line.append(f"  first at {first.address} = {first.value:g} ({first.format}, {first.count:,} such {entries})")
    line.append(f": {first.explanation}")
    others = [origin for origin in found.not_finite if origin != first]
    if others:
        line.append(f"\n  and apart from that at {', '.join(origin.address for origin in others[:4])}")
        line.append(f" and {len(others) - 4} more" if len(others) > 4 else "")
    return line


def _written_out(step: StepDocument, check: Check) -> str:
    at = f"[{', '.join(map(str, check.index))}]" if check.index else ""
    if check.over:
        return f"over {check.over} it is {check.engine:.6g} × the mathematics, rounding allows 1 ± {check.bound:.2g}"
    line = f"engine{at} = {check.engine:.9g}, mathematics {check.expected:.9g}, rounding allows ± {check.bound:.2g}"
    made = next((quantity for quantity in step.quantities if quantity.name == check.name), None)
    if made is not None and check.kind == "forward":
        line += f"\n  {readable(made.equation)}   {made.source}"
    return line


def si(number: float) -> str:
    """Three digits and the letter of a power of ten, for a unit to follow: 1.2 M."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.0f} "
