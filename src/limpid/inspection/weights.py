"""What the weights show without any text: singular values of every matrix, and neighbours in the token embedding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from limpid.data.tokenizer import Tokenizer
from limpid.errors import ConfigError
from limpid.inspection.model_and_text import single_token
from limpid.maths.foundations import analogy, entropy, neighbours
from limpid.model import Transformer
from limpid.plots import panels, plain, save

Array = np.ndarray
KEPT = 0.9
"""Share of the squared Frobenius norm that the rank needed refers to."""


@dataclass(frozen=True)
class Spectrum:
    """What the singular values of one matrix tell."""

    name: str
    shape: tuple[int, int]
    values: Float[Array, " rank"]  # largest first

    @property
    def squares(self) -> Float[Array, " rank"]:
        squares: Array = np.square(self.values)
        return squares

    @property
    def effective_rank(self) -> float:
        """exp of the entropy of the normalised singular values, as limpid.maths.effective_rank, from values at hand."""
        total = self.values.sum()
        return float(np.exp(entropy(self.values / total))) if total > 0 else 0.0

    @property
    def stable_rank(self) -> float:
        """‖W‖²_F / σ₁²: how many directions as strong as the strongest there are room for."""
        return float(self.squares.sum() / self.squares[0]) if self.values[0] > 0 else 0.0

    @property
    def rank_needed(self) -> int:
        """The least rank that keeps 90 % of the squared Frobenius norm."""
        kept = np.cumsum(self.squares)
        return int(np.searchsorted(kept, KEPT * kept[-1])) + 1 if kept[-1] > 0 else 0

    @property
    def quarter(self) -> int:
        """A quarter of the full rank."""
        return min(self.shape) // 4

    @property
    def quarter_error(self) -> float:
        """‖W - W_k‖_F / ‖W‖_F of the best matrix of a quarter of the rank (Eckart & Young 1936)."""
        total = self.squares.sum()
        return float(np.sqrt(self.squares[self.quarter :].sum() / total)) if total > 0 else 0.0

    @property
    def kind(self) -> str:
        """Its name without the number of its block."""
        parts = self.name.removesuffix(".weight").split(".")
        return ".".join(parts[2:] if parts[0] == "blocks" else parts)


def singular_values(model: nn.Module) -> tuple[Spectrum, ...]:
    """Every matrix of the model."""
    return tuple(
        Spectrum(
            name, (weight.shape[0], weight.shape[1]), np.linalg.svd(weight.detach().double().numpy(), compute_uv=False)
        )
        for name, weight in model.named_parameters()
        if weight.ndim == 2
    )


def draw_spectra(spectra: tuple[Spectrum, ...], file: Path) -> Path:
    """Singular values by kind of matrix, one line per block, from light (first) to dark (last)."""
    from matplotlib import colormaps

    kinds = list(dict.fromkeys(spectrum.kind for spectrum in spectra))
    drawing, axes = panels(len(kinds), 4, 3.1, 2.5)
    for axis, kind in zip(axes, kinds, strict=True):
        lines = [spectrum for spectrum in spectra if spectrum.kind == kind]
        for number, spectrum in enumerate(lines):
            shade = 0.35 + 0.6 * number / max(1, len(lines) - 1) if len(lines) > 1 else 0.95
            shown = spectrum.values[spectrum.values > 0]
            axis.semilogy(np.arange(1, len(shown) + 1), shown, color=colormaps["Blues"](shade), linewidth=1.3)
        rows, columns = lines[0].shape
        plain(axis, f"{kind}  {rows}×{columns}", "index", "singular value")
    drawing.suptitle("singular values, one line per block: light is the first, dark the last", fontsize=10)
    return save(drawing, file)


COUNT = 8
"""How many are named."""


@dataclass(frozen=True)
class Neighbours:
    """The tokens that answer a question about words."""

    question: str
    answers: tuple[tuple[int, str, float], ...]  # token, its text, cosine


def embedding_neighbours(model: Transformer, tokenizer: Tokenizer, words: tuple[str, ...]) -> Neighbours | None:
    """One word: its neighbours. Three, a b c: what is to c as b is to a. None: nothing.

    Raises  ConfigError for another number of words, or a word that is several tokens
    """
    if not words:
        return None
    if len(words) not in (1, 3):
        raise ConfigError(
            f"--word is given {len(words)} times ({', '.join(map(repr, words))}), expected 1 (its neighbours) "
            "or 3 (a b c: what is to c as b is to a)"
        )
    tokens = [single_token(word, tokenizer, "--word") for word in words]
    for word, token in zip(words, tokens, strict=True):
        if token >= model.config.vocab_size:
            raise ConfigError(
                f"--word {word!r} is token {token}, outside the model's vocabulary of {model.config.vocab_size}: "
                "give another"
            )
    table = model.embed.tokens.weight.detach().to(torch.float64).numpy()
    if len(tokens) == 1:
        rows = neighbours(np.asarray(table[tokens[0]]), table, COUNT, without=(tokens[0],))
        question = f"nearest to {words[0]!r}"
    else:
        rows = analogy(table, *tokens, count=COUNT)
        question = f"what is to {words[2]!r} as {words[1]!r} is to {words[0]!r}"
    return Neighbours(question, tuple((row, tokenizer.token_text(row), cosine) for row, cosine in rows))
