"""Round 25i, honest and odd: losses and models of trades, from rivers and stores to rain and surfaces."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
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
from benchmarks.robustness.loops.round7b_tools import adam, update
from torch import Tensor, nn
from torch.nn import functional as F

DAYS, WARM = 60, 20


def bucket(rain: Tensor, dry: Tensor, depth: Tensor, power: Tensor, leak: Tensor) -> Tensor:
    """(rivers, days) of runoff: a soil that lets through the more, the fuller it is, and a store behind it."""
    soil, store, out = 0.5 * depth, torch.zeros_like(depth), []
    for t in range(rain.shape[1]):
        through = rain[:, t] * (soil / depth).clamp(1e-3, 1) ** power
        soil = soil + rain[:, t] - through
        soil = (soil - dry[:, t] * (soil / depth).clamp(0, 1)).clamp_min(1e-3)
        through = through + (soil - depth).clamp_min(0)
        soil = torch.minimum(soil, depth)
        store = store + through
        out.append(leak * store)
        store = store - out[-1]
    return torch.stack(out, 1)


class Hydrologist(nn.Module):
    """Reads a river's weather and what is known of its land, and sets the three numbers of a bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.head = nn.LSTM(6, 24, batch_first=True), nn.Linear(24, 3)

    def forward(self, rain: Tensor, dry: Tensor, land: Tensor) -> Tensor:
        seen = torch.cat([rain[..., None] / 5, dry[..., None] / 3, land[:, None].expand(-1, DAYS, -1)], 2)
        share = self.head(self.core(seen)[0][:, -1]).sigmoid().T
        return bucket(rain, dry, 10 + 50 * share[0], 1 + 4 * share[1], 0.05 + 0.75 * share[2])


@honest("r25i-a-bucket-between-network-and-river")
def a_bucket_between_network_and_river(run: Run) -> None:
    """Plain loop, runoff by differentiable parameter learning (Tsai et al. 2021, dPL; Feng et al. 2022, HBV). What the
    network says has no label: it sets three numbers, squeezed between bounds of the trade, of a simulation of sixty
    days that has no weights, and slopes come back through all of them and through minima and floors. The first twenty
    days are simulated and never count, and what counts is compared as square roots."""
    own = apart(run.draw.randrange(999))
    depends = torch.randn(4, 3, generator=own)

    def rivers(count: int) -> tuple[Tensor, ...]:
        land = torch.randn(count, 4, generator=own)
        wet = (torch.rand(count, DAYS, generator=own) < 0.4).float()
        rain = -12 * (1 - torch.rand(count, DAYS, generator=own)).log() * wet
        dry = 2 + 1.5 * (torch.arange(DAYS) / 9).sin() + 0.2 * torch.randn(count, DAYS, generator=own)
        share = (land @ depends).sigmoid().T
        flow = bucket(rain, dry.clamp_min(0), 10 + 50 * share[0], 1 + 4 * share[1], 0.05 + 0.75 * share[2])
        return rain, dry.clamp_min(0), land, flow * (1 + 0.05 * torch.randn(flow.shape, generator=own))

    def missed(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        *given, flow = batch
        said = model(*given)
        return F.mse_loss((said[:, WARM:] + 0.1).sqrt(), (flow[:, WARM:].clamp_min(0) + 0.1).sqrt())

    known, new = rivers(64), rivers(48)
    model = Hydrologist()
    outcome(run, lambda: judged(model, lambda: missed(model, new)))

    def some() -> tuple[Tensor, ...]:
        which = torch.randint(0, 64, (16,))
        return tuple(column[which] for column in known)

    train(run, model, adam(model, 1e-2), some, missed, 80, clip=1.0)


@honest("r25i-orders-go-through-a-simulated-store")
def orders_go_through_a_simulated_store(run: Run) -> None:
    """A class of its own around the loop, orders of goods by slopes through a simulator (deep inventory management,
    Madeka et al. 2022; hindsight differentiable policies, Alvo et al. 2023). No demand is forecast and no label is
    there: the policy acts thirty times on its own consequences, the loss is the cost of the path, in money, with a
    kink at an empty store and nine times as dear on one side, and goods arrive two days after they were ordered, so
    that the last orders have no slope at all."""
    seed = run.draw.randrange(999)

    class Store:
        lead, days = 2, 30

        def __init__(self) -> None:
            self.policy = nn.Sequential(mlp(4 + 1 + self.lead, 32, 32, 1, act=nn.ELU), nn.Softplus())
            self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=3e-3)
            self.doctor = run.watch(self.policy, self.optimizer)

        def demand(self, count: int, own: torch.Generator | None = None) -> Tensor:
            """A level that wanders, and a shop that is fuller at times."""
            shift = 6.28 * torch.rand(1, generator=apart(seed))
            level = 5 + 2 * (torch.arange(self.days + 4) * 0.7 + shift).sin()
            noise = torch.randn(count, self.days + 4, generator=own)
            return (level + 1.5 * (noise + 0.6 * noise.roll(1, 1))).clamp_min(0)

        def cost(self, demand: Tensor) -> Tensor:
            held, coming = torch.full((len(demand),), 5.0), [torch.full((len(demand),), 5.0)] * self.lead
            paid = torch.zeros(len(demand))
            for day in range(self.days):
                state = torch.cat([demand[:, day : day + 4], torch.stack([held, *coming], 1)], 1)
                coming = [*coming, 5 * self.policy(state / 5).squeeze(1)]
                held = held + coming[0] - demand[:, day + 4]
                coming = coming[1:]
                paid = paid + held.clamp_min(0) + 9 * (-held).clamp_min(0)
            return paid.mean() / self.days

        def learn(self) -> None:
            demand = self.demand(64)
            update(run, self.doctor, self.optimizer, self.cost(demand), demand)

    store = Store()
    check = store.demand(256, apart(seed + 1))
    outcome(run, lambda: judged(store.policy, lambda: store.cost(check)))
    for _ in range(100):
        store.learn()


