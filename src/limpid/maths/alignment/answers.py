"""From a model's log-probabilities to those of the answers that it is taught with."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from limpid.errors import DomainError, ShapeError
from limpid.maths.formula import floats, formula
from limpid.maths.operation import Array, Branch, require, require_shape


@formula(
    r"y_v = z_v / T",
    Branch.PROBABILITY,
    "Hinton et al. 2015, eq. 1, arXiv:1503.02531",
    (r"\bar z_v = \bar y_v / T",),
)
def tempered(logits: Float[Array, "... vocab"], temperature: float = 1.0) -> Float[Array, "... vocab"]:
    """Logits at another temperature than 1: at which answers were drawn, their probabilities are meant.

    Takes   logits       (..., vocab)  nats, up to a constant per position
            temperature  T             above 0; dimensionless
    Gives   y            (..., vocab)  nats, up to a constant per position
    Limits  T → ∞ makes all tokens alike, T → 0 leaves the likeliest only
    Raises  DomainError for T ≤ 0
    """
    require(temperature > 0, f"temperature is {temperature}: it must be above 0")
    return floats(logits) / temperature


@tempered.derivative
def tempered_backward(
    y_bar: Float[Array, "... vocab"], logits: Float[Array, "... vocab"], temperature: float = 1.0
) -> tuple[Float[Array, "... vocab"]]:
    return (y_bar / temperature,)


@formula(
    r"\ell_t = \ell_{t, w_{t+1}}",
    Branch.PROBABILITY,
    "Bengio et al. 2003, eq. 1, JMLR 3",
    (r"\bar \ell_{t,v} = \bar \ell_t \,[v = w_{t+1}]", r""),
)
def token_log_probabilities(
    log_probabilities: Float[Array, "*batch position vocab"], targets: Int[Array, "*batch position"]
) -> Float[Array, "*batch position"]:
    """The log-probability that a model gave to each token that came next.

    Takes   log_probabilities  (..., position, vocab)  nats
            targets            (..., position)         ids; a negative one marks a position that has none
    Gives   y                  (..., position)         nats; 0 where there is no target
    Raises  ShapeError when a target has no log-probability
    """
    log_probabilities, chosen, labelled = _targets(log_probabilities, targets)
    return np.where(labelled, np.take_along_axis(log_probabilities, chosen[..., None], -1)[..., 0], 0.0)


@token_log_probabilities.derivative
def token_log_probabilities_backward(
    y_bar: Float[Array, "*batch position"],
    log_probabilities: Float[Array, "*batch position vocab"],
    targets: Int[Array, "*batch position"],
) -> tuple[Float[Array, "*batch position vocab"], None]:
    log_probabilities, chosen, labelled = _targets(log_probabilities, targets)
    bar = np.zeros(log_probabilities.shape)
    np.put_along_axis(bar, chosen[..., None], np.where(labelled, y_bar, 0.0)[..., None], -1)
    return bar, None


@formula(
    r"\ln \pi(y) = \sum_{t \in y} \ell_t",
    Branch.PROBABILITY,
    "Rafailov et al. 2023, section 3, arXiv:2305.18290; the mean, Meng et al. 2024, eq. 3, arXiv:2405.14734",
    (r"\bar \ell_t = \bar y \,[t \in y]", r""),
)
def answer_log_probability(
    log_probabilities: Float[Array, "answer position"], mask: Float[Array, "answer position"], mean: bool = False
) -> Float[Array, " answer"]:
    """The log-probability of each answer: the sum over its tokens.

    Takes   log_probabilities  (answer, position)  of each token, nats
            mask               (answer, position)  1 where a token belongs to the answer, 0 in prompt and padding
            mean               per token instead, so that long answers weigh no more than short ones
    Gives   y                  (answer,)           nats
    Raises  ShapeError when the shapes differ, DomainError for the mean of an answer without tokens
    """
    return (floats(log_probabilities) * _weights(log_probabilities, mask, mean)).sum(-1)


@answer_log_probability.derivative
def answer_log_probability_backward(
    y_bar: Float[Array, " answer"],
    log_probabilities: Float[Array, "answer position"],
    mask: Float[Array, "answer position"],
    mean: bool = False,
) -> tuple[Float[Array, "answer position"], None]:
    return y_bar[:, None] * _weights(log_probabilities, mask, mean), None


@formula(
    r"y = \frac{\sum_{at} m_{at} x_{at}}{\sum_{at} m_{at}}, \quad "
    r"\tfrac1A \sum_a \frac{\sum_t m_{at} x_{at}}{\sum_t m_{at}}, \quad "
    r"\frac{\sum_{at} m_{at} x_{at}}{A\, T_{max}}",
    Branch.PROBABILITY,
    "token, Yu et al. 2025 (DAPO), eq. 8, arXiv:2503.14476; sequence, Shao et al. 2024 (GRPO), eq. 3, "
    "arXiv:2402.03300; fixed_length, Liu et al. 2025 (Dr. GRPO), section 3.2, arXiv:2503.20783",
    (r"\bar x_{at} = \bar y\, \partial y / \partial x_{at}", r""),
)
def aggregate(
    x: Float[Array, "answer position"],
    mask: Float[Array, "answer position"],
    over: str = "token",
    max_completion_length: int = 1,
) -> Float[Array, ""]:
    """From each token's loss to the loss of a step: what one answer weighs against a longer one.

    Takes   x                      (answer, position)
            mask                   (answer, position)  1 where a token counts, 0 elsewhere
            over                   token: all tokens alike; sequence: all answers alike, the mean over the tokens of
                                   each; fixed_length: all tokens alike, divided by a length that answers do not change
            max_completion_length  T_max of fixed_length, tokens
    Gives   y                      ()                  in the unit of x
    Limits  an answer of which no token counts adds 0, and counts as an answer; without any token the loss is 0
    Raises  ShapeError when the shapes differ, DomainError for another word or a length below 1
    """
    return (floats(x) * _shares(x, mask, over, max_completion_length)).sum()


@aggregate.derivative
def aggregate_backward(
    y_bar: Float[Array, ""],
    x: Float[Array, "answer position"],
    mask: Float[Array, "answer position"],
    over: str = "token",
    max_completion_length: int = 1,
) -> tuple[Float[Array, "answer position"], None]:
    return y_bar * _shares(x, mask, over, max_completion_length), None


@aggregate.written
def aggregate_lines(over: str = "token", max_completion_length: int = 1) -> tuple[str, tuple[str, ...]]:
    if over == "sequence":
        equation, share = r"y = \tfrac1A \sum_a \frac{\sum_t m_{at} x_{at}}{\sum_t m_{at}}", r"A \sum_u m_{au}"
    else:
        share = r"\sum_{bu} m_{bu}" if over == "token" else rf"{max_completion_length} A"
        equation = rf"y = \frac{{\sum_{{at}} m_{{at}} x_{{at}}}}{{{share}}}"
    return equation, (rf"\bar x_{{at}} = \frac{{m_{{at}}}}{{{share}}}\, \bar y", "")


@formula(
    r"y = \tfrac1n \sum_i x_i",
    Branch.PROBABILITY,
    "Cauchy 1821, Cours d'analyse, note II",
    (r"\bar x_i = \bar y / n",),
)
def mean(x: Float[Array, "*shape"]) -> Float[Array, ""]:
    """The mean over all entries: a loss per answer becomes the loss of a batch.

    Takes   x  (...)
    Gives   y  ()     in the unit of x
    Raises  DomainError when there is nothing to average
    """
    if np.size(x) == 0:
        raise DomainError("there is nothing to average: no answer is left")
    return floats(x).sum() / np.size(x)


@mean.derivative
def mean_backward(y_bar: Float[Array, ""], x: Float[Array, "*shape"]) -> tuple[Float[Array, "*shape"]]:
    return (np.broadcast_to(y_bar / np.size(x), np.shape(x)),)


@formula(
    r"y_j = x_{jp + k}",
    Branch.LINEAR_ALGEBRA,
    "Rafailov et al. 2023, appendix B, arXiv:2305.18290: chosen and rejected answers go through the model together",
    (r"\bar x_{jp + k} = \bar y_j, \quad 0 \text{ elsewhere}",),
)
def every(x: Float[Array, "answer *rest"], start: int = 0, step: int = 2) -> Float[Array, "share *rest"]:
    """Every p-th answer from the k-th on: of chosen, rejected, chosen, rejected, … the chosen ones or the others.

    Takes   x      (answer, ...)
            start  k, from 0
            step   p
    Gives   y      (answer / step, ...)
    Raises  ShapeError when the batch does not divide into such parts
    """
    x = floats(x)
    return x[_rows(len(x), start, step)]


@every.derivative
def every_backward(
    y_bar: Float[Array, "share *rest"], x: Float[Array, "answer *rest"], start: int = 0, step: int = 2
) -> tuple[Float[Array, "answer *rest"]]:
    bar = np.zeros(np.shape(x))
    bar[_rows(len(bar), start, step)] = y_bar
    return (bar,)


def _rows(rows: int, start: int, step: int) -> slice:
    if rows % step or not 0 <= start < step:
        raise ShapeError(f"{rows} answers, every {step} from {start} on: the batch must divide into such parts")
    return slice(start, None, step)


def _targets(log_probabilities: Array, targets: Array) -> tuple[Array, Array, Array]:
    """Log-probabilities, the targets with 0 where there is none, and where there is one."""
    log_probabilities, targets = floats(log_probabilities), np.asarray(targets)
    require_shape("targets", targets, log_probabilities.shape[:-1], "one target per position")
    vocab = log_probabilities.shape[-1]
    if targets.size and targets.max() >= vocab:
        raise ShapeError(f"target {targets.max()} lies outside the vocabulary of {vocab}: tokenizer and model disagree")
    return log_probabilities, np.maximum(targets, 0), targets >= 0


def _weights(log_probabilities: Array, mask: Array, mean: bool) -> Array:
    """What each token's log-probability is multiplied by."""
    mask = floats(mask)
    require_shape("mask", mask, np.shape(log_probabilities), "1 or 0 for every token")
    if not mean:
        return mask
    tokens = mask.sum(-1, keepdims=True)
    if (tokens == 0).any():
        raise DomainError(f"answer {int(np.argmin(tokens))} has no token: its mean per token does not exist")
    return mask / tokens


def _shares(x: Array, mask: Array, over: str, max_completion_length: int) -> Array:
    """What each token of the answers weighs in the loss of the step."""
    mask = _weights(x, mask, mean=False)
    if over == "token":
        return mask / max(mask.sum(), 1.0)
    if over == "sequence":
        return mask / np.maximum(mask.sum(-1, keepdims=True), 1.0) / len(mask)
    require(over == "fixed_length", f"over is {over!r}: choose one of token, sequence, fixed_length")
    require(max_completion_length >= 1, f"max_completion_length is {max_completion_length}: it must be at least 1")
    return mask / (len(mask) * max_completion_length)
