"""Round 16a, honest and odd: sounds, claims, rays, densities."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import apart, fit, judged, lit, loader, mlp, outcome, train
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round10a_tools import adamw
from torch import Tensor, nn
from torch.nn import functional as F


class Transducer(nn.Module):
    """A reader of frames, a reader of what was said so far, and both together: (rows, frames, said + 1, 5)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.hear = nn.GRU(4, width // 2, batch_first=True, bidirectional=True)
        self.tokens, self.say = nn.Embedding(5, width), nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 5)

    def forward(self, frames: Tensor, said: Tensor) -> Tensor:
        heard, state = self.hear(frames)[0], self.say(self.tokens(F.pad(said, (1, 0))))[0]
        out: Tensor = self.head((heard[:, :, None] + state[:, None]).tanh()).log_softmax(-1)
        return out


def over_all_ways(scores: Tensor, said: Tensor) -> Tensor:
    """Minus the logarithm of the sum over all ways through frames and words; 0 is the blank."""
    blank = scores[..., 0]
    word = scores[:, :, :-1].gather(3, said[:, None, :, None].expand(-1, scores.shape[1], -1, 1)).squeeze(3)
    row = [torch.zeros(len(scores))]
    for u in range(said.shape[1]):
        row.append(row[-1] + word[:, 0, u])
    for t in range(1, scores.shape[1]):
        new = [row[0] + blank[:, t - 1, 0]]
        for u in range(1, len(row)):
            new.append(torch.logaddexp(row[u] + blank[:, t - 1, u], new[-1] + word[:, t, u - 1]))
        row = new
    return -(row[-1] + blank[:, -1, -1]).mean()


def spoken(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 12, 4) noisy frames of three words, 1 to 4, each two to four frames long, and the words."""
    said = torch.randint(1, 5, (count, 3), generator=own)
    ends = torch.randint(2, 5, (count, 3), generator=own).cumsum(1)
    at = (torch.arange(12)[None, :, None] >= ends[:, None]).sum(2)
    sounding = F.pad(F.one_hot(said - 1, 4).float(), (0, 0, 0, 1))
    frames = sounding[torch.arange(count)[:, None], at]
    turn = torch.linspace(0, 0.3, 12)[None, :, None]
    return frames + turn + 0.3 * torch.randn(count, 12, 4, generator=own), said


@honest("r16a-a-word-for-each-frame-and-each-past")
def a_word_for_each_frame_and_each_past(run: Run) -> None:
    """Plain loop, speech by a transducer (Graves 2012). For each pair of a frame and a number of words said there
    is a distribution, 48 for three words, and no label says which of them is to say what; the loss is over all
    ways through that table, begins above fifteen, and is mostly about saying nothing (blank) at first."""
    model, check = Transducer(), spoken(128, apart(1))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return over_all_ways(m(*batch), batch[1])

    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model), lambda: spoken(24), loss, 110, clip=5.0)


def spreading(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """A curve whose noise is ten times as large on the right as on the left."""
    x = 6 * torch.rand(count, 1, generator=own) - 3
    spread = 0.05 + 0.45 * (x / 1.5).sigmoid()
    return x, (1.5 * x).sin() + spread * torch.randn(count, 1, generator=own)


def deviance(out: Tensor, y: Tensor) -> Tensor:
    mean, log = out.chunk(2, 1)
    return 0.5 * (log + (y - mean).square() / log.exp())


@honest("r16a-weighed-by-its-own-spread")
def weighed_by_its_own_spread(run: Run) -> None:
    """Lightning, a curve with a mean and a spread by beta-NLL (Seitzer et al. 2022). Each row's negative log
    density is multiplied by the root of the variance that the network itself says, detached, so that hard rows are
    not given up; the gradient is not the derivative of the number that is told, which goes below zero."""
    model, check = mlp(1, 32, 32, 2, act=nn.Tanh), spreading(256, apart(1))
    outcome(run, lambda: judged(model, lambda: deviance(model(check[0]), check[1]).mean()))

    def loss(net: nn.Module, batch: Any) -> Tensor:
        out = net(batch[0])
        return (deviance(out, batch[1]) * out[:, 1:].detach().mul(0.5).exp()).mean()

    fit(run, lit(model, loss, adamw(1e-2)), loader(*spreading(512), size=32), 220)


@honest("r16a-nothing-or-a-sum-of-claims")
def nothing_or_a_sum_of_claims(run: Run) -> None:
    """Plain loop, what insured people cost in a year, with Tweedie's loss at power 1.5 as in the M5 competition
    and in insurance. Three targets in four are zero exactly and the rest go up to a hundred, without a logarithm
    and without scaling; the network says the logarithm of the mean, a squared error is never used, and the loss's
    value means nothing."""
    w = torch.randn(6, generator=apart(run.draw.randrange(999)))

    def claims(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 6, generator=own)
        number = torch.poisson((0.5 * (x @ w).clamp(-4, 4) - 1.5 + 0.5 * x[:, 0] * x[:, 1]).exp().clamp_max(6), own)
        sizes = 4 * torch.rand(count, 30, generator=own) + 3 * (torch.arange(30) % 3 == 0)
        return x, (sizes * (torch.arange(30) < number[:, None])).sum(1)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        log, y = m(batch[0]).squeeze(1), batch[1]
        return (2 * y * (-log / 2).exp() + 2 * (log / 2).exp()).mean()

    model, check = mlp(6, 32, 32, 1), claims(512, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 3e-3), lambda: claims(64), loss, 150)


class Field(nn.Module):
    """Density and brightness at a place in the plane, by waves of the coordinates; rays of 24 places."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(18, 48, 48, 2)

    def forward(self, starts: Tensor, ways: Tensor) -> Tensor:
        """(rays, 2) both; samples move a little while it trains."""
        far = torch.arange(24) + (torch.rand(len(starts), 24) if self.training else 0.5)
        places = starts[:, None] + far[..., None] / 24 * 2 * ways[:, None]
        waves = [f(2**i * 1.5 * places) for i in range(4) for f in (torch.sin, torch.cos)]
        density, shade = self.net(torch.cat([places, *waves], 2)).unbind(2)
        return rendered(F.softplus(density - 1), shade.sigmoid())


