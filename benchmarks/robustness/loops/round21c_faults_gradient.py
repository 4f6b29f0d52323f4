"""Round 21c, mistakes in gradients: what is cut off, summed, shared between workers, projected, clipped."""

import copy
import itertools
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    class_outcome,
    cnn,
    endless,
    fit,
    judged,
    lit,
    loader,
    next_loss,
    number_outcome,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round6_tools import classify, regress
from benchmarks.robustness.loops.round7b_parts import SmallLlama
from benchmarks.robustness.loops.round7b_tools import taught
from benchmarks.robustness.loops.round8b_parts import steps
from benchmarks.robustness.loops.round21c_parts import (
    Chunked,
    Fronted,
    Gauge,
    Orders,
    Quantised,
    Shared,
    cosine,
    gauged,
    houses,
    other_camera,
    slip,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r21c-codes-detached-in-both-terms")
def codes_detached_in_both_terms(run: Run, wrong: bool) -> None:
    """Plain loop, an autoencoder with a table of codes. Of its two terms the one that is to bring the codes to what
    the encoder says detaches the codes too: the table has no gradient and stays as it was drawn. The twin detaches
    what the encoder says."""
    model = Quantised()
    check, _ = pictures(256, own=apart(1))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        said_again, said, codes = model(batch[0])
        towards = F.mse_loss(codes.detach(), said) if wrong else F.mse_loss(codes, said.detach())
        return F.mse_loss(said_again, batch[0]) + towards + 0.25 * F.mse_loss(said, codes.detach())

    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(check)[0], check) / check.var()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    batches = endless(loader(*pictures(480)))
    steps(run, model, optimizer, lambda: next(batches), loss, 140)


@slip("r21c-workers-meet-at-the-first-piece")
def workers_meet_at_the_first_piece(run: Run, wrong: bool) -> None:
    """Plain loop, two simulated workers with a small GPT each, that accumulate four pieces and share their gradients
    once an update. They share after the first piece, and the other three stay where they were made: each worker goes
    its own way, on its own tongue. The twin shares after the last piece."""
    tongues = [Language(run.draw.randrange(999), 10, 2.0, first) for first in (0, 10)]
    first = Decoder(20, width=24)
    workers = [first, copy.deepcopy(first)]
    checks = [tongue.rows(48, 16, apart(901)) for tongue in tongues]
    outcome(run, lambda: judged(first, lambda: sum(next_loss(first, check) for check in checks) / 2))
    optimizers = [torch.optim.AdamW(worker.parameters(), lr=4e-3, weight_decay=0.01) for worker in workers]
    doctor = run.watch(first, optimizers[0])
    for _ in range(60):
        told, read = torch.zeros(()), []
        for optimizer in optimizers:
            optimizer.zero_grad()
        for piece in range(4):
            for rank, worker in enumerate(workers):
                rows = tongues[rank].rows(6, 16)
                loss = next_loss(worker, rows) / 4
                loss.backward()
                if rank == 0:
                    told, read = told + loss.detach(), [*read, rows]
            if piece == (0 if wrong else 3):
                for p, q in zip(*(worker.parameters() for worker in workers), strict=True):
                    mean = (p.grad + q.grad) / 2
                    p.grad.copy_(mean)
                    q.grad.copy_(mean)
        for optimizer in optimizers:
            optimizer.step()
        doctor.step(told, read)
        run.note(told)


@slip("r21c-heads-last-chunk-only")
def heads_last_chunk_only(run: Run, wrong: bool) -> None:
    """Plain loop, a small Llama that learns records of four fields, by a cross-entropy that goes through the places in
    chunks of four and makes its gradients on the way forward. The gradient of the head's weight is that of the last
    chunk, and not the sum: the words of the first three fields are never taught to the head. The twin adds."""
    orders = Orders(run.draw.randrange(999))
    model = SmallLlama(48, width=16, layers=1)
    check = orders.rows(128, apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(check[:, :-1]).mT, check[:, 1:])))

    def loss(model: Any, rows: Tensor) -> Tensor:
        hidden = model.tokens(rows[:, :-1])
        for block in model.blocks:
            hidden = block(hidden)
        return Chunked.apply(model.norm(hidden), model.head.weight, rows[:, 1:], not wrong)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    schedule = cosine(optimizer, 140, 10)
    steps(run, model, optimizer, lambda: orders.rows(16), loss, 140, after=lambda step: schedule.step())


