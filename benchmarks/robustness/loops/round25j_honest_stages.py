"""Round 25j, honest and odd: networks that grow, are thinned or are trained in stages, and rows and sites in rounds."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Decoder,
    Language,
    apart,
    class_outcome,
    cnn,
    documents,
    fit,
    judged,
    lit,
    loader,
    mlp,
    next_loss,
    number_outcome,
    outcome,
    pictures,
    table,
)
from benchmarks.robustness.loops.round6_tools import classify
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune


class Cascade(nn.Module):
    """A linear reading of all columns and of units that were recruited one after another, each reading those before."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.units = nn.ModuleList()
        self.read = nn.Linear(columns, 1)

    def features(self, x: Tensor) -> Tensor:
        for unit in self.units:
            x = torch.cat([x, unit(x).tanh()], 1)
        return x

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.read(self.features(x))
        return out

    def recruit(self, weight: Tensor, bias: Tensor) -> None:
        """A unit that is never changed again, and a reading that gives it no weight yet."""
        unit = nn.Linear(len(weight), 1).requires_grad_(False)
        unit.weight.copy_(weight[None])
        unit.bias.copy_(bias[None])
        self.units.append(unit)
        wider = nn.Linear(len(weight) + 1, 1)
        with torch.no_grad():
            wider.weight.copy_(F.pad(self.read.weight, (0, 1)))
            wider.bias.copy_(self.read.bias)
        self.read = wider


@honest("r25j-units-recruited-for-what-is-left")
def units_recruited_for_what_is_left(run: Run) -> None:
    """Plain loop, cascade correlation (Fahlman and Lebiere 1990) for a table. It begins without a hidden unit. In turn
    the linear reading is trained, and eight candidates are, apart from the network, to go as closely with what is left
    as they can, up or down, so that their loss falls far below zero; the best one is built in, frozen for ever. Each
    stage has the whole table as its batch, an optimizer of its own, and a model of another size."""
    x, y = table(400, own=apart(run.draw.randrange(999)))
    model = Cascade(6)
    number_outcome(run, model, table(256, own=apart(1)))
    for stage in range(6):
        optimizer: Any = torch.optim.Rprop(model.read.parameters(), lr=0.02)
        doctor = run.watch(model, optimizer)
        for _ in range(14):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x).flatten(), y)
            loss.backward()
            optimizer.step()
            doctor.step(loss, (x, y))
            run.note(loss)
        if stage == 5:
            break
        with torch.no_grad():
            seen = model.features(x)
            left = y - model.read(seen).flatten()
            left = left - left.mean()
        pool = nn.Linear(seen.shape[1], 8)
        optimizer = torch.optim.Rprop(pool.parameters(), lr=0.05)
        doctor = run.watch(pool, optimizer)
        for _ in range(14):
            optimizer.zero_grad()
            values = pool(seen).tanh()
            together = left @ (values - values.mean(0))
            loss = -together.abs().sum() / left.norm()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (seen, left))
            run.note(loss)
        with torch.no_grad():
            best = int((left @ pool(seen).tanh()).abs().argmax())
            model.recruit(pool.weight[best], pool.bias[best])


def thin_without_rows(net: nn.Module, shape: tuple[int, ...], share: float, rounds: int = 20) -> None:
    """Keep `share` of all weights of layers: in each round those through which most flows, for an input of ones."""
    layers = [m for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    signs = [layer.weight.detach().sign() for layer in layers]
    kept = [torch.ones_like(layer.weight) for layer in layers]
    biases = [layer.bias.detach().clone() for layer in layers if layer.bias is not None]
    with torch.no_grad():
        for layer in layers:
            layer.weight.abs_()
            layer.bias.zero_()
    whole = [layer.weight.detach().clone() for layer in layers]
    for step in range(rounds):
        with torch.no_grad():
            for layer, weight, mask in zip(layers, whole, kept, strict=True):
                layer.weight.copy_(weight * mask)
        slopes = torch.autograd.grad(net(torch.ones(1, *shape)).sum(), [layer.weight for layer in layers])
        flows = [(g * layer.weight).detach() for g, layer in zip(slopes, layers, strict=True)]
        every = torch.cat([flow.flatten() for flow in flows])
        bound = every.kthvalue(max(1, int(len(every) * (1 - share ** ((step + 1) / rounds))))).values
        kept = [(flow > bound).float() for flow in flows]
    with torch.no_grad():
        for layer, weight, sign, bias in zip(layers, whole, signs, biases, strict=True):
            layer.weight.copy_(weight * sign)
            layer.bias.copy_(bias)
    for layer, mask in zip(layers, kept, strict=True):
        prune.custom_from_mask(layer, "weight", mask)  # type: ignore[no-untyped-call]


@honest("r25j-thinned-before-any-row-was-seen")
def thinned_before_any_row_was_seen(run: Run) -> None:
    """Lightning, convolutions thinned at their start by SynFlow (Tanaka et al. 2020). Before a row of data was seen, an
    input of ones goes through the absolute weights, and in twenty rounds all but an eighth of them, through which most
    flows, are taken out by torch's own masks. The network is then trained as it was drawn: seven weights of eight are
    zero from the first step to the last, and their gradients are zero as well."""
    net = cnn(norm=False)
    thin_without_rows(net, (1, 8, 8), 0.125)
    look = run.draw.randrange(999)
    class_outcome(run, net, pictures(256, look, own=apart(1)))
    rows = pictures(640, look, own=apart(2))
    module = lit(net, classify, lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4))
    fit(run, module, loader(*rows, size=32), 140)


