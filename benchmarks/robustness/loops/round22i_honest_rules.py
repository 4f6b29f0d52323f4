"""Round 22i, honest and odd: rules of update that few people use, each with a state of its own."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    class_outcome,
    cnn,
    examples,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    next_loss,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_parts import sounds
from benchmarks.robustness.loops.transformer import Transformer
from torch import Tensor, nn
from torch.nn import functional as F


class FromAllSlopes(torch.optim.Optimizer):
    """FTRL-proximal (McMahan et al. 2013): a weight is computed anew from the sum of its slopes, and is zero exactly
    where that sum is small."""

    def __init__(self, parameters: Any, lr: float, ridge: float, lasso: float) -> None:
        super().__init__(parameters, {"lr": lr, "ridge": ridge, "lasso": lasso})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = closure() if closure else None
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["sum"], state["squares"] = torch.zeros_like(p), torch.zeros_like(p)
                more = state["squares"] + p.grad.square()
                state["sum"] += p.grad - (more.sqrt() - state["squares"].sqrt()) / group["lr"] * p
                state["squares"] = more
                pulled = F.softshrink(state["sum"], group["lasso"])
                p.copy_(-pulled / ((1 + more.sqrt()) / group["lr"] + group["ridge"]))
        return loss


class Clicks:
    """Who clicks on what, by a logistic regression over hashed fields that sees each row once."""

    places = 1024

    def __init__(self, seed: int) -> None:
        self.truth = [0.9 * torch.randn(size, generator=apart(seed + i)) for i, size in enumerate((50, 20, 8, 30))]
        self.model = nn.EmbeddingBag(self.places, 1, mode="sum")
        nn.init.zeros_(self.model.weight)
        self.optimizer = FromAllSlopes(self.model.parameters(), lr=0.5, ridge=0.1, lasso=0.02)

    def rows(self, count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
        """The hashes of four fields and of one that is always there, and 0 or 1."""
        fields = [(len(t) * torch.rand(count, generator=own) ** 2).long() for t in self.truth]
        score = torch.stack([t[f] for t, f in zip(self.truth, fields, strict=True)]).sum(0) - 1
        y = (torch.rand(count, generator=own) < score.sigmoid()).float()
        ids = torch.stack([*(2654435761 * (97 * f + i) for i, f in enumerate(fields)), torch.full((count,), 5)], 1)
        return (ids >> 7) % self.places, y

    def cost(self, rows: tuple[Tensor, Tensor]) -> Tensor:
        return F.binary_cross_entropy_with_logits(self.model(rows[0]).squeeze(1), rows[1])

    def learn(self, run: Run, batches: int, own: torch.Generator) -> None:
        doctor = run.watch(self.model, self.optimizer)
        for _ in range(batches):
            rows = self.rows(32, own)
            loss = self.cost(rows)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            doctor.step(loss, rows)
            run.note(loss)


@honest("r22i-weights-computed-anew-from-all-slopes")
def weights_computed_anew_from_all_slopes(run: Run) -> None:
    """A class of its own, clicks by logistic regression over hashed fields with FTRL-proximal (McMahan et al. 2013, as
    in Vowpal Wabbit and TensorFlow). No step is added to a weight: it is computed from sums of slopes and squares since
    the beginning, all begin at zero, most are zero exactly to the end, and most rows of the table never have a
    slope."""
    task = Clicks(run.draw.randrange(999))
    check = task.rows(2000, apart(1))
    outcome(run, lambda: judged(task.model, lambda: task.cost(check)))
    task.learn(run, 160, apart(2))


class Cautious(torch.optim.AdamW):
    """Liang et al. 2024: of AdamW's step, only the entries that go down this batch's slope, made larger for the
    rest."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        kept = [(p, p.clone()) for group in self.param_groups for p in group["params"] if p.grad is not None]
        loss = super().step(closure)
        for p, before in kept:
            moved = p - before
            agree = (moved * p.grad < 0).float()
            p.copy_(before + moved * agree / agree.mean().clamp_min(1e-3))
        return loss


