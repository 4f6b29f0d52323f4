"""Round 19b, honest and odd: how a gradient is formed, and what of it arrives."""

import itertools
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Decoder,
    Language,
    apart,
    class_outcome,
    cnn,
    documents,
    judged,
    language_outcome,
    loader,
    next_loss,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from torch import Tensor, nn
from torch.nn import functional as F


class Settling(nn.Module):
    """A layered Hopfield network: hidden units and outputs settle where its energy is least."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)

    def energy(self, x: Tensor, h: Tensor, y: Tensor) -> Tensor:
        own = 0.5 * (h.square().sum(1) + y.square().sum(1))
        return own - (h * self.enter(x)).sum(1) - (y * self.leave(h)).sum(1)

    @torch.no_grad()
    def settle(
        self, x: Tensor, h: Tensor, y: Tensor, steps: int, push: float = 0.0, target: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        driven = self.enter(x)
        for _ in range(steps):
            towards = torch.zeros_like(y) if target is None else push * (target - y)
            h, y = (
                (h + 0.5 * (driven + y @ self.leave.weight - h)).clamp(0, 1),
                (y + 0.5 * (self.leave(h) - y + towards)).clamp(0, 1),
            )
        return h, y

    def forward(self, x: Tensor) -> Tensor:
        h, y = x.new_zeros(len(x), self.enter.out_features), x.new_zeros(len(x), self.leave.out_features)
        return self.settle(x, h, y, 20)[1]


class TwoPhases:
    """Trains a settling network by the difference of two equilibria."""

    def __init__(self, run: Run, model: Settling, push: float = 0.5) -> None:
        self.run, self.model, self.push = run, model, push
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.doctor = run.watch(model, self.optimizer)

    def step(self, x: Tensor, labels: Tensor) -> None:
        model, target = self.model, F.one_hot(labels, 4).float()
        h, y = model.settle(x, torch.zeros(len(x), 32), torch.zeros(len(x), 4), 20)
        push = self.push if self.run.draw.random() < 0.5 else -self.push
        pushed = model.settle(x, h, y, 6, push, target)
        self.optimizer.zero_grad()
        contrast = (model.energy(x, *pushed) - model.energy(x, h, y)).mean() / push
        contrast.backward()
        self.optimizer.step()
        loss = 0.5 * (y - target).square().sum(1).mean()
        self.doctor.step(loss, (x, labels))
        self.run.note(loss)


@honest("r19b-states-settle-twice")
def states_settle_twice(run: Run) -> None:
    """Own class, a layered Hopfield network names pictures by equilibrium propagation (Scellier and Bengio 2017). Its
    states settle freely and then pushed a little towards the answer or, by the toss of a coin, away from it; the
    gradient is the difference of the energies at both ends over the push. The squared error that is told of has no
    graph, and nothing goes backward through the settling."""
    seed = run.draw.randrange(999)
    model = Settling(64, 32, 4)
    x, y = pictures(256, seed, own=apart(1))
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(x.flatten(1)), F.one_hot(y, 4).float())))
    trainer = TwoPhases(run, model)
    for _ in range(150):
        batch, labels = pictures(48, seed)
        trainer.step(batch.flatten(1), labels)


class Upwards(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = [64, 40, 32, 24]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.head = nn.Linear(24, 4)

    def states(self, x: Tensor) -> list[Tensor]:
        out = [x]
        for layer in self.layers:
            out.append(layer(out[-1]).tanh())
        return out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.states(x)[-1])
        return out


class TargetsDown:
    """Difference target propagation: each layer has a target of its own, found by learned inverses."""

    def __init__(self, run: Run, model: Upwards) -> None:
        self.run, self.model = run, model
        self.inverses = nn.ModuleList(nn.Linear(layer.out_features, layer.in_features) for layer in model.layers[1:])
        self.up = torch.optim.RMSprop(model.parameters(), lr=2e-3)
        self.down = torch.optim.RMSprop(self.inverses.parameters(), lr=2e-3)
        self.watches_up, self.watches_down = run.watch(model, self.up), run.watch(self.inverses, self.down)

    def learn_inverses(self, states: list[Tensor]) -> None:
        self.down.zero_grad()
        loss = torch.zeros(())
        for layer, inverse, state in zip(self.model.layers[1:], self.inverses, states[1:-1], strict=True):
            noisy = state + 0.1 * torch.randn_like(state)
            loss = loss + F.mse_loss(inverse(layer(noisy).tanh().detach()).tanh(), noisy)
        loss.backward()
        self.down.step()
        self.watches_down.step(loss, tuple(states[1:-1]))

    def step(self, x: Tensor, y: Tensor) -> None:
        with torch.no_grad():
            states = self.model.states(x)
        self.learn_inverses(states)
        top = states[-1].clone().requires_grad_()
        answer = F.cross_entropy(self.model.head(top), y)
        (slope,) = torch.autograd.grad(answer, top)
        targets = [states[-1] - 0.3 * len(x) * slope]
        with torch.no_grad():
            for inverse, here, below in zip(reversed(self.inverses), states[:1:-1], states[-2:0:-1], strict=True):
                targets.insert(0, below + inverse(targets[0]).tanh() - inverse(here).tanh())
        self.up.zero_grad()
        loss = F.cross_entropy(self.model.head(states[-1]), y)
        for layer, below, target in zip(self.model.layers, states[:-1], targets, strict=True):
            loss = loss + 0.5 * (layer(below).tanh() - target).square().sum(1).mean()
        loss.backward()
        self.up.step()
        self.watches_up.step(loss, (x, y))
        self.run.note(loss)


@honest("r19b-targets-sent-down")
def targets_sent_down(run: Run) -> None:
    """Own class, a deep tanh network by difference target propagation (Lee et al. 2015). Layers do not hear of each
    other: each is drawn to a target that inverses, themselves learned from states in noise, send down from the layer
    above, and the input of each is detached. The loss is the sum of distances to targets which are close by design."""
    seed = run.draw.randrange(999)
    model = Upwards()
    x, y = pictures(256, seed, own=apart(1))
    class_outcome(run, model, (x.flatten(1), y))
    trainer = TargetsDown(run, model)
    for _ in range(150):
        batch, labels = pictures(48, seed)
        trainer.step(batch.flatten(1), labels)


class Remembering(nn.Module):
    """Two rounds of messages; of nodes outside the batch, the states that they had when last seen."""

    def __init__(self, nodes: int, columns: int, classes: int, width: int = 24) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2 * columns, width), nn.Linear(2 * width, width)
        self.head = nn.Linear(2 * width, classes)
        for name in ("seen_first", "seen_second"):
            self.register_buffer(name, torch.zeros(nodes, width), persistent=False)

    def recalled(self, memory: Tensor, nodes: Tensor, states: Tensor) -> Tensor:
        """All states: of the batch with a gradient, of the others from memory."""
        if self.training:
            memory[nodes] = states.detach()
        return memory.index_put((nodes,), states)

    def forward(self, x: Tensor, edges: Tensor, nodes: Tensor) -> Tensor:
        h = self.first(torch.cat([x[nodes], edges[nodes] @ x], 1)).relu()
        wide = self.recalled(self.seen_first, nodes, h)
        h = self.second(torch.cat([h, edges[nodes] @ wide], 1)).relu()
        wide = self.recalled(self.seen_second, nodes, h)
        out: Tensor = self.head(torch.cat([h, edges[nodes] @ wide], 1))
        return out


@honest("r19b-neighbours-from-memory")
def neighbours_from_memory(run: Run) -> None:
    """Plain loop, a graph network with stored states of the past (VR-GCN, Chen et al. 2018; GNNAutoScale, Fey et al.
    2021). A batch is a few clusters of one graph; neighbours elsewhere come from a memory that older weights wrote,
    zeros at first, and no gradient reaches them. Each step writes to that memory in the forward pass."""
    own = apart(run.draw.randrange(999))
    count = 480
    y = torch.randint(0, 4, (count,), generator=own)
    same = (y[:, None] == y[None]).float()
    edges = (torch.rand(count, count, generator=own) < 0.004 + 0.03 * same).float().triu(1)
    edges = edges + edges.T
    edges = edges / edges.sum(1, keepdim=True).clamp_min(1)
    x = torch.randn(4, 12, generator=own)[y] + 2.0 * torch.randn(count, 12, generator=own)
    model = Remembering(count, 12, 4)
    known = torch.rand(count, generator=own) < 0.6
    everyone = torch.arange(count)

    def measure() -> Tensor:
        return F.cross_entropy(model(x, edges, everyone)[~known], y[~known])

    outcome(run, lambda: judged(model, measure))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
    doctor = run.watch(model, optimizer)
    for _ in range(20):
        for nodes in torch.randperm(count).chunk(6):
            nodes = nodes.sort().values
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x, edges, nodes)[known[nodes]], y[nodes][known[nodes]])
            loss.backward()
            optimizer.step()
            doctor.step(loss, (nodes, y[nodes]))
            run.note(loss)


class WithHelper(nn.Module):
    """An encoder of words with the class of a document on top and, for help, the words that were hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(17, 32), nn.Embedding(16, 32)
        self.block = Block(32, causal=False)
        self.classes, self.words = nn.Linear(32, 3), nn.Linear(32, 17)

    def states(self, ids: Tensor, keep: Tensor) -> Tensor:
        out: Tensor = self.block(self.tokens(ids) + self.places(torch.arange(ids.shape[1])), keep)
        return out

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        share = keep.float()[..., None]
        out: Tensor = self.classes((self.states(ids, keep) * share).sum(1) / share.sum(1))
        return out


