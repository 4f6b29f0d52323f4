"""Round 23i, honest and odd: losses and objectives that few people descend."""

import itertools
import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Block,
    apart,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    number_outcome,
    outcome,
    table,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, prepared
from torch import Tensor, nn
from torch.nn import functional as F


def weather(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 1, 24) a smooth state on a ring, and the same later: moved by one place or by five by chance."""
    waves = torch.randn(count, 3, 1, generator=own) / torch.arange(1, 4)[:, None]
    phase = 6.28 * torch.rand(count, 3, 1, generator=own)
    x = (waves * (torch.arange(24) * 6.28 / 24 * torch.arange(1, 4)[:, None] + phase).sin()).sum(1, keepdim=True)
    far = torch.rand(count, 1, 1, generator=own) < 0.5
    y = torch.where(far, x.roll(5, 2), x.roll(1, 2))
    return x, y + 0.05 * torch.randn(x.shape, generator=own)


class Forecaster(nn.Module):
    """A state and a draw of noise in, a later state out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv1d(3, 24, 5, padding=2, padding_mode="circular"), nn.SiLU()),
            *(nn.Conv1d(24, 24, 5, padding=2, padding_mode="circular"), nn.SiLU()),
            nn.Conv1d(24, 1, 5, padding=2, padding_mode="circular"),
        )

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        out: Tensor = x + self.body(torch.cat([x, noise[..., None].expand(-1, -1, x.shape[2])], 1))
        return out


def fair_score(model: nn.Module, batch: Any, members: int = 4, own: torch.Generator | None = None) -> Tensor:
    """How far the members are from the truth, less half of how far they are from each other."""
    x, y = batch
    noise = torch.randn(members * len(x), 2, generator=own)
    drawn = model(x.repeat(members, 1, 1), noise).view(members, *x.shape)
    error = (drawn - y).abs().mean()
    apart_by = (drawn[:, None] - drawn[None]).abs().flatten(2).mean(2).sum() / (members * (members - 1))
    return error - apart_by / 2


@honest("r23i-less-half-of-how-far-they-disagree")
def less_half_of_how_far_they_disagree(run: Run) -> None:
    """Lightning, convolutions on a ring forecast four members of a later state by the fair continuous ranked
    probability score (Lang et al. 2024, AIFS-CRPS; Ferro 2014). Members are rewarded for being apart, none of them is
    the best guess of the mean, and the score stays well above zero, since the wind is not known to anybody."""
    net = Forecaster()
    check = weather(200, apart(1))
    outcome(run, lambda: judged(net, lambda: fair_score(net, check, 8, apart(2))))
    module = lit(net, fair_score, lambda m: torch.optim.AdamW(m.parameters(), lr=4e-3))
    fit(run, module, loader(*weather(960, apart(run.draw.randrange(999))), size=32), 150)


