"""What was measured in a model, printed in the terminal: short lines, every number with its unit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from rich.text import Text

from limpid.columns import Cell, Columns
from limpid.inspection.activations import AttentionHead
from limpid.inspection.adapter import HEADS, AdapterInspection
from limpid.inspection.gradient_flow import GradientFlow
from limpid.inspection.landscape import Landscape
from limpid.inspection.logit_attribution import LensLayer, LogitPart, TokenRank
from limpid.inspection.structure import Structure
from limpid.planning import parameter_count
from limpid.terminal import counted
from limpid.theme import BACKWARD, FAULT, HEADING, QUIET, UPDATE, WARNING

UP, DOWN = UPDATE, BACKWARD
STRONGEST = 2
"""Heads of a block that are named, beyond the sum of all."""
BAR = 10


def structure_lines(structure: Structure) -> Iterator[Text | Columns]:
    """Everything measured inside the model."""
    for part in (_heading, _attribution, _lens, _attention, _spectra, _dead_neurons, _neighbours):
        yield from part(structure)


def adapter_lines(found: AdapterInspection) -> Iterator[Text | Columns]:
    """What low-rank factors have learned, a line for each weight."""
    yield Text.assemble((found.name, HEADING), f" · factors of rank {found.rank}, s = {found.scale:.4g}, in float64")
    yield heading(
        "change",
        "ΔW = s B A of each weight W: effective rank and largest singular value; its length against that of W; how "
        "many times it is what W has in its directions (Hu et al. 2021, section 7.3); and the share of its square in "
        "as many leading directions of W, beside that of a change without relation to W",
    )
    yield Columns(HEADS, [one.row() for one in found.changes], right=range(1, len(HEADS)))


def files_written(folder: Path, pictures: Sequence[Path], seconds: float) -> Text:
    """The last line: what was written where."""
    names = ", ".join(picture.name for picture in pictures)
    return Text.assemble(("\nwritten", HEADING), f"  {folder}/  inspect.json, {names}  ({seconds:.1f} s)")


def heading(title: str, explained: str) -> Text:
    return Text.assemble((f"\n{title}", HEADING), f"  {explained}")


def spelled(structure: Structure, token: int) -> str:
    return repr(structure.sample.tokenizer.token_text(token))


def _heading(structure: Structure) -> Iterator[Text | Columns]:
    sample, model = structure.sample, structure.sample.model.config
    when = "" if sample.step is None else f" after step {sample.step:,}"
    yield Text.assemble(
        (f"{sample.name}{when}", HEADING),
        f" · {parameter_count(model):,} parameters: {counted(model.num_layers, 'layer')} × {model.d_model}, "
        f"{counted(model.num_heads, 'head')} · looked at in float64",
    )
    shown, given = len(sample.shown), len(sample.tokens)
    count = f"{shown} tokens" if shown == given else f"the first {shown} of {given} tokens"
    text = Text(f"{count} of {sample.origin}: ", QUIET)
    for position, token in enumerate(sample.text):
        text.append(token, "reverse" if position == structure.position else "")
    yield text
    for note in sample.notes:
        yield Text(note, WARNING)


def _attribution(structure: Structure) -> Iterator[Text | Columns]:
    """The parts of one logit, block by block."""
    attribution, text = structure.attribution, structure.sample.text
    yield heading(
        "logit attribution",
        f"the logit of {spelled(structure, attribution.token)} after {text[structure.position]!r} "
        f"(position {structure.position}) is {attribution.logit:+.4f} nats, the sum of {len(attribution.parts)} parts "
        f"to {attribution.error:.1e}",
    )
    yield Text("  nats above the mean over all tokens, which is what softmax sees; in brackets the logit's part", QUIET)
    lines: dict[tuple[int | None, str], float] = {}
    for part in attribution.parts:  # the heads of a block are one line
        line = part.block, "heads" if ".head." in part.name else part.name
        lines[line] = lines.get(line, 0.0) + part.above_mean
    largest = max(map(abs, lines.values())) or 1.0
    rows: list[list[Cell]] = []
    for block, group in groupby(attribution.parts, lambda part: part.block):
        parts = list(group)
        if block is None:
            rows += [_part(part.name, [part], largest) for part in parts]
            continue
        heads = [part for part in parts if ".head." in part.name]
        rows.append(_part(f"block {block} attention", heads, largest, _strongest(heads)))
        for part in parts[len(heads) :]:
            rows.append(_part(f"block {block} {part.name.split('.', 2)[2]}", [part], largest))
    total = sum(part.above_mean for part in attribution.parts)
    mean = f"the mean logit is {attribution.mean_logit:+.4f}"
    rows.append(["  together", f"{total:+.4f}", f"({attribution.logit:+.4f})", mean])
    yield Columns(("",) * 4, rows, right=(1, 2))


def _part(name: str, parts: list[LogitPart], largest: float, after: str = "") -> list[Cell]:
    above, logit = sum(part.above_mean for part in parts), sum(part.logit for part in parts)
    bar = "█" * min(BAR, round(BAR * abs(above) / largest))
    shown = Text.assemble((bar, UP if above > 0 else DOWN), (f"  {after}" if after else "", QUIET))
    return [f"  {name}", f"{above:+.4f}", f"({logit:+.4f})", shown]


def _strongest(heads: list[LogitPart]) -> str:
    order = sorted(heads, key=lambda part: -abs(part.above_mean))[:STRONGEST]
    return "heads " + ", ".join(f"{part.name.rsplit('.', 1)[1]} {part.above_mean:+.3f}" for part in order)


def _lens(structure: Structure) -> Iterator[Text | Columns]:
    """What would be predicted after each block."""
    position, last = structure.position, structure.lens[-1]
    yield heading(
        "logit lens",
        f"the prediction after {structure.sample.text[position]!r} (position {position}), if the stream ended there; "
        "right: the share of all positions where the likeliest token is already that of the end",
    )
    judged = [spelled(structure, last.final.token)]
    judged += [f"{spelled(structure, last.next.token)}, which came"] if last.next is not None else []
    heads = ("  after", "likeliest", "p", *(f"rank, p of {token}" for token in judged), "KL, nats", "as in the end")
    rows = [_layer(layer, structure) for layer in structure.lens]
    yield Columns(heads, rows, right=range(2, len(heads)))


def _layer(layer: LensLayer, structure: Structure) -> list[Cell]:
    def place(guess: TokenRank) -> str:
        return f"{guess.rank:,}, {guess.probability:.3g}"

    return [
        f"  {layer.name}",
        Text(spelled(structure, layer.top.token), HEADING),
        f"{layer.top.probability:.3g}",
        place(layer.final),
        *([] if layer.next is None else [place(layer.next)]),
        f"{layer.kl:.3f}",
        f"{layer.agreement:.0%}",
    ]


def _attention(structure: Structure) -> Iterator[Text | Columns]:
    """One line per block: how spread its heads are, and which have a simple habit."""
    yield heading("attention", "share of a head's attention, averaged over the text; more in attention-NN.png")
    for block, group in groupby(structure.heads, lambda head: head.block):
        heads = list(group)
        spread = f"entropy {min(h.entropy for h in heads):.2f} … {max(h.entropy for h in heads):.2f} nats"
        habits = ", ".join(_habit(head) for head in heads if head.habit)
        yield Text(f"  block {block:<3} {len(heads)} heads · {spread} · {habits or 'no head has a simple habit'}")


def _habit(head: AttentionHead) -> str:
    return f"head {head.head}: {head.habit}"


def _spectra(structure: Structure) -> Iterator[Text | Columns]:
    yield heading(
        "matrices",
        "singular values σ; rank: effective, stable, and enough for 90% of the squared norm; error of the best matrix "
        "of a quarter of the full rank",
    )
    heads = ("", "", "σ\nlargest", "σ\nleast", "rank\neff.", "rank\nstable", "rank\n90%", "error\n1/4")
    rows = [
        (
            f"  {one.name.removesuffix('.weight')}", "×".join(map(str, one.shape)), f"{one.values[0]:.4g}",
            f"{one.values[-1]:.2g}", f"{one.effective_rank:.1f}", f"{one.stable_rank:.1f}", f"{one.rank_needed}",
            f"{one.quarter_error:.0%}",
        )
        for one in structure.spectra
    ]  # fmt: skip
    yield Columns(heads, rows, right=range(1, len(heads)))


def _dead_neurons(structure: Structure) -> Iterator[Text | Columns]:
    rule = structure.neurons[0].rule
    yield heading("dead neurons", f"of the MLPs over {structure.neuron_positions:,} positions; dead when {rule}")
    for block in structure.neurons:
        named = ", ".join(map(str, block.dead[:8])) + (" …" if len(block.dead) > 8 else "")
        yield Text(
            f"  block {block.block:<3} {len(block.dead):,} of {block.count:,} dead ({block.share:.1%}) · "
            f"rms {block.rms:.3g}{' · neurons ' + named if named else ''}",
            WARNING if block.dead else "",
        )


def _neighbours(structure: Structure) -> Iterator[Text | Columns]:
    if structure.neighbours is None:
        return
    yield heading("embedding neighbours", f"{structure.neighbours.question}, by cosine in the token embedding")
    yield Text("  " + ", ".join(f"{text!r} {cosine:.3f}" for _, text, cosine in structure.neighbours.answers))


def landscape_lines(landscape: Landscape) -> Iterator[Text | Columns]:
    """Everything measured around the weights."""
    for part in (_curvature, _curves, _noise, _flows):
        yield from part(landscape)


def _curvature(landscape: Landscape) -> Iterator[Text | Columns]:
    sharp = landscape.sharpness
    yield heading(
        "curvature",
        f"of the loss {landscape.loss:.4f} nats per token on {landscape.rows} rows of {landscape.length} tokens, "
        "in float32",
    )
    yield Text(
        f"  largest eigenvalue of the Hessian   {sharp.largest:<9.4g} nats per squared length (sharpness; "
        f"within {sharp.largest_within:.1g} after {sharp.steps} Lanczos steps)"
    )
    yield Text(f"  smallest                            {sharp.smallest:<9.4g} (within {sharp.smallest_within:.1g})")
    yield Text(
        f"  mean of all {landscape.parameters:<24,}{sharp.mean:<9.3g} estimated from {len(sharp.runs)} random starts"
    )
    yield Text(
        f"  plain gradient descent is stable below a learning rate of 2/λ = {sharp.stable_rate:.3g} in the steepest "
        "direction (Adam rescales directions: it may exceed this)",
        QUIET,
    )


def _curves(landscape: Landscape) -> Iterator[Text | Columns]:
    curves = landscape.curves
    middle = len(curves.at) // 2
    ends = [f"{values[0]:.2f} ← {values[middle]:.2f} → {values[-1]:.2f}" for values in curves.along]
    yield heading(
        "loss curves",
        f"nats per token, one filter-normalised step to each side (seed {landscape.seed}): {'; '.join(ends)}",
    )


def _noise(landscape: Landscape) -> Iterator[Text | Columns]:
    noise = landscape.noise
    yield heading("gradient noise", f"from {noise.sequences} sequences of {noise.length} tokens, one gradient each")
    if noise.gradient_squared > 0:
        yield Text(
            f"  noise scale {noise.scale:.3g} sequences = {noise.tokens:,.0f} tokens: where noise equals signal; "
            "larger batches help less and less"
        )
    else:
        yield Text("  the true gradient cannot be distinguished from 0 with so few sequences: noise scale ∞", WARNING)
    yield Text(f"  |G|² {noise.gradient_squared:.3g} · variance of one sequence's gradient {noise.variance:.4g}")
    heads = ("  variance σ²/b of a batch of", "predicted", "random sequences", "consecutive ones")
    rows = [
        (f"  {row.batch_size}", *(f"{value:.4g}" for value in (row.predicted, row.shuffled, row.consecutive)))
        for row in noise.averaged
    ]
    yield Columns(heads, rows, right=(1, 2, 3))


def _flows(landscape: Landscape) -> Iterator[Text | Columns]:
    yield heading(
        "gradient flow",
        "length of a gradient before a block / after it: geometric means of all, and per block after the first; every "
        "block's is in inspect.json",
    )
    rows: list[list[Cell]] = [_flow(flow) for flow in (landscape.gradient, *landscape.variants)]
    rows.append([Text("  freshly drawn weights, from narrow to wide", QUIET), "", "", ""])
    rows += [_flow(flow) for flow in landscape.fresh]
    yield Columns(("", "mean", "after 0", ""), rows, right=(1, 2))
    clip = landscape.clipping
    if clip.limit is None:
        clipped = "never clipped"
    else:
        clipped = f"{clip.after:.4g} after clipping to {clip.limit:g} ({clip.whose})"
    yield Text(f"  global norm of the gradient  {clip.before:.4g} before, {clipped}")


def _flow(flow: GradientFlow) -> list[Cell]:
    style = "" if flow.verdict == "is carried" else FAULT if flow.later > 1 else WARNING
    return [f"  {flow.name}", f"×{flow.mean:.2g}", f"×{flow.later:.2g}", Text(flow.verdict, style)]
