"""Updates that are too large, too small, or go elsewhere."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from benchmarks.doctor.fault import Exact, Fault, Worse, above, below
from benchmarks.doctor.loop import Inject, Loop, after
from benchmarks.doctor.models import anatomy
from torch import nn

LATER = 60


def no_clear(loop: Loop) -> None:
    loop.clear = lambda: None


def left_gradient(loop: Loop) -> float:
    """Norm of the gradients there are before the second step's own are added."""
    loop.prepare()
    loop.step()
    return math.sqrt(sum(float(p.grad.square().sum()) for p in loop.model.parameters() if p.grad is not None))


def forgotten(loop: Loop) -> float:
    """Trainable elements of the model that are in none of the optimizer's groups."""
    loop.prepare()
    held = {id(p) for group in loop.optimizer.param_groups for p in group["params"]}
    return float(sum(p.numel() for p in loop.model.parameters() if p.requires_grad and id(p) not in held))


def blocks_and_head_only(loop: Loop) -> None:
    def groups() -> list[dict[str, Any]]:
        parts = anatomy(loop.model)
        assert parts.head is not None
        return [{"params": [*parts.of_blocks(), *parts.head.parameters()], "weight_decay": 0.1}]

    loop.groups = groups


def one_matrix_forgotten(loop: Loop) -> None:
    """A name filter that misses one matrix: the MLP of the last block."""

    def groups() -> list[dict[str, Any]]:
        missed = {id(p) for p in anatomy(loop.model).mlps[-1].parameters()}
        return [{"params": [p for p in loop.model.parameters() if id(p) not in missed], "weight_decay": 0.1}]

    loop.groups = groups


def new_head(loop: Loop) -> None:
    """The head is replaced once the optimizer exists."""

    def change() -> None:
        owner, name = anatomy(loop.model).head_place
        head = nn.Linear(loop.settings.width, loop.settings.vocab, bias=False, device=loop.settings.device)
        nn.init.normal_(head.weight, std=0.02)
        setattr(owner, name, head)

    loop.change = change


def copied_model(loop: Loop) -> None:
    """The model is copied once the optimizer exists, and the copy is trained."""

    def change() -> None:
        loop.model = copy.deepcopy(loop.model)

    loop.change = change


def assigned_weights(loop: Loop) -> None:
    """A checkpoint is loaded with assign=True once the optimizer exists."""

    def change() -> None:
        state = {name: tensor.clone() for name, tensor in loop.model.state_dict().items()}
        loop.model.load_state_dict(state, assign=True)

    loop.change = change


def clip_before_unscale(loop: Loop) -> None:
    loop.unscale = lambda: None


def norm_at_update(loop: Loop) -> float:
    """Gradient norm that the optimizer uses at its first step, the loss scale taken out."""
    norms: list[float] = []
    loop.prepare()
    inner = loop.optimizer.step

    def step(*given: Any, **named: Any) -> Any:
        norms.append(math.sqrt(sum(float(p.grad.square().sum()) for p in loop.model.parameters())))
        return inner(*given, **named)

    loop.optimizer.step = step
    loop.step()
    return norms[0]


def decay_everything(loop: Loop) -> None:
    loop.groups = lambda: [{"params": list(loop.model.parameters()), "weight_decay": loop.settings.decay}]


def mean_gain(loop: Loop) -> float:
    """Mean gain of all norms at the end."""
    loop.run()
    gains = [p.detach() for name, p in loop.model.named_parameters() if p.ndim == 1 and "bias" not in name]
    return float(torch.cat(gains).mean())


def rate(factor: float) -> Inject:
    def inject(loop: Loop) -> None:
        def optimizer() -> torch.optim.Optimizer:
            made = Loop.make_optimizer(loop)
            for group in made.param_groups:
                group["lr"] *= factor
            return made

        loop.make_optimizer = optimizer

    return inject


def rate_jumps(loop: Loop) -> None:
    """In the middle of the run somebody sets the rate 100 times as high, and the schedule goes on from there."""

    def jump() -> None:
        loop.scheduler.base_lrs = [100 * lr for lr in loop.scheduler.base_lrs]
        for group in loop.optimizer.param_groups:
            group["lr"] *= 100

    loop.at(LATER, jump)


def adamw(**options: Any) -> Inject:
    """The base loop's optimizer, but for these options."""

    def inject(loop: Loop) -> None:
        given = {"lr": loop.settings.rate, "betas": (0.9, 0.95), **options}
        loop.make_optimizer = lambda: torch.optim.AdamW(loop.groups(), **given)

    return inject


def small_loss(loop: Loop) -> None:
    """The loss is divided by a thousand, and ε is 1e-4."""
    adamw(eps=1e-4)(loop)
    after(loop, "loss", lambda loss: loss / 1000)


def ascent(loop: Loop) -> None:
    """The sign of the loss is wrong from the start."""
    after(loop, "loss", lambda loss: -loss)


