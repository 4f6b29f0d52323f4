"""Tokens become vectors; positions are added to them, or turn the queries and keys."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from limpid.config.domain import Positive, Whole
from limpid.errors import ShapeError
from limpid.maths.operation import Array, Branch, Operation, Shape, in_latex, require


class SavedLookup(NamedTuple):
    tokens: Array  # (batch, position)
    rows: int  # of the table


@dataclass(frozen=True)
class Embedding(Operation):
    """Look up each token's vector: the product of a one-hot row with the table.

    Takes   tokens  (batch, position)  ids                        from the batch
            table   (vocab, d_model)   one vector per token       learned
    Gives   y       (batch, position, d_model)
    Saves   the ids: only rows that were looked up receive a gradient
    Limits  a token that occurs k times receives the sum of k gradients
    Raises  ShapeError when an id has no row
    """

    equation = r"y_t = e_{w_t}^\top E"
    adjoint = (r"", r"\bar E_v = \sum_{t : w_t = v} \bar y_t")
    source = "Bengio et al. 2003, section 2, JMLR 3"
    branch = Branch.LINEAR_ALGEBRA

    def forward(
        self, tokens: Int[Array, "batch position"], table: Float[Array, "vocab d_model"]
    ) -> tuple[Array, SavedLookup]:
        if tokens.size and not 0 <= tokens.min() <= tokens.max() < len(table):
            worst = int(tokens.max() if tokens.max() >= len(table) else tokens.min())
            raise ShapeError(f"token {worst} has no row in a table of {len(table)}: tokenizer and model disagree")
        return table[tokens], SavedLookup(tokens, len(table))

    def backward(self, y_bar: Float[Array, "batch position d_model"], saved: SavedLookup) -> tuple[None, Array]:
        table_bar = np.zeros((saved.rows, y_bar.shape[-1]))
        np.add.at(table_bar, saved.tokens, y_bar)
        return None, table_bar

    def rounding(self, tokens: Array, table: Array) -> Array:
        return np.zeros((*tokens.shape, table.shape[1]))  # a copy

    def backward_rounding(self, y_bar: Array, saved: SavedLookup) -> tuple[None, Array]:
        times = np.bincount(saved.tokens.ravel(), minlength=saved.rows)
        return None, times[:, None] * self.backward(np.abs(y_bar), saved)[1]


@dataclass(frozen=True)
class LearnedPositions(Operation):
    """The first `length` rows of a table: one learned vector per position, the same for every text.

    Takes   table  (context, d_model)  learned
    Gives   y      (position, d_model)
    Saves   how many rows the table has
    Limits  rows beyond `length` receive no gradient
    Raises  ShapeError when the table is shorter than the text
    """

    length: int

    equation = r"y_t = P_t"
    adjoint = (r"\bar P_t = \bar y_t",)
    source = "Vaswani et al. 2017, section 3.5, arXiv:1706.03762; Radford et al. 2018"
    branch = Branch.LINEAR_ALGEBRA

    def forward(self, table: Float[Array, "context d_model"]) -> tuple[Array, int]:
        if len(table) < self.length:
            raise ShapeError(f"{self.length} positions, but the table has {len(table)}: shorten the text")
        return table[: self.length], len(table)

    def backward(self, y_bar: Float[Array, "position d_model"], saved: int) -> tuple[Array]:
        return (np.concatenate((y_bar, np.zeros((saved - self.length, y_bar.shape[1])))),)

    def rounding(self, table: Array) -> Array:
        return np.zeros((self.length, table.shape[1]))

    def backward_rounding(self, y_bar: Array, saved: int) -> tuple[Array]:
        return (np.zeros((saved, y_bar.shape[1])),)


@dataclass(frozen=True)
class SinusoidalPositions(Operation):
    """Fixed vectors of the positions: a sine and a cosine for each of d_model / 2 wavelengths.

    Takes   nothing
    Gives   y  (position, d_model)  between -1 and 1
    Saves   nothing
    Limits  position 0 is 0, 1, 0, 1, …
    """

    length: Whole
    d_model: Whole
    base: Positive = 10000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_model % 2 or self.d_model < 2:
            raise ShapeError(f"d_model is {self.d_model}: sines and cosines come in pairs, so it must be even")

    equation = r"y_{t,2i} = \sin(t\, b^{-2i/d}), \quad y_{t,2i+1} = \cos(t\, b^{-2i/d})"
    adjoint = ()
    source = "Vaswani et al. 2017, section 3.5, arXiv:1706.03762"
    branch = Branch.CALCULUS

    def _own(self, line: str, shapes: Sequence[Shape]) -> str:
        return line.replace("b^{-2i/d}", rf"{in_latex(self.base)}^{{-2i/{self.d_model}}}")

    def forward(self) -> tuple[Array, None]:
        angles = np.arange(self.length)[:, None] * self.base ** (-np.arange(0, self.d_model, 2) / self.d_model)
        y = np.empty((self.length, self.d_model))
        y[:, 0::2], y[:, 1::2] = np.sin(angles), np.cos(angles)
        return y, None

    def backward(self, y_bar: Array, saved: None) -> tuple[()]:
        return ()

    def rounding(self) -> Array:
        exponents = np.arange(0, self.d_model, 2) / self.d_model
        angles = angle_rounding(np.arange(self.length), self.base, exponents)
        return np.repeat(angles + 2, 2, axis=-1)  # and of sine and cosine

    def backward_rounding(self, y_bar: Array, saved: None) -> tuple[()]:
        return ()


def angle_rounding(positions: Array, base: float, exponents: Array, roundings: Array | float = 0.0) -> Array:
    """Error of the angles t b^-e in u: of the exponent, which the power passes on by ln b, of the power, of t times it.

    roundings   of the frequency after the power, in u of b^-e
    """
    relative = exponents * abs(math.log(base)) + 3 + roundings
    error: Array = positions[:, None] * base**-exponents * relative
    return error


class SavedRotation(NamedTuple):
    cos: Array  # (position, 1, pair)
    sin: Array


@dataclass(frozen=True)
class Rotary(Operation):
    """Turn each pair of features by an angle proportional to the position, so that products see differences only.

    Takes   x  (batch, position, head, d_head)  queries or keys
    Gives   y  (batch, position, head, d_head)  of the same length (times yarn's factor)
    Saves   cosines and sines
    Limits  position 0 is not turned
    Raises  ShapeError when d_head is odd
    Departs the pairs are (i, i + d_head/2), as published weights have them, unless interleaved as in the paper
    """

    base: Positive = 10000.0
    layout: Literal["half", "interleaved"] = "half"
    scaling: Literal["none", "linear", "llama3", "yarn"] = "none"
    factor: Positive = 1.0
    original_context: Whole = 0
    low: float = 1.0
    high: float = 4.0
    attention_factor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scaling in ("llama3", "yarn"):
            require(
                self.original_context > 0,
                f"original_context is {self.original_context}: {self.scaling} stretches the context that the model was "
                "made for, so give it",
            )
            require(self.high > self.low > 0, f"low is {self.low}, high {self.high}: expected 0 < low < high")

    equation = (
        r"\begin{pmatrix} y_i \\ y_{i'} \end{pmatrix} = \begin{pmatrix} \cos t\theta_i & -\sin t\theta_i \\ "
        r"\sin t\theta_i & \cos t\theta_i \end{pmatrix} \begin{pmatrix} x_i \\ x_{i'} \end{pmatrix}, "
        r"\quad \theta_i = b^{-2i/d}"
    )
    adjoint = (
        r"\bar x_i = \bar y_i \cos t\theta_i + \bar y_{i'} \sin t\theta_i, \quad "
        r"\bar x_{i'} = \bar y_{i'} \cos t\theta_i - \bar y_i \sin t\theta_i",
    )
    source = "Su et al. 2021, eq. 34, arXiv:2104.09864"
    branch = Branch.LINEAR_ALGEBRA

    def _own(self, line: str, shapes: Sequence[Shape]) -> str:
        (x,) = shapes
        d_head = x[-1]
        stretched = {"none": "", "linear": f" / {in_latex(self.factor)}"}
        how = stretched.get(self.scaling, rf"\text{{, stretched by {self.scaling}}}")
        line = line.replace("b^{-2i/d}", rf"{in_latex(self.base)}^{{-2i/{d_head}}}{how}")
        if (scale := self.scale()) != 1:
            if line.startswith(r"\begin"):
                line = line.replace(r"= \begin", rf"= {in_latex(scale)}\, \begin")
            else:
                line = re.sub(r"\\(cos|sin)", rf"{in_latex(scale)} \\\1", line)
        if self.layout == "half":
            return line.replace("i'", f"i+{d_head // 2}")
        for i, pair in (("_i ", "_{2i} "), ("_{i'}", "_{2i+1}")):
            for letter in ("x", "y"):
                line = line.replace(f"{letter}{i}", f"{letter}{pair}")
        return line

    def frequencies(self, d_head: int) -> Float[Array, " pair"]:
        """Radians per position of each pair, after stretching.

        Sources: linear, Chen et al. 2023, arXiv:2306.15595; llama3, Llama 3.1's release; yarn, Peng et al. 2023,
        eq. 17-23, arXiv:2309.00071.
        """
        theta = self.base ** (-np.arange(0, d_head, 2) / d_head)
        if self.scaling == "linear":
            return theta / self.factor
        if self.scaling == "llama3":
            rotations = self.original_context * theta / (2 * np.pi)
            smooth = np.clip((rotations - self.low) / (self.high - self.low), 0, 1)
            return smooth * theta + (1 - smooth) * theta / self.factor
        if self.scaling == "yarn":
            fast, slow = (self._pair_of(rotations, d_head) for rotations in (self.high, self.low))
            first, last = max(math.floor(fast), 0), min(math.ceil(slow), d_head - 1)
            stretched = np.clip((np.arange(d_head // 2) - first) / max(last - first, 0.001), 0, 1)
            return theta * (1 - stretched + stretched / self.factor)
        return theta

    def _pair_of(self, rotations: float, d_head: int) -> float:
        """Which pair makes this many rotations over the original context (yarn, eq. 17 solved for the index)."""
        return d_head * math.log(self.original_context / (2 * math.pi * rotations)) / (2 * math.log(self.base))

    def scale(self) -> float:
        """What yarn multiplies queries and keys by (eq. 22)."""
        if self.scaling != "yarn":
            return 1.0
        return self.attention_factor or 0.1 * math.log(max(1.0, self.factor)) + 1

    def forward(self, x: Float[Array, "batch position head d_head"]) -> tuple[Array, SavedRotation]:
        if x.shape[-1] % 2:
            raise ShapeError(f"x has shape {x.shape}: features turn in pairs, so d_head must be even")
        angles = np.arange(x.shape[1])[:, None, None] * self.frequencies(x.shape[-1])
        saved = SavedRotation(self.scale() * np.cos(angles), self.scale() * np.sin(angles))
        return self._turned(x, saved.cos, saved.sin), saved

    def backward(self, y_bar: Float[Array, "batch position head d_head"], saved: SavedRotation) -> tuple[Array]:
        return (self._turned(y_bar, saved.cos, -saved.sin),)  # the transpose of a rotation turns back

    def _turned(self, x: Array, cos: Array, sin: Array) -> Array:
        half = x.shape[-1] // 2
        first, second = (x[..., :half], x[..., half:]) if self.layout == "half" else (x[..., 0::2], x[..., 1::2])
        y = np.empty_like(x)
        y_first, y_second = (y[..., :half], y[..., half:]) if self.layout == "half" else (y[..., 0::2], y[..., 1::2])
        y_first[...] = first * cos - second * sin
        y_second[...] = second * cos + first * sin
        return y

    def rounding(self, x: Array) -> Array:
        return self._errors(x, self.forward(x)[1])

    def backward_rounding(self, y_bar: Array, saved: SavedRotation) -> tuple[Array]:
        return (self._errors(y_bar, saved),)

    def _errors(self, x: Array, saved: SavedRotation) -> Array:
        """Of two products and their sum; of cosine and sine, by how far the angle is off, and of the scale on them."""
        exponents = np.arange(0, x.shape[-1], 2) / x.shape[-1]
        angles = angle_rounding(np.arange(x.shape[1]), self.base, exponents, self._stretching_rounding(x.shape[-1]))
        of_scale = 3 if self.scaling == "yarn" else 0
        turned = self.scale() * (angles[:, None, :] + 3 + of_scale) * self._pairs(x, np.add)
        return 3 * self._sums(x, saved) + self._spread(turned, turned)

    def _stretching_rounding(self, d_head: int) -> Array | float:
        """Error that stretching adds to each frequency, in u of the one before: θ (1 - s + s/f), of which s is off.

        s is a ramp between two indices with yarn; with llama3 it follows the frequency, whose own error it multiplies.
        """
        if self.scaling == "none":
            return 0.0
        most = max(1.0, 1 / self.factor)
        if self.scaling != "llama3":
            return 6 * most
        theta = self.base ** (-np.arange(0, d_head, 2) / d_head)
        rotations = np.minimum(self.original_context * theta / (2 * np.pi), max(self.low, self.high))
        off = rotations * (abs(math.log(self.base)) + 6) + abs(self.low)
        return most * (5 + off / max(abs(self.high - self.low), 1e-300))

    def backward_storage(self, bars: Sequence[Array | None], y_bar: Array, saved: SavedRotation) -> tuple[Array]:
        """Both products may be stored before they are added."""
        return (self._sums(y_bar, saved) + np.abs(self.backward(y_bar, saved)[0]),)

    def _sums(self, x: Array, saved: SavedRotation) -> Array:
        """|x cos| + |x' sin| of each entry."""
        cos, sin = np.abs(saved.cos), np.abs(saved.sin)
        return self._spread(
            self._pairs(x, lambda first, second: first * cos + second * sin),
            self._pairs(x, lambda first, second: second * cos + first * sin),
        )

    def _pairs(self, x: Array, joined: Callable[[Array, Array], Array]) -> Array:
        """Of the magnitudes of both features of each pair."""
        half = x.shape[-1] // 2
        first, second = (x[..., :half], x[..., half:]) if self.layout == "half" else (x[..., 0::2], x[..., 1::2])
        return joined(np.abs(first), np.abs(second))

    def _spread(self, first: Array, second: Array) -> Array:
        """The features of all pairs in their places."""
        if self.layout == "half":
            return np.concatenate((first, second), -1)
        return np.stack((first, second), -1).reshape(*first.shape[:-1], -1)
