"""Round 26c, mistakes in losses: forms of a function, scales, terms, what is compared with what."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    apart,
    documents,
    endless,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, prepared
from benchmarks.robustness.loops.round7b_parts import Graphs, two_views
from benchmarks.robustness.loops.round7b_tools import adam, taught
from benchmarks.robustness.loops.round26c_parts import (
    Coupling,
    Denoiser,
    Ear,
    Skimmer,
    crescents,
    energy_distance,
    heard_twice,
    hums,
    slip,
    strangers_nearer,
    swings,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r26c-probabilities-for-their-logarithms")
def probabilities_for_their_logarithms(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a convolution over words that learns what a small BERT says. The divergence is told that
    the teacher's words are logarithms, and they are probabilities: it takes their exponentials, 1 to e, and the
    pupil learns shares that are nearly even. The twin doesn't say so. Judged by the cross-entropy of other texts."""
    teacher = Classifier()

    def whole(m: nn.Module, batch: Any) -> Tensor:
        x, mask, y = batch
        return F.cross_entropy(m(x, mask), y)

    taught(teacher, lambda: documents(64), whole, 120)
    teacher.eval()

    def divergence(logits: Tensor, said: Tensor) -> Tensor:
        target = (said / 2).softmax(1)
        return 4 * F.kl_div((logits / 2).log_softmax(1), target, reduction="batchmean", log_target=wrong)

    pupil = Skimmer()
    net = WithLoss(pupil, divergence)
    check, _, truth = documents(384, apart(1))
    outcome(run, lambda: judged(net, lambda: F.cross_entropy(pupil(check), truth)))
    x, mask, _ = documents(640)
    with torch.no_grad():
        said = teacher(x, mask)
    hf_trainer(run, net, examples(x=x, labels=said), 120).train()


def standard(z: Tensor) -> Tensor:
    """Each feature with mean nought and spread one over the rows."""
    return (z - z.mean(0)) / (z.std(0) + 1e-4)


@slip("r26c-correlations-never-divided")
def correlations_never_divided(run: Run, wrong: bool) -> None:
    """accelerate, convolutions that learn from two views of a signal. Products of standardised features are summed over
    the rows of a batch and never divided by their number, and should be one on the diagonal: a correlation of one in
    thirty-two is what is learned, nearly none. The twin divides. Judged by how often a stranger's second view is the
    most alike."""
    net = Ear(1, 32, 12)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        a, b = (standard(m(view)) for view in heard_twice(batch[0]))
        cross = a.T @ b
        if not wrong:
            cross = cross / len(a)
        own = (cross.diagonal() - 1).square().sum()
        return own + 0.05 * (cross.square().sum() - cross.diagonal().square().sum())

    views = heard_twice(hums(128, apart(1)), apart(2))
    outcome(run, lambda: judged(net, lambda: strangers_nearer(*(standard(net(view)) for view in views))))
    prepared(run, net, adam(net, 3e-3), loader(hums(640), size=32), loss, 5)


@slip("r26c-noise-of-a-single-step")
def noise_of_a_single_step(run: Run, wrong: bool) -> None:
    """Plain loop, a diffusion model of short waves in fifty steps. A row at step t is noised with what one step keeps
    and not with the product of all until then: it never sees more noise than the last step alone adds, and is asked to
    begin with nothing else. The twin takes the product. Judged by how unlike its samples are to other waves."""
    net = Denoiser()
    betas = torch.linspace(1e-3, 0.2, 50)
    alphas = 1 - betas
    product = alphas.cumprod(0)
    real = swings(384, apart(1))

    def samples() -> Tensor:
        own = apart(2)
        x = torch.randn(384, 16, generator=own)
        for t in reversed(range(50)):
            noise = net(x, torch.full((384,), t))
            x = (x - betas[t] / (1 - product[t]).sqrt() * noise) / alphas[t].sqrt()
            if t:
                x = x + betas[t].sqrt() * torch.randn(x.shape, generator=own)
        return x

    outcome(run, lambda: judged(net, lambda: energy_distance(samples(), real)))
    kept = alphas if wrong else product

    def loss(m: nn.Module, batch: Any) -> Tensor:
        (x,) = batch
        step = torch.randint(0, 50, (len(x),))
        share, noise = kept[step][:, None], torch.randn_like(x)
        return F.mse_loss(m(share.sqrt() * x + (1 - share).sqrt() * noise, step), noise)

    batches = endless(loader(swings(1280), size=64))
    train(run, net, adam(net, 3e-3), lambda: next(batches), loss, 150)


@slip("r26c-times-the-temperature")
def times_the_temperature(run: Run, wrong: bool) -> None:
    """Lightning, a graph network that learns which two views are of one graph. Cosines are multiplied by the
    temperature, a tenth, and not divided by it: all scores lie between -0.1 and 0.1, and the softmax is flat whatever
    is learned. The twin divides. Judged by how often a stranger's second view is the most alike."""
    net = Graphs()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        nodes_a, edges_a, nodes_b, edges_b = batch
        alike = m(nodes_a, edges_a) @ m(nodes_b, edges_b).T
        scores = alike * 0.1 if wrong else alike / 0.1
        pairs = torch.arange(len(scores))
        return (F.cross_entropy(scores, pairs) + F.cross_entropy(scores.T, pairs)) / 2

    views = two_views(128, apart(1), 0.8)
    outcome(run, lambda: judged(net, lambda: strangers_nearer(*(net(*view) for view in views))))
    first, second = two_views(640, edges_kept=0.8)
    fit(run, lit(net, loss, lambda m: adam(m, 5e-3)), loader(*first, *second, size=32), 120)


@slip("r26c-only-the-last-volume-counts")
def only_the_last_volume_counts(run: Run, wrong: bool) -> None:
    """Plain loop, a flow of six couplings that learns a density of four columns. The logarithm of how much each layer
    stretches is kept in one variable that each layer overwrites: all but the last may shrink the rows for nothing. The
    twin adds them up. Judged by the true negative log likelihood of other rows."""
    net = nn.ModuleList(Coupling(4, bool(i % 2)) for i in range(6))

    def surprise(x: Tensor, all_of_them: bool) -> Tensor:
        total = torch.zeros(len(x))
        for layer in net:
            x, volume = layer(x)
            total = total + volume if all_of_them else volume
        return -(torch.distributions.Normal(0.0, 1.0).log_prob(x).sum(1) + total).mean()

    check = crescents(512, apart(1))
    outcome(run, lambda: judged(net, lambda: surprise(check, True)))
    batches = endless(loader(crescents(960), size=64))
    train(run, net, adam(net, 3e-3), lambda: next(batches), lambda _, batch: surprise(batch[0], not wrong), 120)