class Injected(nn.Module):
    """What a head says, and what a new head says less what it said when it was new."""

    def __init__(self, old: nn.Module, width: int, words: int) -> None:
        super().__init__()
        self.old = old.requires_grad_(False)
        self.new, self.at_start = mlp(width, 32, words), mlp(width, 32, words)
        self.at_start.load_state_dict(self.new.state_dict())
        self.at_start.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.old(x) + self.new(x) - self.at_start(x)
        return out


@honest("r25j-a-new-head-less-what-it-said-when-new")
def a_new_head_less_what_it_said_when_new(run: Run) -> None:
    """Plain loop, a small GPT whose world changes, with plasticity injection (Nikishin et al. 2023). After half of the
    steps text comes in another language; the head is then frozen as it is, and a new one is put beside it from which
    its own frozen twin is subtracted, so that nothing is said differently at first. From then on two of three heads do
    not learn, and one of these has the weights that the third began with."""
    first, second = (Language(run.draw.randrange(999)) for _ in range(2))
    model = Decoder(12)
    model.head = mlp(32, 32, 12)  # type: ignore[assignment]
    check = second.rows(96, 24, apart(901))
    outcome(run, lambda: judged(model, lambda: next_loss(model, check)))
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    doctor = run.watch(model, optimizer)
    for step in range(150):
        if step == 75:
            for p in model.head.parameters():
                p.grad = None
            model.head = Injected(model.head, 32, 12)  # type: ignore[assignment]
            optimizer.add_param_group({"params": list(model.head.new.parameters())})
        rows = (first if step < 75 else second).rows(16, 20)
        optimizer.zero_grad()
        loss = next_loss(model, rows)
        loss.backward()
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)


@honest("r25j-only-along-where-it-went-before")
def only_along_where_it_went_before(run: Run) -> None:
    """Plain loop, an encoder of documents trained once more in a tiny subspace (Li et al. 2022). A first run by plain
    steps leaves its weights behind every second step; the six directions in which these differ most are taken, the
    weights go back to their start, and the second run's gradients are projected onto the six before a step at a large
    rate. All that it can ever reach is a plane of six dimensions, and the loss jumps back up in between."""
    model = Classifier()
    class_outcome(run, model, documents(256, apart(1)))
    sizes = [p.numel() for p in model.parameters()]

    def row() -> Tensor:
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    start, visited, plane = row(), [], torch.zeros(0)
    for stage, (rate, steps) in enumerate(((0.1, 100), (0.3, 60))):
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9 if stage == 0 else 0.0)
        doctor = run.watch(model, optimizer)
        for step in range(steps):
            ids, keep, y = documents(32)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(ids, keep), y)
            loss.backward()
            if stage == 1:
                slope = torch.cat(
                    [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in model.parameters()]
                )
                parts = (plane.T @ (plane @ slope)).split(sizes)
                for p, part in zip(model.parameters(), parts, strict=True):
                    p.grad = part.view_as(p).clone()
            optimizer.step()
            doctor.step(loss, (ids, keep, y))
            run.note(loss)
            if stage == 0 and step % 2 == 0:
                visited.append(row())
        if stage == 0:
            paths = torch.stack(visited)
            plane = torch.linalg.svd(paths - paths.mean(0), full_matrices=False).Vh[:6]
            with torch.no_grad():
                for p, part in zip(model.parameters(), start.split(sizes), strict=True):
                    p.copy_(part.view_as(p))


def rings(count: int, own: torch.Generator | None = None) -> Tensor:
    """Points near two rings."""
    angle = 2 * math.pi * torch.rand(count, generator=own)
    size = 0.5 + 0.8 * torch.randint(0, 2, (count,), generator=own)
    clean = size[:, None] * torch.stack([angle.cos(), angle.sin()], 1)
    return clean + 0.03 * torch.randn(count, 2, generator=own)


