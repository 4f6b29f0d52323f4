"""Round 22i, honest and odd: losses that fall below zero, that have a floor, or that are of no row for itself."""

import itertools
import math
from typing import Any

import numpy as np
import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    apart,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    outcome,
    pictures,
    tiny_bert,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round10a_tools import titled
from torch import Tensor, nn
from torch.nn import functional as F


def lesions(count: int, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Pictures of 16 by 16 in noise with one small bright ellipse, its mask, and each pixel's distance to its edge:
    below zero inside."""
    from scipy.ndimage import distance_transform_edt

    middle = 4 + 8 * torch.rand(count, 2, 1, 1, generator=own)
    radius = 1.5 + 2 * torch.rand(count, 2, 1, 1, generator=own)
    rows, columns = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    mask = (((rows - middle[:, 0]) / radius[:, 0]) ** 2 + ((columns - middle[:, 1]) / radius[:, 1]) ** 2 < 1).float()
    far = [distance_transform_edt(1 - m) - (distance_transform_edt(m) - 1) * m for m in mask.numpy()]
    x = mask + 0.6 * torch.randn(count, 16, 16, generator=own)
    return x[:, None], mask[:, None], torch.from_numpy(np.stack(far)).float()[:, None]


class Outliner(nn.Module):
    """A small U-Net: once down, once up, and one bridge."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.deep = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.leave = nn.Sequential(nn.Conv2d(24, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        fine = self.enter(x)
        out: Tensor = self.leave(torch.cat([fine, F.interpolate(self.deep(fine), scale_factor=2.0)], 1))
        return out


def overlap_missed(chance: Tensor, mask: Tensor) -> Tensor:
    """One less the Dice coefficient of each picture."""
    both = (chance * mask).sum((1, 2, 3))
    return (1 - (2 * both + 1) / (chance.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)).mean()


@honest("r22i-far-outside-costs-most")
def far_outside_costs_most(run: Run) -> None:
    """Plain loop, a small U-Net outlines lesions by the boundary loss (Kervadec et al. 2019). Each pixel's chance is
    weighed by its distance to the true edge, which is below zero inside; this part begins at a hundredth of the loss
    and takes over more and more from Dice, so that the loss sinks beneath zero while its own weights change."""
    model = Outliner()
    x, mask, far = lesions(320, apart(run.draw.randrange(999)))
    check = lesions(96, apart(1))
    outcome(run, lambda: judged(model, lambda: overlap_missed((model(check[0]) > 0).float(), check[1])))
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    for step in range(100):
        share = min(0.9, 0.01 + 0.01 * step)
        rows = torch.randint(0, 320, (16,))
        chance = model(x[rows]).sigmoid()
        loss = (1 - share) * overlap_missed(chance, mask[rows]) + share * (chance * far[rows]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x[rows], mask[rows], far[rows]))
        run.note(loss)


def discounted(losses: Tensor, usual: float, weight: float = 1.0) -> Tensor:
    """Castells et al. 2020: each row's loss above the usual one, times the confidence that minimises the whole; in
    closed form by Lambert's function, and without a gradient of its own."""
    from scipy.special import lambertw

    above = losses - usual
    with torch.no_grad():
        inside = 0.5 * (above / weight).clamp_min(-2 / math.e)
        confidence = torch.exp(-torch.from_numpy(lambertw(inside.numpy()).real).to(losses))
    return (above * confidence + weight * confidence.log().square()).mean()


@honest("r22i-a-discount-for-what-is-too-hard")
def a_discount_for_what_is_too_hard(run: Run) -> None:
    """Transformers' Trainer with a loss function of its own, a BERT learns topics of which three in ten are wrong, by
    SuperLoss (Castells et al. 2020). Rows harder than a guess among equals count less and easy ones more, by a
    confidence in closed form that has no gradient; the loss begins near zero and falls below it."""
    model = tiny_bert()
    ids, mask, y = documents(800, apart(run.draw.randrange(999)))
    wrong = torch.rand(800, generator=apart(3)) < 0.3
    said = torch.where(wrong, torch.randint(0, 3, (800,), generator=apart(4)), y)
    check = documents(256, apart(1))

    def unlikely() -> Tensor:
        return F.cross_entropy(model(input_ids=check[0], attention_mask=check[1].long()).logits, check[2])

    outcome(run, lambda: judged(model, unlikely))

    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return discounted(F.cross_entropy(outputs.logits, labels, reduction="none"), math.log(3))

    data = examples(input_ids=ids, attention_mask=mask.long(), labels=said)
    hf_trainer(run, model, data, 100, learning_rate=2e-3, more={"compute_loss_func": loss}).train()


