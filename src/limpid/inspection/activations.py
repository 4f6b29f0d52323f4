"""What activations on a text show: which positions each attention head looks at, and which MLP neurons are dead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from limpid.inspection.forward_pass import Quantities, forward_quantities
from limpid.model import Transformer
from limpid.plots import panels, save

NAMED = 40
"""Tokens up to which each is named at the axes."""
LISTED = 64
"""Tokens up to which the weights themselves are listed."""


@dataclass(frozen=True)
class AttentionHead:
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


def attention_heads(seen: Quantities, num_layers: int) -> tuple[AttentionHead, ...]:
    """The habits of every head on the first row."""
    return tuple(
        _head(weights, block, head)
        for block in range(num_layers)
        for head, weights in enumerate(seen[f"blocks.{block}.attention.weights"][0])
    )


def _head(weights: Float[Tensor, "query key"], block: int, head: int) -> AttentionHead:
    def mean(values: Tensor) -> float:
        return float(values.mean()) if len(values) else 0.0

    return AttentionHead(
        block,
        head,
        mean(weights.diagonal()),
        mean(weights.diagonal(-1)),
        mean(weights[1:, 0]),
        mean(torch.special.entr(weights).sum(-1)),
    )


def draw_attention(seen: Quantities, num_layers: int, text: list[str], folder: Path) -> list[Path]:
    """A picture per block; keys run along, queries down, and what a query may not see stays grey."""
    heads = len(seen["blocks.0.attention.weights"][0])
    drawing, images = _panels_of_heads(heads, text)
    hidden = np.triu(np.ones((len(text), len(text)), dtype=bool), 1)
    files = []
    for block in range(num_layers):
        weights = seen[f"blocks.{block}.attention.weights"][0]
        for head, (image, values) in enumerate(zip(images, weights, strict=True)):
            image.set_data(np.ma.masked_array(values.numpy(), hidden))
            image.axes.set_title(f"block {block}, head {head}", fontsize=10)
        files.append(save(drawing, folder / f"attention-{block:02d}.png"))
        drawing.set_layout_engine("none")  # the next block is laid out as this one is: half of the time
    return files


def _panels_of_heads(heads: int, text: list[str]) -> tuple[Any, list[Any]]:
    """The figure of one block, still empty, and the image of each head."""
    from matplotlib.colors import PowerNorm

    columns = 3 if 16 < len(text) <= NAMED else 4
    size = max(2.2, 0.12 * min(len(text), NAMED) + 0.5)
    drawing, axes = panels(heads, columns, size, size)
    shade = PowerNorm(0.5, vmin=0, vmax=1)  # small weights are many: they get more of the colours
    images, empty = [], np.zeros((len(text), len(text)))
    for head, axis in enumerate(axes):
        axis.set_facecolor("#ececec")
        images.append(axis.imshow(empty, cmap="viridis", norm=shade, interpolation="nearest"))
        _label_axes(axis, text, queries=head % columns == 0, keys=head + columns >= heads)
    bar = drawing.colorbar(
        images[-1], ax=axes, shrink=0.6, aspect=30, ticks=[0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1]
    )
    bar.set_label("attention weight (each row sums to 1; colours by its root)", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    return drawing, images


def _label_axes(axis: Any, text: list[str], queries: bool, keys: bool) -> None:
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


def attention_document(seen: Quantities, num_layers: int, text: list[str]) -> dict[str, Any]:
    """Tokens and weights for a page to draw_attention: blocks[block][head][query][key], rounded to 6 digits."""
    listed = len(text) <= LISTED
    return {
        "tokens": text,
        "blocks": [
            np.round(seen[f"blocks.{block}.attention.weights"][0].numpy(), 6).tolist() for block in range(num_layers)
        ]
        if listed
        else None,
    }


FAINT = 1e-3
"""Share of the block's rms below which a unit that cannot be exactly 0 counts as dead."""


@dataclass(frozen=True)
class Neurons:
    """The hidden neurons of one block's MLP."""

    block: int
    count: int
    dead: tuple[int, ...]
    rms: float  # of the activation, over all neurons and positions
    rule: str  # when a unit counts as dead

    @property
    def share(self) -> float:
        return len(self.dead) / self.count


def neurons(model: Transformer, batches: Iterable[Int[Tensor, "batch position"]]) -> tuple[tuple[Neurons, ...], int]:
    """Each block's neurons, and over how many positions they were forward_quantities."""
    config = model.config
    largest = torch.zeros(config.num_layers, config.sizes.d_ff, dtype=torch.float64)
    squares = torch.zeros(config.num_layers, dtype=torch.float64)
    positions = 0
    for tokens in batches:
        seen = forward_quantities(model, tokens, lambda name: name.endswith("mlp.hidden"))
        positions += tokens.numel()
        for block in range(config.num_layers):
            hidden = seen[f"blocks.{block}.mlp.hidden"].flatten(0, 1).double()
            largest[block] = torch.maximum(largest[block], hidden.abs().amax(0))
            squares[block] += hidden.square().sum()
    rms = (squares / max(1, positions * config.sizes.d_ff)).sqrt()
    exact = config.activation in ("relu", "relu2")
    rule = "its activation is 0 everywhere" if exact else f"its largest |activation| is below {FAINT:g} of the rms"
    limit = torch.zeros_like(rms) if exact else FAINT * rms
    return tuple(
        Neurons(
            block,
            config.sizes.d_ff,
            tuple(torch.nonzero(largest[block] <= limit[block]).flatten().tolist()),
            float(rms[block]),
            rule,
        )
        for block in range(config.num_layers)
    ), positions
