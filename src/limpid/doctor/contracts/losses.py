"""Losses whose targets have a range, and what each does with targets outside of it.

Source: the documentation of torch.nn.functional and torch.nn, function by function.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from limpid.doctor.contracts.contract import Breach, Given, names
from limpid.doctor.makers import maker, path
from limpid.doctor.rules.arguments import EXCHANGED, ONE_CLASS, OUTSIDE
from limpid.doctor.rules.row_lessons import CLASS_WEIGHTS_INVERTED

FAR_OUTSIDE = 0.5
"""Beyond 0 and 1 by more: smoothed labels of a discriminator are drawn from up to 1.2."""
FEW = 8
"""Numbers of which no more than two may be different by chance."""
RARE, POSITIVES = 0.25, 5
"""Share of positives of a class that is rare, and how many of them a batch must hold to say so."""
NEAR_ODDS = 0.4
"""Of log w from log(positives / negatives): a batch of a few dozen is no closer to the data."""
NORMALISED = 1e-2
"""Probabilities add up to 1 that closely in half precision."""


def cross_entropy(given: Given) -> Iterator[Breach]:
    """`input` (row, class, …), `target` classes, or probabilities of the shape of `input`."""
    logits, target = given["input"], given["target"]
    axis = 1 if logits.ndim > 1 else 0
    if logits.shape[axis] == 1 and logits.requires_grad and len(logits) > 1:  # a pair alone has no other to tell from
        yield Breach(
            rule=ONE_CLASS,
            where="cross_entropy: input",
            says=f"input has shape {tuple(logits.shape)}, one class alone: its probability is 1 whatever the model "
            "says, and the loss and its gradient are 0.",
            cause="one output for two classes, or classes that are not on the axis of classes",
            fix="two outputs, or binary_cross_entropy_with_logits for one; classes on axis 1",
            evidence={"shape": list(logits.shape)},
        )
    if target.is_floating_point() and target.shape == logits.shape and not target.requires_grad:
        yield from _soft(target.detach().float().movedim(axis, -1).reshape(-1, logits.shape[axis]))


def _soft(rows: Tensor) -> Iterator[Breach]:
    """Rows (row, class) that are to be probabilities: several weights in a row that are neither these nor multiples."""
    several = rows[(rows != 0).sum(-1) > 1]
    if 2 * len(several) > len(rows) and bool(((rows == 0) | (rows == 1)).all()):
        yield _several_classes(several)
    if rows.shape[-1] < 2 or not len(several) or not bool((several < 0).any()):
        return
    if bool((several <= 0).all()) and float(several.logsumexp(-1).abs().max()) < NORMALISED:
        what, cause = "logarithms of probabilities", "log_softmax for the targets, where softmax is meant"
    elif float(several.sum(-1).abs().mean()) > NORMALISED * float(several.abs().sum(-1).mean()):
        what, cause = "numbers of both signs", "a teacher's logits without a softmax"
    else:  # advantages of each action add up to nothing
        return
    least, most = float(rows.min()), float(rows.max())
    shares = float((several.sum(-1) - 1).abs().max()) < NORMALISED
    yield Breach(
        rule=OUTSIDE,
        where="cross_entropy: target",
        says=f"targets for each class are {what} ({least:.3g} … {most:.3g}), where probabilities in [0, 1] are asked "
        "for: what has a negative weight is made ever less likely, without an end.",
        cause=cause,
        fix="softmax(teacher_logits, dim=1) as the target",
        severity="fault" if cause.startswith("log_softmax") else "warning",
        meant="labels smoothed by a negative share: what is wrong is to become less likely still" if shares else None,
        looks=2,
        evidence={"least": least, "most": most},
    )


def _several_classes(rows: Tensor) -> Breach:
    """Rows of 0 and 1 with more than one 1: shares of a softmax by some methods, several labels by mistake."""
    count = float(rows.sum(-1).mean())
    return Breach(
        rule=OUTSIDE,
        where="cross_entropy: target",
        says=f"targets are 0 and 1, with {count:.2g} ones in a row on average: the softmax can give each of them "
        f"{1 / count:.2g} at most, and classes that belong together compete.",
        cause="several labels for each row, in a loss for one; or counts, which are meant so",
        fix="binary_cross_entropy_with_logits for several labels",
        severity="notice",
        looks=2,
        evidence={"ones": count},
    )


def binary_with_logits(given: Given) -> Iterator[Breach]:
    """`target` in [0, 1], one for each logit; `pos_weight` above 0."""
    logits, target, weight = given["input"], given["target"], given["pos_weight"]
    name = "binary_cross_entropy_with_logits"
    yield from _exchanged(name, logits, target)
    if target.requires_grad:
        return
    yield from _outside(name, target, given["weight"])
    if isinstance(weight, Tensor):
        yield from _inverted(weight, target)
    if isinstance(weight, Tensor) and weight.numel() and float(weight.min()) < 0:
        yield Breach(
            rule=OUTSIDE,
            where=f"{name}: pos_weight",
            says=f"pos_weight is {float(weight.min()):.3g}: positives of a negative weight are made ever less likely, "
            "without an end.",
            cause="a weight that was computed with a difference, or its logarithm",
            fix="pos_weight = negatives / positives of each class",
            evidence={"pos_weight": float(weight.min())},
        )


def _inverted(weight: Tensor, target: Tensor) -> Iterator[Breach]:
    """Weights of rare positives that are positives / negatives, (row, class) or (row,)."""
    y = target.detach().float()
    y = y if y.ndim == 2 and weight.numel() == y.shape[1] else y.reshape(-1, 1)
    if weight.numel() not in (1, y.shape[1]) or not bool(((y == 0) | (y == 1)).all()):
        return
    share = y.mean(0)
    known = (share < RARE) & (y.sum(0) >= POSITIVES)
    odds, given = share / (1 - share), weight.detach().float().expand(y.shape[1])
    swapped = known & ((given / odds).log().abs() < NEAR_ODDS) & (given < 1)
    if not bool(known.any()) or int(swapped.sum()) <= int(known.sum()) / 2:
        return
    index = int(swapped.nonzero()[0])
    yield Breach(
        rule=CLASS_WEIGHTS_INVERTED,
        where="binary_cross_entropy_with_logits: pos_weight",
        says=f"pos_weight is {float(given[index]):.3g} where {float(share[index]):.0%} are positive: that is "
        "positives / negatives, so that what is rare counts less still.",
        cause="positives / negatives where negatives / positives is meant",
        fix=f"pos_weight = negatives / positives, about {1 / float(odds[index]):.3g}",
        looks=3,
        evidence={"pos_weight": float(given[index]), "share": float(share[index])},
    )


def binary(given: Given) -> Iterator[Breach]:
    """`input` probabilities, `target` in [0, 1]."""
    yield from _exchanged("binary_cross_entropy", given["input"], given["target"])
    if _classes_of_softmax(given["input"]) == 1:
        yield Breach(
            rule=ONE_CLASS,
            where="binary_cross_entropy: input",
            says="predictions are a softmax over one output alone: they are 1 whatever the model says, and have no "
            "gradient.",
            cause="softmax where a sigmoid is meant",
            fix="binary_cross_entropy_with_logits(logits, target)",
        )


def _classes_of_softmax(value: Tensor) -> int:
    """How many numbers the softmax that made this was taken over; 0 where none did."""
    node = next((node for name, node in path(value) if name == "Softmax"), None)
    if node is None:
        return 0
    axis: int = node._saved_dim if node._saved_dim < 2**63 else node._saved_dim - 2**64
    return int(node._saved_result.shape[axis])


def _exchanged(name: str, given: Tensor, target: Tensor) -> Iterator[Breach]:
    """Labels, smoothed or not, in the place of the predictions, and predictions in theirs."""
    if given.requires_grad or not target.requires_grad or not given.numel():
        return
    labels = given.detach()
    two = labels.numel() > FEW and len(labels.unique()) <= 2  # what another model says takes many values
    plain = bool(((labels == 0) | (labels == 1)).all())
    if two or plain:
        yield Breach(
            rule=EXCHANGED,
            where=f"{name}: input",
            says=f"{name}(input, target) has labels ({names(labels)}) as its input and the model's output as its "
            "target: the loss is linear in that output and falls without an end.",
            cause="the order of the arguments",
            fix=f"{name}(prediction, label)",
            meant=None
            if plain or name != "binary_cross_entropy"
            else "a reverse cross-entropy, against labels that lie",
            evidence={"input": names(labels)},
        )


def _outside(name: str, target: Tensor, weight: Tensor | None = None) -> Iterator[Breach]:
    """Labels of a binary cross-entropy that are below 0 or above 1 and count."""
    y = target.detach()
    outside = (y < 0) | (y > 1)
    if weight is not None:
        outside = outside & (weight != 0)
    if not bool(outside.any()):
        return
    far = float((y[outside] - 0.5).abs().max()) - 0.5
    least, most = float(y[outside].min()), float(y[outside].max())
    yield Breach(
        rule=OUTSIDE,
        where=f"{name}: target",
        says=f"{float(outside.float().mean()):.0%} of the targets lie outside of [0, 1] ({least:g} … {most:g}): their "
        "loss has no least value, and each step drives these logits further.",
        cause="labels of -1 and 1, numbers of classes, or pixels up to 255, where 0 and 1 are asked for",
        fix="targets in [0, 1]; leave out with a weight of 0 what is not to be learned",
        severity="fault" if far > FAR_OUTSIDE else "notice",
        elements=outside,
        evidence={"least": least, "most": most, "share": float(outside.float().mean())},
    )


def multilabel_soft_margin(given: Given) -> Iterator[Breach]:
    """`target` (row, class) of 0 and 1."""
    for breach in _outside("multilabel_soft_margin_loss", given["target"]):
        yield Breach(**{**vars(breach), "elements": None})


def multilabel_margin(given: Given) -> Iterator[Breach]:
    """`target` (row, class) lists the classes of a row, and ends with -1."""
    target = given["target"].detach()
    rows = target.reshape(-1, target.shape[-1])
    if rows.shape[-1] < 3 or bool((rows < 0).any()) or not bool(((rows == 0) | (rows == 1)).all()):
        return
    yield Breach(
        rule=OUTSIDE,
        where="multilabel_margin_loss: target",
        says=f"targets are 0 and 1 for each of {rows.shape[-1]} classes; a list of the classes of each row that ends "
        "with -1 is asked for: every row is taught the classes 0 and 1, whatever its labels.",
        cause="one label for each class, as other losses take it",
        fix="multilabel_soft_margin_loss for 0 and 1, or lists of classes that are filled up with -1",
    )


def poisson(given: Given) -> Iterator[Breach]:
    """`input` log-rates, or rates with log_input=False; `target` counts."""
    value, target, logarithms = given["input"], given["target"], given["log_input"]
    if target.requires_grad and not value.requires_grad:
        yield Breach(
            rule=EXCHANGED,
            where="poisson_nll_loss: input",
            says="poisson_nll_loss(input, target) has data as its input and the model's output as its target: the "
            "loss is linear in that output and falls without an end.",
            cause="the order of the arguments",
            fix="poisson_nll_loss(log_rate, count)",
        )
        return
    negative = target.detach() < 0
    if bool(negative.any()):
        yield Breach(
            rule=OUTSIDE,
            where="poisson_nll_loss: target",
            says=f"{float(negative.float().mean()):.0%} of the targets are negative (least {float(target.min()):.3g}), "
            "where counts are asked for: their loss falls with the rate down to 0 and never ends.",
            cause="targets that were standardised",
            fix="counts as they are, or a loss for numbers of both signs",
            elements=negative,
            evidence={"least": float(target.min())},
        )
    if not logarithms and bool((value.detach() < 0).any()):
        yield Breach(
            rule=OUTSIDE,
            where="poisson_nll_loss: input",
            says=f"log_input=False asks for rates, and input falls to {float(value.detach().min()):.3g}: the logarithm "
            "of a negative rate is not a number.",
            cause="the output of a linear layer",
            fix="log_input=True, or softplus(output)",
            evidence={"least": float(value.detach().min())},
        )


def gaussian(given: Given) -> Iterator[Breach]:
    """`input` means, `target` data, `var` variances above 0."""
    mean, target, var = given["input"], given["target"], given["var"]
    if not isinstance(var, Tensor):
        return
    if maker(target, ("Exp", "Softplus")) and mean.requires_grad and not var.requires_grad:
        yield Breach(
            rule=EXCHANGED,
            where="gaussian_nll_loss: var",
            says="gaussian_nll_loss(input, target, var) has a learned positive number as its target and data as its "
            "variance: the mean learns that number, not the data.",
            cause="the order of the arguments",
            fix="gaussian_nll_loss(mean, target, variance)",
        )
    zero = var.detach() == 0
    if var.requires_grad and bool(zero.any()):
        yield Breach(
            rule=OUTSIDE,
            where="gaussian_nll_loss: var",
            says=f"{float(zero.float().mean()):.0%} of the learned variances are exactly 0, where positive ones are "
            f"asked for: they are taken for {given['eps']:g}, and such an error weighs {1 / given['eps']:.0e} times.",
            cause="relu for the variance",
            fix="softplus(output), or output.exp()",
            looks=2,
            evidence={"share": float(zero.float().mean())},
        )
