"""Honest and odd: rules of update, schedules, gradients that are changed on the way, and arithmetic."""

import copy
import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    class_outcome,
    cnn,
    fit,
    judged,
    language_outcome,
    lit,
    loader,
    mlp,
    next_loss,
    number_outcome,
    outcome,
    pictures,
    table,
    train,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune
from torch.optim import lr_scheduler


def classify(m: nn.Module, b: Any) -> Tensor:
    return F.cross_entropy(m(b[0]), b[1])


def squares(m: nn.Module, b: Any) -> Tensor:
    return F.mse_loss(m(b[0]).flatten(), b[1])


def regression(run: Run, *sizes: int) -> tuple[nn.Sequential, Any]:
    seed = run.draw.randrange(999)
    model = mlp(*(sizes or (6, 32, 1)))
    number_outcome(run, model, table(256, seed, apart(1)))
    return model, lambda count=32: table(count, seed)


def vision(run: Run, model: nn.Module) -> Any:
    seed = run.draw.randrange(999)
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    return lambda count=16: pictures(count, seed)


@honest("r5-sharpness-aware")
def sharpness_aware(run: Run) -> None:
    """SAM: up the gradient, a second backward pass there, back again, and only then the step."""
    model = cnn(norm=False)
    batch = vision(run, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    doctor = run.watch(model, optimizer)
    for _ in range(60):
        data = batch()
        optimizer.zero_grad()
        loss = classify(model, data)
        loss.backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm() + 1e-12
            up = [0.05 * p.grad / norm for p in model.parameters()]
            for p, e in zip(model.parameters(), up, strict=True):
                p.add_(e)
        optimizer.zero_grad()
        classify(model, data).backward()
        with torch.no_grad():
            for p, e in zip(model.parameters(), up, strict=True):
                p.sub_(e)
        optimizer.step()
        doctor.step(loss, data)
        run.note(loss)


@honest("r5-slow-and-fast-weights")
def slow_and_fast_weights(run: Run) -> None:
    """Lookahead: every fifth step the weights go half of the way back to a slow copy."""
    model, batch = regression(run)
    slow = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    doctor = run.watch(model, optimizer)
    for at in range(90):
        data = batch()
        loss = squares(model, data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if at % 5 == 4:
            with torch.no_grad():
                for s, f in zip(slow.parameters(), model.parameters(), strict=True):
                    s.lerp_(f, 0.5)
                    f.copy_(s)
        doctor.step(loss, data)
        run.note(loss)


@honest("r5-closure-of-lbfgs")
def closure_of_lbfgs(run: Run) -> None:
    """LBFGS with a line search on all rows: up to twenty backward passes in a step, the same batch every time."""
    model, batch = regression(run, 6, 16, 1)
    data = batch(200)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=8, line_search_fn="strong_wolfe")
    doctor = run.watch(model, optimizer)
    for _ in range(12):

        def closure() -> Tensor:
            optimizer.zero_grad()
            value = squares(model, data)
            value.backward()
            return value

        loss = optimizer.step(closure)
        doctor.step(loss, data)
        run.note(loss)


@honest("r5-warm-restarts")
def warm_restarts(run: Run) -> None:
    """Cosine with restarts, its periods doubling, on purpose: the loss rises a little at each."""
    model = nn.Sequential(nn.Flatten(), mlp(64, 32, 4))
    batch = vision(run, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=15, T_mult=2)
    train(run, model, optimizer, batch, classify, 105, scheduler)


@honest("r5-triangles")
def triangles(run: Run) -> None:
    """CyclicLR between 0.001 and 0.05, with the momentum swinging against it."""
    model = cnn()
    batch = vision(run, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    scheduler = lr_scheduler.CyclicLR(optimizer, 0.001, 0.05, step_size_up=15)
    train(run, model, optimizer, batch, classify, 60, scheduler)


@honest("r5-one-group-at-rate-zero")
def one_group_at_rate_zero(run: Run) -> None:
    """The embedding's group has rate zero for half of the run and then joins; its gradients are computed all along."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    language_outcome(run, model, language)
    rest = [p for n, p in model.named_parameters() if n != "tokens.weight"]
    optimizer = torch.optim.AdamW([{"params": [model.tokens.weight]}, {"params": rest}], lr=4e-3)
    scheduler = lr_scheduler.LambdaLR(optimizer, [lambda s: float(s >= 40), lambda s: 1.0])
    train(run, model, optimizer, lambda: language.rows(12, 20), next_loss, 80, scheduler)


@honest("r5-signs-only")
def signs_only(run: Run) -> None:
    """Lion written by hand: only signs of an average move the weights, all by the same amount."""

    class Lion(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                    p.mul_(1 - group["lr"] * 0.1).sub_(group["lr"] * mean.lerp(p.grad, 0.1).sign())
                    mean.lerp_(p.grad, 0.01)

    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    language_outcome(run, model, language)
    optimizer = Lion(model.parameters(), {"lr": 1e-3})
    train(run, model, optimizer, lambda: language.rows(12, 20), next_loss, 80)


@honest("r5-noise-on-gradients")
def noise_on_gradients(run: Run) -> None:
    """Differential privacy in its simplest form: every row's gradient is clipped, their sum gets noise; .grad is set by
    hand."""
    model, batch = regression(run, 6, 16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = run.watch(model, optimizer)
    for _ in range(60):
        x, y = batch(16)
        total = [torch.zeros_like(p) for p in model.parameters()]
        for i in range(16):
            loss = squares(model, (x[i : i + 1], y[i : i + 1]))
            grads = torch.autograd.grad(loss, list(model.parameters()))
            size = torch.stack([g.norm() for g in grads]).norm()
            for t, g in zip(total, grads, strict=True):
                t += g * (1 / size).clamp(max=1)
        for p, t in zip(model.parameters(), total, strict=True):
            p.grad = (t + 0.5 * torch.randn_like(t)) / 16
        optimizer.step()
        with torch.no_grad():
            loss = squares(model, (x, y))
        doctor.step(loss, (x, y))
        run.note(loss)


@honest("r5-two-optimizers-one-model")
def two_optimizers(run: Run) -> None:
    """Matrices by AdamW, vectors by SGD: each holds its part, and the doctor is told of the first alone."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    language_outcome(run, model, language)
    many = [p for p in model.parameters() if p.ndim == 2]
    few = [p for p in model.parameters() if p.ndim == 1]
    first, second = torch.optim.AdamW(many, lr=4e-3), torch.optim.SGD(few, lr=0.02)
    doctor = run.watch(model, first)
    for _ in range(70):
        rows = language.rows(12, 20)
        loss = next_loss(model, rows)
        first.zero_grad()
        second.zero_grad()
        loss.backward()
        first.step()
        second.step()
        doctor.step(loss, rows)
        run.note(loss)


@honest("r5-whole-set-by-rprop")
def whole_set_by_rprop(run: Run) -> None:
    """Rprop on all 200 rows at once: one batch for ever, and steps that grow by a factor."""
    model, batch = regression(run)
    data = batch(200)
    train(run, model, torch.optim.Rprop(model.parameters(), lr=1e-2), lambda: data, squares, 80)


@honest("r5-rate-zero-at-first")
def rate_zero_at_first(run: Run) -> None:
    """A warmup whose factor is step / 20: the first step's rate is exactly zero, nothing moves."""
    model, batch = regression(run)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, s / 20) * 0.5 * (1 + math.cos(math.pi * s / 90)))
    train(run, model, optimizer, batch, squares, 85, scheduler)


