"""Healthy runs that look odd. The doctor must have nothing worse than a notice to say about any of them."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.doctor.fault import Healthy as Healthy
from benchmarks.doctor.loop import Loop, after
from benchmarks.doctor.models import anatomy, set_attention
from benchmarks.doctor.practices import PRACTICES
from torch import Tensor, nn


def as_it_is(loop: Loop) -> None:
    pass


def three_epochs(loop: Loop) -> None:
    """The rows of the first third of the run come again, in another order, in the second and the third."""
    third = -(-loop.settings.steps // 3)

    def tokens(step: int, micro: int) -> Tensor:
        order = torch.randperm(third, generator=torch.Generator().manual_seed(step // third)).tolist()
        return Loop.tokens(loop, order[step % third], micro)

    loop.tokens = tokens


def many_heads(loop: Loop) -> None:
    """One key head for all queries, a window of 16, normed queries and keys, scores capped at 30."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key = (F.rms_norm(x, x.shape[-1:]) for x in (query, key))
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        visible = torch.ones_like(scores[0, 0], dtype=torch.bool).tril().triu(1 - 16)
        return (30 * (scores / 30).tanh()).masked_fill(~visible, -math.inf).softmax(-1) @ value

    after(loop, "build", lambda model: set_attention(model, attend))


