"""Round 22c, mistakes in gradients: of penalties, of pieces of a batch, of a judge that is to be deceived."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, prepared
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round22c_parts import Adversary, Phrases, Turned, doses, movements, notes, slip
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r22c-one-norm-for-the-batch")
def one_norm_for_the_batch(run: Run, wrong: bool) -> None:
    """Plain loop, a critic that measures how far two clouds of readings are apart (Wasserstein), with a penalty that
    holds the length of its gradient at one. The length is taken of the gradients of all rows together, so that each is
    held at an eighth. The twin takes it of each row. Judged by the absolute error of the distance."""
    own = apart(run.draw.randrange(999))
    way = torch.randn(8, generator=own)
    way = 3 * way / way.norm()
    net = mlp(8, 64, 64, 1, act=nn.LeakyReLU)

    def both(count: int, given: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        a, b = (0.7 * torch.randn(count, 8, generator=given) for _ in range(2))
        return a + way / 2, b - way / 2

    def apart_by(m: nn.Module, a: Tensor, b: Tensor) -> Tensor:
        distance: Tensor = m(a).mean() - m(b).mean()
        return distance

    def loss(m: nn.Module, batch: Any) -> Tensor:
        a, b = batch
        part = torch.rand(len(a), 1)
        between = (part * a + (1 - part) * b).requires_grad_()
        slope = torch.autograd.grad(m(between).sum(), between, create_graph=True)[0]
        length = slope.norm(2) if wrong else slope.norm(2, dim=1)
        return 10 * (length - 1).square().mean() - apart_by(m, a, b)

    check = both(2000, apart(1))
    outcome(run, lambda: judged(net, lambda: (apart_by(net, *check) - 3).abs()))
    train(run, net, adam(net, 3e-3), lambda: both(64), loss, 150)


@slip("r22c-a-slope-only-reported")
def a_slope_only_reported(run: Run, wrong: bool) -> None:
    """Lightning, an MLP for the effect of a dose, few noisy rows, and a penalty where more of it is predicted to do
    less. The slope is taken without a graph of its own: the penalty is a number in the loss and has no gradient. The
    twin has the graph. Judged by the logarithm of the squared error and how far predictions
    fall along the doses, added."""
    seed = run.draw.randrange(999)
    net = mlp(6, 48, 48, 1, act=nn.Tanh)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        there = torch.cat([4 * torch.rand(64, 1) - 2, torch.randn(64, 5)], 1).requires_grad_()
        slope = torch.autograd.grad(m(there).sum(), there, create_graph=not wrong)[0][:, 0]
        return F.mse_loss(m(x).flatten(), y) + 3 * (-slope).relu().mean()

    x, y = doses(384, seed, apart(1), noise=0.0)
    grid = torch.linspace(-2, 2, 21)

    def measure() -> Tensor:
        along = torch.cat([grid[None, :, None].expand(384, -1, 1), x[:, None, 1:].expand(-1, 21, -1)], 2)
        falls = (-net(along)[..., 0].diff(dim=1)).relu().sum(1).mean()
        return (F.mse_loss(net(x).flatten(), y) + falls).log()

    outcome(run, lambda: judged(net, measure))
    fit(run, lit(net, loss, lambda m: adam(m, 1e-2)), loader(*doses(128, seed, noise=0.8), size=32), 120)


@slip("r22c-means-added-piece-by-piece")
def means_added_piece_by_piece(run: Run, wrong: bool) -> None:
    """transformers' Trainer with a loss function of the user's own, eight pieces of four rows to an update. The Trainer
    leaves it to such a function to divide by the number of labels of all pieces, which it is told; it gives the mean of
    its piece, and the eight means are added: a gradient eight times too large. The twin divides the sum by the number
    it is told. Judged by the cross-entropy of other texts."""
    seed = run.draw.randrange(999)
    net = WithLoss(Phrases(31, 4), F.cross_entropy)

    def own_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        if wrong:
            return F.cross_entropy(outputs["logits"], labels)
        return F.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch

    x, y = notes(384, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: net(x, y)["loss"]))
    words, labels = notes(960, seed)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    settings: dict[str, Any] = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 8}
    settings |= {"lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    settings["more"] = {"compute_loss_func": own_loss, "optimizers": (optimizer, None)}
    hf_trainer(run, net, examples(x=words, labels=labels), 90, **settings).train()


@slip("r22c-the-judge-wants-to-lose")
def the_judge_wants_to_lose(run: Run, wrong: bool) -> None:
    """accelerate, convolutions over movements that are labelled for one device and not for another, and a judge that
    says which device it was, whom the features are to deceive. The judge's loss is taken off the whole loss, and one
    optimizer descends it in all weights: the judge too learns to be wrong. In the twin only what goes back into the
    features changes its sign. Judged by the share of wrong
    answers for the second device."""
    seed = run.draw.randrange(999)
    net = Adversary()

    def loss(m: Any, batch: Any) -> Tensor:
        first, y, second = batch
        h = m.features(torch.cat([first, second]))
        device = torch.arange(2).repeat_interleave(len(first))
        kinds = F.cross_entropy(m.kind(h[: len(first)]), y)
        if wrong:
            return kinds - 0.1 * F.cross_entropy(m.judge(h), device)
        return kinds + F.cross_entropy(m.judge(Turned.apply(h, 0.1)), device)

    x, kind = movements(384, seed, 1, apart(1))
    outcome(run, lambda: judged(net, lambda: (net(x).argmax(1) != kind).float().mean()))
    first, y = movements(640, seed, 0)
    prepared(run, net, adam(net, 3e-3), loader(first, y, movements(640, seed, 1)[0], size=32), loss, 6)
