"""Round 15b, honest and odd: update rules and their settings."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    class_outcome,
    endless,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    next_loss,
    number_outcome,
    outcome,
    pictures,
    table,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_parts import Patches, Reader, spots
from benchmarks.robustness.loops.round7b_tools import adam, text_outcome, update
from benchmarks.robustness.loops.round12b_parts import hidden, mixed_loss
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r15b-rate-grows-without-end")
def rate_grows_without_end(run: Run) -> None:
    """A plain loop for pictures with the exponential rate of Li and Arora (2020): it grows by two per cent a step,
    fiftyfold by the end, without any decay of weights. All layers but the last, which stays as drawn, are followed by a
    norm, so that weights grow with the rate and what counts, their quotient, does not."""
    seed = run.draw.randrange(999)
    layers: list[nn.Module] = []
    for a, b in ((1, 8), (8, 16)):
        norm = nn.BatchNorm2d(b, affine=False)
        layers += [nn.Conv2d(a, b, 3, padding=1, bias=False), norm, nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 4, bias=False).requires_grad_(False))
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 1.02)
    doctor = run.watch(model, optimizer, scheduler=schedule)
    data = endless(loader(*pictures(480, seed), size=24))
    for _ in range(200):
        batch = next(data)
        update(run, doctor, optimizer, classify(model, batch), batch)
        schedule.step()


@honest("r15b-decay-ten-times-as-strong-at-the-end")
def decay_ten_times_as_strong_at_the_end(run: Run) -> None:
    """Lightning, a vision transformer with DINO's schedule of the decay. While the rate falls, the weight decay climbs
    along a line from 0.04 to 0.4, written into the optimizer's groups before each step, and it is on for all
    parameters."""
    net = Patches(4)
    check = spots(256, 4, apart(1))
    outcome(run, lambda: judged(net, lambda: classify(net, check)))

    def optimizers(m: nn.Module) -> Any:
        optimizer = torch.optim.AdamW(m.parameters(), lr=3e-3, weight_decay=0.04)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 120, 3e-4)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    module = lit(net, classify, optimizers)

    def climb(batch: Any, index: int) -> None:
        for group in module.optimizers().param_groups:
            group["weight_decay"] = 0.04 + 0.36 * module.global_step / 120

    module.on_train_batch_start = climb
    fit(run, module, loader(*spots(480, 4)), 120)


class Cautious(torch.optim.Optimizer):
    """Liang et al. 2024: AdamW that leaves out each entry whose update and gradient disagree in sign."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state |= {"t": 0, "m": torch.zeros_like(p), "v": torch.zeros_like(p)}
                state["t"] += 1
                state["m"].lerp_(p.grad, 0.1)
                state["v"].lerp_(p.grad.square(), 0.01)
                step = state["m"] / (1 - 0.9 ** state["t"]) / ((state["v"] / (1 - 0.99 ** state["t"])).sqrt() + 1e-8)
                agree = (step * p.grad > 0).float()
                p.sub_(group["lr"] * step * agree / agree.mean().clamp_min(1e-3))


@honest("r15b-only-where-both-agree")
def only_where_both_agree(run: Run) -> None:
    """transformers' Trainer, GPT-2 with a cautious Adam handed over. Where momentum and gradient differ in sign a
    weight stands still for this step, which is about a third of them at any time, and the others move the further."""
    language = Language(run.draw.randrange(999), first=4)
    model = tiny_gpt2(16)
    check = language.rows(96, 20, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    rows = language.rows(480, 20)
    optimizer = Cautious(model.parameters(), 4e-3)
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 90, more={"optimizers": (optimizer, None)}).train()