def two_sensors(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Two readings of ten columns that share two hidden numbers, each bent in its own way, and much of their own."""
    shared = torch.randn(count, 2, generator=own)
    out = []
    for side in range(2):
        fixed = apart(seed + side)
        into, mine = torch.randn(2, 10, generator=fixed), 0.4 * torch.randn(3, 10, generator=fixed)
        bent = (1.5 * shared @ into).tanh() + 0.1 * torch.randn(count, 10, generator=own)
        out.append(bent + torch.randn(count, 3, generator=own) @ mine)
    return out[0], out[1]


def canonical(a: Tensor, b: Tensor, ridge: float = 1e-3) -> Tensor:
    """The sum of the canonical correlations of two matrices of rows."""
    a, b = a - a.mean(0), b - b.mean(0)
    eye = ridge * torch.eye(a.shape[1])
    roots = []
    for part in (a, b):
        values, vectors = torch.linalg.eigh(part.T @ part / (len(part) - 1) + eye)
        roots.append(vectors @ torch.diag(values.rsqrt()) @ vectors.T)
    return torch.linalg.matrix_norm(roots[0] @ (a.T @ b / (len(a) - 1)) @ roots[1], "nuc")


@honest("r23i-as-alike-as-their-spreads-allow")
def as_alike_as_their_spreads_allow(run: Run) -> None:
    """Plain loop, deep canonical correlation of two sensors (Andrew et al. 2013). The loss is minus a sum of
    correlations between the outputs of two networks, so that it begins below zero and ends near minus two; it belongs
    to the whole batch of 200 rows and to no row, and nothing says what either output should be."""
    seed = run.draw.randrange(999)
    model = nn.ModuleList([mlp(10, 32, 2, act=nn.Tanh), mlp(10, 32, 2, act=nn.Tanh)])
    check = two_sensors(600, seed, apart(1))

    def loss(model: Any, batch: Any) -> Tensor:
        return -canonical(model[0](batch[0]), model[1](batch[1]))

    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    train(run, model, optimizer, lambda: two_sensors(200, seed), loss, 100)


def settlements(own: torch.Generator, places: int = 90, groups: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Features of nodes, who knows whom, and the three groups within which people know each other more often."""
    y = torch.arange(places) % groups
    chance = torch.where(y[:, None] == y[None], 0.22, 0.03)
    edges = (torch.rand(places, places, generator=own) < chance).float().triu(1)
    features = torch.randn(groups, 12, generator=own)[y] * 0.5 + torch.randn(places, 12, generator=own)
    return features, edges + edges.T, y


class Grouping(nn.Module):
    """One round of messages with a skip, and a softmax over groups for each node."""

    def __init__(self, groups: int = 3) -> None:
        super().__init__()
        self.message, self.skip = nn.Linear(12, 24, bias=False), nn.Linear(12, 24)
        self.head = nn.Linear(24, groups)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        root = edges.sum(1).clamp_min(1).rsqrt()
        share = root[:, None] * edges * root[None]
        out: Tensor = self.head(F.selu(share @ self.message(x) + self.skip(x))).softmax(1)
        return out


@honest("r23i-more-friends-within-than-by-chance")
def more_friends_within_than_by_chance(run: Run) -> None:
    """Plain loop, groups of one graph by deep modularity (Tsitsulin et al. 2023; DMoNPooling of PyTorch Geometric). No
    label anywhere, the same graph in all steps, and a loss that begins near zero, goes below it and stops far from its
    bound of minus one, as no grouping of this graph gets there."""
    x, edges, y = settlements(apart(run.draw.randrange(999)))
    model = Grouping()
    degree, twice = edges.sum(1), edges.sum()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        chosen = model(*batch)
        by_chance = (degree @ chosen).square().sum() / twice
        modularity = ((chosen * (edges @ chosen)).sum() - by_chance) / twice
        collapse = math.sqrt(3) / len(chosen) * chosen.sum(0).norm() - 1
        return collapse - modularity

    def wrong() -> Tensor:
        named = model(x, edges).argmax(1)
        right = [(torch.tensor(p)[named] == y).float().mean() for p in itertools.permutations(range(3))]
        return 1 - torch.stack(right).max()

    outcome(run, lambda: judged(model, wrong))
    train(run, model, torch.optim.Adam(model.parameters(), lr=5e-3), lambda: (x, edges), loss, 120)


@honest("r23i-likeliest-to-be-marked-well")
def likeliest_to_be_marked_well(run: Run) -> None:
    """transformers' Trainer, a T5 that was taught by cross-entropy goes on by minimum risk (Shen et al. 2016). It
    writes six answers itself, its chances of these six alone are made to add up to one, and the loss is the mean of
    their marks by them: between zero and one, and without any cross-entropy. Answers that come twice count once."""
    from transformers import T5Config, T5ForConditionalGeneration, Trainer

    own = apart(run.draw.randrange(999))
    settings: dict[str, Any] = {"vocab_size": 12, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1}
    settings |= {"num_heads": 2, "dropout_rate": 0.0, "initializer_factor": 0.5}
    settings |= {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
    model = T5ForConditionalGeneration(T5Config(**settings))
    code = torch.randperm(8, generator=own) + 4

    def pairs(count: int, draw: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        source = torch.randint(4, 12, (count, 4), generator=draw)
        return source, code[source - 4]

    @torch.no_grad()
    def written(model: Any, source: Tensor, draw: torch.Generator | None = None) -> Tensor:
        ids = torch.zeros(len(source), 1, dtype=torch.long)
        memory = model.encoder(input_ids=source)
        for _ in range(4):
            last = model(encoder_outputs=memory, decoder_input_ids=ids).logits[:, -1]
            ids = torch.cat([ids, torch.multinomial(last.softmax(1), 1, generator=draw)], 1)
        return ids[:, 1:].contiguous()

    check, answers = pairs(200, apart(1))
    first = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(180):
        source, target = pairs(24)
        first.zero_grad()
        model(input_ids=source, labels=target).loss.backward()
        first.step()
    outcome(run, lambda: judged(model, lambda: (written(model, check, apart(2)) != answers).float().mean()))

    class MinimumRisk(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **options: Any) -> Any:
            source, target = inputs["input_ids"].repeat_interleave(6, 0), inputs["labels"].repeat_interleave(6, 0)
            tried = written(model, source)
            scores = model(input_ids=source, labels=tried).logits.log_softmax(-1)
            chance = scores.gather(2, tried[..., None]).squeeze(2).sum(1).view(-1, 6)
            same = (tried.view(-1, 6, 1, 4) == tried.view(-1, 1, 6, 4)).all(3)
            again = same.tril(-1).any(2)
            risk = (tried != target).float().mean(1).view(-1, 6)
            loss = (chance.masked_fill(again, -1e9).softmax(1) * risk).sum(1).mean()
            return (loss, {"logits": scores}) if return_outputs else loss

    source, target = pairs(2000, own)
    data = examples(input_ids=source, labels=target)
    hf_trainer(run, model, data, 80, MinimumRisk, learning_rate=5e-3, per_device_train_batch_size=24).train()


@honest("r23i-what-fits-worst-hardly-counts")
def what_fits_worst_hardly_counts(run: Run) -> None:
    """accelerate, a network over a table one row in six of which has a number from elsewhere, by a negatively tilted
    risk (Li et al. 2021, tilted empirical risk minimisation). The loss is minus the logarithm of the mean of
    exponentials of minus the rows' losses: always below their mean, and rows far off have nearly no gradient."""
    own = apart(run.draw.randrange(999))
    x, y = table(640, own=own)
    y = torch.where(torch.rand(640, generator=own) < 1 / 6, 12 + 4 * torch.randn(640, generator=own), y)
    net = mlp(6, 48, 48, 1)
    number_outcome(run, net, table(300, own=apart(1)))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        rows = (model(batch[0]).flatten() - batch[1]).square()
        return math.log(len(rows)) - torch.logsumexp(-rows, 0)

    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    prepared(run, net, optimizer, loader(x, y, size=32), loss, 7)


def cells(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 1, 16, 16) dim pictures with one small disc or none, and where it is."""
    at = 3 + 10 * torch.rand(count, 2, 1, 1, generator=own)
    size = torch.randint(0, 4, (count, 1, 1), generator=own)
    row, column = torch.arange(16)[:, None], torch.arange(16)[None]
    inside = ((row - at[:, 0]).square() + (column - at[:, 1]).square() <= size.square()) & (size > 0)
    y = inside.float()[:, None]
    return y + 0.6 * torch.randn(y.shape, generator=own), y


class SmallUNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.deep = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.up = nn.Sequential(nn.Conv2d(24, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down(x)
        out: Tensor = self.up(torch.cat([fine, F.interpolate(self.deep(fine), scale_factor=2)], 1))
        return out


def lovasz(model: nn.Module, batch: Any) -> Tensor:
    """The convex closure of one minus the overlap, for each picture by its own order of errors."""
    logits, y = model(batch[0]).flatten(1), batch[1].flatten(1)
    errors, order = (1 - logits * (2 * y - 1)).sort(1, descending=True)
    sorted_y = y.gather(1, order)
    total = y.sum(1, keepdim=True)
    jaccard = 1 - (total - sorted_y.cumsum(1)) / (total + (1 - sorted_y).cumsum(1))
    slope = torch.cat([jaccard[:, :1], jaccard.diff(dim=1)], 1)
    return (errors.relu() * slope).sum(1).mean()


@honest("r23i-pixels-weighed-by-their-rank")
def pixels_weighed_by_their_rank(run: Run) -> None:
    """Lightning, a small U-Net finds discs by the Lovász hinge (Berman et al. 2018). Errors of a picture are sorted,
    and how much each counts depends on its rank alone; in a quarter of the pictures there is nothing to find, and there
    the worst pixel alone has a gradient. Nothing pulls outputs towards probabilities."""
    net = SmallUNet()
    x, y = cells(200, apart(1))

    def missed() -> Tensor:
        found = net(x) > 0
        return 1 - (found & (y > 0)).sum() / (found | (y > 0)).sum()

    outcome(run, lambda: judged(net, missed))
    module = lit(net, lovasz, lambda m: torch.optim.Adam(m.parameters(), lr=4e-3))
    fit(run, module, loader(*cells(640, apart(run.draw.randrange(999))), size=16), 120)


@honest("r23i-how-many-times-as-often-there")
def how_many_times_as_often_there(run: Run) -> None:
    """Plain loop, how much likelier customers of the new shop are than those of the old, by least squares on a ratio
    that is never seen (Kanamori et al. 2009, uLSIF; Kato and Teshima 2021 for networks). Half of a mean square less a
    mean: the loss goes below zero, rows of two kinds are treated in two ways, and no row has a label."""
    middle = 0.8 * torch.randn(2, generator=apart(run.draw.randrange(999)))
    model = nn.Sequential(mlp(2, 32, 32, 1, act=nn.SiLU), nn.Softplus())
    check = torch.randn(600, 2, generator=apart(1))
    spread = 0.7

    def truth(x: Tensor) -> Tensor:
        return (x.square().sum(1) / 2 - ((x - middle) / spread).square().sum(1) / 2).exp() / spread**2

    def batch() -> tuple[Tensor, Tensor]:
        return torch.randn(128, 2), middle + spread * torch.randn(128, 2)

    outcome(run, lambda: judged(model, lambda: (model(check).flatten() - truth(check)).square().mean()))

    def loss(model: nn.Module, data: Any) -> Tensor:
        old, new = data
        return model(old).square().mean() / 2 - model(new).mean()

    train(run, model, torch.optim.Adam(model.parameters(), lr=5e-3), batch, loss, 150)


def chains(count: int, own: torch.Generator, seed: int, length: int = 12) -> tuple[Tensor, Tensor]:
    """Rows of residues 1 to 8, padded by 0, with an angle at each that depends on it and on the next one."""
    ids = torch.randint(1, 9, (count, length), generator=own)
    ids = ids * (torch.arange(length) < torch.randint(6, length + 1, (count, 1), generator=own))
    mean = 6.28 * torch.rand(9, 9, generator=apart(seed))
    spread = torch.linspace(0.05, 1.2, 9)[torch.randperm(9, generator=apart(seed + 1))]
    after = torch.cat([ids[:, 1:], torch.zeros(count, 1, dtype=torch.long)], 1)
    angle = mean[ids, after] + spread[ids] * torch.randn(count, length, generator=own)
    return ids, torch.atan2(angle.sin(), angle.cos()).masked_fill(ids == 0, -100.0)


class Torsions(nn.Module):
    """A small encoder with a vector in the plane for each residue: where it points and, by its length, how surely."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(9, 32), nn.Embedding(12, 32)
        self.near = nn.Conv1d(32, 32, 3, padding=1)
        self.block, self.head = Block(32, causal=False), nn.Linear(32, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        x = x + self.near(x.transpose(1, 2)).transpose(1, 2) + self.places(torch.arange(ids.shape[1]))
        out: Tensor = self.head(self.block(x, ids > 0))
        return out


def von_mises(vectors: Tensor, angles: Tensor) -> Tensor:
    known = angles > -10
    vectors, angles = vectors[known], angles[known]
    sure = vectors.norm(dim=1).clamp_min(1e-6)
    fit_to = vectors[:, 0] * angles.cos() + vectors[:, 1] * angles.sin()
    return (math.log(2 * math.pi) + torch.special.i0e(sure).log() + sure - fit_to).mean()


@honest("r23i-a-direction-and-how-surely")
def a_direction_and_how_surely(run: Run) -> None:
    """transformers' Trainer, an encoder tells the torsion angle at each residue by von Mises's density (Prokudin et al.
    2018; torch's distribution of that name). The two outputs are a vector whose length is the certainty and may grow
    without end, minus pi is next to pi, and the loss starts at the logarithm of a full turn and may fall below zero."""
    seed = run.draw.randrange(999)
    net = Torsions()
    ids, angles = chains(200, apart(1), seed)
    outcome(run, lambda: judged(net, lambda: von_mises(net(ids), angles)))
    x, labels = chains(800, apart(seed + 2), seed)
    hf_trainer(run, WithLoss(net, von_mises), examples(x=x, labels=labels), 150, per_device_train_batch_size=32).train()
