"""Round 9b, innocent changes of scaling, accumulation, the optimizer, its groups and its schedule."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, innocent
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    judged,
    loader,
    next_loss,
    outcome,
    pictures,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round6_tools import classify
from benchmarks.robustness.loops.round7b_parts import Listener, Reader, SmallLlama, sounds
from benchmarks.robustness.loops.round7b_tools import text_outcome
from benchmarks.robustness.loops.round8b_parts import (
    causal_loss,
    causal_outcome,
    masked_bert,
    reseeded,
    steps,
    t5,
    text_class_outcome,
    told_loss,
    translated,
    word_table,
)
from benchmarks.robustness.loops.round9b_parts import ResNet, accelerator, by_row, first_clipped, picture_outcome
from torch import Tensor, nn
from torch.nn import functional as F


@innocent("r9b-scaler-around-the-step")
def scaler_around_the_step(run: Run, changed: bool) -> None:
    """A residual network under autocast to bfloat16; a GradScaler is put around backward and step, and unscales before the
    gradients are clipped."""
    seed = run.draw.randrange(99)
    model = ResNet()
    picture_outcome(run, model, pictures(256, seed, own=apart(1)), classify)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", enabled=changed)
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        data = pictures(32, seed)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = classify(model, data)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        doctor.step(loss, data)
        run.note(loss)


@innocent("r9b-four-parts-of-one-mean")
def four_parts_of_one_mean(run: Run, changed: bool) -> None:
    """accelerate, BERT learns hidden words: a batch of 32 rows is cut in four, and the summed losses are divided by the
    hidden words of all four."""
    language = Language(run.draw.randrange(999), 12, first=2)
    net = masked_bert(initializer_range=0.1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)

    def hidden(rows: Tensor, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        hide = torch.rand(rows.shape, generator=own) < 0.15
        return rows.masked_fill(hide, 1), rows.masked_fill(~hide, -100)

    def guessed(model: Any, batch: Any) -> Tensor:
        logits = model(input_ids=batch[0]).logits
        return F.cross_entropy(logits.flatten(0, 1), batch[1].flatten(), reduction="sum")

    check = hidden(language.rows(128, 20, apart(1)), apart(2))
    asked = int((check[1] >= 0).sum())
    outcome(run, lambda: judged(net, lambda: guessed(net, check) / asked))
    engine = accelerator()
    made = torch.optim.AdamW(net.parameters(), lr=4e-3)
    model, optimizer, data = engine.prepare(net, made, loader(*hidden(language.rows(640, 20)), size=32))
    doctor = run.watch(model, optimizer)
    for _ in range(5):
        for batch in data:
            asked_here = (batch[1] >= 0).sum()
            parts = list(zip(*(column.chunk(4) for column in batch), strict=True)) if changed else [tuple(batch)]
            optimizer.zero_grad()
            total = torch.zeros(())
            for part in parts:
                loss = guessed(model, part) / asked_here
                engine.backward(loss)
                total += loss.detach()
            optimizer.step()
            doctor.step(total, parts if changed else batch)
            run.note(total)


@innocent("r9b-samples-by-vmap")
def samples_by_vmap(run: Run, changed: bool) -> None:
    """Convolutions over sounds, taught in private: gradients row by row in a Python loop, then by torch.func.vmap. Each is
    held to a norm of one, and noise is added to the sum."""
    model = Listener()
    picture_outcome(run, model, sounds(256, apart(1)), classify)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)

    def row_by_row(x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        losses = [F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]) for i in range(len(x))]
        gradients = [torch.autograd.grad(loss, list(model.parameters())) for loss in losses]
        return [torch.stack(same) for same in zip(*gradients, strict=True)], torch.stack(losses).detach()

    doctor = run.watch(model, optimizer)
    for _ in range(120):
        x, y = sounds(16)
        gradients, losses = (by_row if changed else lambda _, *rows: row_by_row(*rows))(model, x, y)
        for p, total in zip(model.parameters(), first_clipped(gradients, 1.0), strict=True):
            p.grad = (total + 0.3 * torch.randn(p.shape)) / 16
        optimizer.step()
        loss = losses.mean()
        doctor.step(loss, (x, y))
        run.note(loss)


@innocent("r9b-groups-by-layer")
def groups_by_layer(run: Run, changed: bool) -> None:
    """A small Llama of one's own, AdamW with decay for matrices and none for the gains of norms: two groups, then two for
    each block and two for the rest, from the last block to the first; and fused."""
    language = Language(run.draw.randrange(999))
    model = SmallLlama()
    text_outcome(run, model, language)

    def pair(parameters: list[Any]) -> list[dict[str, Any]]:
        wide, narrow = [p for p in parameters if p.dim() > 1], [p for p in parameters if p.dim() < 2]
        return [{"params": wide, "weight_decay": 0.2}, {"params": narrow, "weight_decay": 0.0}]

    if changed:
        inner = [list(block.parameters()) for block in reversed(model.blocks)]
        outer = [*model.norm.parameters(), *model.head.parameters(), *model.tokens.parameters()]
        groups = [group for parameters in [*inner, outer] for group in pair(parameters)]
    else:
        groups = pair(list(model.parameters()))
    optimizer = torch.optim.AdamW(groups, lr=4e-3, betas=(0.9, 0.95), fused=changed)
    steps(run, model, optimizer, lambda: language.rows(16, 20), next_loss, 100)


@innocent("r9b-rates-in-sequence")
def rates_in_sequence(run: Run, changed: bool) -> None:
    """T5 with a warm-up of ten steps and a cosine to zero: a LambdaLR, then a SequentialLR of a LinearLR and a
    CosineAnnealingLR that gives the same rates."""
    model, table = t5(), word_table(run.draw.randrange(999))
    text_class_outcome(run, model, translated(96, table, apart(1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rates = torch.optim.lr_scheduler
    schedule: Any
    if changed:
        warm = rates.LinearLR(optimizer, start_factor=0.1, total_iters=9)
        fall = rates.CosineAnnealingLR(optimizer, T_max=111)
        schedule = rates.SequentialLR(optimizer, [warm, fall], milestones=[9])
    else:
        factor = lambda t: (t + 1) / 10 if t < 9 else 0.5 * (1 + math.cos(math.pi * (t - 9) / 111))
        schedule = rates.LambdaLR(optimizer, factor)
    batch = lambda: translated(16, table)
    steps(run, model, optimizer, batch, told_loss, 120, after=lambda _: schedule.step(), scheduler=schedule)


@innocent("r9b-decay-by-hand")
def decay_by_hand(run: Run, changed: bool) -> None:
    """GPT-2 with AdamW and a decay of 0.3, then with Adam and a multiplication of the weights in front of its step."""
    language = Language(run.draw.randrange(999))
    model = tiny_gpt2(12, pad_token_id=None, n_layer=2)
    causal_outcome(run, model, language)
    if changed:
        optimizer: Any = torch.optim.Adam(model.parameters(), lr=4e-3)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.3)

    def shrink() -> None:
        if changed:
            with torch.no_grad():
                torch._foreach_mul_(list(model.parameters()), 1 - 4e-3 * 0.3)

    steps(run, model, optimizer, lambda: language.rows(16, 20), causal_loss, 100, between=shrink)


@innocent("r9b-mean-of-weights-beside")
def mean_of_weights_beside(run: Run, changed: bool) -> None:
    """A residual network with SGD. A mean of its weights is kept beside and judged every twenty steps, its batch norms set
    anew over a shuffled loader, which draws random numbers."""
    seed = run.draw.randrange(99)
    model = ResNet(drop=0.1)
    picture_outcome(run, model, pictures(512, seed, own=apart(1)), classify)
    data = loader(*pictures(128, seed, own=apart(2)), size=32)
    held = pictures(64, seed, own=apart(3))
    mean = torch.optim.swa_utils.AveragedModel(model)

    def keep(step: int) -> None:
        if changed and step >= 40:
            mean.update_parameters(model)
            if step % 20 == 19:
                torch.optim.swa_utils.update_bn(data, mean)
                judged(mean, lambda: classify(mean, held))

    optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
    steps(run, model, optimizer, lambda: pictures(32, seed), classify, 100, after=keep)


class Nesterov(torch.optim.Optimizer):
    """SGD with Nesterov's momentum: v = m v + g, w = w - rate (g + m v)."""

    def __init__(self, parameters: Any, lr: float, momentum: float) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    speed = self.state[p].setdefault("speed", torch.zeros_like(p))
                    speed.mul_(group["momentum"]).add_(p.grad)
                    p.sub_(group["lr"] * (p.grad + group["momentum"] * speed))


