"""What the weights and one pass over a text show: the parts of a logit, the lens, attention, spectra, units, words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from limpid.errors import ConfigError
from limpid.inspect import maps, spectra
from limpid.inspect.lens import Layer, lens
from limpid.inspect.maps import Head, heads
from limpid.inspect.spectra import Spectrum
from limpid.inspect.subject import Subject, the_token
from limpid.inspect.units import Units, units
from limpid.inspect.watch import Quantities, in_format, stages, watched
from limpid.inspect.words import Near, near
from limpid.inspect.writes import Writes, writes
from limpid.model import Transformer
from limpid.progress import Report

ROWS, TOGETHER = 16, 4
"""Held-out rows over which units are watched, and how many at once."""


@dataclass(frozen=True)
class Structure:
    """Everything that is found inside one model on one text."""

    subject: Subject
    seen: Quantities
    position: int
    writes: Writes
    lens: tuple[Layer, ...]
    heads: tuple[Head, ...]
    spectra: tuple[Spectrum, ...]
    units: tuple[Units, ...]
    unit_positions: int
    words: Near | None
    pictures: tuple[Path, ...]


def structure(
    subject: Subject,
    position: int,
    token: str | None,
    word: tuple[str, ...],
    output: Path,
    report: Report | None = None,
) -> Structure:
    """Look at all of it in float64, and draw it into `output`.

    Raises  ConfigError for a position outside the text, or a word that is not one token
    """
    place = the_position(position, len(subject.shown))
    chosen = None if token is None else the_token(token, subject.tokenizer, "--token")
    nearby = near(subject.model, subject.tokenizer, word)
    model = in_format(subject.model, torch.float64)
    say = report or (lambda what, done, total: None)
    with torch.no_grad():
        seen = watched(model, subject.inputs, _wanted(model))
        likeliest = int(seen["logits"][0, place].argmax())
        say("singular values", 0, None)
        found = spectra.spectra(model)
        say("hidden units", 0, None)
        awake, positions = units(model, _batches(subject))
        say("pictures", 0, None)
        layers = model.config.num_layers
        return Structure(
            subject=subject,
            seen=seen,
            position=place,
            writes=writes(model, seen, place, likeliest if chosen is None else chosen),
            lens=lens(model, seen, subject.inputs, place),
            heads=heads(seen, layers),
            spectra=found,
            units=awake,
            unit_positions=positions,
            words=nearby,
            pictures=(
                *maps.draw(seen, layers, subject.text, output),
                spectra.draw(found, output / "singular-values.png"),
            ),
        )


def the_position(position: int, count: int) -> int:
    """A position of the text; negative ones count from its end.

    Raises  ConfigError when there is no such position
    """
    if not -count <= position < count:
        raise ConfigError(
            f"position is {position}, but the text has {count} tokens: give 0 … {count - 1}, or -1 for the last"
        )
    return position % count


def _wanted(model: Transformer) -> Callable[[str], bool]:
    """What writes, lens and maps read: the rest of a pass is let go."""
    whole = {"embed.tokens", "embed.positions", "logits", *(name for name, _ in stages(model))}
    ends = ("attention.mixed", "attention.weights", "mlp.output", "residual1", "residual2")
    return lambda name: name in whole or name.endswith(ends)


def _batches(subject: Subject) -> Iterator[Int[Tensor, "batch position"]]:
    """The text, and held-out rows of a run."""
    yield subject.inputs
    if subject.validation is not None:
        yield from subject.rows(ROWS)[0].split(TOGETHER)
