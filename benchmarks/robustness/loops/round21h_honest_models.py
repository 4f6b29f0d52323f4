"""Round 21h, honest and odd: parts of networks that do not learn, do not fire, or do not end."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    apart,
    documents,
    endless,
    examples,
    hf_trainer,
    judged,
    loader,
    mlp,
    number_outcome,
    outcome,
    pictures,
    table,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, prepared, regress
from benchmarks.robustness.loops.round7b_parts import sounds
from benchmarks.robustness.loops.round7b_tools import adam
from torch import Tensor, nn
from torch.nn import functional as F


class Spike(torch.autograd.Function):
    """One above the threshold and nought below; on the way back the slope of a fast sigmoid."""

    @staticmethod
    def forward(ctx: Any, above: Tensor) -> Tensor:
        ctx.save_for_backward(above)
        return (above > 0).float()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (above,) = ctx.saved_tensors
        return gradients[0] / (1 + 25 * above.abs()).square()


class Spiking(nn.Module):
    """Two layers of neurons that leak, fire, and lose what they fired; (steps, rows, classes) what the last ones hold,
    and whether they fired."""

    def __init__(self, steps: int = 12) -> None:
        super().__init__()
        self.steps, self.one, self.two = steps, nn.Linear(64, 96), nn.Linear(96, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        held, fired = [], []
        a, b = x.new_zeros(len(x), 96), x.new_zeros(len(x), 4)
        first, last = torch.zeros_like(a), torch.zeros_like(b)
        for _ in range(self.steps):
            shown = torch.bernoulli(x.flatten(1))
            a = 0.9 * a + self.one(shown) - first.detach()
            first = Spike.apply(a - 1)
            b = 0.9 * b + self.two(first) - last.detach()
            last = Spike.apply(b - 1)
            held.append(b)
            fired.append(last)
        return torch.stack(held), torch.stack(fired)


@honest("r21h-spikes-with-a-false-slope")
def spikes_with_a_false_slope(run: Run) -> None:
    """Plain loop, pictures by neurons that fire or do not (surrogate gradients, Neftci et al. 2019, snnTorch's
    tutorial). A picture is shown as twelve draws of zeros and ones; what goes from layer to layer is mostly zero, has
    no slope, and is given one; the reset's gradient is cut. The loss is the sum of a cross-entropy at each time, on
    what the last neurons hold, while in use their spikes are counted."""
    seed = run.draw.randrange(999)
    x, y = pictures(800, seed, own=apart(2))
    new, truth = pictures(256, seed, own=apart(1))
    model = Spiking()

    def wrong() -> Tensor:
        return (model(new)[1].sum(0).argmax(1) != truth).float().mean()

    outcome(run, lambda: judged(model, wrong))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        held = model(batch[0])[0]
        return torch.stack([F.cross_entropy(at, batch[1]) for at in held]).sum()

    batches = endless(loader(x, y, size=32))
    train(
        run, model, torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.999)), lambda: next(batches), loss, 120
    )


class Legendre(nn.Module):
    """A memory of the last moments by Legendre's polynomials, whose equation is fixed, and states that read it."""

    def __init__(self, order: int = 8, span: float = 16.0, hidden: int = 24) -> None:
        super().__init__()
        q = torch.arange(order)
        i, j = q[:, None], q[None]
        scale = (2.0 * q + 1)[:, None] / span
        a = torch.where(i < j, -1.0, (-1.0) ** (i - j + 1)) * scale
        b = ((-1.0) ** q)[:, None] * scale
        both = torch.linalg.matrix_exp(torch.cat([torch.cat([a, b], 1), torch.zeros(1, order + 1)]))
        self.register_buffer("keep", both[:order, :order].T.contiguous())
        self.register_buffer("write", both[:order, order:].T.contiguous())
        self.enter = nn.Parameter(torch.ones(()))
        self.mix, self.head = nn.Linear(hidden + order, hidden), nn.Linear(hidden, 4)

    def forward(self, x: Tensor) -> Tensor:
        memory, state = x.new_zeros(len(x), len(self.keep)), x.new_zeros(len(x), self.mix.out_features)
        states = []
        for now in x.squeeze(1).unbind(1):
            memory = memory @ self.keep + self.enter * now[:, None] * self.write
            state = self.mix(torch.cat([state, memory], 1)).tanh()
            states.append(state)
        out: Tensor = self.head(torch.stack(states[16:]).mean(0))
        return out


@honest("r21h-a-memory-by-a-fixed-equation")
def a_memory_by_a_fixed_equation(run: Run) -> None:
    """Trainer, pitches of sounds by a Legendre memory unit (Voelker et al. 2019, as by default in KerasLMU). The
    recurrence of the memory is a matrix that follows from an equation, stands in a buffer, and is never trained; all
    that is learned of what goes into it is one number, which begins at one. The first sixteen states are not read."""
    net = Legendre()
    new, truth = sounds(256, apart(1), 0.3)
    outcome(run, lambda: judged(net, lambda: F.cross_entropy(net(new[..., :48]), truth)))
    x, y = sounds(960, apart(run.draw.randrange(999)), 0.3)
    model = WithLoss(net, F.cross_entropy)
    rows = examples(x=x[..., :48], labels=y)
    hf_trainer(run, model, rows, 120, learning_rate=1e-2, per_device_train_batch_size=32).train()


