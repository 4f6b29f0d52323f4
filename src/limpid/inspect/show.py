"""What was found inside a model, told in the terminal: short lines, every number with its unit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.text import Text

from limpid.inspect.lens import Guess, Layer
from limpid.inspect.maps import Head
from limpid.inspect.structure import Structure
from limpid.inspect.writes import Write
from limpid.plan import parameter_count

HEADING, UP, DOWN = "bold blue", "green", "red"
STRONGEST = 3
"""Heads of a block that are named, beyond the sum of all."""
BAR = 16


def tell(found: Structure, console: Console) -> None:
    """Print all of it."""
    for lines in (_head(found), _writes(found), _lens(found), _attention(found), _spectra(found), _units(found)):
        for line in lines:
            console.print(line, soft_wrap=True, highlight=False)
    for line in _words(found):
        console.print(line, soft_wrap=True, highlight=False)


def files(folder: Path, pictures: tuple[Path, ...], seconds: float) -> Text:
    """The last line: what was written where."""
    names = ", ".join(picture.name for picture in pictures)
    return Text.assemble(("\nwritten", HEADING), f"  {folder}/  inspect.json, {names}  ({seconds:.1f} s)")


def heading(title: str, explained: str) -> Text:
    return Text.assemble((f"\n{title}", HEADING), f"  {explained}")


def spelled(found: Structure, token: int) -> str:
    return repr(found.subject.tokenizer.token_text(token))


def _head(found: Structure) -> Iterator[Text]:
    subject, model = found.subject, found.subject.model.config
    when = "" if subject.step is None else f" after step {subject.step:,}"
    yield Text.assemble(
        (f"{subject.name}{when}", "bold"),
        f" · {parameter_count(model):,} parameters: {model.num_layers} layers × {model.d_model}, "
        f"{model.num_heads} heads · looked at in float64",
    )
    shown, given = len(subject.shown), len(subject.tokens)
    count = f"{shown} tokens" if shown == given else f"the first {shown} of {given} tokens"
    text = Text(f"{count} of {subject.origin}: ", "dim")
    for position, token in enumerate(subject.text):
        text.append(token, "reverse" if position == found.position else "")
    yield text
    for note in subject.notes:
        yield Text(note, "yellow")


def _writes(found: Structure) -> Iterator[Text]:
    """The parts of one logit, block by block."""
    writes, text = found.writes, found.subject.text
    yield heading(
        "writes",
        f"the logit of {spelled(found, writes.token)} after {text[writes.position]!r} (position {writes.position}) "
        f"is {writes.logit:+.4f} nats, the sum of {len(writes.parts)} parts to {writes.off:.1e}",
    )
    yield Text("  nats above the mean over all tokens, which is what softmax sees; in brackets the logit's part", "dim")
    largest = max(abs(part.above_mean) for part in writes.parts) or 1.0
    for block, group in groupby(writes.parts, lambda part: part.block):
        parts = list(group)
        if block is None:
            for part in parts:
                yield _part(part.name, [part], largest)
            continue
        heads = [part for part in parts if ".head." in part.name]
        yield _part(f"block {block} attention", heads, largest, _strongest(heads))
        for part in parts[len(heads) :]:
            yield _part(f"block {block} {part.name.split('.', 2)[2]}", [part], largest)
    total = sum(part.above_mean for part in writes.parts)
    yield Text(f"  {'together':<28}{total:+9.4f}  ({writes.logit:+.4f}; the mean logit is {writes.mean_logit:+.4f})")


def _part(name: str, parts: list[Write], largest: float, after: str = "") -> Text:
    above, logit = sum(part.above_mean for part in parts), sum(part.logit for part in parts)
    bar = "█" * min(BAR, round(BAR * abs(above) / largest))
    return Text.assemble(
        f"  {name:<28}{above:+9.4f}  ({logit:+.4f})  ",
        (bar, UP if above > 0 else DOWN),
        (f"  {after}" if after else "", "dim"),
    )


def _strongest(heads: list[Write]) -> str:
    order = sorted(heads, key=lambda part: -abs(part.above_mean))[:STRONGEST]
    return ", ".join(f"head {part.name.rsplit('.', 1)[1]} {part.above_mean:+.3f}" for part in order)


def _lens(found: Structure) -> Iterator[Text]:
    """What would be predicted after each block."""
    position = found.position
    yield heading(
        "logit lens",
        f"the prediction after {found.subject.text[position]!r} (position {position}), if the stream ended there",
    )
    for layer in found.lens:
        yield _layer(layer, found)


def _layer(layer: Layer, found: Structure) -> Text:
    def place(word: str, guess: Guess) -> str:
        return f"{word} {spelled(found, guess.token)} rank {guess.rank:,}, p {guess.probability:.2g}"

    after = "" if layer.next is None else f" · {place('next', layer.next)}"
    return Text.assemble(
        f"  {layer.name:<11}",
        (f"{spelled(found, layer.top.token):<14}", "bold"),
        f" p {layer.top.probability:.3f} · {place('final', layer.final)}{after}"
        f" · KL {layer.kl:.3f} nats · top as in the end at {layer.agreement:.0%} of positions",
    )


def _attention(found: Structure) -> Iterator[Text]:
    """One line per block: how spread its heads are, and which have a simple habit."""
    yield heading("attention", "share of a head's attention, averaged over the text; more in attention-NN.png")
    for block, group in groupby(found.heads, lambda head: head.block):
        heads = list(group)
        spread = f"entropy {min(h.entropy for h in heads):.2f} … {max(h.entropy for h in heads):.2f} nats"
        habits = ", ".join(_habit(head) for head in heads if head.habit)
        yield Text(f"  block {block:<3} {len(heads)} heads · {spread} · {habits or 'no head has a simple habit'}")


def _habit(head: Head) -> str:
    return f"head {head.head}: {head.habit}"


def _spectra(found: Structure) -> Iterator[Text]:
    yield heading(
        "matrices",
        "singular values; ranks: effective, stable, enough for 90% of the squared norm; error with 1/4 of full rank",
    )
    columns = ("shape", "largest", "smallest", "full rank", "effective", "stable", "for 90%", "error of 1/4")
    yield Text(f"  {'':<28}" + "".join(f"{column:>13}" for column in columns), "dim")
    for one in found.spectra:
        shape = "×".join(map(str, one.shape))
        yield Text(
            f"  {one.name.removesuffix('.weight'):<28}{shape:>13}{one.values[0]:>13.4g}{one.values[-1]:>13.2e}"
            f"{min(one.shape):>13}{one.effective_rank:>13.1f}{one.stable_rank:>13.1f}{one.rank_needed:>13}"
            f"{one.quarter_error:>13.1%}"
        )


def _units(found: Structure) -> Iterator[Text]:
    rule = found.units[0].rule
    yield heading("dead units", f"of the MLPs over {found.unit_positions:,} positions; dead when {rule}")
    for block in found.units:
        named = ", ".join(map(str, block.dead[:8])) + (" …" if len(block.dead) > 8 else "")
        yield Text(
            f"  block {block.block:<3} {len(block.dead):,} of {block.count:,} dead ({block.share:.1%}) · "
            f"rms {block.rms:.3g}{' · units ' + named if named else ''}",
            "yellow" if block.dead else "",
        )


def _words(found: Structure) -> Iterator[Text]:
    if found.words is None:
        return
    yield heading("words", f"{found.words.question}, by cosine in the token embedding")
    yield Text("  " + ", ".join(f"{text!r} {cosine:.3f}" for _, text, cosine in found.words.answers))
