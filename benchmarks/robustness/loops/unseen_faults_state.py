"""Modes, state, and going on after a stop."""

import copy
from typing import Any

import torch
from accelerate import Accelerator
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.text import corpus, crops
from benchmarks.robustness.loops.training import next_token
from benchmarks.robustness.loops.unseen_faults_code import plain
from benchmarks.robustness.loops.unseen_faults_common import (
    Lit,
    WatchedTrainer,
    bars,
    fit,
    held_out,
    outcome,
    small_cnn,
    stack,
    trainer,
)
from benchmarks.robustness.loops.unseen_faults_reduction import Running
from benchmarks.robustness.loops.unseen_faults_rows import Bag, class_loss, marked
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


class Dropping(nn.Module):
    """A classifier of rows of tokens with dropout by the function, not the module."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.embed, self.always = nn.Embedding(40, 32), always
        self.conv, self.mid, self.head = nn.Conv1d(32, 48, 3, padding=1), nn.Linear(48, 48), nn.Linear(48, 6)

    def forward(self, ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        training = True if self.always else self.training
        x = F.dropout(self.embed(ids), 0.2, training)
        x = F.gelu(self.conv(x.transpose(1, 2))).amax(2)
        logits = self.head(F.dropout(F.gelu(self.mid(F.dropout(x, 0.4, training))), 0.4, training))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


@fault(
    "dropout-never-off",
    "state",
    (
        r"dropout|random|stochastic|noise|determinis",
        r"eval|training|always|inference|off|self\.training|validation|flag",
    ),
)
def dropout_never_off(run: Run, slip: bool) -> None:
    """transformers' Trainer, with an evaluation every 20 steps. F.dropout is called without `training=self.training`,
    so that it also drops in eval mode."""
    model = Dropping(slip)

    def rows(count: int) -> list[dict[str, Tensor]]:
        ids, label = marked(count, 6)
        return [{"ids": i, "labels": y} for i, y in zip(ids, label, strict=True)]

    fresh = stack(rows(512))
    outcome(run, lambda: held_out(model, [fresh], lambda m, b: m(**b)["loss"]))
    trainer(
        run, model, rows(3200), 180, checks=rows(64), eval_strategy="steps", eval_steps=20, learning_rate=8e-3
    ).train()


@fault(
    "schedule-begins-again",
    "state",
    (
        r"schedul|rate|\blr\b|warm",
        r"restart|resum|again|reset|not (restor|load|sav)|begin|jump|start|never decay|high|rises|state",
    ),
)
def schedule_begins_again(run: Run, slip: bool) -> None:
    """accelerate. The run is stopped at five sixths and goes on from a checkpoint that holds model and optimizer, but
    not the scheduler, which begins its warmup and decay again; the twin's holds it too."""
    tokens = corpus(run.draw.randrange(1000))
    held, tokens = tokens[-4000:], tokens[:-4000]
    fresh = [crops(held, 64, 24) for _ in range(2)]
    saved: dict[str, Any] = {}

    def part(first: int, last: int) -> nn.Module:
        accelerator = Accelerator(cpu=True)
        net = Running()
        optimizer: Any = torch.optim.AdamW(net.parameters(), lr=4e-2)
        if saved:
            net.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            for group in optimizer.param_groups:
                group.pop("initial_lr", None)
                group["lr"] = 4e-2
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 6, max(0.0, 1 - s / 120)))
        if saved and not slip:
            scheduler.load_state_dict(saved["scheduler"])
            for group, rate in zip(optimizer.param_groups, scheduler.get_last_lr(), strict=True):
                group["lr"] = rate
        model, optimizer = accelerator.prepare(net, optimizer)
        doctor = run.watch(model, optimizer, scheduler=scheduler)
        for _ in range(first, last):
            x, y = crops(tokens, 8, 24)
            loss = next_token(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            doctor.step(loss, (x, y))
            optimizer.zero_grad()
            run.note(loss)
        saved.update(model=copy.deepcopy(net.state_dict()), optimizer=copy.deepcopy(optimizer.state_dict()))
        saved["scheduler"] = scheduler.state_dict()
        return net

    part(0, 100)
    net = part(100, 120)
    outcome(run, lambda: held_out(net, fresh, lambda m, b: next_token(m(b[0]), b[1])))


@fault(
    "moments-of-other-weights",
    "state",
    (
        r"moment|optimi[sz]er state|adam|exp_avg|state",
        r"order|other|mismatch|wrong|index|permut|swap|mixed|belong|load|resum|restor|disagree",
    ),
)
def moments_of_other_weights(run: Run, slip: bool) -> None:
    """A tower of equal layers goes on from a checkpoint. The optimizer's state is matched by position, and
    this time the parameters were passed in the reverse order; layers of equal shape take each other's moments. Twin:
    the same order."""
    width, layers = 24, 6
    target = torch.randn(width, width) / 5

    def make() -> nn.Sequential:
        scale = [nn.Linear(width, width) for _ in range(layers)]
        parts: list[nn.Module] = []
        for index, linear in enumerate(scale):
            nn.init.normal_(linear.weight, std=0.05 * 4.0 ** (index / 2) / width**0.5)
            parts += [linear, nn.LayerNorm(width, elementwise_affine=False)]
        return nn.Sequential(*parts[:-1])

    def draw() -> tuple[Tensor, Tensor]:
        x = torch.randn(32, width)
        return x, (x @ target).tanh()

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(model(batch[0]), batch[1])

    model = make()
    first = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999))
    for _ in range(150):
        first.zero_grad()
        loss_of(model, draw()).backward()
        first.step()
    weights = list(model.parameters())
    if slip:
        weights = [w for layer in reversed(list(model)) for w in layer.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=1e-3, betas=(0.9, 0.999))
    optimizer.load_state_dict(copy.deepcopy(first.state_dict()))
    was = dict(zip(model.parameters(), [first.state[p]["exp_avg_sq"].clone() for p in model.parameters()], strict=True))
    gaps = [float((optimizer.state[p]["exp_avg_sq"] - before).norm() / before.norm()) for p, before in was.items()]
    outcome(run, lambda: max(gaps))
    doctor = run.watch(model, optimizer)
    run.preflight(doctor, draw(), loss_of)
    for _ in range(60):
        batch = draw()
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