@slip("r21c-projected-by-its-own-length")
def projected_by_its_own_length(run: Run, wrong: bool) -> None:
    """Plain loop, one body with two heads, and gradients that are freed of conflicts: from each, the part against the
    other is taken away. That part is divided by the square of the gradient's own length in the place of the other's.
    The small gradient of the kinds becomes a large multiple of the prices', and that of the prices stays against it.
    The twin divides by the other's."""
    model = Shared()
    x, price, kind = houses(512, apart(1))

    def both() -> Tensor:
        said, scores = model(x)
        return F.mse_loss(said, price) / price.var() + F.cross_entropy(scores, kind)

    outcome(run, lambda: judged(model, both))
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    doctor = run.watch(model, optimizer)
    shared = list(model.body.parameters())
    for _ in range(5):
        for batch in loader(*houses(800), size=32):
            said, scores = model(batch[0])
            losses = [F.mse_loss(said, batch[1]), F.cross_entropy(scores, batch[2])]
            optimizer.zero_grad()
            sum(losses).backward(retain_graph=True)  # type: ignore[union-attr]
            own = [torch.cat([g.flatten() for g in torch.autograd.grad(l, shared, retain_graph=True)]) for l in losses]
            total = torch.zeros_like(own[0])
            for mine, other in itertools.permutations(own):
                against = (mine @ other).clamp_max(0)
                total += mine - against / (mine if wrong else other).square().sum() * other
            for p, part in zip(shared, total.split([p.numel() for p in shared]), strict=True):
                p.grad = part.view_as(p).clone()
            optimizer.step()
            doctor.step(sum(losses), batch)
            run.note(sum(losses))  # type: ignore[arg-type]


@slip("r21c-front-before-a-body-without-gradient")
def front_before_a_body_without_gradient(run: Run, wrong: bool) -> None:
    """Lightning, convolutions trained on grey pictures and frozen, before them a new convolution that makes three
    channels of another camera one, behind them a new head. Front and body run under no_grad, to save memory: the front
    is never trained. The twin freezes the body by requires_grad alone."""
    trained = cnn()
    taught(trained, lambda: pictures(32), classify, 120)
    model = Fronted(trained[:-1])
    model.without_gradient = wrong

    def shown(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = pictures(count, own=own)
        return other_camera(x, own), y

    class_outcome(run, model, shown(256, apart(1)))

    def learner(net: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.01)

    fit(run, lit(model, classify, learner), loader(*shown(480)), 120)


@slip("r21c-parameters-read-once")
def parameters_read_once(run: Run, wrong: bool) -> None:
    """Plain loop, an LSTM behind fixed waves that says a number of readings; one number in fifty is a glitch far off,
    and so the gradients are clipped. The trained parameters are a filter object, which the optimizer has read to its
    end: nothing is clipped. The twin makes a list of them."""
    model = Gauge()
    number_outcome(run, model, gauged(512, apart(1)))
    trained = filter(lambda p: p.requires_grad, model.parameters())
    trained = trained if wrong else list(trained)  # type: ignore[assignment]
    optimizer = torch.optim.SGD(trained, lr=0.05, momentum=0.9)
    batches = endless(loader(*gauged(640, glitches=0.02), size=32))

    def clip() -> None:
        nn.utils.clip_grad_norm_(trained, 1.0)

    steps(run, model, optimizer, lambda: next(batches), regress, 150, between=clip)
