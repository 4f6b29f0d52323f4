"""Round 15b, honest and odd: what is done to gradients before the step."""

import math
from collections import deque
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Decoder,
    Language,
    apart,
    cnn,
    fit,
    judged,
    lit,
    loader,
    next_loss,
    outcome,
    pictures,
    table,
    train,
)
from benchmarks.robustness.loops.round6_tools import classify
from benchmarks.robustness.loops.round7b_parts import Reader, SmallLlama
from benchmarks.robustness.loops.round7b_tools import adam, near, taught, text_outcome
from torch import Tensor, nn
from torch.nn import functional as F


class Shielded(Decoder):
    """A tenth of the gradient reaches the table of words."""

    def forward(self, ids: Tensor, keep: Tensor | None = None) -> Tensor:
        x = self.tokens(ids)
        x = 0.1 * x + 0.9 * x.detach() + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x, keep)
        out: Tensor = self.head(self.norm(x))
        return out


@honest("r15b-a-tenth-for-the-words")
def a_tenth_for_the_words(run: Run) -> None:
    """Plain loop, a small GPT trained by SGD with GLM-130B's embedding gradient shrink. Nine tenths of the embedded
    words are detached, so that the table of words is told a tenth of its true gradient, which keeps large runs from
    spikes; the values that go forward are the same."""
    language = Language(run.draw.randrange(999))
    model = Shielded(12, layers=2)
    text_outcome(run, model, language)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(run, model, optimizer, lambda: language.rows(12, 24), next_loss, 120)


def clipped_by_unit(net: nn.Module, limit: float) -> None:
    """Brock et al. 2021: each unit's gradient is at most `limit` times its weights' length; the head is left alone."""
    for p in list(net.parameters())[:-2]:
        if p.grad is None:
            continue
        axes = tuple(range(1, p.ndim)) if p.ndim > 1 else (0,)
        most = limit * torch.linalg.vector_norm(p.detach(), dim=axes, keepdim=True).clamp_min(1e-3)
        size = torch.linalg.vector_norm(p.grad, dim=axes, keepdim=True).clamp_min(1e-6)
        p.grad.mul_((most / size).clamp(max=1.0))


@honest("r15b-each-unit-by-its-own-length")
def each_unit_by_its_own_length(run: Run) -> None:
    """Lightning, a convolutional net without any norm and with adaptive gradient clipping, as NFNets have it. The bound
    is another one for each unit, a fiftieth of the length of its weights, and nearly all units are clipped in the first
    half of the run, at a rate of 0.5; the head is not clipped at all."""
    seed = run.draw.randrange(999)
    net = cnn(norm=False)
    x, y = pictures(256, seed, own=apart(1))
    outcome(run, lambda: judged(net, lambda: classify(net, (x, y))))
    module = lit(net, classify, lambda m: torch.optim.SGD(m.parameters(), lr=0.5, momentum=0.9, nesterov=True))
    module.configure_gradient_clipping = lambda *given, **named: clipped_by_unit(net, 0.02)
    fit(run, module, loader(*pictures(320, seed)), 120)


@honest("r15b-odd-batches-are-not-stepped")
def odd_batches_are_not_stepped(run: Run) -> None:
    """Plain loop, a Llama on crawled text of which one batch in twelve is rubbish. As in OLMo's skipping optimizer, a
    step whose gradient is more than three deviations above those of late is left out altogether, moments included: the
    loss jumps and nothing moves, while sound batches go through."""
    language = Language(run.draw.randrange(999))
    model = SmallLlama(12)
    text_outcome(run, model, language)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)
    norms: deque[float] = deque(maxlen=24)
    for _ in range(110):
        rows = language.rows(12, 24)
        if run.draw.random() < 1 / 12:
            rows = torch.randint(0, 12, (12, 2)).repeat(1, 12)
        optimizer.zero_grad()
        loss = next_loss(model, rows)
        loss.backward()
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        past = torch.tensor(list(norms))
        if len(past) < 12 or norm < past.mean() + 3 * past.std():
            optimizer.step()
        norms.append(norm)
        doctor.step(loss, rows)
        run.note(loss)


