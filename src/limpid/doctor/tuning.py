"""What a run says of how its model is tuned: the facts that rules of alignment decide by. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from limpid.config import TrainConfig


@dataclass(frozen=True)
class Tuning:
    """How a model is tuned, as far as the run says; None where it does not."""

    objective: str = ""
    beta: float | None = None
    updates_per_draw: int | None = None  # steps that are taken on each draw of answers
    answers: int | None = None  # that a step learns from
    reference_is_start: bool = False  # whether the model is held to where it began
    learns_from_broken_off: bool | None = None  # whether answers count that reached their greatest length
    reward_weights: tuple[float, ...] = ()  # of the rewards, in their order; none counts each once
    dropout: float = 0.0
    is_narrow: bool = False  # whether it computes in a half format


def tuning_of(config: TrainConfig) -> Tuning | None:
    """The facts of a run of limpid; None where it tunes nothing."""
    tune, run = config.tune, config.run
    if tune is None:
        return None
    beta, draws = tune.options.get("beta"), tune.rollouts
    rows = run.batch_size * run.gradient_accumulation_steps
    return Tuning(
        objective=tune.objective,
        beta=None if beta is None else float(beta),
        updates_per_draw=1 if draws is None else draws.num_iterations,
        answers=rows * (1 if draws is None else draws.num_generations),
        reference_is_start=tune.reference is None and not tune.options.get("reference_free"),
        learns_from_broken_off=None if draws is None else not draws.mask_truncated_completions,
        reward_weights=() if draws is None else draws.reward_weights,
        dropout=config.model.dropout,
        is_narrow=run.precision != "fp32",
    )
