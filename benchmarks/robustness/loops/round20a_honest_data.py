"""Round 20a, honest and odd: rows and labels that are less, or other, than usual."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    class_outcome,
    cnn,
    examples,
    hf_trainer,
    judged,
    loader,
    mlp,
    outcome,
    pictures,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam, update
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r20a-true-one-among-several")
def true_one_among_several(run: Run) -> None:
    """Plain loop, pictures with partial labels by PRODEN (Lv et al. 2020). Each picture comes with the names that it
    may have, of which one is right and nobody knows which. At first all of them are taught alike; after each update
    the batch's targets are rewritten by what the network thinks of the names, so that it learns from itself."""
    seed = run.draw.randrange(999)
    own = apart(seed)
    x, y = pictures(320, seed, own=own)
    possible = torch.rand(320, 4, generator=own) < 0.4
    possible[torch.arange(320), y] = True
    weights = possible / possible.sum(1, keepdim=True)
    model = cnn()
    class_outcome(run, model, pictures(192, seed, own=apart(1)))
    optimizer = adam(model, 5e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(100):
        rows = torch.randint(0, 320, (32,))
        targets = weights[rows]
        logits = model(x[rows])
        update(run, doctor, optimizer, F.cross_entropy(logits, targets), (x[rows], targets))
        likely = logits.detach().softmax(1) * possible[rows]
        weights[rows] = likely / likely.sum(1, keepdim=True)


@honest("r20a-only-told-who-belong-together")
def only_told_who_belong_together(run: Run) -> None:
    """accelerate, pictures sorted into classes without a class for any of them, by the meta classification likelihood
    (Hsu et al. 2019). Of two pictures it is known whether they are of a kind; the chance of that is the product of two
    rows of probabilities, taken through a logarithm by hand, and which output becomes which kind is left to it."""
    seed = run.draw.randrange(999)
    x, y = pictures(256, seed, own=apart(seed))
    check = pictures(128, seed, own=apart(1))
    model = cnn(classes=6)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        chances = model(batch[0]).softmax(1)
        together = (chances @ chances.T).clamp(1e-6, 1 - 1e-6)
        same = (batch[1][:, None] == batch[1]).float()
        return F.binary_cross_entropy(together, same)

    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    prepared(run, model, adam(model, 3e-3), loader(x, y, size=32), loss, 14)


def lesson(patterns: Tensor, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Five of the classes, three examples of each, five to be named, under a slope of light of any direction."""
    chosen = patterns[torch.randperm(len(patterns), generator=own)[:5]]
    line = torch.linspace(-1, 1, 8)
    light = 2 * torch.randn(2, 5, 8, 1, 1, 1, generator=own)
    shown = chosen[:, None, None] + light[0] * line + light[1] * line[:, None]
    shown = shown + 0.3 * torch.randn(shown.shape, generator=own)
    return shown[:, :3].flatten(0, 1), shown[:, 3:].flatten(0, 1), torch.arange(5).repeat_interleave(5)


@honest("r20a-classes-of-one-lesson")
def classes_of_one_lesson(run: Run) -> None:
    """Plain loop, few examples by prototypical networks (Snell et al. 2017). The labels 0 to 4 mean other classes in
    every batch and stand in one and the same order, there is no head, scores are distances below zero to the means of
    examples that stand in the same batch, and it is judged on classes that it never met."""
    own = apart(run.draw.randrange(999))
    patterns = torch.randn(60, 8, 8, generator=own)
    model = cnn(classes=16)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        examples, asked, labels = batch
        middles = model(examples).view(5, 3, -1).mean(1)
        return F.cross_entropy(-torch.cdist(model(asked), middles).square(), labels)

    checks = [lesson(patterns[40:], apart(i)) for i in range(12)]
    outcome(run, lambda: judged(model, lambda: torch.stack([loss(model, c) for c in checks]).mean()))
    train(run, model, adam(model, 2e-3), lambda: lesson(patterns[:40]), loss, 120)  # type: ignore[arg-type]


def simulated(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Two parameters, drawn evenly, and three readings that a simulator makes of them."""
    theta = 4 * torch.rand(count, 2, generator=own) - 2
    clean = torch.stack([theta[:, 0] + theta[:, 1], theta.prod(1), theta[:, 0].sin()], 1)
    return theta, clean + 0.3 * torch.randn(count, 3, generator=own)


class RatioEstimator:
    """In the manner of the sbi library: a simulator, a network, and `fit`."""

    def __init__(self, run: Run, net: nn.Module) -> None:
        self.run, self.net = run, net
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
        self.doctor = run.watch(net, self.optimizer)

    def loss(self, theta: Tensor, readings: Tensor) -> Tensor:
        """The first half as simulated, the second with parameters of their neighbours."""
        half = len(theta) // 2
        dealt = torch.cat([theta[:half], theta[half:].roll(1, 0)])
        genuine = (torch.arange(len(theta)) < half).float()
        return F.binary_cross_entropy_with_logits(self.net(torch.cat([dealt, readings], 1)).squeeze(1), genuine)

    def fit(self, steps: int) -> None:
        for _ in range(steps):
            batch = simulated(128)
            update(self.run, self.doctor, self.optimizer, self.loss(*batch), batch)


@honest("r20a-parameters-dealt-to-other-readings")
def parameters_dealt_to_other_readings(run: Run) -> None:
    """A class of one's own, inference from simulations by ratios (Hermans et al. 2020, the library sbi). Half of each
    batch has its parameters exchanged between rows on purpose and is taught as wrong, the labels are a row of ones and
    then of zeros, and no row is ever seen again."""
    net = mlp(5, 64, 64, 1, act=nn.SiLU)
    estimator = RatioEstimator(run, net)
    check = simulated(1024, apart(run.draw.randrange(999)))
    outcome(run, lambda: judged(net, lambda: estimator.loss(*check)))
    estimator.fit(160)


def ring(count: int, turn: float, own: torch.Generator | None = None) -> Tensor:
    """Points around five places on a circle."""
    angle = turn + 2 * torch.pi / 5 * torch.randint(0, 5, (count,), generator=own)
    return 2 * torch.stack([angle.cos(), angle.sin()], 1) + 0.2 * torch.randn(count, 2, generator=own)


@honest("r20a-noise-dealt-to-the-nearest-points")
def noise_dealt_to_the_nearest_points(run: Run) -> None:
    """Plain loop, flow matching with optimal transport within a batch (Tong et al. 2024, torchcfm). The noise that is
    the input and the points that are the answer are put in pairs by SciPy's assignment before anything is learned, so
    that inputs are chosen by their labels; the loss has a floor and hardly falls."""
    from scipy.optimize import linear_sum_assignment

    turn = run.draw.random()
    model = mlp(3, 64, 64, 2, act=nn.SiLU)
    check, start = ring(512, turn, apart(1)), torch.randn(512, 2, generator=apart(2))

    def far_from_data() -> Tensor:
        points = start
        for i in range(16):
            points = points + model(torch.cat([points, torch.full((512, 1), i / 16)], 1)) / 16
        within = torch.cdist(points, points).mean() + torch.cdist(check, check).mean()
        return 2 * torch.cdist(points, check).mean() - within

    outcome(run, lambda: judged(model, far_from_data))

    def batch() -> tuple[Tensor, Tensor]:
        noise, points = torch.randn(128, 2), ring(128, turn)
        first, second = linear_sum_assignment(torch.cdist(noise, points).square().numpy())
        return noise[first], points[second]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        noise, points = batch
        time = torch.rand(len(noise), 1)
        return F.mse_loss(model(torch.cat([noise + time * (points - noise), time], 1)), points - noise)

    train(run, model, adam(model, 3e-3), batch, loss, 150)


def spoiled(words: list[int], draw: Any) -> tuple[list[int], list[int]]:
    """One text, spoiled in one of three ways that its first token tells, and what it lacks: 16 and 17 are sentinels,
    20 to 22 name the way, 1 is the end."""
    kind, size = draw.randrange(3), len(words)
    if kind == 2:  # the rest is to be said
        cut = draw.randrange(size // 3, size)
        return [22, *words[:cut], 16, 1], [16, *words[cut:], 1]
    wide = 2 if kind == 0 else size // 3
    a = draw.randrange(0, size // 2 - wide + 1)
    b = draw.randrange(size // 2, size - wide + 1)
    left = [20 + kind, *words[:a], 16, *words[a + wide : b], 17, *words[b + wide :], 1]
    return left, [16, *words[a : a + wide], 17, *words[b : b + wide], 1]


def collated(rows: list[dict[str, Tensor]], draw: Any) -> dict[str, Tensor]:
    pairs = [spoiled(row["words"].tolist(), draw) for row in rows]
    sides: list[Tensor] = []
    for side, fill in ((0, 0), (1, -100)):
        tensors = [torch.tensor(pair[side]) for pair in pairs]
        sides.append(nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=fill))
    return {"input_ids": sides[0], "attention_mask": (sides[0] != 0).long(), "labels": sides[1]}


@honest("r20a-three-ways-to-spoil-a-text")
def three_ways_to_spoil_a_text(run: Run) -> None:
    """transformers' Trainer, T5 with UL2's mixture of denoisers (Tay et al. 2022). Each text is spoiled anew whenever
    it is read: in short holes, in long ones, or with its end cut off, and the first token says which. Lengths of
    question and answer differ widely from row to row, so that many labels are -100, and the three kinds' losses do
    not resemble each other."""
    import random

    from transformers import T5Config, T5ForConditionalGeneration

    language = Language(run.draw.randrange(999), first=4, sharp=2.5)
    settings = {"d_model": 32, "d_ff": 64, "d_kv": 16, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
    model = T5ForConditionalGeneration(T5Config(vocab_size=24, decoder_start_token_id=0, **settings))
    check = collated([{"words": row} for row in language.rows(96, 15, apart(1))], random.Random(1))
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    draw = random.Random(run.draw.randrange(999))
    data = examples(words=language.rows(384, 15, apart(2)))
    more = {"data_collator": lambda rows: collated(rows, draw)}
    hf_trainer(run, model, data, 90, remove_unused_columns=False, learning_rate=4e-3, more=more).train()
