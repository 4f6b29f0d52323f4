"""The loss: how surprised the model is, in nats, by each token that came next."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from limpid.errors import ShapeError
from limpid.maths.chain import Chain
from limpid.maths.given import given
from limpid.maths.operation import Array, Branch, Operation, require_shape
from limpid.maths.rounding import dots

NO_LABEL = -100
"""Target of a position that has no next token to learn."""


@dataclass(frozen=True)
class LogSoftmax(Operation):
    """Turn logits into logarithms of probabilities.

    Takes   logits             (..., vocab)  nats, up to a constant per position
    Gives   log_probabilities  (..., vocab)  nats, at most 0; their exponentials sum to 1
    Saves   the result
    Limits  one logit far above the others: its log-probability is 0, theirs are the differences
    """

    equation = r"\ell_v = z_v - \log \sum_{v'} e^{z_{v'}}"
    adjoint = (r"\bar z_v = \bar \ell_v - e^{\ell_v} \sum_{v'} \bar \ell_{v'}",)
    source = "Blanchard, Higham & Higham 2021, eq. 1.2 and 3.4, arXiv:1909.03469"
    branch = Branch.PROBABILITY

    def forward(self, logits: Float[Array, "... vocab"]) -> tuple[Array, Array]:
        shifted = logits - logits.max(-1, keepdims=True)
        shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
        return shifted, shifted

    def backward(self, y_bar: Float[Array, "... vocab"], saved: Array) -> tuple[Array]:
        return (y_bar - np.exp(saved) * y_bar.sum(-1, keepdims=True),)

    def rounding(self, logits: Array) -> Array:
        y, _ = self.forward(logits)
        return self._error(y)

    def backward_rounding(self, y_bar: Array, saved: Array) -> tuple[Array]:
        terms = np.count_nonzero(y_bar, axis=-1, keepdims=True)  # adding zeros is exact
        magnitude = np.abs(y_bar)
        return (magnitude + np.exp(saved) * (self._error(saved) + terms + 4) * magnitude.sum(-1, keepdims=True),)

    @staticmethod
    def _error(y: Array) -> Array:
        """Error of each log-probability in u: of z - max, of the logarithm of the sum of its exponentials, of both."""
        largest, p = y.max(-1, keepdims=True), np.exp(y)
        terms = (largest + 3) * p.sum(-1, keepdims=True) - dots(p, y)  # Σ p (largest - y + 3)
        length = 4 + y.shape[-1] / 8  # at least eight partial sums run side by side
        error: Array = np.multiply(y, -2.0, out=p)  # (largest - y) - y - largest
        error += terms + length
        return error


class SavedTargets(NamedTuple):
    targets: Array  # (...)
    labels: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class NegativeLogLikelihood(Operation):
    """Average the surprise of the tokens that came next, over the positions that have a label.

    Takes   log_probabilities  (..., vocab)  nats
            targets            (...)         ids; `ignore_index` marks a position without label
    Gives   loss               ()            nats per label
    Saves   targets and how many labels there are
    Limits  no label at all gives 0, and no gradient
    Raises  ShapeError when a target has no log-probability
    """

    ignore_index: int = NO_LABEL

    equation = r"L = -\tfrac1N \sum_{t\ \text{labelled}} \ell_{t, w_{t+1}}"
    adjoint = (r"\bar \ell_{t,v} = -\tfrac1N \bar L \,[v = w_{t+1}]", r"")
    source = "Bengio et al. 2003, eq. 1, JMLR 3"
    branch = Branch.INFORMATION

    def forward(
        self, log_probabilities: Float[Array, "... vocab"], targets: Int[Array, "..."]
    ) -> tuple[Array, SavedTargets]:
        require_shape("targets", targets, log_probabilities.shape[:-1], "one target per position")
        labelled = targets != self.ignore_index
        vocab, labels = log_probabilities.shape[-1], int(labelled.sum())
        chosen = targets[labelled]
        if labels and not 0 <= chosen.min() <= chosen.max() < vocab:
            worst = int(chosen.max() if chosen.max() >= vocab else chosen.min())
            raise ShapeError(f"target {worst} lies outside the vocabulary of {vocab}: tokenizer and model disagree")
        surprise = -log_probabilities[labelled, chosen]
        return np.asarray(surprise.sum() / max(1, labels)), SavedTargets(targets, labels, log_probabilities.shape)

    def backward(self, loss_bar: Float[Array, ""], saved: SavedTargets) -> tuple[Array, None]:
        bar = np.zeros(saved.shape)
        labelled = saved.targets != self.ignore_index
        bar[labelled, saved.targets[labelled]] = -loss_bar / max(1, saved.labels)
        return bar, None

    def rounding(self, log_probabilities: Array, targets: Array) -> Array:
        loss, saved = self.forward(np.abs(log_probabilities), targets)
        return (saved.labels + 2) * np.abs(loss)

    def backward_rounding(self, loss_bar: Array, saved: SavedTargets) -> tuple[Array, None]:
        return 2 * np.abs(self.backward(loss_bar, saved)[0]), None


@given
def next_token_loss(chain: Chain, logits: str) -> str:
    """The loss of a chain's logits against its `targets`, nats per label; returns its name."""
    log_probabilities = chain.apply("log_probabilities", LogSoftmax(), logits)
    return chain.apply("loss", NegativeLogLikelihood(), log_probabilities, "targets")


@given
def perplexity(loss: float) -> float:
    """eᴸ: among how many equally likely tokens the model would be as unsure. Loss in nats per token; may be ∞."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
