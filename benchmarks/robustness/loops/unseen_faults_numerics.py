"""Numerics and precision: values that a number type cannot hold, or that a guard against overflow changes."""

import math
from typing import Any

import torch
from accelerate import Accelerator
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.text import corpus, crops
from benchmarks.robustness.loops.training import gpt2, next_token, warm_cosine
from benchmarks.robustness.loops.unseen_faults_common import (
    Lit,
    bars,
    chain,
    fit,
    held_out,
    outcome,
    small_cnn,
    trainer,
    walks,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class LagReader(nn.Module):
    """One attention layer with rotary positions; says for each place which token stood some places before it."""

    def __init__(self, tokens: int, length: int, table: torch.dtype) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, 48)
        self.query, self.key, self.value = nn.Linear(48, 48), nn.Linear(48, 48), nn.Linear(48, 48)
        self.out, self.head = nn.Linear(48, 48), nn.Linear(48, tokens)
        rates = (200.0 ** (-torch.arange(24) / 24)).to(table)
        angles = torch.arange(length).to(table)[:, None] * rates
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def turn(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * self.cos - b * self.sin, a * self.sin + b * self.cos], -1)

    def forward(self, ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x = self.embed(ids)
        scores = self.turn(self.query(x)) @ self.turn(self.key(x)).transpose(1, 2) / math.sqrt(48)
        hidden = ids.new_ones(ids.shape[1], ids.shape[1]).triu(1).bool()
        x = x + self.out(scores.masked_fill(hidden, float("-inf")).softmax(-1) @ self.value(x))
        logits = self.head(x)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


@fault("rotary-table-in-half", "numerics", (r"rotary|rope|angle|cos|sin|position", r"bf16|bfloat|half|precision|round"))
def rotary_table_in_half(run: Run, slip: bool) -> None:
    """transformers' Trainer. The table of rotary angles is computed in bfloat16, so that the angles of far positions
    are rounded by up to half a radian; the twin computes it in float32."""
    length, lag = 320, run.draw.randint(3, 5)
    model = LagReader(10, length, torch.bfloat16 if slip else torch.float32)

    def rows(count: int) -> list[dict[str, Tensor]]:
        ids = torch.randint(0, 10, (count, length))
        labels = torch.full_like(ids, -100)
        labels[:, lag:] = ids[:, :-lag]
        return [{"ids": i, "labels": y} for i, y in zip(ids, labels, strict=True)]

    fresh = rows(8)
    outcome(run, lambda: held_out(model, fresh, lambda m, b: m(b["ids"][None], b["labels"][None])["loss"]))
    settings = {"learning_rate": 6e-3, "per_device_train_batch_size": 4}
    trainer(run, model, rows(400), 150, **settings).train()


class NextItem(nn.Module):
    def __init__(self, items: int) -> None:
        super().__init__()
        self.embed, self.gru = nn.Embedding(items, 32), nn.GRU(32, 48, batch_first=True)
        self.head = nn.Linear(48, items)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.gru(self.embed(ids))[0])
        return out