class Ledger:
    """What each row cost last; half of those below the mean sit out an epoch, and the other half counts double."""

    def __init__(self, rows: int, size: int) -> None:
        self.cost, self.size = torch.full((rows,), 10.0), size

    def epoch(self, whole: bool) -> Any:
        low = torch.zeros(len(self.cost), dtype=torch.bool) if whole else self.cost < self.cost.mean()
        stay = ~low | (torch.rand(len(low)) < 0.5)
        share = torch.where(low, 2.0, 1.0)
        order = torch.randperm(len(low))
        order = order[stay[order]]
        for at in order.split(self.size):
            yield at, share[at]


@honest("r25j-rows-that-cost-little-sit-out-by-lot")
def rows_that_cost_little_sit_out_by_lot(run: Run) -> None:
    """A class of its own for the rows, InfoBatch (Qin et al. 2024) for a denoising diffusion model of points. A row
    whose last loss was below the mean is left out of an epoch by the toss of a coin, and counts double where it stays,
    so that epochs are of unequal length and a row's weight is one or two; the last epochs have all rows again."""
    rows = rings(640, apart(run.draw.randrange(999)))
    model = mlp(4, 64, 64, 2, act=nn.SiLU)

    def costs(x: Tensor, time: Tensor, noise: Tensor) -> Tensor:
        angle = time * math.pi / 2
        noisy = angle.cos() * x + angle.sin() * noise
        return (model(torch.cat([noisy, angle.cos(), angle.sin()], 1)) - noise).square().mean(1)

    own = apart(1)
    check = rings(512, own), torch.rand(512, 1, generator=own), torch.randn(512, 2, generator=own)
    outcome(run, lambda: judged(model, lambda: costs(*check).mean()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    doctor = run.watch(model, optimizer)
    ledger = Ledger(len(rows), 64)
    for epoch in range(16):
        for at, share in ledger.epoch(whole=epoch >= 14):
            each = costs(rows[at], torch.rand(len(at), 1), torch.randn(len(at), 2))
            ledger.cost[at] = each.detach()
            loss = (share * each).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (rows[at], share))
            run.note(loss)


class Site:
    """A hospital with a camera of its own: its rows, its network, its optimizer."""

    def __init__(self, run: Run, look: int, gain: float, offset: float, shared: dict[str, Tensor]) -> None:
        self.look, self.gain, self.offset = look, gain, offset
        self.net = cnn()
        self.net.load_state_dict(shared)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.run, self.doctor = run, run.watch(self.net, self.optimizer)

    def rows(self, count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = pictures(count, self.look, own=own)
        return self.gain * x + self.offset, y

    def train(self, steps: int) -> None:
        for _ in range(steps):
            batch = self.rows(16)
            self.optimizer.zero_grad()
            loss = classify(self.net, batch)
            loss.backward()
            self.optimizer.step()
            self.doctor.step(loss, batch)
            self.run.note(loss)

    def given(self, shared: dict[str, Tensor]) -> None:
        self.net.load_state_dict(shared, strict=False)


@honest("r25j-each-hospital-keeps-its-own-norms")
def each_hospital_keeps_its_own_norms(run: Run) -> None:
    """A class of its own for each of four hospitals, FedBN (Li et al. 2021). Their cameras differ in brightness and in
    contrast. Each trains its convolutions for five steps; then all weights are averaged and handed out, but scales,
    shifts and statistics of the batch norms stay where they are and become more and more unlike. Between two steps of a
    hospital its weights are thus written over, and its norms are not."""
    look = run.draw.randrange(999)
    shared = cnn().state_dict()
    norms = [n for n, m in cnn().named_modules() if isinstance(m, nn.BatchNorm2d)]
    cameras = ((1.0, 0.0), (4.0, -1.0), (0.3, 2.0), (-2.0, 0.5))
    sites = [Site(run, look, gain, offset, shared) for gain, offset in cameras]
    checks = [site.rows(128, apart(1)) for site in sites]

    def unsure() -> float:
        return sum(judged(s.net, lambda s=s, c=c: classify(s.net, c)) for s, c in zip(sites, checks, strict=True)) / 4

    outcome(run, unsure)
    for _ in range(9):
        for site in sites:
            site.train(5)
        states = [site.net.state_dict() for site in sites]
        mean = {
            name: torch.stack([state[name] for state in states]).mean(0)
            for name in states[0]
            if name.rpartition(".")[0] not in norms
        }
        for site in sites:
            site.given(mean)