@honest("r5-gradients-without-their-mean")
def gradients_without_their_mean(run: Run) -> None:
    """Hooks on parameters take the mean off every row of a gradient."""
    model = cnn()
    batch = vision(run, model)
    for p in model.parameters():
        if p.ndim > 1:
            p.register_hook(lambda g: g - g.mean(tuple(range(1, g.ndim)), keepdim=True))
    train(run, model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), batch, classify, 50)


@honest("r5-six-hundred-rows")
def six_hundred_rows(run: Run) -> None:
    """A huge batch at a huge rate: 600 rows, SGD at 0.5 with momentum and a short warmup, twenty steps."""
    model, batch = regression(run)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 5))
    train(run, model, optimizer, lambda: batch(600), squares, 25, scheduler, clip=5.0)


@honest("r5-one-row")
def one_row(run: Run) -> None:
    """Online learning: batches of one, plain SGD, a loss that jumps between 0.001 and 30."""
    model, batch = regression(run)
    train(run, model, torch.optim.SGD(model.parameters(), lr=0.01), lambda: batch(1), squares, 150)


@honest("r5-clipped-by-each-tensor")
def clipped_by_each_tensor(run: Run) -> None:
    """Adaptive clipping: each matrix's gradient is cut to a share of the matrix's own norm."""
    model = cnn()
    batch = vision(run, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    doctor = run.watch(model, optimizer)
    for _ in range(50):
        data = batch()
        loss = classify(model, data)
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            most = 0.05 * p.detach().norm().clamp(min=1e-3)
            p.grad.mul_((most / (p.grad.norm() + 1e-9)).clamp(max=1.0))
        optimizer.step()
        doctor.step(loss, data)
        run.note(loss)


@honest("r5-no-gradient-anywhere")
def no_gradient_anywhere(run: Run) -> None:
    """Evolution strategies: the model runs under no_grad with disturbed weights, and their losses make the update;
    there is no backward pass."""
    model, batch = regression(run, 6, 12, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    doctor = run.watch(model, optimizer)
    start = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    for _ in range(70):
        data = batch()
        with torch.no_grad():
            start = torch.nn.utils.parameters_to_vector(model.parameters()).clone()
            total = torch.zeros_like(start)
            for _ in range(12):
                way = torch.randn_like(start)
                values = []
                for sign in (0.05, -0.05):
                    torch.nn.utils.vector_to_parameters(start + sign * way, model.parameters())
                    values.append(squares(model, data))
                total += (values[0] - values[1]) / 0.1 * way / 12
            torch.nn.utils.vector_to_parameters(start, model.parameters())
            loss = squares(model, data)
        at = 0
        for p in model.parameters():
            p.grad = total[at : at + p.numel()].view_as(p).clone()
            at += p.numel()
        optimizer.step()
        doctor.step(loss, data)
        run.note(loss)


@honest("r5-weights-pretend-to-be-int4")
def weights_pretend(run: Run) -> None:
    """Quantisation-aware training: weights are rounded to sixteen levels in the forward pass, gradients go straight
    through."""

    class Fake(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            scale = self.weight.detach().abs().amax(1, keepdim=True) / 7 + 1e-9
            rounded = (self.weight / scale).round().clamp(-8, 7) * scale
            return F.linear(x, self.weight + (rounded - self.weight).detach(), self.bias)

    seed = run.draw.randrange(999)
    model = nn.Sequential(Fake(6, 48), nn.ReLU(), Fake(48, 1))
    number_outcome(run, model, table(256, seed, apart(1)))
    train(run, model, torch.optim.Adam(model.parameters(), lr=1e-2), lambda: table(32, seed), squares, 100)


@honest("r5-nine-in-ten-pruned")
def nine_in_ten_pruned(run: Run) -> None:
    """A lottery ticket: a mask keeps most weights of two layers at zero for the whole run."""
    seed = run.draw.randrange(999)
    model = nn.Sequential(nn.Flatten(), mlp(64, 64, 4))
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    for layer in (model[1][0], model[1][2]):
        prune.random_unstructured(layer, "weight", 0.8)
    train(run, model, torch.optim.AdamW(model.parameters(), lr=5e-3), lambda: pictures(16, seed), classify, 80)


@honest("r5-direction-and-length")
def direction_and_length(run: Run) -> None:
    """Weight normalisation and spectral normalisation as parametrizations: `weight` is computed, not a parameter."""
    seed = run.draw.randrange(999)
    first = parametrizations.weight_norm(nn.Linear(6, 32))
    second = parametrizations.spectral_norm(nn.Linear(32, 32))
    model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(32, 1))
    number_outcome(run, model, table(256, seed, apart(1)))
    train(run, model, torch.optim.Adam(model.parameters(), lr=1e-2), lambda: table(32, seed), squares, 90)


@honest("r5-mean-of-the-last-weights")
def mean_of_the_last_weights(run: Run) -> None:
    """Lightning at a high constant rate, and an average of the weights from the middle on, with its statistics
    learned afterwards; the average is judged."""
    seed = run.draw.randrange(999)
    model = cnn()
    average = torch.optim.swa_utils.AveragedModel(model)
    class_outcome(run, average, pictures(256, seed, own=apart(1)))
    data = loader(*pictures(320, seed))

    def loss(net: nn.Module, batch: Any) -> Tensor:
        average.update_parameters(net)
        return classify(net, batch)

    fit(run, lit(model, loss, lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9)), data, 60)
    torch.optim.swa_utils.update_bn(data, average)


@honest("r5-autocast-with-a-scaler")
def autocast_with_a_scaler(run: Run) -> None:
    """Mixed precision as documented: autocast, scale, unscale, clip, step, update; one of the first steps is skipped
    because the scale begins too high."""
    model = cnn()
    batch = vision(run, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**128 / 2)
    doctor = run.watch(model, optimizer)
    for _ in range(60):
        data = batch()
        with torch.autocast("cpu", torch.bfloat16):
            loss = classify(model, data)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        doctor.step(loss, data)
        run.note(loss)


@honest("r5-double-precision")
def double_precision(run: Run) -> None:
    """Everything in float64, a rate that is reduced on a plateau by the right measure."""
    model, batch = regression(run)
    model.double()
    seed_rows = batch(256)
    outcome(run, lambda: judged(model, lambda: squares(model, (seed_rows[0].double(), seed_rows[1].double()))))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=10)
    doctor = run.watch(model, optimizer)
    for _ in range(90):
        x, y = batch()
        loss = squares(model, (x.double(), y.double()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step(loss.detach())
        doctor.step(loss, (x, y))
        run.note(loss)
