"""Numbers that their format cannot hold."""

from __future__ import annotations

import math
from typing import Any

import torch
from benchmarks.doctor.data import IGNORED, PAD
from benchmarks.doctor.fault import Exact, Fault, above
from benchmarks.doctor.loop import Batch, Loop, after
from benchmarks.doctor.models import Attend, anatomy, set_attention
from torch import Tensor, nn

HALF_MAX = 65504.0
ONSET = 30
PADDED_FROM = 20
HALF_SCORES = {"steps": 60}


def half_scores(loop: Loop) -> Attend:
    """Attention that forms q·k in float16 and divides by √d_head afterwards."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        products = (query.half() @ key.half().transpose(-1, -2)).float()
        loop.notes["largest"] = max(loop.notes.get("largest", 0.0), float((query @ key.mT).detach().abs().max()))
        hidden = torch.ones_like(products[0, 0], dtype=torch.bool).triu(1)
        weights = (products / math.sqrt(query.shape[-1])).masked_fill(hidden, -math.inf).softmax(-1)
        return weights.to(value.dtype) @ value

    return attend


def scores_overflow(loop: Loop) -> None:
    """Query and key weights of block 1 jump mid-run so that their products pass float16's largest number."""
    after(loop, "build", lambda model: set_attention(model, half_scores(loop)))

    def jump() -> None:
        loop.notes["largest"] = 0.0
        with torch.no_grad():
            loop.forward(loop.batch(loop.number, 0))
            factor = math.sqrt(3 * HALF_MAX / loop.notes["largest"])
            for weight, part in anatomy(loop.model).query_key[1]:
                weight[part] *= factor

    loop.at(ONSET, jump)


def scores_grow(loop: Loop) -> None:
    """From the middle of the run on, query and key weights of block 1 grow by a tenth at every step."""
    after(loop, "build", lambda model: set_attention(model, half_scores(loop)))

    def grow(_: None) -> None:
        if loop.number >= ONSET:
            with torch.no_grad():
                for weight, part in anatomy(loop.model).query_key[1]:
                    weight[part] *= 1.1

    after(loop, "clear", grow)


def largest_loss(loop: Loop) -> float:
    """The largest loss of a run; infinite once one is not a number."""
    loop.run()
    return max(x if math.isfinite(x) else math.inf for x in loop.losses)


def bfloat16(loop: Loop) -> None:
    """Weights kept in bfloat16 alone, no float32 master copy."""
    after(loop, "build", lambda model: model.to(torch.bfloat16))


def lost_updates(loop: Loop) -> float:
    """Share of the elements of all matrices and gains that ten updates left exactly as they were."""
    loop.prepare()
    before = {name: p.detach().clone() for name, p in loop.model.named_parameters()}
    loop.number = 0
    loop.scheduler.last_epoch = loop.settings.warmup
    for loop.number in range(10):
        loop.step()
    same = total = 0
    for name, p in loop.model.named_parameters():
        if p.ndim == 2 and before[name].shape[0] != loop.settings.vocab:
            same += int((p == before[name]).sum())
            total += p.numel()
    return same / total