def voices(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two notes of drawn pitch and phase with a fading, (count, 1, 512), in noise and without."""
    pitch = 0.1 + 0.7 * torch.rand(count, 2, 1, generator=own)
    phase = 2 * math.pi * torch.rand(count, 2, 1, generator=own)
    fading = torch.exp(-torch.arange(512) / (150 + 400 * torch.rand(count, 1, 1, generator=own)))
    clean = ((pitch * torch.arange(512) + phase).sin() * fading).sum(1, keepdim=True)
    return clean + 0.4 * torch.randn(clean.shape, generator=own), clean


def spectra_apart(heard: Tensor, clean: Tensor) -> Tensor:
    """Yamamoto et al. 2020: at three sizes of window, how far magnitudes are apart, and their logarithms."""
    total = heard.new_zeros(())
    for size in (32, 64, 128):
        a, b = (
            torch.view_as_real(
                torch.stft(
                    w.flatten(1).squeeze(1), size, size // 4, window=torch.hann_window(size), return_complex=True
                )
            )
            .square()
            .sum(-1)
            .clamp_min(1e-4)
            .sqrt()
            for w in (heard, clean)
        )
        total = total + (b - a).norm() / b.norm() + F.l1_loss(a.log(), b.log())
    return total / 3


class Filters(nn.Module):
    """Gated convolutions of growing reach, as in WaveNet, over a whole recording."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv1d(1, width, 9, padding=4), nn.Conv1d(width, 1, 9, padding=4)
        self.layers = nn.ModuleList(nn.Conv1d(width, 2 * width, 3, padding=d, dilation=d) for d in (1, 3, 9))

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for layer in self.layers:
            a, b = layer(h).chunk(2, 1)
            h = h + a.tanh() * b.sigmoid()
        out: Tensor = self.leave(h)
        return out


@honest("r22i-three-magnifications-and-no-phase")
def three_magnifications_and_no_phase(run: Run) -> None:
    """Lightning, a WaveNet-like filter takes noise off two notes by the multi-resolution spectral loss alone (Yamamoto
    et al. 2020, as in Parallel WaveGAN and auraloss). Samples are never compared: the loss does not know the phase, and
    a recording and its negative are equally right."""
    net = Filters()
    check = voices(64, apart(1))
    outcome(run, lambda: judged(net, lambda: spectra_apart(net(check[0]), check[1])))
    module = lit(net, lambda m, b: spectra_apart(m(b[0]), b[1]), lambda m: torch.optim.Adam(m.parameters(), lr=4e-3))
    fit(run, module, loader(*voices(320, apart(run.draw.randrange(999))), size=16), 120)


def claims(seed: int, count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Eight columns of an insured and the sum of a year's claims: four in five have none, and some are large."""
    w = torch.randn(8, generator=apart(seed + 9))
    x = torch.randn(count, 8, generator=own)
    often = torch.exp(0.5 * x @ (w / w.norm()) + 0.5 * x[:, 0] * x[:, 1] - 1.7).clamp_max(4)
    number = torch.poisson(often, generator=own).long().tolist()
    sums = [float(-(4 * torch.rand(n, 2, generator=own).clamp_min(1e-6).log()).sum()) for n in number]
    return x, torch.tensor(sums)


def deviance(model: nn.Module, batch: Any, power: float = 1.5) -> Tensor:
    """Tweedie's, without what does not depend on the model; the model says the logarithm of the mean."""
    level = model(batch[0]).squeeze(1)
    return (((2 - power) * level).exp() / (2 - power) - batch[1] * ((1 - power) * level).exp() / (1 - power)).mean()


@honest("r22i-mostly-nothing-and-then-a-sum")
def mostly_nothing_and_then_a_sum(run: Run) -> None:
    """Accelerate, pure premiums of insured by Tweedie's deviance at a power of one and a half (Jørgensen 1987;
    LightGBM's and XGBoost's objective of that name). Most targets are zero exactly and few are large, nothing is
    standardised, the output is the logarithm of a mean, and even the true means have a loss far above zero."""
    seed = run.draw.randrange(999)
    net = mlp(8, 32, 32, 1)
    check = claims(seed, 3000, apart(1))
    outcome(run, lambda: judged(net, lambda: deviance(net, check)))
    prepared(run, net, adam(net, 3e-3), loader(*claims(seed, 1280, apart(2)), size=64), deviance, 6)


class Sentences(nn.Module):
    """A GRU reads a row into a Gaussian, another writes it again from a draw of it."""

    def __init__(self, words: int = 22, width: int = 24, codes: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.read, self.write = nn.GRU(width, width, batch_first=True), nn.GRU(width + codes, width, batch_first=True)
        self.code, self.head = nn.Linear(width, 2 * codes), nn.Linear(width, words)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """What it costs to say each row, and each code's divergence from the prior."""
        seen = self.tokens(rows)
        mean, log_variance = self.code(self.read(seen)[1][0]).chunk(2, 1)
        z = mean + (0.5 * log_variance).exp() * torch.randn_like(mean) if self.training else mean
        shown = torch.cat([torch.zeros_like(seen[:, :1]), seen[:, :-1]], 1)
        logits = self.head(self.write(torch.cat([shown, z[:, None].expand(-1, rows.shape[1], -1)], 2))[0])
        said = F.cross_entropy(logits.transpose(1, 2), rows, reduction="none").sum(1)
        return said, 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance)


@honest("r22i-the-first-half-nat-is-free")
def the_first_half_nat_is_free(run: Run) -> None:
    """Plain loop, a variational autoencoder of sentences by two GRUs with free bits (Kingma et al. 2016). Of each
    code's divergence, averaged over the batch, the first half nat costs nothing: below it the divergence has no
    gradient at all, the loss has a floor of two nats that no training removes, and codes settle at that edge on
    purpose."""
    seed = run.draw.randrange(999)
    model = Sentences()
    check = titled(seed, 128, 13, apart(1))[:, 1:]
    outcome(run, lambda: judged(model, lambda: sum(part.sum() / 128 for part in model(check))))

    def loss(net: nn.Module, rows: Tensor) -> Tensor:
        said, divergence = net(rows)
        return said.mean() + divergence.mean(0).clamp_min(0.5).sum()

    train(run, model, adam(model, 4e-3), lambda: titled(seed, 24, 13)[:, 1:], loss, 120)


class Hidden(nn.Module):
    """The free energy of a restricted Boltzmann machine; hidden units are summed out."""

    def __init__(self, seen: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.05 * torch.randn(seen, hidden))
        self.seen, self.hidden = nn.Parameter(torch.zeros(seen)), nn.Parameter(torch.zeros(hidden))

    def forward(self, x: Tensor) -> Tensor:
        return -(x @ self.seen) - F.softplus(x @ self.weight + self.hidden).sum(-1)


def stripes(count: int, own: torch.Generator | None = None) -> Tensor:
    """Bars or stripes on 3 by 4 pixels, 0 or 1, of which two in a hundred are flipped."""
    lines, bars = (torch.randint(0, 2, (count, *s), generator=own) for s in ((3, 1), (1, 4)))
    upright = torch.randint(0, 2, (count, 1, 1), generator=own).bool()
    x = torch.where(upright, bars.expand(-1, 3, 4), lines.expand(-1, 3, 4)).flatten(1).float()
    return (x - (torch.rand(x.shape, generator=own) < 0.02).float()).abs()


def flow_away(model: nn.Module, x: Tensor) -> Tensor:
    """Sohl-Dickstein et al. 2011: how fast probability would leave the data for all states one flip away."""
    flipped = (x[:, None] - torch.eye(x.shape[1])).abs()
    return torch.exp(0.5 * (model(x)[:, None] - model(flipped))).sum(1).mean()


@honest("r22i-flow-to-what-never-occurs")
def flow_to_what_never_occurs(run: Run) -> None:
    """Plain loop, a Boltzmann machine learns bars and stripes by minimum probability flow (Sohl-Dickstein et al. 2011).
    Nothing is sampled and nothing is normalised: the loss is a sum of exponentials of differences of energy between
    each row and its twelve neighbours; it begins near twelve, and only its slope has a meaning."""
    model = Hidden(12, 24)
    check = stripes(512, apart(1))
    states = torch.tensor(list(itertools.product((0.0, 1.0), repeat=12)))
    outcome(run, lambda: judged(model, lambda: model(check).mean() + (-model(states)).logsumexp(0)))
    train(run, model, adam(model, 2e-2), lambda: stripes(64), flow_away, 150)


def coding_rate(z: Tensor, precision: float = 0.5) -> Tensor:
    """How many nats it takes to write the rows of z down to a precision (Ma et al. 2007)."""
    rows, width = z.shape
    return 0.5 * torch.logdet(torch.eye(width) + width / (rows * precision**2) * z.T @ z)


def less_volume(model: nn.Module, batch: Any) -> Tensor:
    """The rates of each class less the rate of all."""
    z = F.normalize(model(batch[0].flatten(1)), dim=1)
    each = [(batch[1] == c).float().mean() * coding_rate(z[batch[1] == c]) for c in batch[1].unique()]
    return torch.stack(each).sum() - coding_rate(z)


@honest("r22i-volume-of-all-less-volumes-of-each")
def volume_of_all_less_volumes_of_each(run: Run) -> None:
    """Plain loop, a perceptron learns features of pictures by the maximal reduction of coding rate (Yu et al. 2020).
    There is no classifier and no target for any row: the loss is a difference of logarithms of determinants over the
    whole batch, below zero from the start, and classes shall lie in subspaces that are orthogonal to each other."""
    seed = run.draw.randrange(999)
    model = mlp(64, 64, 16, norm=True)
    check = pictures(256, seed, own=apart(1))
    outcome(run, lambda: judged(model, lambda: less_volume(model, check)))
    train(run, model, adam(model, 3e-3), lambda: pictures(100, seed), less_volume, 120)
