"""Attention maps: who looks at whom, one picture per block with one panel per head."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from limpid.inspect.watch import Quantities
from limpid.plots import panels, save

NAMED = 40
"""Tokens up to which each is named at the axes."""
LISTED = 64
"""Tokens up to which the weights themselves are listed."""


@dataclass(frozen=True)
class Head:
    """Where one head looks, averaged over the positions of the text; shares of attention."""

    block: int
    head: int
    itself: float
    previous: float  # over positions that have one
    first: float  # over positions other than the first
    entropy: float  # nats

    @property
    def habit(self) -> str:
        """What it mostly does, where one of the simple habits takes more than half of its attention."""
        share, word = max((self.previous, "previous token"), (self.first, "first token"), (self.itself, "itself"))
        return f"{word} {share:.0%}" if share > 0.5 else ""


def heads(seen: Quantities, num_layers: int) -> tuple[Head, ...]:
    """The habits of every head on the first row."""
    return tuple(
        _head(weights, block, head)
        for block in range(num_layers)
        for head, weights in enumerate(seen[f"blocks.{block}.attention.weights"][0])
    )


def _head(weights: Float[Tensor, "query key"], block: int, head: int) -> Head:
    def mean(values: Tensor) -> float:
        return float(values.mean()) if len(values) else 0.0

    return Head(
        block,
        head,
        mean(weights.diagonal()),
        mean(weights.diagonal(-1)),
        mean(weights[1:, 0]),
        mean(torch.special.entr(weights).sum(-1)),
    )


def draw(seen: Quantities, num_layers: int, text: list[str], folder: Path) -> list[Path]:
    """A picture per block; keys run along, queries down, and what a query may not see stays grey."""
    return [
        _draw_block(seen[f"blocks.{block}.attention.weights"][0], block, text, folder / f"attention-{block:02d}.png")
        for block in range(num_layers)
    ]


def _draw_block(weights: Float[Tensor, "head query key"], block: int, text: list[str], file: Path) -> Path:
    from matplotlib.colors import PowerNorm

    columns = 3 if 16 < len(text) <= NAMED else 4
    size = max(2.2, 0.12 * min(len(text), NAMED) + 0.5)
    drawing, axes = panels(len(weights), columns, size, size)
    hidden = np.triu(np.ones((len(text), len(text)), dtype=bool), 1)
    shade = PowerNorm(0.5, vmin=0, vmax=1)  # small weights are many: they get more of the colours
    image = None
    for head, (axis, values) in enumerate(zip(axes, weights, strict=True)):
        axis.set_facecolor("#ececec")
        shown = np.ma.masked_array(values.numpy(), hidden)
        image = axis.imshow(shown, cmap="viridis", norm=shade, interpolation="nearest")
        axis.set_title(f"block {block}, head {head}", fontsize=10)
        _name(axis, text, queries=head % columns == 0, keys=head + columns >= len(weights))
    bar = drawing.colorbar(image, ax=axes, shrink=0.6, aspect=30, ticks=[0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1])
    bar.set_label("attention weight (each row sums to 1; colours by its root)", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    return save(drawing, file)


def _name(axis: Any, text: list[str], queries: bool, keys: bool) -> None:
    """The tokens along the axes, at the outer panels only; numbers where there are too many."""
    axis.tick_params(labelsize=7, length=0, pad=1, labelleft=queries, labelbottom=keys)
    if len(text) > NAMED:
        return
    size = 7 if len(text) <= 24 else 6
    labels = [token.replace(" ", "␣") for token in text]
    for along, named, turned in ((axis.xaxis, keys, 90), (axis.yaxis, queries, 0)):
        along.set_ticks(range(len(text)) if named else [], labels=labels if named else [])
        for label in along.get_ticklabels():
            label.set(fontsize=size, rotation=turned, parse_math=False)


def page_data(seen: Quantities, num_layers: int, text: list[str]) -> dict[str, Any]:
    """Tokens and weights for a page to draw: blocks[block][head][query][key], rounded to 6 digits."""
    listed = len(text) <= LISTED
    return {
        "tokens": text,
        "blocks": [
            np.round(seen[f"blocks.{block}.attention.weights"][0].numpy(), 6).tolist() for block in range(num_layers)
        ]
        if listed
        else None,
    }