def share_of_rain(field: Tensor, around: int = 5) -> Tensor:
    return F.avg_pool2d(field, around, 1, around // 2)


@honest("r25i-right-if-it-rains-close-by")
def right_if_it_rains_close_by(run: Run) -> None:
    """transformers' Trainer, rain of the next hour by the fractions skill score as loss (Roberts and Lean 2008;
    Ebert-Uphoff et al. 2021; Lagerquist et al. 2022). A pixel is not compared with its label: forecast and truth are
    averaged over five by five pixels first, so that a shower two pixels beside its place is nearly right, and
    one quotient is formed for the whole batch, between nought and one, in place of a mean over rows."""
    seed = run.draw.randrange(999)
    wind = torch.randint(-2, 3, (2,), generator=apart(seed)).tolist()

    def hours(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
        noise = F.avg_pool2d(F.pad(torch.randn(count, 1, 12, 12, generator=own), (2, 2, 2, 2), "circular"), 5, 1)
        now = 5 * noise
        gust = torch.randint(-1, 2, (count, 2), generator=own).tolist()
        later = torch.stack([x.roll((wind[0] + a, wind[1] + b), (1, 2)) for x, (a, b) in zip(now, gust, strict=True)])
        return now + 0.1 * torch.randn(now.shape, generator=own), (later > 0.8).float()

    def skill_missed(logits: Tensor, labels: Tensor) -> Tensor:
        said, truth = share_of_rain(logits.sigmoid()), share_of_rain(labels)
        return (said - truth).square().mean() / (said.square().mean() + truth.square().mean()).clamp_min(1e-6)

    def layer(a: int, b: int) -> nn.Conv2d:
        return nn.Conv2d(a, b, 3, padding=1, padding_mode="circular")

    net = WithLoss(nn.Sequential(layer(1, 12), nn.ReLU(), layer(12, 12), nn.ReLU(), layer(12, 1)), skill_missed)
    now, later = hours(240, apart(1))
    new, truth = hours(96, apart(2))
    outcome(run, lambda: judged(net, lambda: skill_missed(net(new)["logits"], truth)))
    hf_trainer(run, net, examples(x=now, labels=later), 75).train()


TOWNS = torch.eye(6)
SUMS = torch.cat([torch.ones(1, 6), TOWNS[:3].sum(0, keepdim=True), TOWNS[3:].sum(0, keepdim=True), TOWNS])
COHERENT = SUMS @ torch.linalg.inv(SUMS.T @ SUMS) @ SUMS.T


class Nation(nn.Module):
    """Means and spreads for six towns, two regions and the country; draws of them, made to add up."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(9, 32, batch_first=True), nn.Linear(32, 18)

    def forward(self, past: Tensor, draws: int = 24) -> Tensor:
        """(draws, rows, series)."""
        middle, wide = self.head(self.core(past)[0][:, -1]).chunk(2, 1)
        own = middle + (F.softplus(wide) + 1e-3) * torch.randn(draws, *middle.shape)
        return own @ COHERENT


def ranked_probability(draws: Tensor, truth: Tensor) -> Tensor:
    """The continuous ranked probability score of draws, without bias."""
    count = len(draws)
    between = (draws[:, None] - draws[None]).abs().sum((0, 1)) / (count * (count - 1))
    return ((draws - truth).abs().mean(0) - 0.5 * between).mean()


@honest("r25i-towns-must-sum-to-the-country")
def towns_must_sum_to_the_country(run: Run) -> None:
    """Lightning, forecasts of a hierarchy that add up (Rangapuram et al. 2021, HierE2E in GluonTS). The model's
    distributions are never compared with a label: it draws from them, every draw is projected by a fixed matrix onto
    what is coherent, by which a third of what the head says is thrown away, and the draws are judged by a ranked
    probability score, so that the loss of the same batch is another one in every pass. Some
    labels are sums of others, and so are inputs."""
    own = apart(run.draw.randrange(999))
    speeds = 0.3 + 0.5 * torch.rand(6, generator=own)

    def history(count: int) -> tuple[Tensor, Tensor]:
        begin = 6.28 * torch.rand(count, 1, 6, generator=own)
        towns = (torch.arange(17)[:, None] * speeds + begin).sin() + 0.2 * torch.randn(count, 17, 6, generator=own)
        series = towns @ SUMS.T
        return series[:, :-1], series[:, -1]

    net = Nation()
    past, later = history(128)
    outcome(run, lambda: judged(net, lambda: ranked_probability(net(past, 64), later)))

    def loss(net: nn.Module, batch: Any) -> Tensor:
        return ranked_probability(net(batch[0]), batch[1])

    fit(run, lit(net, loss, lambda net: adam(net, 5e-3)), loader(*history(480), size=32), 120)


class ClickAndSale(nn.Module):
    """Shared vectors of people and articles, a chance of a click and a chance of a sale after it."""

    def __init__(self, people: int, articles: int) -> None:
        super().__init__()
        self.people, self.articles = nn.Embedding(people, 8), nn.Embedding(articles, 8)
        for vectors in (self.people, self.articles):
            nn.init.normal_(vectors.weight, std=0.1)
        self.click, self.sale = mlp(24, 24, 1), mlp(24, 24, 1)

    def forward(self, who: Tensor, what: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of both."""
        a, b = self.people(who), self.articles(what)
        both = torch.cat([a, b, a * b], 1)
        return self.click(both).squeeze(1), self.sale(both).squeeze(1)


def both_over_all_shown(model: Any, batch: Any) -> Tensor:
    who, what, clicked, bought = batch
    click, sale = model(who, what)
    chance = click.sigmoid() * sale.sigmoid()
    return F.binary_cross_entropy_with_logits(click, clicked) + F.binary_cross_entropy(chance, bought)


@honest("r25i-bought-is-clicked-times-wanted")
def bought_is_clicked_times_wanted(run: Run) -> None:
    """accelerate, sales after clicks over all that was shown (ESMM, Ma et al. 2018). The head for sales has no label
    of its own and no loss: it is taught through its product with the other head alone, on rows that were never
    clicked too, where its label would be unknown; four
    labels in five of one task and nine in ten of the other are nought, and one label implies the other."""
    own = apart(run.draw.randrange(999))
    likes, needs = torch.randn(2, 30, 3, generator=own), torch.randn(2, 20, 3, generator=own)

    def shown(count: int) -> tuple[Tensor, ...]:
        who, what = torch.randint(0, 30, (count,), generator=own), torch.randint(0, 20, (count,), generator=own)
        click = ((likes[0, who] * needs[0, what]).sum(1) - 2).sigmoid()
        sale = (1.5 * (likes[1, who] * needs[1, what]).sum(1)).sigmoid()
        clicked = (torch.rand(count, generator=own) < click).float()
        return who, what, clicked, clicked * (torch.rand(count, generator=own) < sale).float()

    model = ClickAndSale(30, 20)
    check = shown(2000)
    outcome(run, lambda: judged(model, lambda: both_over_all_shown(model, check)))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=1e-5)
    prepared(run, model, optimizer, loader(*shown(4096), size=128), both_over_all_shown, 4)


class Surface(nn.Module):
    """How far a point is from a closed line, below zero within; begins at about a circle."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, width), nn.Linear(width, width), nn.Linear(width, 1)])
        for layer in self.layers[:-1]:
            nn.init.normal_(layer.weight, 0, math.sqrt(2 / width))  # type: ignore[arg-type]
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        nn.init.normal_(self.layers[-1].weight, math.sqrt(math.pi / width), 1e-4)  # type: ignore[arg-type]
        nn.init.constant_(self.layers[-1].bias, -1.0)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.softplus(layer(x), beta=100)
        out: Tensor = self.layers[-1](x).squeeze(1)
        return out

    def slope(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.requires_grad_()
        far = self(x)
        return far, torch.autograd.grad(far.sum(), x, create_graph=True)[0]


@honest("r25i-a-slope-of-one-wherever-one-looks")
def a_slope_of_one_wherever_one_looks(run: Run) -> None:
    """Plain loop, a form from bare points by implicit geometric regularisation (Gropp et al. 2020). Each point on the
    line is to be at nought and no other label exists, so that a network which says nought everywhere would fit all
    data: what forbids it is that the slope of the output by the input has length one at places drawn at random. The
    last layer begins with weights of nearly one value and a bias of minus one, by which the first guess is a circle,
    and softplus bends so sharply that it is next to a ReLU."""
    own = apart(run.draw.randrange(999))
    waves = 0.12 * torch.randn(3, 2, generator=own)

    def line(angle: Tensor) -> Tensor:
        times = angle[:, None] * torch.arange(2, 5)
        out = 0.7 + times.cos() @ waves[:, 0] * 0.5 + times.sin() @ waves[:, 1] * 0.5
        return out[:, None] * torch.stack([angle.cos(), angle.sin()], 1)

    model = Surface()
    points = line(6.283 * torch.rand(800, generator=own))
    dense = line(torch.arange(4000) * 6.2832 / 4000)
    check = 2.4 * torch.rand(600, 2, generator=own) - 1.2
    angle = torch.atan2(check[:, 1], check[:, 0])
    side = torch.where(check.norm(dim=1) > line(angle).norm(dim=1), 1.0, -1.0)
    truth = side * torch.cdist(check, dense).min(1).values
    outcome(run, lambda: judged(model, lambda: (model(check) - truth).abs().mean()))

    def loss(model: Any, batch: Tensor) -> Tensor:
        around = torch.cat([batch + 0.1 * torch.randn_like(batch), 2.4 * torch.rand(64, 2) - 1.2])
        _, slope = model.slope(around)
        return model(batch).abs().mean() + 0.1 * (slope.norm(dim=1) - 1).square().mean()

    train(run, model, adam(model, 2e-3), lambda: points[torch.randint(0, 800, (128,))], loss, 200)