def padded_left(loop: Loop) -> None:
    """Rows padded on the left; attention written out hides the padding from every query, the padding's own included."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        seen = loop.notes["visible"][:, None, None, :].expand(-1, 1, query.shape[-2], -1).tril()
        scores = (query @ key.transpose(-1, -2)) / math.sqrt(query.shape[-1])
        return scores.masked_fill(~seen, -math.inf).softmax(-1) @ value

    def look(module: nn.Module, given: Any, named: Any) -> None:
        loop.notes["visible"] = (given[0] if given else named["input_ids"]) != PAD

    def change(model: nn.Module) -> None:
        set_attention(model, attend)
        model.register_forward_pre_hook(look, with_kwargs=True)

    def pad(made: Batch) -> Batch:
        inputs, targets = made
        if loop.number >= PADDED_FROM:
            hidden = torch.zeros_like(inputs, dtype=torch.bool)
            hidden[::3, : inputs.shape[1] // 2] = True
            return inputs.masked_fill(hidden, PAD), targets.masked_fill(hidden, IGNORED)
        return made

    after(loop, "build", change)
    after(loop, "shifted", pad)


def half_logit_gradient(loop: Loop) -> None:
    """The gradient of the logits passes through float16, and nothing scales the loss."""

    def through_half(logits: Tensor) -> None:
        if logits.requires_grad:
            logits.register_hook(lambda gradient: gradient.half().to(gradient.dtype))

    after(loop, "forward", through_half)


def zeros_of_logit_gradient(loop: Loop) -> float:
    """Share of exact zeros among the gradients of the logits in one step."""
    seen: list[Tensor] = []

    def look(logits: Tensor) -> None:
        if logits.requires_grad:
            logits.register_hook(lambda gradient: seen.append(gradient))  # returns nothing, so changes nothing

    after(loop, "forward", look)
    loop.prepare()
    loop.step()
    return float((seen[0] == 0).float().mean())


def half_model(loop: Loop) -> None:
    """Weights, gradients and moments in float16, Adam with the usual ε."""
    after(loop, "build", lambda model: model.half())
    loop.make_optimizer = lambda: torch.optim.Adam(loop.groups(), lr=loop.settings.rate, eps=1e-8, foreach=False)


def weights_not_numbers(loop: Loop) -> float:
    """Elements of all weights that are not finite at the end of the run."""
    loop.run()
    return float(sum(int((~p.isfinite()).sum()) for p in loop.model.parameters()))


def exponential_of_logits(loop: Loop) -> None:
    """A loss written by hand, log Σ exp without subtracting the maximum, on logits that a head scale makes large."""

    def loss(logits: Tensor, batch: Any) -> Tensor:
        logits = logits.flatten(0, 1) * (1.0 if loop.number < ONSET else 60.0)
        chosen = logits.gather(1, batch[1].flatten()[:, None])[:, 0]
        return (logits.exp().sum(-1).log() - chosen).mean()

    loop.loss = loss


def square_root_at_zero(loop: Loop) -> None:
    """A penalty √(x²) whose derivative at x = 0 is 0/0: the gradient is NaN while the loss is finite."""

    def penalised(loss: Tensor) -> Tensor:
        bias = next(p for p in loop.model.parameters() if p.ndim == 1)
        return loss + 1e-6 * ((bias - bias.detach()) ** 2).sum().sqrt() if loop.number >= ONSET else loss

    after(loop, "loss", penalised)


LARGE_VOCABULARY = {"vocab": 8192, "width": 32, "blocks": 2, "heads": 1, "rows": 80, "steps": 12, "warmup": 2}
SLOW = {"rate": 1e-5, "warmup": 2, "steps": 60, "decay": 0.0}
NOT_A_NUMBER = Exact("largest loss of the run, nats", largest_loss, lambda bad, good: bad == math.inf > good)


def never_scaled(loop: Loop) -> None:
    """The loss goes backward as it is, and its gradients are divided by the scale all the same."""

    def backward(loss: Tensor) -> None:
        assert loop.scaler is not None
        loop.scaler.scale(loss.detach() * 0)  # the scale is there
        loss.backward()

    loop.backward = backward


def norm_at_update(loop: Loop) -> float:
    """Gradient norm that the first update uses."""
    loop.prepare()
    seen: list[float] = []

    def look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        seen.append(math.sqrt(sum(float(p.grad.square().sum()) for g in optimizer.param_groups for p in g["params"])))

    loop.optimizer.register_step_pre_hook(look)
    loop.step()
    return seen[0]


FAULTS = (
    Fault("NUM-01", "q·k in float16 before scaling; weights of block 1 jump mid-run", scores_overflow,
          ("scores-overflow-half",), NOT_A_NUMBER, HALF_SCORES, onset=ONSET),
    Fault("NUM-01 slow", "q·k in float16 before scaling; queries and keys grow by a tenth a step", scores_grow,
          ("scores-overflow-half",), NOT_A_NUMBER, {"steps": 120}, onset=ONSET),
    Fault("NUM-02", "bfloat16 weights at learning rate 1e-5", bfloat16, ("updates-lost-to-rounding",),
          Exact("share of weights that ten updates leave unchanged", lost_updates, above(0.3)), SLOW),
    Fault("NUM-02 faster", "bfloat16 weights at learning rate 3e-5", bfloat16,
          ("updates-lost-to-rounding",),
          Exact("share of weights that ten updates leave unchanged", lost_updates, above(0.3)),
          {"rate": 3e-5, "warmup": 2, "steps": 60, "decay": 0.0}),
    Fault("NUM-03", "left padding under a causal mask, softmax written out", padded_left,
          ("attention-row-sees-nothing",), NOT_A_NUMBER, {"steps": 40}, onset=PADDED_FROM),
    Fault("NUM-04", "gradient of the logits in float16, loss not scaled", half_logit_gradient,
          ("half-gradients-flush-to-zero",), Exact("share of zeros among the logits' gradients",
          zeros_of_logit_gradient, lambda bad, good: bad > 0.1 > 2 * good), LARGE_VOCABULARY),
    Fault("NUM-05", "float16 weights and moments, Adam's ε = 1e-8", half_model, ("epsilon-rounds-to-zero",),
          Exact("weights that are not finite at the end", weights_not_numbers, above(0)), {"steps": 10}),
    Fault("NUM-06", "log Σ exp by hand, without the maximum", exponential_of_logits, ("not-finite",),
          NOT_A_NUMBER, {"steps": 50}, onset=ONSET),
    Fault("NUM-07", "√ at zero in a penalty: NaN gradient from a finite loss", square_root_at_zero,
          ("not-finite",), Exact("weights that are not finite at the end", weights_not_numbers, above(0)),
          {"steps": 40, "clip": None}, onset=ONSET),
    Fault("NUM-08", "gradients divided by a scale that the loss never had", never_scaled, ("loss-not-scaled",),
          Exact("gradient norm at the update", norm_at_update, lambda bad, good: bad < 1e-3 * good), {"scaled": True}),
)  # fmt: skip