class Ftrl(torch.optim.Optimizer):
    """McMahan et al. 2013: weights are worked out anew from two sums of gradients, and are zero where the first is
    small."""

    def __init__(self, parameters: Any, alpha: float, l1: float) -> None:
        super().__init__(parameters, {"lr": alpha, "l1": l1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state, g = self.state[p], p.grad
                if not state:
                    state |= {"z": torch.zeros_like(p), "n": torch.zeros_like(p)}
                z, n = state["z"], state["n"]
                z.add_(g - ((n + g.square()).sqrt() - n.sqrt()) / group["lr"] * p)
                n.add_(g.square())
                p.copy_(-(z - z.sign() * group["l1"]) * group["lr"] / (1 + n.sqrt()) * (z.abs() > group["l1"]))


class Clicks(nn.Module):
    """A number for each hashed feature, summed, and a number for all."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weights, self.common = nn.EmbeddingBag(features, 1, mode="sum"), nn.Parameter(torch.zeros(1))
        nn.init.zeros_(self.weights.weight)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.weights(ids)[:, 0] + self.common
        return out


@honest("r15b-weights-from-two-sums")
def weights_from_two_sums(run: Run) -> None:
    """accelerate, clicks on advertisements from hashed features, with FTRL-proximal. All weights begin at zero, each
    stays at zero exactly until its sum of gradients is above one, which most never reach, and some fall back to zero;
    rows are read once, in the order in which they came."""
    truth = torch.randn(256, generator=apart(run.draw.randrange(999))) * 2
    truth[torch.rand(256, generator=apart(3)) < 0.6] = 0.0

    def clicks(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        ids = (256 * torch.rand(count, 6, generator=own) ** 2).long()
        chance = (truth[ids].sum(1) - 1).sigmoid()
        return ids, (torch.rand(count, generator=own) < chance).float()

    def loss(m: Any, b: Any) -> Any:
        return F.binary_cross_entropy_with_logits(m(b[0]), b[1])

    model, check = Clicks(256), clicks(1024, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    optimizer = Ftrl(model.parameters(), 1.0, 1.0)
    prepared(run, model, optimizer, loader(*clicks(6400), shuffle=False), loss, 1)


@honest("r15b-epsilon-of-one")
def epsilon_of_one(run: Run) -> None:
    """Lightning, an LSTM with RMSprop as the Inception nets had it: epsilon is 1, a hundred times what it is added to,
    so that the running squares hardly matter, and what is left is momentum of 0.9 at a rate that would be wild for
    RMSprop."""
    language = Language(run.draw.randrange(999))
    model = Reader(12, core=nn.LSTM)
    text_outcome(run, model, language)
    settings: dict[str, Any] = {"lr": 0.15, "alpha": 0.9, "eps": 1.0, "momentum": 0.9}
    module = lit(model, lambda m, b: next_loss(m, b[0]), lambda m: torch.optim.RMSprop(m.parameters(), **settings))
    fit(run, module, loader(language.rows(960, 24), size=12), 150, gradient_clip_val=1.0)


class Lamb(torch.optim.Optimizer):
    """You et al. 2020: Adam's step, drawn to the length of the weights that it moves."""

    def __init__(self, parameters: Any, lr: float, decay: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state |= {"t": 0, "m": torch.zeros_like(p), "v": torch.zeros_like(p)}
                state["t"] += 1
                state["m"].lerp_(p.grad, 0.1)
                state["v"].lerp_(p.grad.square(), 0.01)
                m, v = state["m"] / (1 - 0.9 ** state["t"]), state["v"] / (1 - 0.99 ** state["t"])
                step = m / (v.sqrt() + 1e-6) + group["decay"] * p
                size, length = p.norm(), step.norm()
                p.sub_(group["lr"] * step * (size / length if size > 0 and length > 0 else 1.0))


@honest("r15b-steps-as-long-as-the-weights")
def steps_as_long_as_the_weights(run: Run) -> None:
    """transformers' Trainer, BERT for hidden words in batches of 192 with LAMB. Each tensor moves by a twelfth of its
    own length in each of the first steps, whatever its gradient is, and biases, which begin at zero, by a rule of their
    own; forty steps are all."""
    from transformers import BertConfig, BertForMaskedLM

    language = Language(run.draw.randrange(999), words=12, first=3)
    model = BertForMaskedLM(
        BertConfig(vocab_size=16, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    )

    def data(count: int, own: torch.Generator) -> dict[str, Tensor]:
        rows = language.rows(count, 14, own)
        labels = hidden(rows, 2, 0.2, own)[1]
        return {"input_ids": rows, "labels": labels}

    check = data(128, apart(1))
    outcome(run, lambda: judged(model, lambda: mixed_loss(model, check)))
    optimizer = Lamb(model.parameters(), 0.08)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.02, 1 - step / 40))
    options: dict[str, Any] = {"per_device_train_batch_size": 192, "more": {"optimizers": (optimizer, schedule)}}
    hf_trainer(run, model, examples(**data(1536, apart(2))), 40, **options).train()


@honest("r15b-head-is-solved-for")
def head_is_solved_for(run: Run) -> None:
    """Plain loop, a table's regression by variable projection. The last layer is never in the optimizer and has no
    gradient: in each step ridge regression on half of the batch says what it is, the other half judges it, and the body
    learns through the solution; the solved weights are copied into the head for use."""
    seed = run.draw.randrange(999)
    body, head = mlp(6, 32, 12, act=nn.Tanh), nn.Linear(12, 1)
    model = nn.Sequential(body, nn.Tanh(), head)
    number_outcome(run, model, table(512, seed, apart(1)))
    optimizer = adam(body, 1e-2)
    doctor = run.watch(model, optimizer)
    for _ in range(150):
        x, y = table(96, seed)
        features = F.pad(body(x).tanh(), (0, 1), value=1.0)
        known, asked = features[:64], features[64:]
        solved = torch.linalg.solve(known.T @ known + 0.1 * torch.eye(13), known.T @ y[:64, None])
        update(run, doctor, optimizer, F.mse_loss((asked @ solved).squeeze(1), y[64:]), (x, y))
        with torch.no_grad():
            head.weight.lerp_(solved[:-1].T, 0.2)
            head.bias.lerp_(solved[-1], 0.2)


class Flips(torch.optim.Optimizer):
    """Helwegen et al. 2019: a binary weight changes its sign where the running gradient asks for it loudly enough."""

    def __init__(self, parameters: Any, lr: float, threshold: float) -> None:
        super().__init__(parameters, {"lr": lr, "threshold": threshold})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                mean.lerp_(p.grad, group["lr"])
                p[(mean.abs() > group["threshold"]) & (mean.sign() == p.sign())] *= -1


@honest("r15b-weights-that-only-flip")
def weights_that_only_flip(run: Run) -> None:
    """Plain loop, pictures by a net of binary weights with Bop. Every weight is 1 or -1 from the first step to the last
    and there is nothing finer behind it: an update flips a few signs, most steps leave nearly all weights as they are,
    and what is called the rate is how fast gradients are averaged. Norms without gains stand between the layers."""
    seed = run.draw.randrange(999)
    sizes = [(64, 96), (96, 96), (96, 4)]
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in sizes:
        layers += [nn.Linear(a, b, bias=False), nn.BatchNorm1d(b, affine=False), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.where(torch.rand_like(p) < 0.5, 1.0, -1.0))
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    optimizer = Flips(model.parameters(), 0.05, 2e-4)
    doctor = run.watch(model, optimizer)
    data = endless(loader(*pictures(480, seed), size=32))
    for _ in range(180):
        batch = next(data)
        update(run, doctor, optimizer, classify(model, batch), batch)