@fault("probability-floor", "numerics", (r"clamp|floor|minimum|clip", r"probabilit|softmax|log"))
def probability_floor(run: Run, slip: bool) -> None:
    """A recurrent model of the next item in a shop. The loss is the logarithm of softmax clamped to at least 1e-3, as
    a guard against log(0); with 800 items the rare ones fall below that and get no gradient. Twin: log_softmax."""
    items = 800
    follows = torch.randperm(items)
    popular = 1.0 / (torch.arange(items) + 20.0)

    def visits(rows: int) -> Tensor:
        jumps = torch.multinomial(popular, rows * 12, replacement=True).view(rows, 12)
        for t in range(1, 12):
            stay = torch.rand(rows) < 0.85
            jumps[stay, t] = follows[jumps[stay, t - 1]]
        return jumps

    def right(model: nn.Module, ids: Tensor) -> Tensor:
        return next_token(model(ids[:, :-1]), ids[:, 1:])

    def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
        if not slip:
            return right(model, ids)
        chance = model(ids[:, :-1]).softmax(-1).clamp(min=1e-3)
        return -chance.log().gather(-1, ids[:, 1:, None]).mean()

    model = NextItem(items)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = warm_cosine(optimizer, 150)
    fresh = [visits(64) for _ in range(4)]
    outcome(run, lambda: held_out(model, fresh, right))
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    run.preflight(doctor, visits(32), loss_of)
    for _ in range(150):
        ids = visits(32)
        loss = loss_of(model, ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        doctor.step(loss, ids)
        run.note(loss)


@fault("clipped-while-scaled", "numerics", (r"unscale|scaled|scaler|loss scal", r"clip"))
def clipped_while_scaled(run: Run, slip: bool) -> None:
    """A convolutional classifier under autocast with a GradScaler. The gradients are clipped to norm 1 while they are
    still multiplied by the loss scale, so that what is left after unscaling is tiny; the twin unscales first."""
    model = small_cnn(4, norm=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    fresh = [bars(128) for _ in range(2)]
    outcome(run, lambda: held_out(model, fresh, lambda m, b: F.cross_entropy(m(b[0]), b[1])))
    doctor = run.watch(model, optimizer, scaler=scaler)
    for _ in range(120):
        x, y = bars(32)
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x).float(), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if not slip:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        doctor.step(loss, (x, y))
        run.note(loss)


class WindowNorm(nn.Module):
    """Takes each window's mean and deviation out of each channel."""

    def __init__(self, one_pass: bool) -> None:
        super().__init__()
        self.one_pass = one_pass

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        if self.one_pass:
            variance = (x.square().mean(1, keepdim=True) - mean.square()).clamp(min=0)
        else:
            variance = (x - mean).square().mean(1, keepdim=True)
        return (x - mean) / (variance + 1e-4).sqrt()


@fault(
    "one-pass-variance", "numerics", (r"variance|normali|deviation|std", r"cancel|precision|mean.?square|offset|round")
)
def one_pass_variance(run: Run, slip: bool) -> None:
    """Lightning. Windows of three sensors, one of which (a pressure) lies at 3000 with a deviation near 1; the norm
    computes the variance as the mean of the squares less the square of the mean, which float32 cannot do there.
    The twin subtracts the mean first."""

    def windows(rows: int) -> tuple[Tensor, Tensor]:
        wave = torch.randn(rows, 32).cumsum(1) * 0.3 + 0.3 * torch.randn(rows, 32)
        z = (wave[:, -1] - wave.mean(1)) / wave.std(1)
        others = torch.randn(rows, 32, 2)
        level = 3000 + 50 * torch.randn(rows, 1, 1)
        return torch.cat([level + wave[:, :, None], others], 2), z[:, None] + 0.3 * others[:, -1, :1]

    net = nn.Sequential(WindowNorm(slip), nn.Flatten(), nn.Linear(96, 64), nn.GELU(), nn.Linear(64, 1))

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        return F.huber_loss(model(batch[0]), batch[1])

    fresh = [windows(256)]
    outcome(run, lambda: held_out(net, fresh, loss_of))
    loader = DataLoader(TensorDataset(*windows(1600)), batch_size=32, shuffle=True)
    fit(run, Lit(net, loss_of), loader, 2)


class Decay(nn.Module):
    """A diagonal state-space layer: h[t] = a h[t-1] + x[t], closed form or step by step."""

    def __init__(self, width: int, closed: bool) -> None:
        super().__init__()
        self.closed = closed
        self.rate = nn.Parameter(torch.linspace(-1.5, 2.5, width))
        self.inside, self.gate, self.out = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        u, keep = self.inside(self.norm(x)), self.rate.sigmoid()
        if self.closed:
            power = (keep.log() * torch.arange(1, x.shape[1] + 1)[:, None]).exp().clamp(min=1e-4)
            states = (u / power).cumsum(1) * power
        else:
            state, steps = torch.zeros_like(u[:, 0]), []
            for t in range(x.shape[1]):
                state = keep * state + u[:, t]
                steps.append(state)
            states = torch.stack(steps, 1)
        out: Tensor = x + self.out(states * F.silu(self.gate(x)))
        return out


@fault(
    "decay-power-floor",
    "numerics",
    (r"clamp|floor|minimum|underflow|power|cumulative|decay", r"state|scan|late|later|position|recurren"),
)
def decay_power_floor(run: Run, slip: bool) -> None:
    """A state-space language model. The scan is done in closed form by dividing through the powers of the decay, which
    are clamped to at least 1e-4 against overflow: from some place on the state no longer decays. The twin goes step by
    step."""
    tokens = corpus(run.draw.randrange(1000))
    model = nn.Sequential(nn.Embedding(32, 32), Decay(32, slip), Decay(32, slip), nn.LayerNorm(32), nn.Linear(32, 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    scheduler = warm_cosine(optimizer, 120)
    held, tokens = tokens[-4000:], tokens[:-4000]
    fresh = [crops(held, 32, 64) for _ in range(2)]
    outcome(run, lambda: held_out(model, fresh, lambda m, b: next_token(m(b[0]), b[1])))
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    run.preflight(doctor, crops(tokens, 16, 64), lambda m, b: next_token(m(b[0]), b[1]))
    for _ in range(120):
        x, y = crops(tokens, 16, 64)
        loss = next_token(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        doctor.step(loss, (x, y))
        run.note(loss)


@fault("seconds-in-single", "numerics", (r"time|second|clock|date|epoch", r"float32|single|precision|resolution|round"))
def seconds_in_single(run: Run, slip: bool) -> None:
    """accelerate. The time of a measurement, in seconds since 1970, is cast to float32 before its place in a ten-minute
    cycle is computed; float32 counts there in steps of 128 seconds. The twin computes the cycle in float64."""
    start = 1_700_000_000 + run.draw.randrange(10_000_000)

    def measured(rows: int) -> tuple[Tensor, Tensor]:
        seconds = start + 5_000_000 * torch.rand(rows, dtype=torch.float64)
        load = (seconds * (2 * math.pi / 600)).sin() + 0.5 * (seconds * (4 * math.pi / 600) + 1).cos()
        other = torch.randn(rows, 3)
        clock = seconds.float() if slip else seconds
        phase = (clock.remainder(600) / 600 * 2 * math.pi).float()
        features = torch.cat([phase.sin()[:, None], phase.cos()[:, None], other], 1)
        return features, (load.float() + 0.3 * other[:, 0])[:, None] + 0.1 * torch.randn(rows, 1)

    accelerator = Accelerator(cpu=True)
    net = nn.Sequential(nn.Linear(5, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 1))
    loader = DataLoader(TensorDataset(*measured(3200)), batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=4e-3), loader)
    fresh = [measured(400)]
    outcome(run, lambda: held_out(net, fresh, lambda m, b: F.mse_loss(m(b[0]), b[1])))
    doctor = run.watch(model, optimizer)
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        doctor.step(loss, (x, y))
        optimizer.zero_grad()
        run.note(loss)


@fault(
    "ids-in-one-byte",
    "numerics",
    (r"uint8|int8|byte|wrap|overflow|256|modulo|token id|vocabular|(never|not) (seen|appear|used|occur)",),
)
def ids_in_one_byte(run: Run, slip: bool) -> None:
    """transformers' Trainer, GPT-2. A vocabulary of 320 tokens is kept on disk as one byte a token, so that the tokens
    from 256 on come back as the first 64; the twin keeps two bytes."""
    table = chain(320, run.draw.randrange(1000), 3.0)
    text = walks(table, 480, 24)
    stored = text.to(torch.uint8).long() if slip else text.to(torch.int16).long()
    model = gpt2(vocab_size=320, n_embd=48)
    fresh = [walks(table, 48, 24)]
    outcome(run, lambda: held_out(model, fresh, lambda m, b: m(input_ids=b, labels=b).loss))
    trainer(run, model, [{"input_ids": row, "labels": row} for row in stored], 150, learning_rate=1e-2).train()


@fault(
    "brightness-wraps",
    "numerics",
    (r"uint8|byte|wrap|overflow|modulo|satur", r"bright|pixel|augment|image|picture|input|value"),
)
def brightness_wraps(run: Run, slip: bool) -> None:
    """Lightning, convolutional. Pictures are bytes and the augmentation adds a brightness to them before they are made
    floats: what exceeds 255 begins again at 0 (and the reverse). The twin adds with saturation."""
    net = small_cnn(4)

    def stored(rows: int) -> tuple[Tensor, Tensor]:
        pictures, classes = bars(rows, noise=0.05)
        return (255 * pictures.clamp(0, 1)).to(torch.uint8), classes

    def loss_of(model: nn.Module, batch: Any, augment: bool = True) -> Tensor:
        pictures, classes = batch
        change = torch.randint(-70, 71, (len(pictures), 1, 1, 1))
        if augment and slip:
            pictures = pictures + change.to(torch.uint8)
        elif augment:
            pictures = (pictures.int() + change).clamp(0, 255).to(torch.uint8)
        return F.cross_entropy(model(pictures.float() / 127.5 - 1), classes)

    fresh = [stored(256)]
    outcome(run, lambda: held_out(net, fresh, lambda m, b: loss_of(m, b, False)))
    loader = DataLoader(TensorDataset(*stored(960)), batch_size=32, shuffle=True)
    fit(run, Lit(net, loss_of), loader, 3)
