"""Arguments that the documentation of a loss does not allow, each beside its honest twin and uses that look alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.small_loops import classes, net, watched

Loss = Callable[[nn.Module, Any], Tensor]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def spoken(model: nn.Module, batch: Callable[[], Any], loss: Loss, rule: str) -> bool:
    """Whether a rule speaks of a plain loop, as worse than a notice."""
    return rule in watched(model, batch, loss, rules=[rule])


def points(low: float = 0.0, high: float = 1.0) -> Callable[[], Any]:
    """Points on two sides of a line, with the numbers of their sides."""

    def batch() -> tuple[Tensor, Tensor]:
        x = torch.randn(32, 3)
        return x, torch.where(x[:, 0] > 0, high, low)

    return batch


def binary(**options: Any) -> Loss:
    return lambda model, given: F.binary_cross_entropy_with_logits(model(given[0]).squeeze(1), given[1], **options)


def test_labels_of_a_binary_cross_entropy_lie_between_0_and_1() -> None:
    rule = "target-outside-range"
    assert spoken(net(3, 8, 1), points(-1.0, 1.0), binary(), rule)
    assert spoken(net(3, 8, 1), points(0.0, 255.0), binary(), rule)
    assert not spoken(net(3, 8, 1), points(), binary(), rule)
    assert not spoken(net(3, 8, 1), points(0.1, 1.2), binary(), rule)  # a discriminator's smoothed labels


def test_labels_that_nothing_is_learned_from_may_be_anything() -> None:
    def unlabelled() -> tuple[Tensor, Tensor]:
        x, y = points()()
        y[::4] = -1.0
        return x, y

    def masked(keep: bool) -> Loss:
        def loss(model: nn.Module, given: Any) -> Tensor:
            each = binary(reduction="none")(model, given)
            mask = (given[1] >= 0).float()
            return each.mean() if keep else (each * mask).sum() / mask.sum()

        return loss

    def weighted(model: nn.Module, given: Any) -> Tensor:
        return binary(weight=(given[1] >= 0).float())(model, given)

    def logged(model: nn.Module, given: Any) -> Tensor:
        binary()(model, given)
        return masked(False)(model, given)

    rule = "target-outside-range"
    assert spoken(net(3, 8, 1), unlabelled, masked(True), rule)
    for honest in (masked(False), weighted, logged):
        assert not spoken(net(3, 8, 1), unlabelled, honest, rule)


def soft(change: Callable[[Tensor], Tensor]) -> Loss:
    teacher = nn.Linear(3, 3).requires_grad_(False)
    return lambda model, given: F.cross_entropy(model(given[0]), change(teacher(3 * given[0])))


def test_soft_targets_are_probabilities() -> None:
    rule = "target-outside-range"
    assert spoken(net(3, 8, 3), classes, soft(lambda z: z.log_softmax(1)), rule)
    assert spoken(net(3, 8, 3), classes, soft(lambda z: z), rule)
    assert not spoken(net(3, 8, 3), classes, soft(lambda z: z.softmax(1)), rule)
    assert not spoken(net(3, 8, 3), classes, soft(lambda z: 4 * z.softmax(1)), rule)  # a temperature squared
    advantages = soft(lambda z: z.softmax(1) * (z - (z.softmax(1) * z).sum(1, keepdim=True)))
    assert not spoken(net(3, 8, 3), classes, advantages, rule)  # of every action, after its probability

    def chosen(model: nn.Module, given: Any) -> Tensor:  # REINFORCE by a weighted one-hot target
        return F.cross_entropy(model(given[0]), F.one_hot(given[1], 3) * torch.randn(len(given[1]), 1))

    assert not spoken(net(3, 8, 3), classes, chosen, rule)


SIGNS: dict[str, Loss] = {
    "soft_margin": lambda m, b: F.soft_margin_loss(m(b[0]).squeeze(1), b[1]),
    "hinge_embedding": lambda m, b: F.hinge_embedding_loss(m(b[0]).squeeze(1).exp(), b[1]),
    "margin_ranking": lambda m, b: F.margin_ranking_loss(m(b[0]).squeeze(1), m(-b[0]).squeeze(1), b[1], margin=0.1),
}


@pytest.mark.parametrize("name", SIGNS)
def test_labels_of_signs_are_minus_1_and_1(name: str) -> None:
    rule = "target-outside-range"
    assert spoken(net(3, 8, 1), points(0.0, 1.0), SIGNS[name], rule)
    assert not spoken(net(3, 8, 1), points(-1.0, 1.0), SIGNS[name], rule)
    assert not spoken(net(3, 8, 1), points(1.0, 1.0), SIGNS[name], rule)


def of_pairs(margin: float, change: Callable[[Tensor], Tensor] = lambda y: y) -> Loss:
    def loss(model: nn.Module, given: Any) -> Tensor:
        z, y = model(given[0]), change(given[1])
        return F.cosine_embedding_loss(z, z.roll(1, 0), y, margin=margin)

    return loss


def test_pairs_of_cosines() -> None:
    assert spoken(net(3, 8, 4), points(0.0, 1.0), of_pairs(0.2), "target-outside-range")
    assert not spoken(net(3, 8, 4), points(-1.0, 1.0), of_pairs(0.2), "target-outside-range")
    ignored = of_pairs(0.2, lambda y: y * (torch.rand(len(y)) < 0.5))  # 0 for pairs that are left out
    assert not spoken(net(3, 8, 4), points(-1.0, 1.0), ignored, "target-outside-range")
    assert spoken(net(3, 8, 4), points(-1.0, 1.0), of_pairs(1.0), "margin-out-of-reach")
    assert not spoken(net(3, 8, 4), points(-1.0, 1.0), of_pairs(0.5), "margin-out-of-reach")


def triplets(kind: str, margin: float = 0.5, unit: bool = False) -> Loss:
    def loss(model: nn.Module, given: Any) -> Tensor:
        x = given[0]
        anchor, other = model(x), model(x.roll(1, 0))
        positive = anchor if kind == "itself" else model(x + 0.1 * torch.randn_like(x))
        parts = [F.normalize(z, dim=1) if unit else z for z in (anchor, positive, other)]
        return F.triplet_margin_loss(*parts, margin=margin)

    return loss


def test_triplets_hold_three_things() -> None:
    assert spoken(net(3, 8, 4), points(), triplets("itself"), "pair-with-itself")
    assert not spoken(net(3, 8, 4), points(), triplets("near"), "pair-with-itself")
    assert spoken(net(3, 8, 4), points(), triplets("near", 2.0, unit=True), "margin-out-of-reach")
    assert not spoken(net(3, 8, 4), points(), triplets("near", 2.0), "margin-out-of-reach")
    assert not spoken(net(3, 8, 4), points(), triplets("near", 0.5, unit=True), "margin-out-of-reach")


def test_several_labels_are_a_list_or_a_number_each() -> None:
    def batch(listed: bool) -> Callable[[], Any]:
        def made() -> tuple[Tensor, Tensor]:
            x = torch.randn(16, 4)
            y = (x > 0).long()
            lists = torch.full_like(y, -1)
            for row, on in zip(lists, y, strict=True):
                row[: int(on.sum())] = on.nonzero()[:, 0]
            return x, lists if listed else y

        return made

    def loss(model: nn.Module, given: Any) -> Tensor:
        return F.multilabel_margin_loss(model(given[0]), given[1])

    assert spoken(net(4, 8, 4), batch(False), loss, "target-outside-range")
    assert not spoken(net(4, 8, 4), batch(True), loss, "target-outside-range")


def counts(change: Callable[[Tensor], Tensor] = lambda y: y) -> Callable[[], Any]:
    def batch() -> tuple[Tensor, Tensor]:
        x = torch.randn(32, 3)
        return x, change(torch.poisson(x[:, 0].exp()))

    return batch


def test_poisson_takes_log_rates_and_counts() -> None:
    def loss(model: nn.Module, given: Any, **options: Any) -> Tensor:
        return F.poisson_nll_loss(model(given[0]).squeeze(1), given[1], **options)

    model = net(3, 8, 1)
    assert spoken(model, counts(lambda y: (y - y.mean()) / y.std()), loss, "target-outside-range")
    assert not spoken(model, counts(), loss, "target-outside-range")
    rates = nn.Sequential(net(3, 8, 1), nn.Softplus())
    assert spoken(rates, counts(), loss, "probabilities-to-loss")
    assert not spoken(rates, counts(), lambda m, b: loss(m, b, log_input=False), "probabilities-to-loss")
    assert not spoken(rates, counts(), lambda m, b: loss(m, b, log_input=False), "target-outside-range")

    def exchanged(model: nn.Module, given: Any) -> Tensor:
        return F.poisson_nll_loss(given[1], model(given[0]).squeeze(1))

    assert spoken(net(3, 8, 1), counts(), exchanged, "loss-arguments-exchanged")


def test_a_variance_is_positive_and_third() -> None:
    def batch() -> tuple[Tensor, Tensor]:
        x = torch.randn(32, 3)
        return x, x[:, 0].abs() + 0.1

    def loss(positive: Any, order: tuple[int, int, int] = (0, 1, 2)) -> Loss:
        def computed(model: nn.Module, given: Any) -> Tensor:
            mean, spread = model(given[0]).unbind(1)
            parts = (mean, given[1], positive(spread))
            return F.gaussian_nll_loss(*(parts[i] for i in order))

        return computed

    assert spoken(net(3, 8, 2), batch, loss(F.relu), "target-outside-range")
    assert not spoken(net(3, 8, 2), batch, loss(F.softplus), "target-outside-range")
    assert spoken(net(3, 8, 2), batch, loss(torch.exp, (0, 2, 1)), "loss-arguments-exchanged")
    assert not spoken(net(3, 8, 2), batch, loss(torch.exp), "loss-arguments-exchanged")


def test_labels_in_the_place_of_predictions() -> None:
    def loss(model: nn.Module, given: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(given[1], model(given[0]).squeeze(1))

    assert spoken(net(3, 8, 1), points(), loss, "loss-arguments-exchanged")
    assert spoken(net(3, 8, 1), points(0.05, 0.95), loss, "loss-arguments-exchanged")
    assert not spoken(net(3, 8, 1), points(), binary(), "loss-arguments-exchanged")

    def generator(model: nn.Module, given: Any) -> Tensor:  # a judge's own output as the target
        judged = net(3, 8, 1)(given[0]).squeeze(1).detach()
        return F.binary_cross_entropy_with_logits(judged, model(given[0]).squeeze(1).sigmoid())

    assert not spoken(net(3, 8, 1), points(), generator, "loss-arguments-exchanged")


def test_a_softmax_over_one_output_says_nothing() -> None:
    def loss(model: nn.Module, given: Any) -> Tensor:
        return F.cross_entropy(model(given[0]), given[1][:, None])

    assert spoken(net(3, 8, 1), points(), loss, "softmax-of-one")
    ends = nn.Sequential(net(3, 8, 1), nn.Softmax(dim=1))
    assert spoken(ends, points(), lambda m, b: F.binary_cross_entropy(m(b[0]).squeeze(1), b[1]), "softmax-of-one")
    sigmoid = nn.Sequential(net(3, 8, 1), nn.Sigmoid())
    assert not spoken(sigmoid, points(), lambda m, b: F.binary_cross_entropy(m(b[0])[:, 0], b[1]), "softmax-of-one")


@pytest.mark.parametrize(
    ("ends", "found"),
    [
        (nn.Identity(), "probabilities-to-loss"),
        (nn.Softmax(dim=1), "probabilities-to-loss"),
        (nn.LogSoftmax(dim=0), "normalised-over-another-axis"),
        (nn.LogSoftmax(dim=1), ""),
    ],
)
def test_nll_loss_takes_logarithms_over_the_classes(ends: nn.Module, found: str) -> None:
    model = nn.Sequential(net(3, 8, 3), ends)
    for rule in ("probabilities-to-loss", "normalised-over-another-axis"):
        assert spoken(model, classes, lambda m, b: F.nll_loss(m(b[0]), b[1]), rule) == (rule == found)


def test_a_likelihood_of_each_class_is_no_logit() -> None:
    """A classifier by densities: logarithms that need not add up to anything."""

    class Densities(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.centres = nn.Parameter(torch.randn(3, 3))

        def forward(self, x: Tensor) -> Tensor:
            return -(x[:, None] - self.centres).square().sum(-1)

    def loss(model: nn.Module, given: Any) -> Tensor:
        return F.nll_loss(model(given[0]), given[1])

    assert not spoken(Densities(), classes, loss, "probabilities-to-loss")


def divergence(target: Callable[[Tensor], Tensor], **options: Any) -> Loss:
    def loss(model: nn.Module, given: Any) -> Tensor:
        logits = 2 * given[0]
        return F.kl_div(model(given[0]).log_softmax(1), target(logits), reduction="batchmean", **options)

    return loss


def test_kl_div_takes_what_log_target_says() -> None:
    rule = "probabilities-to-loss"
    assert spoken(net(3, 8, 3), classes, divergence(lambda z: z.softmax(1), log_target=True), rule)
    assert not spoken(net(3, 8, 3), classes, divergence(lambda z: z.log_softmax(1), log_target=True), rule)
    assert not spoken(net(3, 8, 3), classes, divergence(lambda z: z.softmax(1)), rule)

    def reverse(model: nn.Module, given: Any) -> Tensor:  # the student's own divergence from its teacher
        return F.kl_div((2 * given[0]).log_softmax(1), model(given[0]).softmax(1), reduction="batchmean")

    assert not spoken(net(3, 8, 3), classes, reverse, rule)


@pytest.mark.parametrize("kind", [torch.distributions.Categorical, torch.distributions.Bernoulli])
@pytest.mark.parametrize("squashed", [True, False])
def test_logits_of_a_distribution_are_no_probabilities(kind: Any, squashed: bool) -> None:
    def loss(model: nn.Module, given: Any) -> Tensor:
        logits = model(given[0])
        value = (
            (logits.softmax(1) if kind is torch.distributions.Categorical else logits.sigmoid()) if squashed else logits
        )
        action = given[1] if kind is torch.distributions.Categorical else (given[0] > 0).float()
        return -kind(logits=value).log_prob(action).mean()

    assert spoken(net(3, 8, 3), classes, loss, "probabilities-to-loss") == squashed


def spelled(first: int, length: int = 3, lengths: int = 0) -> Callable[[], Any]:
    def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x, y = torch.randn(12, 8, 4), torch.randint(first, 5, (8, length))
        return x, y, torch.full((8,), 12), torch.full((8,), length)

    return batch


@pytest.mark.parametrize(
    ("batch", "ends", "found"),
    [
        (spelled(1), nn.LogSoftmax(dim=-1), ""),
        (spelled(1), nn.Identity(), "probabilities-to-loss"),
        (spelled(0), nn.LogSoftmax(dim=-1), "target-outside-range"),
        (spelled(1, 14), nn.LogSoftmax(dim=-1), "margin-out-of-reach"),
    ],
)
def test_what_ctc_asks_for(batch: Any, ends: nn.Module, found: str) -> None:
    model = nn.Sequential(net(4, 8, 5), ends)

    def loss(model: nn.Module, given: Any) -> Tensor:
        return F.ctc_loss(model(given[0]), *given[1:], zero_infinity=True)

    for rule in ("probabilities-to-loss", "target-outside-range", "margin-out-of-reach"):
        assert spoken(model, batch, loss, rule) == (rule == found), rule


@pytest.mark.parametrize(("weight", "found"), [(0.11, True), (9.0, False), (1.0, False), (None, False)])
def test_what_is_rare_weighs_more(weight: float | None, found: bool) -> None:
    def batch() -> tuple[Tensor, Tensor]:
        x = torch.randn(256, 3)
        return x, (x[:, 0] > 1.28).float()

    loss = binary(pos_weight=None if weight is None else torch.tensor(weight))
    assert spoken(net(3, 8, 1), batch, loss, "class-weights-inverted") == found


def test_several_ones_in_a_row_are_a_notice() -> None:
    def tags() -> tuple[Tensor, Tensor]:
        x = torch.randn(16, 4)
        return x, torch.cat([(x > 0).float(), torch.ones(16, 1)], 1)

    model, rule = net(4, 8, 5), "target-outside-range"
    optimizer = torch.optim.Adam(model.parameters())
    with limpid.watch(model, optimizer, say=False, rules=[rule]) as doctor:
        for _ in range(3):
            x, y = tags()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            doctor.step(None, (x, y))
    assert [(one.rule, one.severity) for one in doctor.findings] == [(rule, "notice")]