def copied_halves(loop: Loop) -> None:
    """Random tokens whose second half repeats the first: flat at the entropy of a token, until induction is found."""

    def tokens(step: int, micro: int) -> Tensor:
        s = loop.settings
        generator = torch.Generator().manual_seed(hash((loop.seed, step, micro)) % 2**31)
        half = torch.randint(0, s.vocab, (s.rows, s.positions // 2 + 1), generator=generator)
        return torch.cat((half, half), 1)[:, : s.positions + 1]

    loop.tokens = tokens


class LowRank(nn.Module):
    """W x + B A x with W frozen and B = 0 (Hu et al. 2021, eq. 3, arXiv:2106.09685)."""

    def __init__(self, base: nn.Module, rank: int = 8) -> None:
        super().__init__()
        self.base = base
        flipped = type(base).__name__ == "Conv1D"
        wide, narrow = base.weight.shape if not flipped else base.weight.shape[::-1]
        self.down = nn.Parameter(torch.randn(rank, narrow) / math.sqrt(narrow))
        self.up = nn.Parameter(torch.zeros(wide, rank))

    def forward(self, x: Tensor, *more: object) -> Tensor:
        return self.base(x, *more) + x @ self.down.T @ self.up.T


def adapters(loop: Loop) -> None:
    """Low-rank adapters beside the frozen matrices of every MLP."""

    def adapt(model: nn.Module) -> None:
        model.requires_grad_(False)
        for mlp in anatomy(model).mlps:
            for name, part in list(mlp.named_children()):
                if getattr(part, "weight", None) is not None and part.weight.ndim == 2:
                    setattr(mlp, name, LowRank(part))

    after(loop, "build", adapt)


def last_in_step(loop: Any) -> None:
    """Gradients are averaged with the last micro-batch only; ranks differ inside a step."""
    micro_step = loop.micro_step

    def accumulated(batch: Any) -> Tensor:
        if loop.micro == loop.settings.micro_batches - 1:
            return micro_step(batch)
        with loop.wrapped.no_sync():
            return micro_step(batch)

    loop.micro_step = accumulated


def restarts(loop: Loop) -> None:
    """Cosines that start again every 40 steps, from a tenth to the peak."""
    loop.share_of_peak = lambda step: 0.1 + 0.45 * (1 + math.cos(math.pi * (step % 40) / 40))


def decayed_head(loop: Loop) -> None:
    """Decay on all matrices, the one that is embedding and head included."""

    def groups() -> list[dict[str, Any]]:
        matrices = [p for p in loop.model.parameters() if p.ndim >= 2]
        vectors = [p for p in loop.model.parameters() if p.ndim < 2]
        return [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]

    loop.groups = groups


def half_scores_scaled(loop: Loop) -> None:
    """Scaled gradients pass through float16 on their way from the logits; the first scale is far too high."""

    def through_half(logits: Tensor) -> None:
        if logits.requires_grad:
            logits.register_hook(lambda gradient: gradient.half().to(gradient.dtype))

    after(loop, "forward", through_half)


def evaluated(loop: Loop) -> None:
    """An evaluation every ten steps, as it should be, and back to training."""
    for step in range(10, loop.settings.steps, 10):
        loop.at(step, lambda: loop.validation(16) and None)


def no_schedule(loop: Loop) -> None:
    """A constant rate from the first step on, and a plain SGD."""
    loop.share_of_peak = lambda step: 1.0
    loop.make_optimizer = lambda: torch.optim.SGD(loop.model.parameters(), lr=0.1, momentum=0.9)


def cleared_first(loop: Loop) -> None:
    """zero_grad before the backward pass instead of after the update."""
    step = loop.step

    def begun() -> tuple[Tensor, list[Any]]:
        loop.optimizer.zero_grad()
        return step()

    loop.step, loop.clear = begun, lambda: None


def by_heart(loop: Loop) -> None:
    """One batch, kept by the loop, to see that the model can learn it."""
    kept = loop.batch(0, 0)
    loop.batch = lambda step, micro: kept


def queries_scaled(loop: Loop) -> None:
    """Queries are divided by √d_head before the product, and the scores no more."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scaled = query * query.shape[-1] ** -0.5
        return F.scaled_dot_product_attention(scaled, key, value, is_causal=True, scale=1.0)

    after(loop, "build", lambda model: set_attention(model, attend))


def halved_each_epoch(loop: Loop) -> None:
    """A rate that is halved after every second of six epochs."""
    epoch = max(1, loop.settings.steps // 6)
    loop.make_scheduler = lambda: torch.optim.lr_scheduler.StepLR(loop.optimizer, 2, 0.5)

    def advance() -> None:
        if loop.number % epoch == epoch - 1:
            loop.scheduler.step()

    loop.advance = advance


def zero_outputs(loop: Loop) -> None:
    """The head starts at 0."""

    def silence(model: nn.Module) -> None:
        head = anatomy(model).head
        weight = getattr(head, "weight", None)
        if weight is not None:
            nn.init.zeros_(weight)

    after(loop, "build", silence)


def taught_by_a_model(loop: Loop) -> None:
    """Distillation: the targets are another model's probabilities."""
    kept: dict[str, Tensor] = {}
    teacher = Loop(loop.architecture, 7, loop.settings)

    def forward(batch: Any) -> Tensor:
        with torch.no_grad():
            kept["targets"] = teacher.forward(batch).log_softmax(-1)
        return Loop.forward(loop, batch)

    def loss(logits: Tensor, batch: Any) -> Tensor:
        parts = (x.flatten(0, 1) for x in (logits.log_softmax(-1), kept["targets"]))
        return F.kl_div(*parts, log_target=True, reduction="batchmean")

    teacher.run(steps=30)
    teacher.model.eval()
    loop.forward, loop.loss = forward, loss


def smoothed(loop: Loop) -> None:
    """Label smoothing 0.1, in bits."""
    loop.loss = lambda logits, batch: (
        F.cross_entropy(logits.flatten(0, 1), batch[1].flatten(), label_smoothing=0.1) / math.log(2)
    )


def stable_then_decay(loop: Loop) -> None:
    """Constant, then straight to 0 over the last fifth."""
    steps = loop.settings.steps
    loop.share_of_peak = lambda step: min(1.0, (step + 1) / 10, max(0.0, 5 * (steps - step) / steps))


class RandomlyRounded(torch.optim.Optimizer):
    """Adam on bfloat16 weights that are rounded at random, so that in the mean nothing is lost."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.95), "eps": 1e-8})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state, g = self.state[p], p.grad.float()
                count = state["step"] = state.get("step", 0) + 1
                m = state.setdefault("exp_avg", torch.zeros_like(g)).lerp_(g, 0.1) / (1 - 0.9**count)
                v = state.setdefault("exp_avg_sq", torch.zeros_like(g)).lerp_(g * g, 0.05) / (1 - 0.95**count)
                bits = (p.float() - group["lr"] * m / (v.sqrt() + group["eps"])).view(torch.int32)
                bits += torch.randint_like(bits, 2**16)
                p.copy_((bits & -(2**16)).view(torch.float32))


def rounded_at_random(loop: Loop) -> None:
    loop.make_optimizer = lambda: RandomlyRounded(loop.model.parameters(), loop.settings.rate)


HEALTHY = (
    Healthy("OK-00", "the base loop", as_it_is),
    Healthy("OK-01", "four letters (DNA), ln 4 = 1.39 nats", as_it_is, {"vocab": 4, "text": "dna"}),
    Healthy("OK-02", "warm-up for half of the run", as_it_is, {"steps": 100, "warmup": 50}),
    Healthy("OK-03", "a large batch, three epochs", three_epochs, {"rows": 64, "steps": 45, "blocks": 2}),
    Healthy("OK-04", "tied embeddings, decay on every matrix", decayed_head, {"tied": True}),
    Healthy("OK-05", "one key head, window, normed queries and keys, capped scores", many_heads, {"key_heads": 1}),
    Healthy("OK-06", "a plateau, then a drop: the second half of each row repeats the first", copied_halves,
            {"vocab": 32, "steps": 250, "blocks": 2, "rate": 3e-3, "positions": 32, "rows": 16}),
    Healthy("OK-07", "fine-tuning a trained model at rate 1e-5", as_it_is,
            {"pretrained_steps": 60, "rate": 1e-5, "warmup": 1}),
    Healthy("OK-08", "low-rank adapters on a frozen model", adapters, {"pretrained_steps": 60}),
    Healthy("OK-09", "instruction tuning: most labels masked, few per row", as_it_is, {"labels": "few"}),
    Healthy("OK-10", "float16 with loss scaling from 2³⁰: the first steps are skipped", half_scores_scaled,
            {"scaled": True, "initial_scale": 2.0**30, "steps": 120}),
    Healthy("OK-11", "eight micro-batches with uneven label counts, normed by their total", as_it_is,
            {"micro_batches": 8, "rows": 2, "labels": "uneven", "steps": 50}),
    Healthy("OK-11 ranks", "two ranks, three micro-batches, averaged at the last one only", last_in_step,
            {"micro_batches": 3, "rows": 2, "steps": 40}, ranks=2),
    Healthy("OK-12", "cosines with restarts", restarts, {"steps": 120, "rate": 3e-3}),
    Healthy("OK-13", "evaluated every ten steps, dropout 0.1", evaluated, {"dropout": 0.1}),
    Healthy("OK-14", "SGD with momentum at a constant rate", no_schedule, {"warmup": 1}),
    Healthy("OK-15", "gradients cleared before the backward pass", cleared_first),
    Healthy("OK-16", "padded documents, padding masked, ends learned", as_it_is, {"labels": "documents"}),
    Healthy("OK-17", "one batch learned by heart, on purpose", by_heart, {"rate": 3e-3, "steps": 100}),
    Healthy("OK-18", "queries scaled before the product", queries_scaled),
    Healthy("OK-19", "a schedule that advances once per epoch", halved_each_epoch),
    Healthy("OK-20", "rows of eight tokens", as_it_is, {"positions": 8, "rows": 32}),
    Healthy("OK-21", "a head that starts at zero", zero_outputs),
    Healthy("OK-22", "distilled from another model", taught_by_a_model),
    Healthy("OK-23", "smoothed labels, loss in bits", smoothed),
    Healthy("OK-24", "a constant rate, then straight to zero", stable_then_decay),
    Healthy("OK-25", "bfloat16 weights, rounded at random", rounded_at_random, {"storage": torch.bfloat16}),
    Healthy("OK-26", "rows of one", as_it_is, {"rows": 1, "steps": 120}),
    *PRACTICES,
)  # fmt: skip
