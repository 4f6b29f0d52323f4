"""A step in the terminal: forward blue, backward red, update green. It renders the document and computes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
from rich.console import Console
from rich.text import Text

from limpid.columns import Cell, Columns
from limpid.config import ModelConfig
from limpid.config.options import from_dict
from limpid.latex import readable
from limpid.quantities import parameters
from limpid.terminal import counted
from limpid.theme import BACKWARD, FORWARD, HEADING, QUIET, UPDATE, WARNING
from limpid.tracing.document import (
    LossDocument,
    ParameterDocument,
    QuantityDocument,
    StationDocument,
    StepDocument,
)
from limpid.tracing.rounding import account
from limpid.tracing.terminal_verdict import before_all_else, severity, shown, verdict
from limpid.tracing.trace import Trace
from limpid.tracing.verdict import Check

MOVERS = 4
"""Operations that are named for moving the loss."""


def show(trace: Trace, console: Console, *, everything: bool = False, numbers: bool = False) -> None:
    """Print the whole step, stage by stage, and the verdict.

    everything   do not fold the blocks after the first
    numbers      print the arrays too: whole with `everything`, a corner otherwise
    """
    step = trace.step
    view = _View(trace if numbers else None, everything, step)
    for part in (
        _head(step),
        *before_all_else(step),
        *view.forward(),
        _loss(step.loss),
        _rounding(step),
        *view.backward(),
        *_update(step, everything),
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
        f" · {step.precision['compute']} with {step.precision['parameters']} parameters · redone in float64",
        ("\n✓ 0.42: the largest difference from float64 is 0.42 of what rounding allows\n", QUIET),
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
                    shown(worst.forward, ""),
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
                    shown(worst, ""),
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
                (f"  {gradient:<31} ", BACKWARD), f"{_shape(shape):<14} norm {norm:.3e}  ", shown(check, "")
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
        f"{_shape(quantity.shape):<13} {quantity.format}  {_size(quantity)}{odd}  ",
        shown(quantity.forward, ""),
    )
    unit = f" · {quantity.unit}" if quantity.unit else ""
    yield Text(f"      {readable(quantity.equation)}   [{quantity.branch}{unit}]{cost}", QUIET)


def _size(quantity: QuantityDocument) -> str:
    """The number itself where it is one, else root mean square, least and largest."""
    numbers = quantity.statistics
    if not quantity.shape:
        return f"{numbers.smallest:.6g}"
    return f"rms {numbers.rms:<8.3g} {numbers.smallest:.2g} … {numbers.largest:.2g}"


def _own(name: str) -> str:
    """A name without its block."""
    return name.split(".", 2)[2] if name.startswith("blocks.") else name


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "scalar"


def _rounding(step: StepDocument) -> Text:
    """By how much rounding moved the loss, and which operations did most of it."""
    found = account(step)
    made = sorted((one for one in step.quantities if one.error), key=lambda one: -abs(one.error or 0.0))[:MOVERS]
    if not made or found.measured is None:
        return Text()
    cancels = f"; contributions cancel, {100 * found.plain:.0f}% of their sizes is left" if found.cancels else ""
    missing = f"; {counted(found.unknown, 'quantity')} without a gradient missing" if found.unknown else ""
    said = ", ".join(f"{one.name} {one.error:+.2g}" for one in made)
    return Text(
        f"rounding moved it by {found.total:+.3g} to first order, {found.measured:+.3g} measured against float64"
        f"{cancels}{missing}\n  most of it by {said}\n",
    )


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


def _update(step: StepDocument, everything: bool) -> Iterator[Text | Columns]:
    update, limit = step.update, step.update.max_grad_norm
    clipped = "never clipped" if limit is None else f"at most {limit:g}: {_scaled(update.clip_scale)}"
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
    rows: list[list[Cell]] = []
    for block, group in groupby(step.parameters, lambda one: one.block):
        own = list(group)
        rows += [_moved_alike(block, own)] if block and not everything else [_moved(parameter) for parameter in own]
    heads = ("  parameter", "shape", "norm of\ngradient", "moved, of\nits norm", "decay", "worst\n/ bound")
    yield Columns(heads, rows, right=(2, 3, 5))


def _scaled(scale: float) -> str:
    return f"scaled by {scale:.4g}" if scale < 1 else "not scaled"


def _moved_alike(block: int, own: Sequence[ParameterDocument]) -> list[Cell]:
    """The parameters of a block that is folded: the largest of each number."""
    worst = max((check for parameter in own for check in parameter.checks), key=severity)
    gradient, share = (max(getattr(one, name) for one in own) for name in ("grad_norm", "relative_change"))
    name = Text(f"  block {block}: the largest of {len(own)}", UPDATE)
    return [name, "", f"{gradient:.2e}", f"{share:.1e}", "", shown(worst, "")]


def _moved(parameter: ParameterDocument) -> list[Cell]:
    worst = max(parameter.checks, key=severity)
    return [
        Text(f"  {parameter.name}", UPDATE),
        _shape(parameter.shape),
        f"{parameter.grad_norm:.2e}",
        f"{parameter.relative_change:.1e}",
        "yes" if parameter.decayed else "no",
        shown(worst, ""),
    ]


def si(number: float) -> str:
    """Three digits and the letter of a power of ten, for a unit to follow: 1.2 M."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.0f} "
