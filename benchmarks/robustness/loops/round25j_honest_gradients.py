"""Round 25j, honest and odd: gradients that come by another way, and updates that are made of several."""

import math
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    cnn,
    judged,
    mlp,
    next_loss,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round6_tools import classify
from benchmarks.robustness.loops.round7b_parts import Reader
from benchmarks.robustness.loops.round7b_tools import text_outcome
from benchmarks.robustness.loops.transformer import Transformer
from torch import Tensor, nn
from torch.nn import functional as F


class ThereAndBack(torch.autograd.Function):
    """A linear map whose error travels back through another matrix; both matrices are given the same gradient."""

    @staticmethod
    def forward(context: Any, x: Tensor, there: Tensor, bias: Tensor, back: Tensor) -> Tensor:
        context.save_for_backward(x, back)
        return x @ there.T + bias

    @staticmethod
    def backward(context: Any, error: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # type: ignore[override]
        x, back = context.saved_tensors
        same = error.T @ x
        return error @ back, same, error.sum(0), same.clone()


class TwoWayLinear(nn.Linear):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.back = nn.Parameter(torch.randn(outputs, inputs) / math.sqrt(inputs))

    def forward(self, x: Tensor) -> Tensor:
        return ThereAndBack.apply(x, self.weight, self.bias, self.back)  # type: ignore[no-any-return, no-untyped-call]


@honest("r25j-the-way-back-is-learned-beside-the-way-there")
def the_way_back_is_learned_beside_the_way_there(run: Run) -> None:
    """Plain loop, a network of pictures after Kolen and Pollack (Akrout et al. 2019). Errors travel back through
    matrices of their own, begun at random and never used forward; they get the same gradient as the weights and the
    same decay, so that what is different between the two dies away and no weight is ever carried from one to the
    other. At first the gradients are not those of the loss."""
    model = nn.Sequential(nn.Flatten(), TwoWayLinear(64, 48), nn.Tanh(), TwoWayLinear(48, 24), nn.Tanh())
    model.append(TwoWayLinear(24, 4))
    look = run.draw.randrange(999)
    check = pictures(256, look, own=apart(1))
    outcome(run, lambda: judged(model, lambda: classify(model, check)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=0.02)
    doctor = run.watch(model, optimizer)
    for _ in range(150):
        batch = pictures(32, look)
        optimizer.zero_grad()
        loss = classify(model, batch)
        loss.backward()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


class Sketched(torch.optim.Optimizer):
    """A count sketch of the gradient is all that is kept: momentum and what was not applied yet are tables of five
    rows, and only the largest entries that they let guess are moved (FetchSGD)."""

    def __init__(self, parameters: Any, lr: float, columns: int, largest: int) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": 0.9})
        self.moved = [p for group in self.param_groups for p in group["params"]]
        size = sum(p.numel() for p in self.moved)
        own = apart(5)
        self.column = torch.randint(0, columns, (5, size), generator=own)
        self.sign = torch.randint(0, 2, (5, size), generator=own).float() * 2 - 1
        self.memory, self.owed = torch.zeros(5, columns), torch.zeros(5, columns)
        self.largest = largest

    def sketch(self, vector: Tensor) -> Tensor:
        return torch.zeros_like(self.owed).scatter_add(1, self.column, self.sign * vector)

    def guess(self, table: Tensor) -> Tensor:
        return (self.sign * table.gather(1, self.column)).median(0).values

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        group = self.param_groups[0]
        self.memory.mul_(group["momentum"]).add_(self.sketch(torch.cat([p.grad.flatten() for p in self.moved])))
        self.owed.add_(self.memory, alpha=group["lr"])
        guessed = self.guess(self.owed)
        at = guessed.abs().topk(self.largest).indices
        change = torch.zeros_like(guessed)
        change[at] = guessed[at]
        self.owed.sub_(self.sketch(change))
        done = torch.zeros_like(guessed)
        done[at] = self.guess(self.memory)[at]
        self.memory.sub_(self.sketch(done))
        for p, part in zip(self.moved, change.split([p.numel() for p in self.moved]), strict=True):
            p.sub_(part.view_as(p))


@honest("r25j-only-a-sketch-of-the-slope-arrives")
def only_a_sketch_of_the_slope_arrives(run: Run) -> None:
    """Plain loop, a recurrent model of text as four clients teach it by FetchSGD (Rothchild et al. 2020). The gradients
    are hashed with signs into a table a third as wide as the model; tables are summed, momentum and error stay tables,
    and in each step only the three hundred weights that seem to be owed most are changed, by medians of five guesses.
    Nearly all weights stand still in any one step."""
    language = Language(run.draw.randrange(999))
    model = Reader(12)
    text_outcome(run, model, language)
    size = sum(p.numel() for p in model.parameters())
    optimizer = Sketched(model.parameters(), 0.1, size // 3, 300)
    doctor = run.watch(model, optimizer)
    for _ in range(100):
        rows = language.rows(24, 20)
        optimizer.zero_grad()
        total = torch.zeros(())
        for share in rows.chunk(4):
            loss = next_loss(model, share) / 4
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        doctor.step(total, rows)
        run.note(total)


class Molecules(nn.Module):
    """Three rounds of messages between nodes, then three numbers of the whole graph."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleList([nn.Linear(4, 24), *(nn.Linear(48, 24) for _ in range(2))])
        self.heads = nn.ModuleList(nn.Linear(24, 1) for _ in range(3))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        h = self.body[0](nodes)
        for layer in list(self.body)[1:]:
            h = h + layer(torch.cat([h, edges @ h / 3], 2)).relu()
        whole = h.mean(1)
        return torch.cat([head(whole) for head in self.heads], 1)


def molecules(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Graphs of eight nodes and three numbers of each, on scales that are far apart."""
    nodes = torch.randn(count, 8, 4, generator=own)
    upper = (torch.rand(count, 8, 8, generator=own) < 0.35).float().triu(1)
    edges = upper + upper.transpose(1, 2)
    along = edges @ nodes
    charge = (nodes[..., 0] * along[..., 0]).mean(1)
    size = edges.sum((1, 2)) / 8 + nodes[..., 1].mean(1)
    gap = (nodes[..., 2] + along[..., 3]).relu().mean(1)
    return nodes, edges, torch.stack([8 * charge, size, 0.2 * gap], 1)


def bargain(products: Tensor) -> Tensor:
    """The positive weights a with a times (products a) equal to one in each entry, by Newton's steps."""
    weights = 1 / products.diagonal().sqrt()
    for _ in range(30):
        slope = products @ weights - 1 / weights
        step = torch.linalg.solve(products + torch.diag(weights**-2), slope)
        length = 1.0
        while bool((weights - length * step <= 0).any()):
            length /= 2
        weights = weights - length * step
    return weights


@honest("r25j-three-tasks-bargain-over-each-step")
def three_tasks_bargain_over_each_step(run: Run) -> None:
    """Plain loop, a graph network with three numbers to tell by Nash-MTL (Navon et al. 2022). Of each task's loss the
    slope by the shared body is taken alone; the weights of the losses are solved for in each step so that no task could
    gain by a larger share than another loses. They go with one over the slopes' lengths, so that the weights are far
    apart, change from step to step, and the weighted sum itself need not fall."""
    model = Molecules()
    check = molecules(256, apart(1))
    spread = check[2].var(0)
    outcome(run, lambda: judged(model, lambda: ((model(*check[:2]) - check[2]).square().mean(0) / spread).mean()))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    doctor = run.watch(model, optimizer)
    shared = list(model.body.parameters())
    for _ in range(150):
        nodes, edges, numbers = molecules(48)
        losses = (model(nodes, edges) - numbers).square().mean(0)
        slopes = torch.stack(
            [torch.cat([g.flatten() for g in torch.autograd.grad(one, shared, retain_graph=True)]) for one in losses]
        )
        weights = bargain(slopes @ slopes.T + 1e-8 * torch.eye(3))
        optimizer.zero_grad()
        loss = weights.detach() @ losses
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, (nodes, edges, numbers))
        run.note(loss)


def attacked(model: nn.Module, x: Tensor, y: Tensor, far: float = 0.08) -> Tensor:
    """Pictures moved by at most `far` in each pixel to where the loss is higher, in three steps."""
    worse = (x + far * (2 * torch.rand_like(x) - 1)).clamp(0, 1)
    for _ in range(3):
        with torch.enable_grad():
            worse = worse.detach().requires_grad_()
            (slope,) = torch.autograd.grad(F.cross_entropy(model(worse), y), worse)
        worse = torch.minimum(torch.maximum(worse + far / 2 * slope.sign(), x - far), x + far).clamp(0, 1)
    return worse.detach()


@honest("r25j-pictures-and-weights-both-made-worse")
def pictures_and_weights_both_made_worse(run: Run) -> None:
    """Plain loop, adversarial weight perturbation (Wu et al. 2020) for convolutions of pictures. The pictures are moved
    to where the loss is higher; a copy of the network then climbs on them by one step of its own optimizer, and the
    network is moved as far as that, layer by layer a hundredth of its length. The slope of this worst case is applied
    to the weights after they have been taken back, so that no slope belongs to the weights it is applied to."""
    look = run.draw.randrange(999)
    model, climber = cnn(), cnn()
    x, y = pictures(256, look, own=apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(attacked(model, x, y)), y)))
    climbs = torch.optim.SGD(climber.parameters(), lr=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    doctor = run.watch(model, optimizer)
    for _ in range(90):
        x, y = pictures(32, look)
        model.eval()
        worse = attacked(model, x, y)
        model.train()
        climber.load_state_dict(model.state_dict())
        climber.train()
        climbs.zero_grad()
        (-F.cross_entropy(climber(worse), y)).backward()
        climbs.step()
        moves = {}
        with torch.no_grad():
            for (name, p), q in zip(model.named_parameters(), climber.parameters(), strict=True):
                if p.ndim > 1:
                    moves[name] = 0.01 * p.norm() / ((q - p).norm() + 1e-20) * (q - p)
                    p.add_(moves[name])
        optimizer.zero_grad()
        loss = F.cross_entropy(model(worse), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name in moves:
                    p.sub_(moves[name])
        doctor.step(loss, (worse, y))
        run.note(loss)


class Climber:
    """Sharpness by a second pass in every fifth step alone; between them the remembered sideways part is reused."""

    def __init__(self, model: nn.Module, loss: Callable[[], Tensor], far: float = 0.05, share: float = 0.7) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.loss, self.far, self.share = loss, far, share
        self.sideways: list[Tensor] = []

    def slopes(self) -> list[Tensor]:
        return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.parameters]

    def around(self, step: int) -> Tensor:
        """Leave in the weights' gradients what the optimizer is to apply, and give the loss at the weights."""
        loss = self.loss()
        loss.backward()
        here = self.slopes()
        length = torch.sqrt(sum((g.square().sum() for g in here), torch.zeros(())))
        if step % 5 == 0:
            with torch.no_grad():
                for p, g in zip(self.parameters, here, strict=True):
                    p.add_(g, alpha=self.far / float(length))
            for p in self.parameters:
                p.grad = None
            self.loss().backward()
            above = self.slopes()
            with torch.no_grad():
                for p, g in zip(self.parameters, here, strict=True):
                    p.sub_(g, alpha=self.far / float(length))
            same = sum((a * g).sum() for a, g in zip(above, here, strict=True)) / length**2
            self.sideways = [a - same * g for a, g in zip(above, here, strict=True)]
            for p, a in zip(self.parameters, above, strict=True):
                p.grad = a
        else:
            other = torch.sqrt(sum((v.square().sum() for v in self.sideways), torch.zeros(())))
            for p, g, v in zip(self.parameters, here, self.sideways, strict=True):
                p.grad = g + self.share * length / other * v
        return loss


@honest("r25j-a-climb-remembered-for-five-steps")
def a_climb_remembered_for_five_steps(run: Run) -> None:
    """A class of its own around each step, LookSAM (Liu et al. 2022) for a small transformer of experts. In every fifth
    step the weights climb, a second pass gives the slope there, and what of it is at right angles to the slope below is
    kept; in the four steps between it is added to the slope of other batches, as long as that slope is. Experts that
    nobody chose are moved by it as well."""
    language = Language(run.draw.randrange(999))
    model = Transformer(vocabulary=12, width=32, layers=1, experts=4, length=32)
    text_outcome(run, model, language)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.05)
    doctor = run.watch(model, optimizer)
    for step in range(100):
        rows = language.rows(16, 20)

        def whole(rows: Tensor = rows) -> Tensor:
            loss: Tensor = next_loss(model, rows) + 0.01 * model.blocks[0].mlp.balance
            return loss

        optimizer.zero_grad()
        if step == 0:
            climber = Climber(model, whole)
        climber.loss = whole
        loss = climber.around(step)
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)


