"""The step as a story in the terminal: forward blue, backward red, update green."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rich.console import Console
from rich.text import Text

from limpid.latex import readable
from limpid.maths.operation import Operation
from limpid.trace.fast_path import TIMES
from limpid.trace.loss_account import LossReport
from limpid.trace.verdict import Beyond, Check, Holds, NotFinite, Unchecked
from limpid.trace.verify import ParameterReport, QuantityReport, StepReport

FORWARD, BACKWARD, UPDATE = "blue", "red", "green"


def tell(step: StepReport, console: Console, everything: bool) -> None:
    """Print the whole step, stage by stage, and the verdict."""
    for part in (
        _head(step),
        *([_not_finite(step.origins())] if step.origins() else []),
        *_forward(step, everything),
        _loss(step.loss),
        *_backward(step, everything),
        *_update(step),
    ):
        console.print(part, soft_wrap=True)
    console.print(verdict(step), soft_wrap=True)


def _head(step: StepReport) -> Text:
    meta, model = step.record.meta, step.record.config.model
    tokens = step.loss.positions
    return Text.assemble(
        (f"step {meta['step']} of {meta['run']}", "bold"),
        f" · {tokens:,} tokens, {step.loss.labels:,} labels · {model.num_layers} layers × {model.d_model}"
        f" · {meta['precision']['compute']} with {meta['precision']['parameters']} parameters"
        f" · redone in float64\n",
    )


def _stage(name: str) -> str:
    """Where in the step a quantity belongs: embedding, block 0 attention, block 0 mlp, …"""
    if name.startswith("embed."):
        return "embedding"
    if name.startswith("blocks."):
        _, block, place = name.split(".", 2)
        half = "mlp" if place.startswith(("mlp", "norm2", "residual2")) else "attention"
        return f"block {block} {half}"
    return "loss" if name in ("loss", "log_probabilities") else "logits"


def _folded(entries: list[QuantityReport], everything: bool) -> Iterator[tuple[str, list[QuantityReport], bool]]:
    """Stages with their entries; all but the first block are folded into one line each, unless asked for."""
    for stage, group in groupby(entries, lambda entry: _stage(entry.name)):
        fold = stage.startswith("block ") and not stage.startswith("block 0 ") and not everything
        yield stage, list(group), fold


def _forward(step: StepReport, everything: bool) -> Iterator[Text]:
    for stage, entries, fold in _folded(step.quantities, everything):
        if fold:
            worst = max(entries, key=lambda entry: severity(entry.forward))
            flops = sum(entry.flops for entry in entries)
            yield Text.assemble(
                (f"{stage:<20}", f"bold {FORWARD}"),
                f"{len(entries)} quantities as in block 0 · {_si(flops)}FLOP · ",
                shown(worst.forward),
                f" (worst: {worst.name.split('.', 2)[2]})",
            )
            continue
        yield Text(f"\n{stage}", f"bold {FORWARD}")
        for entry in entries:
            yield from _forward_entry(entry)


def _forward_entry(entry: QuantityReport) -> Iterator[Text]:
    """Two lines: the numbers, then where they come from."""
    numbers, operation = entry.statistics, entry.operation
    odd = f" {numbers.not_finite} NOT FINITE" if numbers.not_finite else ""
    cost = f"  {_si(entry.flops)}FLOP" if entry.flops else ""
    yield Text.assemble(
        (f"  {_own(entry.name):<24}", FORWARD),
        f"{_shape(entry.shape):<15}{entry.format}  mean {numbers.mean:+.1e}  rms {numbers.rms:.2e}"
        f"  {numbers.smallest:.3g} … {numbers.largest:.3g}{odd}  ",
        shown(entry.forward),
    )
    unit = f" · {entry.quantity.unit}" if entry.quantity.unit else ""
    yield Text(f"      {readable(operation.equation)}   [{operation.branch.value}{unit}]{cost}", "dim")


def _own(name: str) -> str:
    """A name without its block."""
    return name.split(".", 2)[2] if name.startswith("blocks.") else name


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "scalar"


def _loss(account: LossReport) -> Text:
    """Which formula, over which tokens, with which weight; and the text itself."""
    text = Text.assemble(
        ("\nthe loss\n", f"bold {FORWARD}"),
        f"L = -1/N Σ log p(next token) over N = {account.labels:,} labels of {account.positions:,} positions, "
        f"each with weight 1/N = {account.weight:.3g}\n"
        f"  = {account.loss:.6f} nats per label, as unsure as among {account.perplexity:.4g} equally likely tokens\n",
    )
    if len(account.micro_batches) > 1:
        for number, micro in enumerate(account.micro_batches):
            text.append(f"  micro-batch {number}: {micro['labels']:,} labels add {float(micro['loss']):.6f}\n")
    text.append("the start of row 0, dim where expected, bright where it surprised: ")
    for label in account.rows[0][:48]:
        if label.surprise is None:
            text.append("·", "dim")
        else:
            style = "dim" if label.surprise < 2 else "bold yellow" if label.surprise > 6 else ""
            text.append(label.text.replace("\n", "⏎"), style)
    text.append("\nmost surprising: ")
    for row, position, label in account.hardest():
        text.append(f"{label.text!r} {label.surprise:.2f} nats (row {row}, position {position})  ")
    text.append("\n")
    return text


def _backward(step: StepReport, everything: bool) -> Iterator[Text]:
    learned = {parameter.name: parameter for parameter in step.parameters}
    yield Text("backward, from the loss to the tokens", f"bold {BACKWARD}")
    for stage, entries, fold in _folded(list(reversed(step.quantities)), everything):
        checks = [check for entry in entries for check in _backward_checks(entry, learned)]
        if fold and checks:
            worst = max(checks, key=severity)
            norms = [entry.grad_norm for entry in entries if entry.grad_norm is not None]
            yield Text.assemble(
                (f"{stage:<20}", f"bold {BACKWARD}"),
                f"{len(checks)} gradients, norms {min(norms):.2e} … {max(norms):.2e} · ",
                shown(worst),
                f" (worst: {_own(worst.name)})",
            )
            continue
        yield Text(f"\n{stage}", f"bold {BACKWARD}")
        for entry in entries:
            yield from _backward_entry(entry, learned)


def _backward_entry(entry: QuantityReport, learned: dict[str, ParameterReport]) -> Iterator[Text]:
    """The gradient of a quantity and of what is learned where it is made, then how it is passed on."""
    if entry.grad_norm is None:
        return
    rows = [(entry.name, entry.shape, entry.grad_norm, entry.backward)]
    for kind in ("weight", "bias"):
        parameter = learned.get(f"{entry.name}.{kind}")
        if parameter is not None:
            rows.append((parameter.name, parameter.shape, parameter.grad_norm, parameter.gradient))
    for name, shape, norm, check in rows:
        gradient = f"grad({_own(name)})"
        yield Text.assemble((f"  {gradient:<32}", BACKWARD), f"{_shape(shape):<15}norm {norm:.3e}  ", shown(check))
    for line in filter(None, entry.operation.adjoint[: len(entry.inputs)]):
        yield Text(f"      {readable(line)}", "dim")


def _backward_checks(entry: QuantityReport, learned: dict[str, ParameterReport]) -> Iterator[Check]:
    if entry.backward is not None:
        yield entry.backward
    for kind in ("weight", "bias"):
        parameter = learned.get(f"{entry.name}.{kind}")
        if parameter is not None and parameter.gradient is not None:
            yield parameter.gradient


def _update(step: StepReport) -> Iterator[Text]:
    update, limit = step.update, step.record.config.update.max_grad_norm
    clipped = "never clipped" if limit is None else f"at most {limit:g}: scaled by {update.clip_scale:.4f}"
    yield Text.assemble(
        ("\nupdate", f"bold {UPDATE}"),
        f"  update {update.number}, learning rate {update.learning_rate:.4e}\n"
        f"  global gradient norm {update.grad_norm:.4f}, {clipped}",
    )
    rules = update.by_rule()
    for how, moved in rules:
        of = f" for {len(moved)} of {len(update.rules)} parameters, such as {moved[0]}" if len(rules) > 1 else ""
        yield Text.assemble(
            (f"  {type(how).__name__}{of}\n  ", UPDATE),
            "\n  ".join(readable(line) for line in how.equations),
            (f"\n  {how.source}", "dim"),
        )
    for parameter in step.parameters:
        worst = max(parameter.checks, key=severity)
        yield Text.assemble(
            (f"  {parameter.name:<36}", UPDATE),
            f"{_shape(parameter.shape):<10}gradient {parameter.grad_norm:.2e}  moved {parameter.change:.1e} of its norm"
            f"{'' if parameter.decayed else '  no decay'}  ",
            shown(worst),
        )


def severity(check: Check) -> tuple[int, float]:
    """What is worth showing first: not finite, beyond rounding, not checked, then the nearest to its bound."""
    rank = (Holds, Unchecked, Beyond, NotFinite).index(type(check.verdict))
    return rank, check.worst


def shown(check: Check | None) -> Text:
    """How a check ended, in units of what rounding allows."""
    match None if check is None else check.verdict:
        case None:
            return Text("", "dim")
        case NotFinite() as origin:
            style = "bold white on red" if origin.fault else "yellow"
            return Text(f"✗ NOT FINITE: {origin.count:,} from {origin.address} = {origin.value:g} on", style)
        case Beyond(share=share):
            return Text(f"✗ OFF by {share:.3g} bounds", "bold white on red")
        case Unchecked(why=why):
            return Text(f"– not checked: {why}", "yellow")
    return Text(f"✓ {check.worst:.2f} of bound" if check else "", "green")


KINDS = {
    "forward": "quantities",
    "backward": "gradients",
    "fast path": f"of what training used (≤ {TIMES}× the plain path's error)",
    "update": "clipping, rate, moments and parameters",
}


def verdict(step: StepReport) -> Text:
    """The one line that counts, computed: first what is not finite, then what rounding does not explain."""
    checks, found = step.checks(), step.origins()
    counted = ", ".join(
        f"{sum(check.holds for check in checks if check.kind == kind)} of "
        f"{sum(check.kind == kind for check in checks)} {words}"
        for kind, words in KINDS.items()
    )
    worst = max(checks, key=lambda check: check.worst)
    unchecked = sum(isinstance(check.verdict, Unchecked) for check in checks)
    line = _not_finite(found)
    first = step.first_disagreement()
    if first is not None:
        line.append("\nDISAGREES", "bold red")
        line.append(f"  first at {first.name} ({first.kind}): {_written_out(step, first)}")
    elif not found:
        line.append("\nagrees", "bold green")
        line.append(
            f"  {counted} lie within their rounding bounds; "
            f"worst: {worst.name} ({worst.kind}), {worst.worst:.2f} of its bound"
        )
        return line
    line.append(f"\n  {counted} lie within their rounding bounds")
    if unchecked:
        line.append(f"; {unchecked} not checked: input not finite")
    line.append(f"; worst: {worst.name} ({worst.kind}), {worst.worst:.3g} bounds")
    return line


def _not_finite(found: list[NotFinite]) -> Text:
    """The first origin of what is not finite, and how many there are."""
    first = next((origin for origin in found if origin.fault), found[0] if found else None)
    if first is None:
        return Text()
    line = Text()
    line.append("\nNOT FINITE" if first.fault else "\nSKIPPED", "bold red" if first.fault else "bold yellow")
    entries = "entry" if first.count == 1 else "entries"
    line.append(f"  first at {first.address} = {first.value:g} ({first.format}, {first.count:,} such {entries})")
    line.append(f": {first.explanation}")
    others = [origin for origin in found if origin is not first]
    if others:
        line.append(f"\n  and apart from that at {', '.join(origin.address for origin in others[:4])}")
        line.append(f" and {len(others) - 4} more" if len(others) > 4 else "")
    return line


def _written_out(step: StepReport, check: Check) -> str:
    at = f"[{', '.join(map(str, check.index))}]" if check.index else ""
    if check.kind == "fast path" and check.name != "loss":
        return f"‖engine - exact‖ is {check.engine:.4g}, allowed {check.bound:.4g}"
    operation: Operation | None = next((entry.operation for entry in step.quantities if entry.name == check.name), None)
    line = f"engine{at} = {check.engine:.9g}, mathematics {check.expected:.9g}, rounding allows ± {check.bound:.2g}"
    if operation is not None and check.kind == "forward":
        line += f"\n  {readable(operation.equation)}   {operation.source}"
    return line


def _si(number: float) -> str:
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.0f} "
