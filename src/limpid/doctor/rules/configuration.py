"""Configuration: schedules, modes, and where the weights came from."""

from __future__ import annotations

from limpid.doctor.rule import Rule

FAMILY = "configuration"

RULES = (
    Rule(
        slug="schedule-per-micro-batch",
        family=FAMILY,
        detects="A schedule that advances more than once per update (or less).",
        equation=r"\text{schedule steps} / \text{updates} \neq 1",
        source="definition; event counts; accelerate#2926",
        threshold="exact: the same ratio other than 1 over 2 updates (a schedule stepped once per epoch advances "
        "less often and is not meant)",
        cost="none: event counters",
        needs=("schedule", "steps"),
        explains=("schedule-ends-early", "schedule-before-update", "learning-rate-zero", "loss-plateau"),
    ),
    Rule(
        slug="schedule-before-update",
        family=FAMILY,
        detects="A schedule that advances between the backward pass and the update: its first rate is skipped.",
        equation=r"\text{order: backward, step, schedule}",
        source="definition; event order; torch.optim's documentation, since 1.1",
        threshold="exact, in 3 steps in a row; a schedule advanced before the forward pass is not meant",
        cost="none: event counters",
        needs=("schedule", "steps"),
    ),
    Rule(
        slug="schedule-ends-early",
        family=FAMILY,
        detects="A schedule that is over long before the run is.",
        equation=r"\eta_t < 0.01 \max \eta \;\text{for most of the run}",
        source="definition; the schedule simulated to its end",
        threshold="more than 25 % of the planned steps at under 1 % of the peak; with no plan given: 0 while steps "
        "go on for longer than a tenth of the run",
        cost="one simulation of the schedule",
        needs=("schedule", "steps"),
        explains=("loss-plateau", "learning-rate-zero"),
    ),
    Rule(
        slug="schedule-never-peaks",
        family=FAMILY,
        detects="A warm-up longer than the run: the planned rate is never reached.",
        equation=r"\max_{t \le T} \eta_t < 0.9\, \eta_{\text{peak}}",
        source="definition; the schedule simulated to its end",
        threshold="under 90 % of the rate the schedule was given, by the planned end",
        cost="one simulation of the schedule",
        needs=("schedule", "steps"),
        explains=("loss-plateau",),
    ),
    Rule(
        slug="schedule-of-another-optimizer",
        family=FAMILY,
        detects="A schedule that sets the rate of an optimizer that is not the one stepping.",
        equation=r"\text{schedule.optimizer} \neq \text{optimizer}",
        source="definition; identity",
        threshold="exact: identity",
        cost="none",
        needs=("schedule", "optimizer"),
    ),
    Rule(
        slug="trained-in-eval-mode",
        family=FAMILY,
        detects="Backward passes while the model is in evaluation mode: dropout and batch statistics are off.",
        equation=r"\text{model.training} = \text{False during backward}",
        source="definition; nanoGPT PR#240",
        threshold="exact; a fault where the mode changes something (dropout p > 0, batch norm), else a notice",
        cost="one look per step; all modules on sampled steps",
        needs=("model", "steps"),
    ),
    Rule(
        slug="dropout-in-evaluation",
        family=FAMILY,
        detects="Randomness in evaluation mode: dropout that ignores it.",
        equation=r"f(x) \neq f(x) \;\text{in evaluation mode}",
        source="definition; nanoGPT PR#240",
        threshold="exact: two evaluations of the same batch with different random numbers differ beyond rounding",
        cost="two forward passes before the first step",
        needs=("model", "batch"),
    ),
    Rule(
        slug="weights-not-loaded",
        family=FAMILY,
        detects="Weights still at their initialisation although a checkpoint was to be loaded.",
        equation=r"\gamma = 1,\; b = 0,\; W \sim N(0, \sigma)",
        source="Kolmogorov-Smirnov; torchgeo#4036",
        threshold="exact gains of 1 and biases of 0 in trained company, or in all blocks while the run is declared "
        "fine-tuning; matrices Gaussian with p > 0.01",
        cost="one pass over the weights",
        needs=("model",),
        explains=("initial-loss-off", "vocabulary-mismatch"),
    ),
    Rule(
        slug="resume-is-not-one",
        family=FAMILY,
        detects="A resumed run that does not go on where it stopped: moments, rate, data or steps start anew.",
        equation=r"(\theta, m, v, \eta, \text{rng}, \text{batch})_{\text{after}} = (\ldots)_{\text{before}}",
        source="definition; transformers#33336",
        threshold="exact where the state before is on record; on curves: a loss that jumps up by more than 6 robust "
        "deviations at a gap or repeat of step numbers, or moments at 0 for weights that are trained",
        cost="none",
        needs=("model", "optimizer"),
        explains=("loss-spike",),
    ),
)