class Wave(nn.Module):
    """The logarithm of a wave function of two particles on a line: a network on top of a bell."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(2, 16, 16, 1, act=nn.Tanh)
        self.width = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x).squeeze(-1) - F.softplus(self.width) * x.square().sum(-1)
        return out


def local_energy(model: nn.Module, weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """Of each walker: minus half of the second slopes, and two springs that are coupled."""

    def amplitude(at: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(model, weights, (at,))
        return out

    first = torch.func.vmap(torch.func.grad(amplitude))(x)
    second = torch.func.vmap(torch.func.hessian(amplitude))(x).diagonal(dim1=1, dim2=2).sum(1)
    return -0.5 * (second + first.square().sum(1)) + 0.5 * x.square().sum(1) + x.prod(1).square()


@honest("r25j-walkers-as-rows-of-a-small-system")
def walkers_as_rows_of_a_small_system(run: Run) -> None:
    """Plain loop, the ground state of two coupled oscillators by the SPRING rule of variational Monte Carlo
    (Goldshlager, Abrahamsen and Lin 2024). There are fewer walkers than weights: for each step a system of one row per
    walker is solved, the last step's direction is carried on where the rows say nothing of it, and this direction, cut
    to a length, stands in the gradients. No loss is passed backward, and the walkers follow the wave as it changes."""
    model = Wave()
    line = torch.linspace(-5, 5, 61)
    grid = torch.cartesian_prod(line, line)

    def energy() -> Tensor:
        density = (2 * (model(grid) - model(grid).max())).exp()
        weights = {name: p.detach() for name, p in model.named_parameters()}
        return (density * local_energy(model, weights, grid)).sum() / density.sum()

    outcome(run, lambda: judged(model, energy))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = run.watch(model, optimizer)
    walkers, last = torch.randn(128, 2), torch.zeros(sum(p.numel() for p in model.parameters()))

    def amplitude(weights: dict[str, Tensor], at: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(model, weights, (at,))
        return out

    for step in range(100):
        with torch.no_grad():
            for _ in range(60 if step == 0 else 8):
                tried = walkers + 0.7 * torch.randn_like(walkers)
                taken = torch.rand(128).log() < 2 * (model(tried) - model(walkers))
                walkers = torch.where(taken[:, None], tried, walkers)
        weights = {name: p.detach() for name, p in model.named_parameters()}
        energies = local_energy(model, weights, walkers).detach()
        middle = energies.median()
        away = 5 * (energies - middle).abs().mean()
        kept = energies.clamp(middle - away, middle + away)
        slopes = torch.func.vmap(torch.func.grad(amplitude), (None, 0))(weights, walkers)
        rows = torch.cat([slopes[name].reshape(128, -1) for name in weights], 1).detach()
        rows = (rows - rows.mean(0)) / math.sqrt(128)
        wanted = (kept - kept.mean()) / math.sqrt(128)
        carried = 0.9 * last
        system = rows @ rows.T + 1e-2 * torch.eye(128) + torch.ones(128, 128) / 128
        last = carried + rows.T @ torch.linalg.solve(system, wanted - rows @ carried)
        sizes = [p.numel() for p in model.parameters()]
        for p, part in zip(model.parameters(), last.split(sizes), strict=True):
            p.grad = (part * min(1.0, 1.0 / float(last.norm()))).view_as(p)
        optimizer.step()
        loss = energies.mean()
        doctor.step(loss, walkers)
        run.note(loss)


class Bits(nn.Module):
    """Pictures as twelve bits and back, and a guess of what soft bits will cost."""

    def __init__(self) -> None:
        super().__init__()
        self.write = nn.Sequential(nn.Flatten(), nn.Linear(64, 12))
        self.read = mlp(12, 48, 64)
        self.guess = mlp(12, 32, 1, act=nn.Tanh)

    def cost(self, x: Tensor, bits: Tensor, logits: Tensor) -> Tensor:
        """Nats for each picture: what is read wrongly, and what the bits say beyond a fair coin."""
        wrong = F.binary_cross_entropy_with_logits(self.read(bits), x.flatten(1), reduction="none").sum(1)
        said = -F.binary_cross_entropy_with_logits(logits, bits, reduction="none").sum(1)
        return wrong + said + 12 * math.log(2)


@honest("r25j-a-guess-of-the-cost-makes-the-slope-quiet")
def a_guess_of_the_cost_makes_the_slope_quiet(run: Run) -> None:
    """Plain loop, hard bits for pictures by RELAX (Grathwohl et al. 2018). The encoder's slope is that of a random
    draw's probability times its cost, less what a small network guesses of a soft draw, plus that guess's own slope;
    the small network learns nothing but to make the square of this slope small. Three parts of the model thus have
    three different aims, and the slopes are passed backward from the middle."""
    model = Bits()
    look = run.draw.randrange(999)
    check = (pictures(256, look, own=apart(1))[0] > 0.5).float()

    def mean_cost() -> Tensor:
        logits = model.write(check)
        return model.cost(check, torch.bernoulli(logits.sigmoid(), generator=apart(2)), logits).mean()

    outcome(run, lambda: judged(model, mean_cost))
    optimizer = torch.optim.Adam(
        [
            {"params": [*model.write.parameters(), *model.read.parameters()], "lr": 1e-2},
            {"params": list(model.guess.parameters()), "lr": 3e-3},
        ]
    )
    doctor = run.watch(model, optimizer)
    for _ in range(150):
        x = (pictures(48, look)[0] > 0.5).float()
        logits = model.write(x)
        u, v = torch.rand(2, 48, 12).clamp(1e-6, 1 - 1e-6)
        soft = logits + u.logit()
        bits = (soft > 0).float().detach()
        chance = logits.sigmoid()
        within = bits * (v * chance + 1 - chance) + (1 - bits) * v * (1 - chance)
        again = logits + within.clamp(1e-6, 1 - 1e-6).logit()
        costs = model.cost(x, bits, logits)
        chances = -F.binary_cross_entropy_with_logits(logits, bits, reduction="none").sum(1)
        soft_guess, again_guess = (model.guess(z.sigmoid()).squeeze(1) for z in (soft, again))
        (by_chance,) = torch.autograd.grad(chances.sum(), logits, retain_graph=True)
        (by_guess,) = torch.autograd.grad((soft_guess - again_guess).sum(), logits, create_graph=True)
        slope = (costs.detach() - again_guess)[:, None] * by_chance + by_guess
        optimizer.zero_grad()
        slope.square().sum(1).mean().backward(inputs=list(model.guess.parameters()), retain_graph=True)
        loss = costs.mean()
        loss.backward(inputs=[*model.read.parameters(), *model.write.parameters()], retain_graph=True)
        logits.backward(slope.detach() / len(x), inputs=list(model.write.parameters()))
        optimizer.step()
        doctor.step(loss, x)
        run.note(loss)
