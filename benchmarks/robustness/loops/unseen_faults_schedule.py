"""Optimizer and schedule: rates and moments that are not what the author thinks they are."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from accelerate import Accelerator
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.text import corpus, crops
from benchmarks.robustness.loops.training import llama, next_token
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


class Tagger(nn.Module):
    """A small encoder with a class for each row, called with labels."""

    def __init__(self, tokens: int, classes: int, width: int = 32, layers: int = 4) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(tokens, width), nn.Parameter(0.02 * torch.randn(32, width))
        one = [nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)]
        self.layers = nn.ModuleList(
            one
            + [
                nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
                for _ in range(layers - 1)
            ]
        )
        self.head = nn.Linear(width, classes)

    def forward(self, ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x = self.embed(ids) + self.places[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x.mean(1))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


@fault(
    "layer-rates-upside-down",
    "schedule",
    (
        r"rate|\blr\b",
        r"layer|depth|group|block",
        r"revers|inver|upside|wrong|order|small|low|decreas|top|last|deep|head|unequal|differ",
    ),
)
def layer_rates_upside_down(run: Run, slip: bool) -> None:
    """transformers' Trainer. A fine-tuning with layer-wise rates: each layer further down should learn at 0.4 of the
    one above it, but the power counts from the bottom, so that the top and the head learn least. The twin counts from
    the top."""
    model = Tagger(24, 4)

    def rows(count: int, first: int) -> list[dict[str, Tensor]]:
        ids = torch.randint(0, 24, (count, 12))
        return [{"ids": i, "labels": (i[first : first + 4].sum() // 12) % 4} for i in ids]

    start = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(40):
        batch = torch.randint(0, 24, (32, 12))
        start.zero_grad()
        model(batch, (batch < 12).sum(1) // 4)["loss"].backward()
        start.step()
    parts = [[*model.embed.parameters(), model.places], *[list(layer.parameters()) for layer in model.layers]]
    parts.append(list(model.head.parameters()))
    groups = []
    for depth, weights in enumerate(parts):
        power = depth if slip else len(parts) - 1 - depth
        groups.append({"params": weights, "lr": 4e-3 * 0.4**power})
    optimizer = torch.optim.AdamW(groups)
    outcome(run, lambda: float(optimizer.param_groups[-1]["initial_lr"] < optimizer.param_groups[0]["initial_lr"]))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.05, 1 - step / 100))
    trainer(run, model, rows(800, 2), 100, optimizers=(optimizer, schedule)).train()


@fault(
    "schedule-by-micro-batch",
    "schedule",
    (r"schedul|rate|\blr\b", r"micro|accumul|too (early|soon|fast|often)|zero|0\.0|ends|finish|quarter|decay|times"),
)
def schedule_by_micro_batch(run: Run, slip: bool) -> None:
    """accelerate, accumulation over four micro-batches. The schedule, which was not prepared, is stepped at every
    micro-batch, so that it has come to its end after a quarter of the updates; the twin steps it at every update."""
    tokens = corpus(run.draw.randrange(1000))
    held, tokens = tokens[-4000:], tokens[:-4000]
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    updates = 80
    net = nn.Sequential(nn.Embedding(32, 32), Pair(32), Pair(32), nn.LayerNorm(32), nn.Linear(32, 32))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / updates))
    model, optimizer = accelerator.prepare(net, optimizer)
    fresh = [crops(held, 32, 32) for _ in range(2)]
    outcome(run, lambda: held_out(net, fresh, lambda m, b: next_token(m(b[0]), b[1])))
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    kept, total = [], 0.0
    for _ in range(4 * updates):
        x, y = crops(tokens, 4, 32)
        with accelerator.accumulate(model):
            loss = next_token(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            if slip or accelerator.sync_gradients:
                scheduler.step()
            kept.append((x, y))
            total += float(loss.detach()) / 4
            if accelerator.sync_gradients:
                doctor.step(total, list(kept))
                run.note(total)
                kept, total = [], 0.0
            optimizer.zero_grad()


class Pair(nn.Module):
    """A causal convolution over the last four places and a small MLP, with a residual each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Conv1d(width, width, 4)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(F.pad(self.norm(x).transpose(1, 2), (3, 0))).transpose(1, 2)
        out: Tensor = x + self.down(F.gelu(self.up(x)))
        return out


def language(run: Run) -> tuple[Tensor, Tensor]:
    tokens = corpus(run.draw.randrange(1000))
    return tokens[:-4000], tokens[-4000:]


def crop_loss(model: nn.Module, batch: Any) -> Tensor:
    return next_token(model(batch[0]), batch[1])


