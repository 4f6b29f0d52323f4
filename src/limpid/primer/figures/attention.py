"""Attention: the path of its numbers, and its weights with and without the mask."""

from __future__ import annotations

from collections.abc import Sequence

from limpid.maths.foundations import attention as attended
from limpid.maths.foundations import attention_weights
from limpid.maths.operation import Array
from limpid.primer.exercise import shown
from limpid.primer.figures.boxes import HEIGHT, box, cell
from limpid.primer.figures.drawn import Drawn
from limpid.primer.figures.svg import FIRST, INK, MUTED, SECOND, arrow, drawing, line, words

LEFT, MIDDLE, RIGHT, CAPTION = 36.0, 112.0, 188.0, 232.0
"""Where queries, keys and values stand, and what is said beside them."""
TOP, ROW, HALF, CELL = 26.0, 54.0, HEIGHT / 2, 48.0

Rows = Sequence[Sequence[float]]


def _steps(tokens: int, width: int, heads: int) -> list[tuple[str, str, str, str]]:
    """What is done one after the other: the step, the shape of its result, what it is for, its colour."""
    square, size = f"{tokens} × {tokens}", width // heads
    return [
        ("Q Kᵀ / √d_k", square, "how well queries meet keys", FIRST),
        ("causal mask", square, "what lies ahead becomes −∞", FIRST),
        ("softmax", square, "each row becomes weights", FIRST),
        ("weights · V", f"{tokens} × {size}", "values mixed by the weights", SECOND),
        (f"{heads} such heads", f"{tokens} × {width}", "side by side in each row", INK),
        ("W_O", f"{tokens} × {width}", "mixes what the heads found", INK),
    ]


def block_svg(tokens: int, width: int, heads: int) -> str:
    """Boxes from the vectors of the tokens down to the output, with the shape of each."""
    below, size = TOP + 1.3 * ROW, f"{tokens} × {width // heads}"
    parts = [box(MIDDLE, TOP, 110, "vectors"), *_caption(TOP, f"{tokens} × {width}", "one row for each token")]
    for x, letter, stroke in ((LEFT, "Q", FIRST), (MIDDLE, "K", FIRST), (RIGHT, "V", SECOND)):
        start = MIDDLE + (x - MIDDLE) * 0.3
        parts += [
            arrow(start, TOP + HALF, x, below - HALF, MUTED),
            box(x, below, 68, f"W_{letter} → {letter}", stroke),
        ]
    parts += _caption(below, size, "three matrices, in each head")
    scores = (LEFT + MIDDLE) / 2
    for number, (step, shape, purpose, stroke) in enumerate(_steps(tokens, width, heads)):
        y, x = below + (1.2 + number) * ROW, scores if number < 3 else MIDDLE
        if number == 0:
            parts += [arrow(at, below + HALF, x + side * 30, y - HALF, MUTED) for at, side in ((LEFT, -1), (MIDDLE, 1))]
        else:
            parts.append(
                arrow(scores if number < 4 else x, y - ROW + HALF, x if number != 3 else x - 30, y - HALF, MUTED)
            )
        if number == 3:
            parts += [line(RIGHT, below + HALF, RIGHT, y, MUTED, 2), arrow(RIGHT, y, MIDDLE + 65, y, MUTED)]
        parts += [box(x, y, 130, step, stroke), *_caption(y, shape, purpose)]
    return drawing(420, int(below + 6.8 * ROW), "Attention, from the tokens' vectors to its output", parts)


def _caption(y: float, shape: str, purpose: str) -> list[str]:
    return [words(CAPTION, y - 3, shape), words(CAPTION, y + 13, purpose, fill=MUTED)]


def block_text(tokens: int, width: int, heads: int) -> str:
    """The same steps as lines."""
    size = f"{tokens} × {width // heads}"
    lines = [("vectors", f"{tokens} × {width}", "one row for each token"),
             ("Q, K, V", size, "three matrices, in each head"),
             *(step[:3] for step in _steps(tokens, width, heads))]  # fmt: skip
    return "\n  ↓\n".join(f"{step:16}{shape:10}{purpose}" for step, shape, purpose in lines)


def weights_svg(tokens: Sequence[str], query: Rows, key: Rows, value: Rows) -> str:
    """Two tables of weights, dark where much is taken, with each row's output; without the mask, below it with it."""
    across, left = len(tokens) * CELL, 54.0
    table = across + 88
    parts = []
    for place, causal in enumerate((False, True)):
        weights, output = _both(query, key, value, causal)
        top = place * table
        parts.append(words(left + across / 2, top + 18, "with the mask" if causal else "without the mask", "middle"))
        for i, token in enumerate(tokens):
            middle = top + 66 + (i + 0.5) * CELL
            parts += [words(left + (i + 0.5) * CELL, top + 56, token, "middle", MUTED),
                      words(left - 8, middle + 4, token, "end", MUTED),
                      arrow(left + across + 4, middle, left + across + 24, middle, SECOND),
                      words(left + across + 30, middle + 4, shown(output[i], 4))]  # fmt: skip
            parts += [
                cell(
                    left + j * CELL,
                    middle - CELL / 2,
                    CELL,
                    weights[i, j],
                    _weight(weights[i, j], causal and j > i),
                    FIRST,
                )
                for j in range(len(tokens))
            ]
    return drawing(int(left + across + 140), int(2 * table), "Weights and outputs without and with the mask", parts)


def weights_text(tokens: Sequence[str], query: Rows, key: Rows, value: Rows) -> str:
    """The two tables in characters, one below the other."""
    lines = []
    for causal in (False, True):
        weights, output = _both(query, key, value, causal)
        head = "with the mask" if causal else "without the mask"
        lines.append(f"{head:18}" + "".join(f"{token:>9}" for token in tokens) + "    output")
        for i, token in enumerate(tokens):
            row = "".join(f"{_weight(one, causal and j > i):>9}" for j, one in enumerate(weights[i]))
            lines.append(f"{token:>17} {row}    {shown(output[i], 4)}")
        lines.append("")
    return "\n".join(lines[:-1])


def _both(query: Rows, key: Rows, value: Rows, causal: bool) -> tuple[Array, Array]:
    return attention_weights(query, key, causal=causal), attended(query, key, value, causal=causal)


def _weight(weight: float, hidden: bool) -> str:
    return "·" if hidden else f"{weight:.2f}"


FIGURES = {"attention-block": Drawn(block_svg, block_text), "attention-weights": Drawn(weights_svg, weights_text)}