@innocent("r9b-nesterov-by-hand")
def nesterov_by_hand(run: Run, changed: bool) -> None:
    """Convolutions over sounds with torch's SGD and Nesterov's momentum, then with an optimizer of one's own."""
    model = Listener()
    picture_outcome(run, model, sounds(256, apart(1)), classify)
    if changed:
        optimizer: Any = Nesterov(model.parameters(), lr=0.05, momentum=0.9)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    steps(run, model, optimizer, lambda: sounds(32), classify, 120)


@innocent("r9b-optimizer-in-two")
def optimizer_in_two(run: Run, changed: bool) -> None:
    """accelerate, an LSTM: one AdamW, then two of the same settings, for the recurrent part and for the rest. Another seed."""
    language = Language(run.draw.randrange(999))
    reseeded(run, changed)
    net = Reader(12, 32, 64, core=nn.LSTM)
    text_outcome(run, net, language)
    inner, outer = list(net.core.parameters()), [*net.tokens.parameters(), *net.head.parameters()]
    made = [torch.optim.AdamW(part, lr=5e-3) for part in ([inner, outer] if changed else [[*inner, *outer]])]
    engine = accelerator()
    model, data, *optimizers = engine.prepare(net, loader(language.rows(480, 24), size=16), *made)
    doctor = run.watch(model, optimizers if changed else optimizers[0])
    for _ in range(4):
        for batch in data:
            model.zero_grad()
            loss = next_loss(model, batch[0])
            engine.backward(loss)
            for optimizer in optimizers:
                optimizer.step()
            doctor.step(loss, batch)
            run.note(loss)