class Recomputed(nn.Module):
    """Three blocks with dropout whose insides are computed again in the backward pass."""

    def __init__(self, keep_state: bool, save: bool = True) -> None:
        super().__init__()
        self.embed, self.keep_state, self.save = nn.Embedding(40, 32), keep_state, save
        parts = [
            nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.5), nn.Linear(64, 32))
            for _ in range(3)
        ]
        self.blocks, self.head = nn.ModuleList(parts), nn.Linear(32, 6)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            if self.save:
                x = x + checkpoint(block, x, use_reentrant=False, preserve_rng_state=self.keep_state)
            else:
                x = x + block(x)
        out: Tensor = self.head(x.amax(1))
        return out


@fault(
    "other-dropout-in-the-recompute",
    "state",
    (r"checkpoint|recomput|dropout", r"rng|random|mask|preserve|different|mismatch|state|gradient|seed"),
)
def other_dropout_in_the_recompute(run: Run, slip: bool) -> None:
    """A classifier with activation checkpointing and preserve_rng_state=False: the blocks are computed again with
    another dropout than in the forward pass, and the gradients belong to neither. The measure is the distance of a
    gradient from that without checkpointing under the same seed."""
    model = Recomputed(not slip)

    def distance() -> float:
        model.train()
        x, y = marked(64, 6)
        gradients = []
        for model.save in (True, False):
            torch.manual_seed(5)
            loss = F.cross_entropy(model(x), y)
            given = torch.autograd.grad(loss, list(model.parameters()))
            gradients.append(torch.cat([g.flatten() for g in given]))
        return float((gradients[0] - gradients[1]).norm() / gradients[1].norm())

    outcome(run, distance)
    plain(run, model, lambda: marked(24, 6), class_loss, 120, 5e-3)


@fault(
    "momentum-of-another-library",
    "state",
    (r"batch.?norm|running|\bbn\b|norm", r"momentum|0\.99|last batch|noisy|statistic|running|eval|unstable"),
)
def momentum_of_another_library(run: Run, slip: bool) -> None:
    """Lightning, convolutional, batches of four. The batch norms have momentum 0.99, as another library
    counts it (0.01 to torch): the running statistics are those of the last four pictures. The twin says 0.05.
    The measure is how far the first norm's running variances lie, in logarithms, from those over many pictures."""
    net = small_cnn(4)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.99 if slip else 0.05

    def uneven(rows: int) -> tuple[Tensor, Tensor]:
        pictures, label = bars(rows)
        return pictures * torch.randn(rows, 1, 1, 1).exp(), label

    fresh, norm = uneven(512)[0], net[1]
    assert isinstance(norm, nn.BatchNorm2d)

    @torch.no_grad()
    def off() -> float:
        assert isinstance(norm.running_var, Tensor)
        return float((norm.running_var / net[0](fresh).var((0, 2, 3))).log().abs().mean())

    outcome(run, off)
    loader = DataLoader(TensorDataset(*uneven(1200)), batch_size=4, shuffle=True)
    fit(run, Lit(net, class_loss), loader, 1)


class Towers(nn.Module):
    """Captions and pictures as unit vectors; the picture tower was once only evaluated."""

    def __init__(self, still: bool) -> None:
        super().__init__()
        self.text, self.still = Bag(60), still
        self.vision = nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 32))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def see(self, pictures: Tensor) -> Tensor:
        with torch.set_grad_enabled(not self.still and torch.is_grad_enabled()):
            return F.normalize(self.vision(pictures), dim=-1)

    def forward(self, pictures: Tensor, ids: Tensor) -> Tensor:
        out: Tensor = self.scale.exp() * self.see(pictures) @ self.text(ids).T
        return out