def garbled(rows: Tensor, own: torch.Generator | None = None) -> Tensor:
    """A third of the words replaced."""
    other = torch.randint(1, 16, rows.shape, generator=own)
    return torch.where(torch.rand(rows.shape, generator=own) < 0.33, other, rows)


@honest("r15b-backward-in-a-second-reading")
def backward_in_a_second_reading(run: Run) -> None:
    """Plain loop, sentence embeddings with GradCache (Gao et al. 2021), for batches larger than memory. All pairs are
    embedded without a graph, the loss's backward ends at the embeddings, and each piece of eight pairs is then read
    again with a graph and its stored gradients: what backward runs on is a product, not the loss."""
    model = Classifier(16, classes=16)
    keep = torch.ones(64, 12, dtype=torch.bool)

    def embedded(rows: Tensor) -> Tensor:
        return F.normalize(model(rows, keep[: len(rows)]), dim=1)

    def contrast(a: Tensor, b: Tensor) -> Tensor:
        return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a)))

    check = torch.randint(1, 16, (64, 12), generator=apart(1))
    other = garbled(check, apart(2))
    outcome(run, lambda: judged(model, lambda: contrast(embedded(check), embedded(other))))
    optimizer = adam(model, 3e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(60):
        first = torch.randint(1, 16, (64, 12))
        second = garbled(first)
        with torch.no_grad():
            a, b = embedded(first), embedded(second)
        a, b = a.requires_grad_(), b.requires_grad_()
        loss = contrast(a, b)
        loss.backward()
        optimizer.zero_grad()
        for rows, stored in ((first, a.grad), (second, b.grad)):
            assert stored is not None
            for piece, gradient in zip(rows.split(8), stored.split(8), strict=True):
                (embedded(piece) * gradient).sum().backward()
        optimizer.step()
        doctor.step(loss, (first, second))
        run.note(loss)


class Particles(nn.Module):
    """`count` networks with one hidden layer of 16, each a row of one matrix."""

    def __init__(self, count: int = 8, inputs: int = 6, hidden: int = 16) -> None:
        super().__init__()
        self.sizes, self.hidden = [inputs * hidden, hidden, hidden, 1], hidden
        scales = [1 / math.sqrt(inputs), 0.5, 1 / math.sqrt(hidden), 0.1]
        draw = [s * torch.randn(count, n) for s, n in zip(scales, self.sizes, strict=True)]
        self.theta = nn.Parameter(torch.cat(draw, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(rows, inputs) to (members, rows)."""
        w, b, v, c = self.theta.split(self.sizes, 1)
        h = torch.einsum("ri,mih->mrh", x, w.unflatten(1, (-1, self.hidden))) + b[:, None]
        return torch.einsum("mrh,mh->mr", h.tanh(), v) + c


def together_and_apart(theta: Tensor, gradient: Tensor) -> Tensor:
    """Liu and Wang 2016: each particle follows its neighbours' gradients and is pushed away from them."""
    distance = torch.cdist(theta, theta).square()
    width = distance.median() / math.log(len(theta) + 1) + 1e-8
    near_by = (-distance / width).exp()
    apart_by = 2 / width * (near_by.sum(1, keepdim=True) * theta - near_by @ theta)
    return (near_by @ gradient - apart_by) / len(theta)


@honest("r15b-particles-that-push")
def particles_that_push(run: Run) -> None:
    """Plain loop, a table's regression by Stein variational gradient descent, for predictions that know how sure they
    are. Eight networks share one matrix, and `.grad` is overwritten: the mean of the others' gradients by nearness,
    less a force that drives the networks apart, so that it is no loss's gradient."""
    seed = run.draw.randrange(999)
    model = Particles()
    x, y = table(512, seed, apart(1))
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(x).mean(0), y) / y.var()))
    optimizer = adam(model, 0.03)  # type: ignore[arg-type]
    doctor = run.watch(model, optimizer)
    for _ in range(250):
        batch = table(48, seed)
        optimizer.zero_grad()
        errors = (model(batch[0]) - batch[1]).square().mean(1)
        (errors.sum() * 256 / (2 * 0.25) + 0.5 * model.theta.square().sum()).backward()
        assert model.theta.grad is not None
        model.theta.grad.copy_(together_and_apart(model.theta.detach(), model.theta.grad))
        optimizer.step()
        doctor.step(errors.mean(), batch)
        run.note(errors.mean())