@honest("r19b-helper-heard-when-it-agrees")
def helper_heard_when_it_agrees(run: Run) -> None:
    """Plain loop, an encoder of few labelled documents with hidden words as an auxiliary task (Du et al. 2018). The
    helper's gradient at the shared weights is added only in steps in which its cosine with the main task's is above
    zero, else thrown away; the head of the helper always learns. Gradients are written to the weights by hand."""
    model = WithHelper()
    class_outcome(run, model, documents(256, apart(1)))
    few = documents(120, apart(run.draw.randrange(999)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)
    shared = [*model.tokens.parameters(), *model.places.parameters(), *model.block.parameters()]
    heads = [*model.classes.parameters(), *model.words.parameters()]
    for _ in range(110):
        rows = torch.randint(0, 120, (16,))
        ids, keep, y = (part[rows] for part in few)
        free, there, _ = documents(32)
        hidden = there & (torch.rand(free.shape) < 0.2)
        main = F.cross_entropy(model(ids, keep), y)
        scores = model.words(model.states(free.masked_fill(hidden, 16), there))
        helper = F.cross_entropy(scores[hidden], free[hidden])
        told = torch.autograd.grad(main, shared, retain_graph=True)
        offered = torch.autograd.grad(helper, shared, retain_graph=True)
        agree = sum((a * b).sum() for a, b in zip(told, offered, strict=True)) > 0
        optimizer.zero_grad()
        (main + helper).backward(inputs=heads)
        for p, a, b in zip(shared, told, offered, strict=True):
            p.grad = a + b if agree else a
        optimizer.step()
        loss = main + helper
        doctor.step(loss, (ids, keep, y))
        run.note(loss)


class Robust:
    """A server that takes the median of what its workers send, number by number."""

    def __init__(self, run: Run, model: nn.Module, workers: int = 9, broken: int = 2) -> None:
        self.run, self.model, self.workers, self.broken = run, model, workers, broken
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        self.doctor = run.watch(model, self.optimizer)

    def gradient(self, worker: int, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, list[Tensor]]:
        loss = classify(self.model, batch)
        sent = list(torch.autograd.grad(loss, list(self.model.parameters())))
        if worker < self.broken:
            sent = [100 * torch.randn_like(part) for part in sent]
        return loss.detach(), sent

    def step(self, batch: tuple[Tensor, Tensor]) -> None:
        parts = list(zip(*(part.chunk(self.workers) for part in batch), strict=True))
        losses, sent = zip(*(self.gradient(i, part) for i, part in enumerate(parts)), strict=True)
        self.optimizer.zero_grad()
        for p, *given in zip(self.model.parameters(), *sent, strict=True):
            p.grad = torch.stack(given).median(0).values
        self.optimizer.step()
        loss = torch.stack(losses).mean()
        self.doctor.step(loss, batch)
        self.run.note(loss)


@honest("r19b-median-of-nine-workers")
def median_of_nine_workers(run: Run) -> None:
    """Own class, convolutions learned by nine workers of which two are broken and send noise a hundred times too large
    (Yin et al. 2018). The server takes the median of each number over the workers, which is not the mean of any of the
    gradients, shorter than theirs, and not the gradient of the loss that is told of; nothing is clipped."""
    seed = run.draw.randrange(999)
    model = cnn(norm=False)
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    server = Robust(run, model)
    for _ in range(100):
        server.step(pictures(90, seed))


class SentAsTwoColumns(torch.optim.AdamW):
    """Each matrix of gradients is sent as two columns and two rows; what that leaves out is added the next time."""

    def __init__(self, parameters: Any, lr: float, rank: int = 2, first: int = 10) -> None:
        super().__init__(parameters, lr=lr)
        self.rank, self.first, self.count = rank, first, 0
        self.left: dict[Tensor, tuple[Tensor, Tensor]] = {}

    def sent(self, p: Tensor, gradient: Tensor) -> Tensor:
        kept, rows = self.left.get(p, (torch.zeros_like(p), torch.randn(p.shape[1], self.rank)))
        whole = gradient + kept
        columns = torch.linalg.qr(whole @ rows)[0]
        rows = whole.T @ columns
        out = columns @ rows.T
        self.left[p] = (whole - out, rows)
        return out

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.ndim == 2 and self.count > self.first:
                    p.grad.copy_(self.sent(p.detach(), p.grad))
        return super().step(closure)


@honest("r19b-matrices-sent-as-two-columns")
def matrices_sent_as_two_columns(run: Run) -> None:
    """accelerate, a small GPT with gradients of rank two, as PyTorch's PowerSGD hook sends them from machine to machine
    (Vogels et al. 2019; with Adam in Ramesh et al. 2021). The first ten steps are whole; then each matrix's gradient is
    replaced by two columns times two rows, and what that leaves out comes back in later steps from a memory."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2)
    language_outcome(run, model, language)
    rows = language.rows(320, 24)
    optimizer = SentAsTwoColumns(model.parameters(), lr=5e-3)
    prepared(run, model, optimizer, loader(rows, size=16), lambda m, batch: next_loss(m, batch[0]), 6)