class AtRest(nn.Module):
    """One layer, gone through until it no longer changes its state; only the last pass has a gradient."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.enter, self.layer, self.leave = (
            nn.Linear(6, width),
            nn.Linear(width, width, bias=False),
            nn.Linear(width, 1),
        )
        self.norm = nn.LayerNorm(width)
        nn.init.orthogonal_(self.layer.weight, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        given = self.enter(x)
        with torch.no_grad():
            z = torch.zeros_like(given)
            for _ in range(40):
                new = (given + self.layer(z)).tanh()
                change = (new - z).norm() / new.norm()
                z = new
                if float(change) < 1e-3:
                    break
        z = (given + self.layer(z)).tanh()
        out: Tensor = self.leave(self.norm(z))
        return out


@honest("r21h-a-layer-until-it-rests")
def a_layer_until_it_rests(run: Run) -> None:
    """accelerate's loop, a table by a network of endless depth (deep equilibrium models, Bai et al. 2019, without a
    Jacobian, Fung et al. 2022). The same layer is applied under no_grad until its state is at rest, as often as a batch
    needs, and then once more with gradients, which so are not those of the whole."""
    seed = run.draw.randrange(999)
    net = AtRest()
    number_outcome(run, net, table(300, seed, apart(1)))
    prepared(run, net, adam(net, 4e-3), loader(*table(960, seed, apart(2)), size=48), regress, 7)


class Simplex(nn.Module):
    """An encoder whose vectors of length one are compared with corners of a simplex that nobody trains."""

    def __init__(self, classes: int = 3, width: int = 8) -> None:
        super().__init__()
        self.encoder = Classifier(16, width)
        turned = torch.linalg.qr(torch.randn(width, classes)).Q
        even = torch.eye(classes) - 1 / classes
        self.register_buffer("corners", math.sqrt(classes / (classes - 1)) * even @ turned.T)

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        out: Tensor = F.normalize(self.encoder(ids, keep), dim=1) @ self.corners.T
        return out


@honest("r21h-the-head-is-a-fixed-simplex")
def the_head_is_a_fixed_simplex(run: Run) -> None:
    """Plain loop, texts of three kinds of which two are rare, with a head that is drawn once and never trained (Zhu et
    al. 2021, Yang et al. 2022). Its rows are as far apart as can be and have no bias, the text's vector has length one,
    and the loss is half of the square of what is missing from one at the right corner: the other classes have no part
    in it, and it is small from the beginning on."""
    x, mask, y = documents(1500, apart(run.draw.randrange(999)))
    kept = torch.rand(len(y), generator=apart(3)) < torch.tensor([1.0, 0.3, 0.15])[y]
    rows = (x[kept], mask[kept], y[kept])
    model = Simplex()
    *new, truth = documents(300, apart(1))
    outcome(run, lambda: judged(model, lambda: (model(*new).argmax(1) != truth).float().mean()))

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        at_right = model(*batch[:2]).gather(1, batch[2][:, None])
        return 0.5 * (at_right - 1).square().mean()

    batches = endless(loader(*rows, size=32))
    train(run, model, torch.optim.AdamW(model.parameters(), lr=2e-3), lambda: next(batches), loss, 140)


FAR = 2.0


def ways(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 8, 8) lengths of edges (0 where there is none), and (count, 6, 8) how far each node is known to be from
    the first after each round of Bellman's and Ford's algorithm, FAR where it is not known."""
    ring = torch.eye(8).roll(1, 1)
    there = ((torch.rand(count, 8, 8, generator=own) < 0.1) | (ring > 0)).float().triu(1)
    edges = (there + there.transpose(1, 2)) * (0.1 + 0.4 * torch.rand(count, 8, 8, generator=own))
    edges = (edges + edges.transpose(1, 2)) / 2
    known = torch.full((count, 8), FAR)
    known[:, 0] = 0
    out = [known]
    length = torch.where(edges > 0, edges, FAR)
    for _ in range(5):
        known = torch.minimum(known, (known[:, :, None] + length).amin(1)).clamp_max(FAR)
        out.append(known)
    return edges, torch.stack(out, 1)


class Processor(nn.Module):
    """One round of messages, of which each node takes the largest: what is known after one step of an algorithm."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.new = mlp(3, 32, 32), mlp(33, 32, 1)

    def forward(self, edges: Tensor, known: Tensor) -> Tensor:
        pairs = [known[:, :, None].expand_as(edges), known[:, None].expand_as(edges), edges]
        said = self.message(torch.stack(pairs, 3)).masked_fill(edges[..., None] == 0, -1e4).amax(1)
        out: Tensor = known + self.new(torch.cat([said, known[..., None]], 2)).squeeze(2)
        return out


@honest("r21h-each-step-of-the-algorithm-is-a-label")
def each_step_of_the_algorithm_is_a_label(run: Run) -> None:
    """Plain loop, a graph network learns an algorithm by its hints (neural algorithmic reasoning, Veličković et al.
    2020, CLRS). What is wanted is only how far each node is in the end, but each round of the algorithm is a label of
    its own; most of these repeat their input, as most rounds change little, and the next round is given the true
    state. Graphs are drawn without end, with numbers that are larger where a node has not been reached."""
    model = Processor()
    check = ways(96, apart(run.draw.randrange(999)))

    def off() -> Tensor:
        known = check[1][:, 0]
        for _ in range(5):
            known = model(check[0], known)
        return (known - check[1][:, 5]).square().mean()

    outcome(run, lambda: judged(model, off))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        edges, rounds = batch
        said = [model(edges, rounds[:, k]) for k in range(5)]
        return (torch.stack(said, 1) - rounds[:, 1:]).square().mean()

    train(run, model, adam(model, 3e-3), lambda: ways(16), loss, 150, clip=1.0)