@fault(
    "one-tower-without-gradient",
    "state",
    (
        r"vision|tower|picture|image|see",
        r"gradient|no_grad|never|not (train|learn|updat|chang|mov)|frozen|froze|detach|grad",
    ),
)
def one_tower_without_gradient(run: Run, slip: bool) -> None:
    """A contrastive model of pictures and captions. The picture tower's method still turns gradients off, from when it
    was only evaluated: the text tower alone learns. The twin lets them on."""
    sights = torch.randn(60, 48)

    def draw() -> tuple[Tensor, Tensor]:
        what = torch.randint(0, 60, (32, 4))
        seen = sights[what].sum(1).tanh() + 0.2 * torch.randn(32, 48)
        return seen, torch.cat([what, torch.randint(0, 60, (32, 1))], 1)

    plain(run, Towers(slip), draw, lambda m, b: F.cross_entropy(m(*b), torch.arange(32)), 150, 5e-3)


class Frozen(nn.Module):
    """A published trunk with batch norms, meant to stay as it is, and a head."""

    def __init__(self, trunk: nn.Module, keep: bool) -> None:
        super().__init__()
        self.trunk, self.head, self.keep = trunk.requires_grad_(False).eval(), nn.Linear(24, 4), keep

    def train(self, mode: bool = True) -> "Frozen":
        super().train(mode)
        if self.keep:
            self.trunk.eval()
        return self

    def forward(self, pictures: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.trunk(pictures))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


@fault(
    "frozen-norms-drift",
    "state",
    (r"running|batch.?norm|statistic|buffer|\bbn\b|norm", r"frozen|froze|freez|eval|train mode|drift|chang|mov|updat"),
)
def frozen_norms_drift(run: Run, slip: bool) -> None:
    """transformers' Trainer, convolutional. A frozen trunk was put in eval mode once, before the training; the
    Trainer calls model.train() at every step, and the running statistics of its batch norms drift. The twin's train()
    keeps the trunk in eval mode. The measure is how far the statistics moved."""
    whole = small_cnn(4)
    optimizer = torch.optim.AdamW(whole.parameters(), lr=5e-3)
    for _ in range(60):
        optimizer.zero_grad()
        class_loss(whole, bars(48)).backward()
        optimizer.step()
    model = Frozen(whole[:-1], not slip)
    before = {k: v.clone() for k, v in model.trunk.named_buffers() if "running" in k}

    def moved() -> float:
        now = dict(model.trunk.named_buffers())
        return max(float((now[k] - v).norm() / v.norm()) for k, v in before.items())

    outcome(run, moved)
    x, y = bars(640, noise=0.2)
    rows = [{"pictures": 1.5 * a - 0.5, "labels": b} for a, b in zip(x, y, strict=True)]
    trainer(run, model, rows, 60, kind=WatchedTrainer, learning_rate=1e-2).train()


class Remembering(nn.Module):
    """An attention reader of padded rows which builds its mask once."""

    def __init__(self, once: bool) -> None:
        super().__init__()
        self.embed, self.once = nn.Embedding(40, 32), once
        self.mask: Tensor | None = None
        self.attend = nn.MultiheadAttention(32, 4, batch_first=True)
        self.up, self.norm, self.head = nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 5)

    def forward(self, ids: Tensor, there: Tensor) -> Tensor:
        if self.mask is None or not self.once or self.mask.shape != there.shape:
            self.mask = ~there
        x = self.embed(ids)
        x = x + self.attend(x, x, x, key_padding_mask=self.mask, need_weights=False)[0]
        x = self.norm(F.gelu(self.up(x))).masked_fill(self.mask[:, :, None], -10.0)
        out: Tensor = self.head(x.amax(1))
        return out


@fault(
    "the-first-mask-for-ever",
    "state",
    (
        r"mask|padding",
        r"first|cach|stale|once|same|earlier|previous|old|never|other batch|reus|not (follow|depend|match)",
    ),
)
def the_first_mask_for_ever(run: Run, slip: bool) -> None:
    """An attention reader keeps the padding mask it built for its first batch and uses it for all batches of that
    shape; the lengths of other batches are other ones. The twin builds it anew."""

    def draw() -> tuple[Tensor, Tensor, Tensor]:
        ids, label = torch.randint(6, 40, (16, 20)), torch.randint(0, 5, (16,))
        lengths = torch.randint(6, 21, (16,))
        place = (torch.rand(16) * lengths).long()
        ids[torch.arange(16), place] = 1 + label
        there = torch.arange(20) < lengths[:, None]
        return ids * there, there, label

    model = Remembering(slip)

    plain(run, model, draw, lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2]), 150, 4e-3)
