"""Round 17a, honest and odd: losses."""

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import apart, judged, loader, mlp, outcome, train
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_parts import sounds
from benchmarks.robustness.loops.round7b_tools import adam
from torch import Tensor, nn
from torch.nn import functional as F


class OnASphere(nn.Module):
    """A small encoder of texts; its vectors have unit length."""

    def __init__(self, words: int = 24, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Parameter(0.1 * torch.randn(8, width))
        self.block = nn.TransformerEncoderLayer(width, 2, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(width, 16)

    def forward(self, ids: Tensor) -> Tensor:
        return F.normalize(self.out(self.block(self.tokens(ids) + self.places[: ids.shape[1]]).mean(1)), dim=1)


def asked_and_found(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Texts of eight words, and four of these in their order, one in ten replaced."""
    texts = torch.randint(1, 24, (count, 8), generator=own)
    places = torch.rand(count, 8, generator=own).argsort(1)[:, :4].sort(1).values
    asked = texts.gather(1, places)
    other = torch.rand(asked.shape, generator=own) < 0.1
    return torch.where(other, torch.randint(1, 24, asked.shape, generator=own), asked), texts


@honest("r17a-together-and-spread-out")
def together_and_spread_out(run: Run) -> None:
    """accelerate, questions and texts by alignment and uniformity (Wang and Isola 2020). No answer is chosen among
    others and there is no softmax: pairs are drawn together, and all texts, whatever they say, are pushed apart as if
    by charges, twins and near twins among them; the loss begins about nought, goes below it and has a floor that
    nobody knows."""
    model = OnASphere()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        a, b = model(batch[0]), model(batch[1])
        spread = sum(F.pdist(v).square().mul(-2).exp().mean().log() for v in (a, b)) / 2
        return (a - b).square().sum(1).mean() + spread

    asked, texts = asked_and_found(128, apart(1))
    labels = torch.arange(128)
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(10 * model(asked) @ model(texts).T, labels)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    prepared(run, model, optimizer, loader(*asked_and_found(960), size=48), loss, 7)


class Ahead(nn.Module):
    """Frames of a sound, what was heard so far, and what it says of the next two frames."""

    def __init__(self) -> None:
        super().__init__()
        self.frames, self.heard = mlp(8, 32, 16), nn.GRU(16, 32, batch_first=True)
        self.ahead = nn.ModuleList(nn.Linear(32, 16, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 1, 64) sounds; the mean loss."""
        frames = self.frames(x.view(len(x), 8, 8))
        states = self.heard(frames)[0]
        losses = []
        for step, ahead in enumerate(self.ahead, 1):
            scores = ahead(states[:, 1:-step]) @ frames.transpose(1, 2)
            right = torch.arange(1 + step, 8).expand(len(x), -1)
            losses.append(F.cross_entropy(scores.flatten(0, 1), right.flatten()))
        return torch.stack(losses).mean()


@honest("r17a-other-moments-of-the-same-sound")
def other_moments_of_the_same_sound(run: Run) -> None:
    """Plain loop, contrastive predictive coding of tones (van den Oord et al. 2018). What comes next is not said but
    picked out of the eight frames of the very same sound, most of which the model has just heard, so that the wrong
    answers are as like the right one as can be; the topic of the sound is of no help, no label is used, and scores
    have no scale or bound."""
    model = Ahead()
    check = sounds(256, apart(1), 0.3)[0]
    outcome(run, lambda: judged(model, lambda: model(check)))
    train(run, model, adam(model, 4e-3), lambda: sounds(32, noise=0.3)[0], lambda m, x: m(x), 220, clip=1.0)


class Straight(nn.Module):
    """From a point and how much noise is on it to the point; with next to no noise it is what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(3, 64, 64, 2, act=nn.SiLU)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        """x: (rows, 2); noise: (rows, 1)."""
        moved = noise - 0.02
        keep, add = 0.25 / (moved.square() + 0.25), 0.5 * moved / (0.25 + noise.square()).sqrt()
        inner = torch.cat([x / (0.25 + noise.square()).sqrt(), noise.log() / 4], 1)
        return keep * x + add * self.net(inner)


def ring(count: int, own: torch.Generator | None = None) -> Tensor:
    angle = 2 * torch.pi * torch.rand(count, generator=own)
    return 0.7 * torch.stack([angle.cos(), angle.sin()], 1) + 0.03 * torch.randn(count, 2, generator=own)


def energy_distance(a: Tensor, b: Tensor) -> Tensor:
    n, m = len(a), len(b)
    return 2 * torch.cdist(a, b).mean() - 2 * F.pdist(a).sum() / n**2 - 2 * F.pdist(b).sum() / m**2


@honest("r17a-agrees-with-itself-at-less-noise")
def agrees_with_itself_at_less_noise(run: Run) -> None:
    """Plain loop, a consistency model of points on a ring, trained without a teacher (Song et al. 2023, Song and
    Dhariwal 2024). The target of a noisy point is what the same weights say, without gradient, of the same point with
    a little less noise, so that the target moves with every step; the data themselves are a target only where there is
    next to no noise. Halfway there are twice as many noise levels, and the loss changes its size."""
    model = Straight()
    fixed, real = torch.randn(256, 2, generator=apart(1)), ring(256, apart(2))
    outcome(run, lambda: judged(model, lambda: energy_distance(model(3 * fixed, torch.full((256, 1), 3.0)), real)))
    optimizer = adam(model, 2e-3)
    doctor = run.watch(model, optimizer)
    for step in range(500):
        levels = torch.logspace(-1.699, 0.4772, 10 if step < 250 else 20)
        x, z = ring(128), torch.randn(128, 2)
        at = torch.randint(0, len(levels) - 1, (128,))
        less, more = levels[at, None], levels[at + 1, None]
        said = model(x + more * z, more)
        with torch.no_grad():
            target = model(x + less * z, less)
        apart_by = ((said - target).square().sum(1) + 1e-4).sqrt() - 1e-2
        loss = (apart_by / (more - less).squeeze(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, x)
        run.note(loss)


def circles_of_friends(seed: int) -> tuple[Tensor, Tensor]:
    """(120, 8) features in noise, and (120, 120) shares of neighbours; four groups of thirty."""
    own = apart(seed)
    group = torch.arange(120) % 4
    centres = torch.randn(4, 8, generator=apart(3))
    nodes = centres[group] + 1.5 * torch.randn(120, 8, generator=own)
    chance = torch.where(group[:, None] == group, 0.25, 0.01)
    edges = (torch.rand(120, 120, generator=own) < chance).float().triu(1)
    edges = edges + edges.T + torch.eye(120)
    return nodes, edges / edges.sum(1, keepdim=True)


class Infomax(nn.Module):
    """Whether a node, as it stands among its neighbours, belongs to the graph's summary."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.slope = nn.Linear(8, 32), nn.PReLU()
        self.match = nn.Linear(32, 32, bias=False)

    def forward(self, nodes: Tensor, shares: Tensor, summary: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h = self.slope(shares @ self.enter(nodes))
        if summary is None:
            summary = h.mean(0).sigmoid()
        return h @ self.match(summary), summary


@honest("r17a-features-dealt-to-other-nodes")
def features_dealt_to_other_nodes(run: Run) -> None:
    """Plain loop, Deep Graph Infomax on one graph of 120 nodes (Velickovic et al. 2019). In a second pass of every
    step the features are dealt anew among the nodes while the edges stay, which makes nonsense of the graph on
    purpose; labels are one for the true pass and zero for the other, no node's own label is known, and every step has
    the same graph."""
    graph = circles_of_friends(run.draw.randrange(999))
    dealt = torch.randperm(120, generator=apart(5))
    model = Infomax()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        nodes, shares, order = batch
        true, summary = model(nodes, shares)
        false, _ = model(nodes[order], shares, summary)
        labels = torch.cat([torch.ones(120), torch.zeros(120)])
        return F.binary_cross_entropy_with_logits(torch.cat([true, false]), labels)

    outcome(run, lambda: judged(model, lambda: loss(model, (*graph, dealt))))
    train(run, model, adam(model, 4e-3), lambda: (*graph, torch.randperm(120)), loss, 150)


def views(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 1, 8, 8) pictures of a ground, and how far it is, of which nobody knows unit and zero."""
    ground = F.interpolate(torch.randn(count, 1, 4, 4, generator=own), scale_factor=2, mode="bilinear")
    unit = (1.2 * torch.randn(count, 1, 1, 1, generator=own)).exp()
    zero = 3 * torch.randn(count, 1, 1, 1, generator=own)
    return (2 * ground).tanh() + 0.6 * torch.randn(ground.shape, generator=own), unit * ground + zero


@honest("r17a-unit-and-zero-solved-for-each-row")
def unit_and_zero_solved_for_each_row(run: Run) -> None:
    """Plain loop, depth from one picture when every source measures otherwise (MiDaS, Ranftl et al. 2022). Before they
    are compared each row's output is stretched and moved so that it fits its label best, in closed form and with
    gradient, and the label has its own spread divided out: size, level and even sign of the output mean nothing and
    drift as they like."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 1)
    )

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        said, label = model(batch[0]).flatten(1), batch[1].flatten(1)
        said, label = said - said.mean(1, keepdim=True), label - label.mean(1, keepdim=True)
        label = label / label.std(1, keepdim=True)
        stretch = (said * label).sum(1, keepdim=True) / (said.square().sum(1, keepdim=True) + 1e-6)
        return (stretch * said - label).abs().mean()

    check = views(256, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 3e-3), lambda: views(32), loss, 200)