@fault(
    "cosine-bounces",
    "schedule",
    (
        r"T_max|cosine|schedul|rate|\blr\b",
        r"period|rises|climb|oscillat|bounc|back up|cycle|restart|up again|goes up|end",
    ),
)
def cosine_bounces(run: Run, slip: bool) -> None:
    """Lightning. CosineAnnealingLR is given the number of epochs as T_max but is stepped at every batch, so that the
    rate goes down and up again every six steps and is at its full height at the end. The twin gives the number of
    steps."""
    tokens, held = language(run)
    net = nn.Sequential(nn.Embedding(32, 32), Pair(32), Pair(32), nn.LayerNorm(32), nn.Linear(32, 32))
    epochs, batches = 6, 20

    def make(weights: Any) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(weights, lr=2e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs if slip else epochs * batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    fresh = [crops(held, 32, 32) for _ in range(3)]
    outcome(run, lambda: held_out(net, fresh, crop_loss))
    loader = DataLoader(TensorDataset(*crops(tokens, 8 * batches, 32)), batch_size=8, shuffle=True)
    fit(run, Lit(net, crop_loss, make), loader, epochs)


@fault(
    "warmup-counts-epochs",
    "schedule",
    (
        r"warm|schedul|rate|\blr\b",
        r"epoch|interval|never|too (slow|long|low|small)|per step|each step|not step|rarely|low",
    ),
)
def warmup_counts_epochs(run: Run, slip: bool) -> None:
    """Lightning. The schedule warms up over 20 steps and then decays, but it is returned without `interval: step`, so
    that Lightning steps it once an epoch and the rate never leaves the first fifth of the warmup."""
    tokens, held = language(run)
    net = nn.Sequential(nn.Embedding(32, 32), Pair(32), Pair(32), nn.LayerNorm(32), nn.Linear(32, 32))

    def make(weights: Any) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(weights, lr=4e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / 20, max(0.05, 1 - step / 100))
        )
        how = {"scheduler": schedule} if slip else {"scheduler": schedule, "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": how}

    fresh = [crops(held, 32, 32) for _ in range(3)]
    outcome(run, lambda: held_out(net, fresh, crop_loss))
    loader = DataLoader(TensorDataset(*crops(tokens, 400, 32)), batch_size=16, shuffle=True)
    fit(run, Lit(net, crop_loss, make), loader, 4)


class PatchNet(nn.Module):
    """A vision transformer over nine patches; its places, class token and head temperature are bare parameters."""

    def __init__(self, width: int = 32, classes: int = 9) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 4, 4)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 10, width))
        self.temperature = nn.Parameter(torch.ones(classes))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.patch(pictures).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(x[:, 0]) * self.temperature
        return out


