"""Functions that ask for logarithms of probabilities, for logits, or for probabilities, and are given another of them.

Source: the documentation of torch.nn.functional, torch.nn and torch.distributions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from limpid.doctor.contracts.contract import Breach, Given
from limpid.doctor.contracts.losses import NORMALISED
from limpid.doctor.makers import maker, of_a_linear_map, path
from limpid.doctor.rules.arguments import ELSEWHERE
from limpid.doctor.rules.loss_arguments import PROBABILITIES_GIVEN, PROBABILITY

OFF = 0.05
"""Of log Σ p from 0: rounding of half precision, and an ε inside of the logarithm, stay below."""


def nll(given: Given) -> Iterator[Breach]:
    """`input` (row, class, …), logarithms of probabilities over axis 1."""
    value = given["input"]
    axis = 1 if value.ndim > 1 else 0
    yield from _logarithms("nll_loss", value, axis)


def kl(given: Given) -> Iterator[Breach]:
    """`input` logarithms of probabilities; `target` probabilities, or their logarithms with log_target=True."""
    value, target = given["input"], given["target"]
    yield from _logarithms("kl_div", value, -1, target)
    if target.numel() and given["log_target"] and float(target.detach().max()) > PROBABILITY:
        yield Breach(
            rule=PROBABILITIES_GIVEN,
            where="kl_div: target",
            says=f"log_target=True asks for logarithms of probabilities, and target rises to "
            f"{float(target.detach().max()):.3g}: its exponential is taken for a probability, and is above 1.",
            cause="softmax for the target, and log_target=True",
            fix="log_softmax for the target, or log_target=False",
            evidence={"largest": float(target.detach().max())},
        )
    elif target.numel() and not given["log_target"] and float(target.detach().min()) < 0:
        yield Breach(
            rule=PROBABILITIES_GIVEN,
            where="kl_div: target",
            says=f"log_target=False asks for probabilities, and target falls to {float(target.detach().min()):.3g}: "
            "the logarithm of a negative number is not a number.",
            cause="log_softmax for the target, or a teacher's logits",
            fix="log_target=True for logarithms, softmax for logits",
            evidence={"least": float(target.detach().min())},
        )
    if given["reduction"] == "mean" and value.ndim > 1:
        yield Breach(
            rule=PROBABILITIES_GIVEN,
            where="kl_div: reduction",
            says=f"reduction='mean' divides by all {value.numel():,} elements, rows times classes: the divergence is "
            f"'batchmean', {value.numel() // max(1, value.shape[0]):,} times as large.",
            cause="the default of reduction",
            fix="reduction='batchmean'",
            severity="notice",
        )


def _logarithms(name: str, value: Tensor, axis: int, target: Tensor | None = None) -> Iterator[Breach]:
    """Logits, probabilities, or logarithms over another axis, where logarithms over this one are asked for.

    target  probabilities, or their logarithms, of the same shape
    """
    if not value.requires_grad or not value.numel() or value.shape[axis] < 2:
        return
    inside = value.detach().float()
    off = float(inside.logsumexp(axis).abs().mean())
    if off < OFF:
        return
    others = [i for i in range(value.ndim) if i != axis % value.ndim and value.shape[i] > 1]
    softmax = maker(value, ("LogSoftmax",))
    along_rows = any(float(inside.logsumexp(i).abs().max()) < NORMALISED for i in others)
    if softmax and (along_rows or _along_what_was_flattened(value, axis)):
        yield Breach(
            rule=ELSEWHERE,
            where=f"{name}: input",
            says=f"input {tuple(value.shape)} adds up to 1 along another axis than that of the classes, "
            f"{axis % value.ndim}: what is likelier in one row is made less likely in the others.",
            cause="log_softmax with another dim, or without one",
            fix=f"log_softmax(…, dim={axis})",
            meant=_along_that_axis(value, axis, target),
            evidence={"shape": list(value.shape)},
        )
        return
    what = "probabilities, which a softmax returned" if maker(value, ("Softmax",)) else ""
    if of_a_linear_map(value):
        what = "what a linear layer returned"
    if what and not (name == "kl_div" and not of_a_linear_map(value)):  # of probabilities kl_div's own look speaks
        yield Breach(
            rule=PROBABILITIES_GIVEN,
            where=f"{name}: input",
            says=f"{name} asks for logarithms of probabilities and is given {what}: they do not add up to 1 "
            f"(|log Σ p| = {off:.2g}), and nothing makes other classes less likely.",
            cause="softmax where log_softmax is meant, or neither",
            fix=f"{name}(log_softmax(logits, dim={axis}), …); or cross_entropy(logits, …)" * (name == "nll_loss")
            or f"{name}(log_softmax(logits, dim={axis}), …)",
            evidence={"log_sum": off, "largest": float(inside.max())},
        )


def _along_that_axis(value: Tensor, axis: int, target: Tensor | None) -> str | None:
    """Who has distributions along another axis on purpose; nobody where targets are none, or are along this one."""
    if target is None:
        square = value.ndim == 2 and value.shape[0] == value.shape[1]
        return "the other direction of a contrastive loss of pairs" if square else None
    sums = (target.detach().float().sum(axis) - 1).abs().max(), target.detach().float().logsumexp(axis).abs().max()
    return None if min(map(float, sums)) < NORMALISED else "distributions over rows or places, on both sides"


def _along_what_was_flattened(value: Tensor, axis: int) -> bool:
    """Whether rows (n, class) are (row, place, class) that were normalised along another axis than that of classes."""
    steps = list(path(value))
    if (
        value.ndim != 2
        or axis % 2 != 1
        or any(name in ("Slice", "Select", "Transpose", "Permute") for name, _ in steps)
    ):
        return False
    shape, along = _normalised(steps[-1][1])
    return len(shape) > 2 and shape[-1] == value.shape[1] and along != len(shape) - 1


def _normalised(node: Any) -> tuple[tuple[int, ...], int]:
    """The shape of what a log_softmax returned, and the axis along which it adds up to 1; none where unknown."""
    result, along = getattr(node, "_saved_result", None), getattr(node, "_saved_dim", None)
    if not isinstance(result, Tensor) or not isinstance(along, int):
        return (), 0
    return tuple(result.shape), (along - 2**64 if along >= 2**63 else along) % result.ndim


def poisson_rates(given: Given) -> Iterator[Breach]:
    """`input` are log-rates, with log_input=True."""
    made = maker(given["input"], ("Exp", "Softplus"))
    if given["log_input"] and made:
        yield Breach(
            rule=PROBABILITIES_GIVEN,
            where="poisson_nll_loss: input",
            says=f"log_input=True, the default, asks for logarithms of rates, and input is what {made.lower()} "
            "returned: it is exponentiated once more, and no rate below 1 can be said.",
            cause="a positive activation, and the default log_input=True",
            fix="log_input=False, or the output without that activation",
        )


def categorical(given: Given) -> Iterator[Breach]:
    """`logits` are not probabilities yet."""
    yield from _logits("Categorical", given["logits"], ("Softmax", "Sigmoid"))


def bernoulli(given: Given) -> Iterator[Breach]:
    yield from _logits("Bernoulli", given["logits"], ("Softmax", "Sigmoid"))


def gumbel(given: Given) -> Iterator[Breach]:
    yield from _logits("gumbel_softmax", given["logits"], ("Softmax",))


def _logits(name: str, value: object, squashes: tuple[str, ...]) -> Iterator[Breach]:
    made = maker(value, squashes) if isinstance(value, Tensor) else ""
    if made:
        yield Breach(
            rule=PROBABILITIES_GIVEN,
            where=f"{name}: logits",
            says=f"{name} is given as logits what {made.lower()} returned, and normalises it once more: no choice can "
            "be more than e times as likely as another.",
            cause=f"{made.lower()} in the model, and logits=… here",
            fix=f"{name}(probs=…)" if name != "gumbel_softmax" else "gumbel_softmax(logits)",
        )