@honest("r22i-not-where-slope-and-memory-differ")
def not_where_slope_and_memory_differ(run: Run) -> None:
    """Transformers' Trainer with an optimizer handed in, a T5 writes a word for each word by cautious AdamW (Liang et
    al. 2024, in timm as `caution`). In every step many of the weights stand still, since what they remember and this
    batch's slope point to different sides, and the others go farther than the rate says."""
    from transformers import T5Config, T5ForConditionalGeneration

    settings: dict[str, Any] = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
    settings |= {"vocab_size": 16, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    model = T5ForConditionalGeneration(T5Config(**settings, dropout_rate=0.0))
    own = apart(run.draw.randrange(999))
    dictionary = torch.randperm(14, generator=own) + 2
    said = torch.randint(0, 14, (1000, 4), generator=own)
    ends = torch.ones(1000, 1, dtype=torch.long)
    source, target = torch.cat([said + 2, ends], 1), torch.cat([dictionary[said], ends], 1)
    outcome(run, lambda: judged(model, lambda: model(input_ids=source[800:], labels=target[800:]).loss))
    optimizer = Cautious(model.parameters(), lr=1e-2, weight_decay=0.01)
    data = examples(input_ids=source[:800], labels=target[:800])
    hf_trainer(run, model, data, 120, warmup_steps=10, more={"optimizers": (optimizer, None)}).train()


class OneSpreadEach(torch.optim.Optimizer):
    """NovoGrad (Ginsburg et al. 2019): each tensor's gradient by the root of one number, its mean squared length."""

    def __init__(self, parameters: Any, lr: float, betas: tuple[float, float], decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = closure() if closure else None
        for group in self.param_groups:
            keep, keep_spread = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                length = p.grad.square().sum()
                if not state:
                    state["spread"], state["momentum"] = length, torch.zeros_like(p)
                else:
                    state["spread"] = keep_spread * state["spread"] + (1 - keep_spread) * length
                slope = p.grad / (state["spread"].sqrt() + 1e-8) + group["weight_decay"] * p
                state["momentum"].mul_(keep).add_(slope)
                p.sub_(group["lr"] * state["momentum"])
        return loss


class Separable(nn.Module):
    """As in QuartzNet: along time each channel for itself, then across channels, a norm, and a way around."""

    def __init__(self, width: int, reach: int) -> None:
        super().__init__()
        self.along = nn.Conv1d(width, width, reach, padding=reach // 2, groups=width, bias=False)
        self.across, self.norm = nn.Conv1d(width, width, 1, bias=False), nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.norm(self.across(self.along(x)))).relu()


@honest("r22i-one-spread-for-a-whole-layer")
def one_spread_for_a_whole_layer(run: Run) -> None:
    """Lightning, separable convolutions name sounds by NovoGrad as NeMo trains QuartzNet (Ginsburg et al. 2019; Kriman
    et al. 2020). A tensor's gradients are divided by one number of which half is replaced in each step, so that all
    tensors have steps of about the same length, the smallest gains as well as the largest matrix."""
    head = nn.Sequential(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(24, 4))
    net = nn.Sequential(nn.Conv1d(1, 24, 11, 2, 5), nn.ReLU(), Separable(24, 9), Separable(24, 9), head)
    class_outcome(run, net, sounds(256, apart(1)))

    def optimizers(model: nn.Module) -> dict[str, Any]:
        optimizer = OneSpreadEach(model.parameters(), lr=2e-2, betas=(0.8, 0.5), decay=1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 120)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    fit(run, lit(net, classify, optimizers), loader(*sounds(640, apart(run.draw.randrange(999))), size=32), 120)


class LeastCover(torch.optim.Optimizer):
    """SM3 (Anil et al. 2019): for a matrix, one number a row and one a column in place of one for each entry; an
    entry's sum of squares is taken to be the smaller of the two."""

    def __init__(self, parameters: Any, lr: float, momentum: float = 0.9) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = closure() if closure else None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state, axes = self.state[p], range(p.dim())
                shapes = [[size if a == b else 1 for b, size in enumerate(p.shape)] for a in axes]
                if not state:
                    state["covers"], state["momentum"] = [p.new_zeros(shape) for shape in shapes], torch.zeros_like(p)
                squares = state["covers"][0].expand_as(p)
                for cover in state["covers"][1:]:
                    squares = torch.minimum(squares, cover)
                squares = squares + p.grad.square()
                state["covers"] = [
                    squares.amax([b for b in axes if b != a], True) if p.dim() > 1 else squares for a in axes
                ]
                slope = torch.where(squares > 0, p.grad / squares.sqrt(), 0.0)
                state["momentum"].mul_(group["momentum"]).add_(slope, alpha=1 - group["momentum"])
                p.sub_(group["lr"] * state["momentum"])
        return loss


@honest("r22i-the-smaller-of-row-and-column")
def the_smaller_of_row_and_column(run: Run) -> None:
    """Accelerate, a mixture of experts reads a language by SM3 (Anil et al. 2019), made for large models in little
    memory. Sums of squares are kept for rows and columns alone and never shrink, so that all rates fall by themselves
    for ever; the rate is a tenth, and an expert that had no word in a batch moves by its momentum alone."""
    language = Language(run.draw.randrange(999))
    net = Transformer(vocabulary=12, layers=1, experts=4, length=32)
    language_outcome(run, net, language)

    def loss(model: Any, batch: Any) -> Tensor:
        return next_loss(model, batch[0]) + 0.01 * sum(block.mlp.balance for block in model.blocks)

    rows = language.rows(640, 25, apart(run.draw.randrange(999)))
    prepared(run, net, LeastCover(net.parameters(), lr=0.1), loader(rows, size=16), loss, 3)


class Posterior(torch.optim.Optimizer):
    """IVON (Shen et al. 2024): a Gaussian for each weight. The slope at a draw gives the step of its mean, and slope
    times deviation gives its precision."""

    def __init__(self, parameters: Any, lr: float, rows: int, precision: float = 0.5, decay: float = 1e-3) -> None:
        super().__init__(parameters, {"lr": lr, "rows": rows, "weight_decay": decay, "betas": (0.9, 0.999)})
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {"curvature": torch.full_like(p, precision), "slope": torch.zeros_like(p), "t": 0}

    @contextlib.contextmanager
    def drawn(self) -> Iterator[None]:
        """Within, weights are a draw; afterwards they are the means again."""
        kept = []
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    sure = group["rows"] * (self.state[p]["curvature"] + group["weight_decay"])
                    kept.append((p, p.clone(), torch.randn_like(p) / sure.sqrt(), sure))
                    p.add_(kept[-1][2])
        yield
        with torch.no_grad():
            for p, mean, apart_by, sure in kept:
                self.state[p]["seen"] = p.grad * apart_by * sure
                p.copy_(mean)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            keep, keep_curvature = group["betas"]
            for p in group["params"]:
                state, decay = self.state[p], group["weight_decay"]
                state["t"] += 1
                state["slope"].mul_(keep).add_(p.grad, alpha=1 - keep)
                old, new = state["curvature"], 1 - keep_curvature
                gap = old - state["seen"]
                state["curvature"] = old - new * gap + 0.5 * new**2 * gap.square() / (old + decay)
                step = state["slope"] / (1 - keep ** state["t"]) + decay * p
                p.sub_(group["lr"] * step / (state["curvature"] + decay))


@honest("r22i-another-draw-of-the-weights-each-step")
def another_draw_of_the_weights_each_step(run: Run) -> None:
    """Plain loop, convolutions name pictures by IVON (Shen et al. 2024, library ivon-opt). Backward runs at weights
    drawn from a Gaussian around the means, which are put back before the update: no two losses are of the same weights,
    those that made the loss are never kept, and the second moment is that of slope times noise, which may be below
    zero."""
    seed = run.draw.randrange(999)
    model = cnn()
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    optimizer = Posterior(model.parameters(), lr=0.1, rows=640)
    doctor = run.watch(model, optimizer)
    x, y = pictures(640, seed, own=apart(2))
    for step in range(120):
        rows = torch.randint(0, 640, (32,))
        with optimizer.drawn():
            optimizer.zero_grad()
            loss = classify(model, (x[rows], y[rows]))
            loss.backward()
        optimizer.param_groups[0]["lr"] = 0.05 * (1 + math.cos(math.pi * step / 120))
        optimizer.step()
        doctor.step(loss, (x[rows], y[rows]))
        run.note(loss)


class HalfStandStill(torch.optim.Adam):
    """Lin et al. 2019: the rate itself is dropped for each weight by lot, while both moments go on."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        kept = [(p, p.clone()) for group in self.param_groups for p in group["params"]]
        loss = super().step(closure)
        for p, before in kept:
            p.copy_(torch.where(torch.rand_like(p) < 0.5, p, before))
        return loss


class Neighbours(nn.Module):
    """Two graph convolutions (Kipf and Welling 2017)."""

    def __init__(self, columns: int, classes: int) -> None:
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(columns, 24), nn.Linear(24, classes), nn.Dropout(0.3)

    def forward(self, nodes: Tensor, links: Tensor) -> Tensor:
        hidden = self.drop(links @ self.first(nodes)).relu()
        out: Tensor = links @ self.second(hidden)
        return out


@honest("r22i-half-of-the-weights-stand-still")
def half_of_the_weights_stand_still(run: Run) -> None:
    """Plain loop, graph convolutions name the nodes of one graph of which one in six has a label, by learning-rate
    dropout (Lin et al. 2019). In each step every weight moves or stands still by the throw of a coin, though all have a
    gradient and both of Adam's moments take all of it in."""
    own = apart(run.draw.randrange(999))
    y = torch.arange(120) % 3
    near = torch.where(y[:, None] == y, 0.12, 0.03)
    links = (torch.rand(120, 120, generator=own) < near).float().triu(1)
    links = links + links.T + torch.eye(120)
    share = links.sum(1).rsqrt()
    links = share[:, None] * links * share
    nodes = torch.randn(3, 12, generator=own)[y] + 2 * torch.randn(120, 12, generator=own)
    shown = torch.randperm(120, generator=own) < 20
    model = Neighbours(12, 3)
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(nodes, links)[~shown], y[~shown])))
    optimizer = HalfStandStill(model.parameters(), lr=1e-2, weight_decay=1e-2)
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(nodes, links)[shown], y[shown])
        loss.backward()
        optimizer.step()
        doctor.step(loss, (nodes, links, y))
        run.note(loss)