def rate_zero(loop: Loop) -> None:
    """A schedule that multiplies by zero (integer division in the warm-up)."""
    loop.share_of_peak = lambda step: float(min(1, step // max(1, 10 * loop.settings.steps)))


def moved(loop: Loop) -> float:
    """Largest change of any weight over the run."""
    loop.prepare()
    before = [p.detach().clone() for p in loop.model.parameters()]
    for loop.number in range(20):
        loop.step()
    return max(float((a - b).detach().abs().max()) for a, b in zip(loop.model.parameters(), before, strict=True))


def stale_elements(loop: Loop) -> float:
    """Elements in the optimizer that are not the model's."""
    loop.prepare()
    held = {id(p) for p in loop.model.parameters()}
    return float(sum(p.numel() for g in loop.optimizer.param_groups for p in g["params"] if id(p) not in held))


def clip_nothing(loop: Loop) -> None:
    """parameters() is a generator, and the optimizer has used it up."""
    spent = iter(())
    loop.clip = lambda: torch.nn.utils.clip_grad_norm_(spent, loop.settings.clip)


def cleared_too_early(loop: Loop) -> None:
    """Gradients are set to 0 between the backward pass and the update."""
    update = loop.update

    def cleared() -> None:
        loop.optimizer.zero_grad(set_to_none=False)
        update()

    loop.update = cleared


def negated(loop: Loop) -> None:
    """A hook on each parameter turns its gradient round."""

    def turn(model: torch.nn.Module) -> None:
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: -gradient)

    after(loop, "build", turn)


def decay_of(amount: float) -> Inject:
    """The decay of the matrices alone."""

    def inject(loop: Loop) -> None:
        def strong(groups: list[dict[str, Any]]) -> None:
            groups[0]["weight_decay"] = amount

        after(loop, "groups", strong)

    return inject


MISSING = Exact("trainable elements in no group", forgotten, above(0))
STALE = Exact("elements that the optimizer trains in name only", stale_elements, above(0))
FAST = {"rate": 3e-3, "steps": 120}
HIGH = ("learning-rate-too-high",)

FAULTS = (
    Fault("OPT-01", "learning rate × 30, clipped", rate(30), HIGH, Worse(), FAST),
    Fault("OPT-01 unclipped", "learning rate × 100, no clipping", rate(100), HIGH, Worse(),
          {**FAST, "clip": None}),
    Fault("OPT-01 later", "learning rate × 100 from the middle on", rate_jumps, HIGH, Worse(), FAST,
          onset=LATER),
    Fault("OPT-01 low", "learning rate / 100,000", rate(1e-5), ("learning-rate-too-low",),
          Exact("largest change of any weight in 20 steps", moved, below(1e-5))),
    Fault("OPT-02 early", "gradients set to 0 before the update", cleared_too_early, ("step-without-gradients",),
          Exact("largest change of any weight in 20 steps", moved, below(2e-3))),
    Fault("OPT-02", "zero_grad deleted", no_clear, ("gradients-not-cleared",),
          Exact("norm of the gradients left from the step before", left_gradient, above(0))),
    Fault("OPT-03", "embedding and final norm in no group", blocks_and_head_only,
          ("parameters-not-in-optimizer",), MISSING),
    Fault("OPT-03 matrix", "the last block's MLP in no group", one_matrix_forgotten,
          ("parameters-not-in-optimizer",), MISSING),
    Fault("OPT-04", "clipped before unscaling", clip_before_unscale, ("clipped-before-unscaling",),
          Exact("gradient norm at the update", norm_at_update, lambda bad, good: bad < 2e-5 < good),
          {"scaled": True, "clip": 0.5}),
    Fault("OPT-04 nothing", "clipped are parameters of a generator that is used up", clip_nothing,
          ("clipping-misses-parameters",),
          Exact("gradient norm at the update", norm_at_update, lambda bad, good: bad > 0.11 > good), {"clip": 0.1}),
    Fault("OPT-05 matrices", "decay 100 on matrices", decay_of(100.0), ("decay-too-strong",), Worse()),
    Fault("OPT-05", "decay 0.3 on gains, biases and embeddings", decay_everything, ("decay-on-gains",),
          Exact("mean gain at the end", mean_gain, lambda bad, good: bad < 0.9 * good),
          {"decay": 0.3, "rate": 1e-2, "steps": 150}),
    Fault("OPT-06", "ε = 1e-2", adamw(eps=1e-2), ("epsilon-dominates",), Worse()),
    Fault("OPT-06 scaled", "loss / 1000, ε = 1e-4", small_loss, ("epsilon-dominates",), Worse()),
    Fault("OPT-06 betas", "β₁ = 0.999, β₂ = 0.9", adamw(betas=(0.999, 0.9)), ("betas-swapped",), Worse()),
    Fault("OPT-07 head", "head replaced after the optimizer was made", new_head,
          ("optimizer-holds-strangers",), STALE),
    Fault("OPT-07 copy", "model copied after the optimizer was made", copied_model,
          ("optimizer-holds-strangers",), STALE),
    Fault("OPT-07 assign", "weights loaded with assign=True after the optimizer was made",
          assigned_weights, ("optimizer-holds-strangers",), STALE),
    Fault("OPT-08", "the loss has the wrong sign", ascent, ("gradient-ascent",), Worse()),
    Fault("OPT-08 maximize", "AdamW(maximize=True)", adamw(maximize=True), ("gradient-ascent",), Worse()),
    Fault("OPT-08 hook", "a hook negates each gradient", negated, ("gradient-ascent",), Worse()),
    Fault("OPT-09", "the schedule multiplies by zero", rate_zero, ("learning-rate-zero",),
          Exact("largest change of any weight in 20 steps", moved, below(1e-8))),
)  # fmt: skip
