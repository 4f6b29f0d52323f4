"""Honest loops with other update rules, averages of weights and narrow formats."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.optimizers import HalfAdamW, Lion, Muon, ScheduleFree, groups
from benchmarks.robustness.loops.text import corpus, crops
from benchmarks.robustness.loops.training import adamw, next_token, plain_loop, update
from benchmarks.robustness.loops.transformer import Counting, Transformer
from torch import Tensor, nn
from torch.nn import functional as F


@honest("ema")
def _(run: Run) -> None:
    """An exponential average of the weights, evaluated every 15 steps in the model's place, swapped back."""
    model, tokens = Transformer(dropout=0.1), corpus(8)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98))
    optimizer = adamw(model)
    doctor = run.watch(model, optimizer)
    for step in range(80):
        x, y = crops(tokens)
        loss = next_token(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        doctor.step(loss, (x, y))
        run.note(loss)
        if step % 15 == 14:
            kept = copy.deepcopy(model.state_dict())
            model.load_state_dict(average.module.state_dict())
            model.eval()
            with torch.no_grad():
                run.note(next_token(model(x), y))
            model.train()
            model.load_state_dict(kept)


@honest("swa")
def _(run: Run) -> None:
    """Stochastic weight averaging in the last third, at a constant raised rate."""
    model, tokens = Transformer(), corpus(9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    constant = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.15, anneal_epochs=5)
    average = torch.optim.swa_utils.AveragedModel(model)
    doctor = run.watch(model, optimizer, scheduler=cosine)
    for step in range(100):
        x, y = crops(tokens)
        loss = next_token(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, (x, y))
        if step >= 60:
            average.update_parameters(model)
            constant.step()
        else:
            cosine.step()
        run.note(loss)


@honest("muon-and-adamw")
def _(run: Run) -> None:
    """Two optimizers on one model: Muon for the blocks' matrices, AdamW for the rest; the doctor is told of both."""
    model, tokens = Transformer(bias=False), corpus(16)
    inner = [p for p in model.blocks.parameters() if p.dim() == 2]
    ids = {id(p) for p in inner}
    muon = Muon(inner, lr=0.01)
    rest = torch.optim.AdamW([p for p in model.parameters() if id(p) not in ids], lr=3e-3, weight_decay=0.0)
    doctor = run.watch(model, [muon, rest])
    for _ in range(80):
        x, y = crops(tokens)
        loss = next_token(model(x), y)
        loss.backward()
        muon.step()
        rest.step()
        doctor.step(loss, (x, y))
        muon.zero_grad()
        rest.zero_grad()
        run.note(loss)


@honest("lbfgs")
def _(run: Run) -> None:
    """L-BFGS with a strong-Wolfe search: a closure evaluated several times in a step, the whole set as one batch."""
    model = nn.Sequential(nn.Linear(16, 24), Counting(), nn.Tanh(), nn.Linear(24, 3))
    x = torch.randn(120, 16)
    y = (x[:, :3] + 0.3 * torch.randn(120, 3)).argmax(1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=4, line_search_fn="strong_wolfe")
    doctor = run.watch(model, optimizer)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) + 1e-3 * sum(p.pow(2).sum() for p in model.parameters())
        loss.backward()
        return loss

    for _ in range(60):
        loss = optimizer.step(closure)
        doctor.step(loss, (x, y))
        run.note(loss)


@honest("sgd-one-cycle")
def _(run: Run) -> None:
    """SGD with Nesterov's momentum, OneCycle or a triangular cycle: the rate rises long, momentum falls."""
    model, tokens = Transformer(), corpus(17)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    if run.draw.random() < 0.5:
        scheduler: Any = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=101)
    else:
        scheduler = torch.optim.lr_scheduler.CyclicLR(optimizer, 0.02, 0.5, step_size_up=15)
    doctor = run.watch(model, optimizer, scheduler=scheduler, total_steps=100)
    for _ in range(100):
        x, y = crops(tokens)
        loss = next_token(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        doctor.step(loss, (x, y))
        run.note(loss)


@honest("adafactor")
def _(run: Run) -> None:
    """Adafactor: factored second moments, a rate relative to the weights' size."""
    model = Transformer(positions=run.draw.choice(("rope", "learned")), tied=True)
    plain_loop(run, model, torch.optim.Adafactor(model.parameters(), lr=0.03), clip=0.0, warmup=1)


@honest("lion-restarts")
def _(run: Run) -> None:
    """Lion with cosine restarts: the rate jumps up again every 25 steps."""
    model, tokens = Transformer(), corpus(18)
    optimizer = Lion(groups(model, 0.3), lr=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 25)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    for _ in range(100):
        x, y = crops(tokens)
        loss = next_token(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        doctor.step(loss, (x, y))
        run.note(loss)


@honest("schedule-free")
def _(run: Run) -> None:
    """Schedule-free AdamW: weights swapped to their average for evaluation and back; no scheduler on purpose."""
    model, tokens = Transformer(), corpus(19)
    optimizer = ScheduleFree(model.parameters(), lr=4e-3)
    doctor = run.watch(model, optimizer)
    for step in range(90):
        x, y = crops(tokens)
        loss = next_token(model(x), y)
        update(run, doctor, optimizer, loss, (x, y))
        if step % 30 == 29:
            model.eval()
            optimizer.eval()
            with torch.no_grad():
                run.note(next_token(model(x), y))
            model.train()
            optimizer.train()


@honest("bfloat16-weights")
def _(run: Run) -> None:
    """Weights in bfloat16 alone, small updates kept by Kahan's sum or by random rounding."""
    model, tokens = Transformer(norm="rms").bfloat16(), corpus(20)
    optimizer = HalfAdamW(model.parameters(), lr=3e-4, kahan=run.draw.random() < 0.5)
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        x, y = crops(tokens)
        loss = next_token(model(x).float(), y)
        update(run, doctor, optimizer, loss, (x, y))


@honest("float16-scaler")
def _(run: Run) -> None:
    """float16 autocast with a GradScaler that starts too high: the first steps are skipped, later ones too."""
    model, tokens = Transformer(), corpus(21)
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=20)
    doctor = run.watch(model, optimizer, scaler=scaler)
    for _ in range(80):
        x, y = crops(tokens)
        with torch.autocast("cpu", torch.float16):
            logits = model(x)
        loss = next_token(logits.float(), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        doctor.step(loss, (x, y))
        run.note(loss)