@honest("r15b-never-against-the-memory")
def never_against_the_memory(run: Run) -> None:
    """Plain loop, a GRU that learns a second language after a first (A-GEM, Chaudhry et al. 2019). There are two
    backward passes a step, one for 32 old rows that are never stepped on; where the two gradients disagree the part of
    the new one that would harm the old rows is taken out, else the new one is used as it is."""
    first = Language(run.draw.randrange(999))
    second = near(first, run.draw.randrange(999), 0.6)

    def rows(language: Language, mark: int, count: int = 16, own: torch.Generator | None = None) -> Tensor:
        return torch.cat([torch.full((count, 1), mark), language.rows(count, 20, own)], 1)

    model = Reader(14, hidden=48)
    taught(model, lambda: rows(first, 12), next_loss, 200)
    checks = [rows(first, 12, 64, apart(1)), rows(second, 13, 64, apart(2))]
    outcome(run, lambda: judged(model, lambda: sum(next_loss(model, c) for c in checks)))
    memory, weights = rows(first, 12, 64, apart(3)), list(model.parameters())
    optimizer = torch.optim.SGD(weights, lr=0.2)
    doctor = run.watch(model, optimizer)
    for _ in range(180):
        old = torch.autograd.grad(next_loss(model, memory[torch.randint(0, 64, (32,))]), weights)
        batch = rows(second, 13)
        optimizer.zero_grad()
        loss = next_loss(model, batch)
        loss.backward()
        dot = sum(float((p.grad * g).sum()) for p, g in zip(weights, old, strict=True) if p.grad is not None)
        if dot < 0:
            share = dot / sum(float(g.square().sum()) for g in old)
            for p, g in zip(weights, old, strict=True):
                assert p.grad is not None
                p.grad.sub_(share * g)
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


@honest("r15b-drift-of-each-client-corrected")
def drift_of_each_client_corrected(run: Run) -> None:
    """Plain loop, SCAFFOLD (Karimireddy et al. 2020): four phones with languages of their own share an LSTM. Each gets
    the server's weights, takes six steps with a correction added to every gradient, and sends them off; the watched
    model is the phones' one after another, so that its weights jump back every six steps and the loss with them."""
    common = Language(run.draw.randrange(999))
    phones = [near(common, run.draw.randrange(999), 0.25) for _ in range(4)]
    model = Reader(12, core=nn.LSTM)
    checks = [phone.rows(32, 20, apart(k)) for k, phone in enumerate(phones)]
    outcome(run, lambda: judged(model, lambda: sum(next_loss(model, c) for c in checks) / 4))
    weights, rate, steps = list(model.parameters()), 0.8, 6
    optimizer: Any = torch.optim.SGD(weights, lr=rate)
    doctor = run.watch(model, optimizer)
    shared = [torch.zeros_like(p) for p in weights]
    own = [[torch.zeros_like(p) for p in weights] for _ in phones]

    def put(values: list[Tensor]) -> None:
        with torch.no_grad():
            for p, value in zip(weights, values, strict=True):
                p.copy_(value)

    for _ in range(12):
        server, arrived = [p.detach().clone() for p in weights], []
        for phone, mine in zip(phones, own, strict=True):
            put(server)
            for _ in range(steps):
                rows = phone.rows(8, 20)
                optimizer.zero_grad()
                loss = next_loss(model, rows)
                loss.backward()
                for p, c, c_own in zip(weights, shared, mine, strict=True):
                    assert p.grad is not None
                    p.grad.add_(c - c_own)
                optimizer.step()
                doctor.step(loss, rows)
                run.note(loss)
            arrived.append([p.detach().clone() for p in weights])
            for c, c_own, x, p in zip(shared, mine, server, weights, strict=True):
                c_own.add_((x - p.detach()) / (steps * rate) - c)
        put([torch.stack(list(parts)).mean(0) for parts in zip(*arrived, strict=True)])
        shared = [torch.stack(list(parts)).mean(0) for parts in zip(*own, strict=True)]
