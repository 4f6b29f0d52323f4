"""Right parts, put together wrongly."""

from __future__ import annotations

import torch
from benchmarks.doctor.fault import Exact, Fault, above
from benchmarks.doctor.loop import Loop, after
from torch import Tensor, nn

ONSET = 30


def schedule_per_micro_batch(loop: Loop) -> None:
    after(loop, "micro_step", lambda loss: loop.scheduler.step())
    loop.advance = lambda: None


def warmup_too_long(loop: Loop) -> None:
    """A warm-up counted in tokens, or for a run ten times as long."""
    steps = loop.settings.steps
    loop.share_of_peak = lambda step: min(1.0, (step + 1) / (10 * steps))


def ends_early(loop: Loop) -> None:
    """The schedule was told an eighth of the steps, and then stays at its end, 0."""
    steps = loop.settings.steps
    loop.share_of_peak = lambda step: max(0.0, 1 - step / (steps / 8))


def never_advanced(loop: Loop) -> None:
    """scheduler.step() forgotten: the whole run at the first rate of the warm-up."""
    loop.advance = lambda: None


def mean_rate(loop: Loop) -> float:
    """Mean learning rate of the run over the planned peak."""
    rates: list[float] = []
    after(loop, "clip", lambda _: rates.append(loop.optimizer.param_groups[0]["lr"]))
    loop.run()
    return sum(rates) / len(rates) / loop.settings.rate


def left_in_evaluation(loop: Loop) -> None:
    """An evaluation at step 30, and nobody calls train() again."""

    def evaluate() -> None:
        loop.validation()
        loop.model.eval()

    loop.at(ONSET, evaluate)


def evaluation_in_training(loop: Loop) -> None:
    """Evaluations at steps 30, 40, … without eval(): dropout is on while the model is judged."""

    @torch.no_grad()
    def evaluate() -> None:
        for micro in range(3):
            batch = loop.batch(10_000, micro)
            Loop.loss(loop, loop.forward(batch), batch)

    for step in range(ONSET, loop.settings.steps, 10):
        loop.at(step, evaluate)


def dropout_always(loop: Loop) -> None:
    """A functional dropout without its training flag."""

    def add(model: nn.Module) -> None:
        from benchmarks.doctor.models import anatomy

        anatomy(model).mlps[0].register_forward_hook(lambda module, given, out: nn.functional.dropout(out, 0.2))

    after(loop, "build", add)
    loop.at(ONSET, lambda: evaluate(loop))


def evaluate(loop: Loop) -> None:
    """An evaluation as it should be."""
    loop.validation()


def noise_in_evaluation(loop: Loop) -> float:
    """Difference of the same batch evaluated twice, after the evaluation of the run."""
    loop.run(steps=ONSET + 1)
    loop.model.eval()
    with torch.no_grad():
        first, second = (loop.forward(loop.batch(0, 0)) for _ in range(2))
    return float((first - second).abs().max())


def share_trained_in_evaluation(loop: Loop) -> float:
    """Backward passes in evaluation mode."""
    count = 0

    def look(_: Tensor) -> None:
        nonlocal count
        count += not loop.model.training

    after(loop, "micro_step", look)
    loop.run()
    return float(count)


def random_evaluations(loop: Loop) -> float:
    """Forward passes without gradient while dropout is on."""
    count = 0

    def look(logits: Tensor) -> None:
        nonlocal count
        count += loop.model.training and not torch.is_grad_enabled()

    after(loop, "forward", look)
    loop.run()
    return float(count)


def wrong_prefix(loop: Loop) -> None:
    """strict=False, and a prefix on every name: nothing matches."""

    def load(model: nn.Module, state: dict[str, Tensor]) -> None:
        model.load_state_dict({f"module.{name}": tensor for name, tensor in state.items()}, strict=False)

    loop.load = load


def half_of_the_blocks(loop: Loop) -> None:
    """A checkpoint of which the later blocks are missing."""

    def load(model: nn.Module, state: dict[str, Tensor]) -> None:
        kept = {name: t for name, t in state.items() if not any(f".{i}." in name for i in (2, 3))}
        model.load_state_dict(kept, strict=False)

    loop.load = load


def fresh_tensors(loop: Loop) -> float:
    """Tensors that are still as a fresh model has them."""
    from benchmarks.doctor.models import build

    loop.prepare()
    fresh = build(loop.architecture, loop.settings, loop.seed).state_dict()
    return float(sum(torch.equal(t, fresh[name]) for name, t in loop.model.state_dict().items() if t.ndim >= 2))


def schedule_first(loop: Loop) -> None:
    """The schedule advances between the backward pass and the update."""
    clip = loop.clip

    def advanced() -> None:
        clip()
        loop.scheduler.step()

    loop.clip, loop.advance = advanced, lambda: None


def first_rate(loop: Loop) -> float:
    """Rate of the first update over the one that the schedule plans for it."""
    loop.prepare()
    seen: list[float] = []
    loop.optimizer.register_step_pre_hook(lambda optimizer, *_: seen.append(optimizer.param_groups[0]["lr"]))
    loop.step()
    return seen[0] / (loop.settings.rate * loop.share_of_peak(0))


SCHEDULED = Exact("mean rate over the peak", mean_rate, lambda bad, good: bad < 0.8 * good)
NOT_LOADED = Exact("matrices still at their initialisation", fresh_tensors, above(0))
FINE_TUNING = {"pretrained_steps": 60, "rate": 1e-4, "steps": 40}

FAULTS = (
    Fault("CFG-01", "the schedule advances per micro-batch", schedule_per_micro_batch,
          ("schedule-per-micro-batch",), SCHEDULED, {"micro_batches": 4, "rows": 2}),
    Fault("CFG-01 warm-up", "a warm-up ten times as long as the run", warmup_too_long,
          ("schedule-never-peaks",), SCHEDULED),
    Fault("CFG-01 early", "a schedule over after an eighth of the run", ends_early,
          ("schedule-ends-early",), SCHEDULED),
    Fault("CFG-01 order", "the schedule advances before the update", schedule_first, ("schedule-before-update",),
          Exact("rate of the first update over the planned one", first_rate, above(1.01))),
    Fault("CFG-01 never", "the schedule is never advanced", never_advanced,
          ("schedule-per-micro-batch", "schedule-never-peaks"), SCHEDULED),
    Fault("CFG-02", "left in evaluation mode from step 30", left_in_evaluation,
          ("trained-in-eval-mode",), Exact("backward passes in evaluation mode", share_trained_in_evaluation, above(0)),
          {"dropout": 0.1, "steps": 50}, onset=ONSET),
    Fault("CFG-02 judged", "evaluated in training mode", evaluation_in_training,
          ("dropout-in-evaluation",), Exact("forward passes without gradient but with dropout", random_evaluations,
          above(0)),
          {"dropout": 0.1, "steps": 50}, onset=ONSET),
    Fault("CFG-02 always", "dropout without its training flag", dropout_always,
          ("dropout-in-evaluation",), Exact("difference of two evaluations", noise_in_evaluation, above(1e-6)),
          {"dropout": 0.1, "steps": 50}),
    Fault("CFG-03", "no name of the checkpoint matches", wrong_prefix, ("weights-not-loaded",),
          NOT_LOADED, FINE_TUNING),
    Fault("CFG-03 half", "half of the blocks not loaded", half_of_the_blocks, ("weights-not-loaded",),
          NOT_LOADED, FINE_TUNING),
)  # fmt: skip