def rendered(density: Tensor, shade: Tensor) -> Tensor:
    """(rays, samples) both, to what is seen at the end of each ray."""
    clear = (-density * 2 / density.shape[1]).exp()
    before = F.pad(clear.cumprod(1), (1, 0), value=1.0)[:, :-1]
    return (before * (1 - clear) * shade).sum(1)


def rays(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Rays from a circle of radius one towards its inside, past three soft discs of different brightness."""
    middle, shades = 0.9 * torch.rand(3, 2, generator=apart(seed)) - 0.45, torch.tensor([0.2, 0.6, 1.0])
    angle = 2 * math.pi * torch.rand(count, generator=own)
    starts = torch.stack([angle.cos(), angle.sin()], 1)
    ways = F.normalize(-starts + 0.6 * torch.randn(count, 2, generator=own), dim=1)
    places = starts[:, None] + (torch.arange(96)[:, None] + 0.5) / 96 * 2 * ways[:, None]
    near = torch.sigmoid(30 * (0.25 - (places[:, :, None] - middle).norm(dim=3)))
    shade = (near * shades).sum(2) / near.sum(2).clamp_min(1e-6)
    return starts, ways, rendered(12 * near.sum(2), shade)


@honest("r16a-never-told-what-is-there")
def never_told_what_is_there(run: Run) -> None:
    """Plain loop, a radiance field (NeRF, Mildenhall et al. 2020) in the plane. The network says density and
    brightness of places, for which there are no labels; a batch is rays of many views mixed, the loss is about one
    number for 24 places, most of which are behind something or empty and have next to no gradient, and places
    jitter at each pass."""
    seed = run.draw.randrange(999)
    model, (starts, ways, seen) = Field(), rays(256, seed, apart(1))
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(starts, ways), seen) / seen.var()))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0], batch[1]), batch[2])

    train(run, model, adam(model, 3e-3), lambda: rays(96, seed), loss, 200)


class Score(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(2, 48, 48, 2, act=nn.Softplus)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


def two_hills(count: int, own: torch.Generator) -> Tensor:
    side = torch.randint(0, 2, (count, 1), generator=own) * 2.0 - 1
    return 1.2 * side * torch.tensor([1.0, 0.5]) + 0.6 * torch.randn(count, 2, generator=own)


def true_score(x: Tensor) -> Tensor:
    middle = 1.2 * torch.tensor([[1.0, 0.5], [-1.0, -0.5]])
    apart_by = middle - x[:, None]
    weight = (-apart_by.square().sum(2) / 0.72).softmax(1)
    return (weight[..., None] * apart_by).sum(1) / 0.36


@honest("r16a-slope-of-a-density-nobody-knows")
def slope_of_a_density_nobody_knows(run: Run) -> None:
    """accelerate, sliced score matching (Song et al. 2019). The slope of a log density is learned without ever
    seeing it: the loss is half of the squared output plus how the output itself changes along random directions
    with the input, so that inputs need gradients and backward is of a second derivative; it goes below zero and
    has no known floor."""
    own = apart(run.draw.randrange(999))
    model, check = Score(), two_hills(256, own)
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(check), true_score(check))))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x = batch[0].detach().requires_grad_()
        direction = torch.randn_like(x)
        out = m(x)
        (along,) = torch.autograd.grad((out * direction).sum(), x, create_graph=True)
        return ((along * direction).sum(1) + out.square().sum(1) / 2).mean()

    prepared(run, model, adam(model), loader(two_hills(1024, own), size=64), loss, 12)


class Energy(nn.Module):
    """An energy of places in the plane, and a number for the logarithm of what it sums to."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.total = mlp(2, 48, 48, 1, act=nn.SiLU), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return -self.net(x).squeeze(1) - self.total


@honest("r16a-sum-learned-as-a-parameter")
def sum_learned_as_a_parameter(run: Run) -> None:
    """Plain loop, an energy model by noise-contrastive estimation (Gutmann and Hyvarinen 2010). Half of each batch
    is noise drawn on purpose, and labels say which half; logits have the noise's log density subtracted, the
    constant that makes densities sum to one is a single learned parameter, and the loss is to stay at what noise
    and data share."""
    own = apart(run.draw.randrange(999))
    model, check = Energy(), two_hills(512, own)
    side = torch.linspace(-5, 5, 60)
    grid = torch.cartesian_prod(side, side)

    def unlikely() -> Tensor:
        return model(grid).logsumexp(0) + math.log((10 / 59) ** 2) - model(check).mean()

    outcome(run, lambda: judged(model, unlikely))
    around = torch.distributions.MultivariateNormal(torch.zeros(2), 2.0 * torch.eye(2))

    def batch() -> tuple[Tensor, Tensor]:
        return torch.cat([two_hills(64, own), around.sample((64,))]), torch.arange(128).lt(64).float()

    def loss(m: nn.Module, data: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(m(data[0]) - around.log_prob(data[0]), data[1])

    train(run, model, adam(model), batch, loss, 150)
