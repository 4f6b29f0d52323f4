"""Round 11b, mistakes in gradients: what of them is kept, how far they reach back, what else is in them."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    judged,
    language_outcome,
    loader,
    next_loss,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round7b_parts import SmallLlama
from benchmarks.robustness.loops.round8b_parts import reseeded, steps
from benchmarks.robustness.loops.round9b_parts import accelerator, picture_outcome, seen, tiny_vit
from benchmarks.robustness.loops.round11b_parts import Cell, echoes, slip
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r11b-unsent-forgotten")
def unsent_forgotten(run: Run, changed: bool) -> None:
    """A small Llama of one's own with SGD and gradients of which the largest fiftieth is sent. What was not sent is
    owed to later steps; to save memory the mask is applied in place now, and what is owed is always zero."""
    language = Language(run.draw.randrange(999))
    model = SmallLlama()
    language_outcome(run, model, language, 20)
    owed = {p: torch.zeros_like(p) for p in model.parameters()}

    def send() -> None:
        for p in model.parameters():
            assert p.grad is not None
            total = p.grad + owed[p]
            least = total.abs().flatten().topk(max(1, p.numel() // 50)).values[-1]
            mask = total.abs() >= least
            sent = total.mul_(mask) if changed else total * mask
            owed[p] = total - sent
            p.grad = sent

    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    steps(run, model, optimizer, lambda: language.rows(16, 20), next_loss, 200, between=send)


@slip("r11b-state-cut-at-every-word")
def state_cut_at_every_word(run: Run, changed: bool) -> None:
    """A GRU over streams that are cut into pieces of sixteen words. The state was detached where a piece begins, and is
    detached in the loop over words now. Another seed."""
    seed = run.draw.randrange(999)
    reseeded(run, changed)
    model = Cell(6, every_word_alone=changed)

    def loss(ids: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        logits, state = model(ids[:, :-1], state)
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()), state

    check = echoes(seed, 32, 33, apart(901))
    outcome(run, lambda: judged(model, lambda: loss(check, torch.zeros(32, 48))[0]))
    stream, state = echoes(seed, 16, 200 * 16 + 1), torch.zeros(16, 48)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    doctor = run.watch(model, optimizer)
    for piece in range(200):
        ids = stream[:, 16 * piece : 16 * piece + 17]
        optimizer.zero_grad()
        value, state = loss(ids, state.detach())
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(value, ids)
        run.note(value)


@slip("r11b-map-left-in-the-gradient")
def map_left_in_the_gradient(run: Run, changed: bool) -> None:
    """accelerate, a vision transformer; every third step a saliency map is looked at. It was asked for by autograd.grad
    and comes from backward() now, which leaves the parameters' part in their gradients: they are cleared after the
    step."""
    seed = run.draw.randrange(99)
    net = tiny_vit(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.1)
    picture_outcome(run, net, pictures(256, seed, own=apart(901)), seen)
    shown = pictures(64, seed, own=apart(902))[0]
    engine = accelerator()
    rule = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
    model, optimizer, data = engine.prepare(net, rule, loader(*pictures(640, seed, own=apart(903))))
    doctor = run.watch(model, optimizer)
    maps: list[Tensor] = []

    def look() -> None:
        x = shown.clone().requires_grad_()
        score = model(pixel_values=x).logits.max(1).values.sum()
        if changed:
            score.backward()
            assert x.grad is not None
            maps.append(x.grad.abs())
        else:
            maps.append(torch.autograd.grad(score, x)[0].abs())

    done = 0
    for _ in range(3):
        for batch in data:
            loss: Any = seen(model, batch)
            engine.backward(loss)
            engine.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            doctor.step(loss, batch)
            run.note(loss)
            optimizer.zero_grad()
            done += 1
            if done % 3 == 0:
                look()