@fault(
    "bare-parameters-in-no-group",
    "schedule",
    (
        r"pos_embed|cls_token|temperature|position|class token",
        r"optimi[sz]er|group|never (chang|mov|updat|train)|not (chang|mov|updat|train)|frozen|left out",
    ),
)
def bare_parameters_in_no_group(run: Run, slip: bool) -> None:
    """A vision transformer. The two groups of the optimizer are made by name, `weight` with decay and `bias` without;
    the parameters that are called neither (the places, the class token, a temperature) are in no group. Twin: all the
    rest are in the group without decay."""
    model = PatchNet()

    def pictures(rows: int) -> tuple[Tensor, Tensor]:
        out, at = 0.3 * torch.randn(rows, 1, 12, 12), torch.randint(0, 9, (rows,))
        for row, place in enumerate(at.tolist()):
            out[row, 0, 4 * (place // 3) : 4 * (place // 3) + 4, 4 * (place % 3) : 4 * (place % 3) + 4] += 1
        return out, at

    named = dict(model.named_parameters())
    decayed = [p for n, p in named.items() if n.endswith("weight") and "norm" not in n]
    others = [p for n, p in named.items() if n.endswith("bias") or "norm" in n]
    if not slip:
        others = [p for p in named.values() if all(p is not q for q in decayed)]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3)
    fresh = [pictures(256)]
    outcome(run, lambda: held_out(model, fresh, lambda m, b: F.cross_entropy(m(b[0]), b[1])))
    doctor = run.watch(model, optimizer)
    run.preflight(doctor, pictures(32), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    for _ in range(120):
        x, y = pictures(32)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


@fault(
    "betas-exchanged",
    "schedule",
    (r"beta|momentum|moment", r"0\.999|swap|exchang|revers|order|long|too (high|large|big)"),
)
def betas_exchanged(run: Run, slip: bool) -> None:
    """transformers' Trainer, Llama. adam_beta1 is 0.999 and adam_beta2 is 0.9: the two were put in the wrong order. The
    momentum then averages over all steps so far, the scale over ten."""
    betas = (0.999, 0.9) if slip else (0.9, 0.999)
    table = chain(32, run.draw.randrange(1000))
    model = llama(vocab_size=32)
    fresh = [walks(table, 64, 24)]
    outcome(run, lambda: held_out(model, fresh, lambda m, b: m(input_ids=b, labels=b).loss))
    rows = [{"input_ids": row, "labels": row} for row in walks(table, 640, 24)]
    trainer(run, model, rows, 120, adam_beta1=betas[0], adam_beta2=betas[1], learning_rate=1e-2).train()


class OwnAdam(torch.optim.Optimizer):
    """Adam as somebody wrote it for a course: the moments are kept in a dict of its own."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        by_shape: bool = False,
        decay: float = 0.0,
        decay_by_rate: bool = True,
    ) -> None:
        super().__init__(params, {"lr": lr})
        self.by_shape, self.decay, self.decay_by_rate = by_shape, decay, decay_by_rate
        self.moments: dict[Any, list[Any]] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                key: Any = tuple(p.shape) if self.by_shape else id(p)
                kept = self.moments.setdefault(key, [torch.zeros_like(p), torch.zeros_like(p), 0])
                kept[0].lerp_(p.grad, 0.1)
                kept[1].lerp_(p.grad * p.grad, 0.01)
                kept[2] += 1
                mean, square = kept[0] / (1 - 0.9 ** kept[2]), kept[1] / (1 - 0.99 ** kept[2])
                p.mul_(1 - (group["lr"] if self.decay_by_rate else 1.0) * self.decay)
                p.sub_(group["lr"] * mean / (square.sqrt() + 1e-8))


def own_adam_loop(run: Run, optimizer_of: Any) -> None:
    tokens, held = language(run)
    model = nn.Sequential(nn.Embedding(32, 32), *[Pair(32) for _ in range(4)], nn.LayerNorm(32), nn.Linear(32, 32))
    optimizer = optimizer_of(model)
    fresh = [crops(held, 32, 32) for _ in range(2)]
    outcome(run, lambda: held_out(model, fresh, crop_loss))
    doctor = run.watch(model, optimizer)
    run.preflight(doctor, crops(tokens, 8, 32), crop_loss)
    for step in range(120):
        x, y = crops(tokens, 8, 32)
        loss = crop_loss(model, (x, y))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = 3e-3 * (0.05 + 0.95 * math.cos(step / 120 * math.pi / 2))
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


@fault(
    "moments-by-shape",
    "schedule",
    (
        r"moment|state|optimi[sz]er|update",
        r"shar|same|shape|mix|other (param|tensor|weight|layer)|not follow|disagree|direction|oppos|align|correlat",
    ),
)
def moments_by_shape(run: Run, slip: bool) -> None:
    """A convolutional language model with Adam of one's own. The moments are kept by the shape of the parameter, so
    that all layers of a kind share one; the twin keeps them by the parameter."""
    own_adam_loop(run, lambda model: OwnAdam(model.parameters(), 3e-3, by_shape=slip))


@fault(
    "decay-without-rate",
    "schedule",
    (r"decay|shrink", r"rate|\blr\b|multipl|strong|too (large|big|much)|each step|every step|per step|1 ?- ?0"),
)
def decay_without_rate(run: Run, slip: bool) -> None:
    """A convolutional language model with AdamW of one's own. The weights are multiplied by 1 - 0.004 at every step,
    where it should have been 1 - rate * 0.004."""
    own_adam_loop(run, lambda model: OwnAdam(model.parameters(), 3e-3, decay=0.004, decay_by_rate=not slip))


@fault(
    "plateau-of-the-wrong-side",
    "schedule",
    (
        r"plateau|schedul|rate|\blr\b",
        r"mode|accura|improv|better|max|min|too (early|soon|fast|low|small)|cut|drop|shrink|collapse|reduc",
    ),
)
def plateau_of_the_wrong_side(run: Run, slip: bool) -> None:
    """accelerate, convolutional. ReduceLROnPlateau is fed with the accuracy but left at its default mode, `min`, so
    that every improvement cuts the rate; the twin says `max`."""
    accelerator = Accelerator(cpu=True)
    net = small_cnn(4)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    options: Any = {"factor": 0.3, "patience": 1}
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **({} if slip else {"mode": "max"}), **options)
    model, optimizer = accelerator.prepare(net, optimizer)
    check, fresh = bars(128), [bars(256)]
    outcome(run, lambda: held_out(net, fresh, lambda m, b: F.cross_entropy(m(b[0]), b[1])))
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    for step in range(120):
        x, y = bars(32)
        loss = F.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        doctor.step(loss, (x, y))
        optimizer.zero_grad()
        run.note(loss)
        if step % 6 == 5:
            model.eval()
            with torch.no_grad():
                right = (model(check[0]).argmax(1) == check[1]).float().mean()
            model.train()
            scheduler.step(float(right))
