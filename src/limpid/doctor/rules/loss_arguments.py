"""What a loss function is given: shapes that do not match, probabilities where it expects something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, on_step
from limpid.doctor.rules.arguments import found

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "loss_arguments"

BROADCAST = Rule(
    "loss-broadcast",
    FAMILY,
    detects="Predictions (n, 1) and targets (n,) that broadcast to n² differences.",
    equation=r"\textstyle\sum_{ij} (\hat y_i - y_j)^2 \;\text{instead of}\; \sum_i (\hat y_i - y_i)^2",
    source="definition; NumPy's broadcasting rules",
    threshold="exact: shapes",
    cost="none: shapes of the loss's arguments",
    needs=(Probe.BACKWARD, Probe.LOSS_INPUTS),
    cause="an axis of length 1 on one side, which broadcasting repeats",
    fix="prediction.squeeze(-1), or target.unsqueeze(-1)",
    refuted_by="equal shapes",
    explains=("loss-plateau", "gradient-is-not-the-gradient", "errors-not-felt"),
)


FITS = 0.01
"""Of a gradient that is a cross-entropy's, half precision included."""
PROBABILITY = Threshold(1e-3, "rounding puts a logarithm of 1 no further above 0 in half precision")

PROBABILITIES_GIVEN = Rule(
    "probabilities-to-loss",
    FAMILY,
    detects="Probabilities given to a loss that expects logits, or their logarithms.",
    equation=r"\sigma(\sigma(z)) \in (0.5, 0.731);\; \log p \le 0",
    source="definition; documentation of torch.nn.functional.kl_div and binary_cross_entropy_with_logits",
    threshold="exact: binary_cross_entropy_with_logits of what a sigmoid or softmax returned; kl_div of an input above "
    "{above:g}; nll_loss, kl_div or ctc_loss of what a linear layer or a softmax returned and does not add up to 1; "
    "targets that contradict log_target; rates with log_input=True",
    thresholds={"above": PROBABILITY},
    cost="the name of one function; on sampled steps the largest entry of kl_div's input",
    needs=(Probe.LOSS_INPUTS, Probe.ARGUMENTS),
    fix="binary_cross_entropy_with_logits(logits, …); kl_div(log_softmax(logits), …)",
    refuted_by="an input that no sigmoid made; an input at or below 0",
    explains=("loss-plateau", "loss-never-falls", "loss-formula-unusual"),
)


CLASSES_MIXED = Rule(
    "classes-mixed-with-places",
    FAMILY,
    detects="Outputs (row, class, place) that are reshaped to (row * place, class) without a transposition.",
    equation=r"\hat y_{(b, t), c} \neq z_{b, c, t} \text{ where } z \text{ is only read anew, } (b C T + c T + t)",
    source="definition; documentation of torch.reshape",
    threshold="exact: cross-entropy is given the very memory of an output of three axes, as rows of as many numbers "
    "as its "
    "middle axis has and its last, of two places or more, has not",
    cost="one address, on sampled steps",
    needs=(Probe.LOSS_INPUTS,),
    cause="reshape(-1, classes) of logits whose classes stand in the middle",
    fix="logits.transpose(1, 2).reshape(-1, classes), or cross_entropy(logits, targets) as it is",
    refuted_by="logits whose last axis is that of the classes",
    explains=("loss-plateau", "nothing-learned", "loss-never-falls"),
)


@on_step(CLASSES_MIXED, asks="mixed")
def read_anew(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    if record.mixed is not None:
        shape, given = record.mixed
        yield CLASSES_MIXED.finding(
            severity="fault",
            step=record.number,
            where="loss",
            says=f"outputs of shape {shape} are viewed as {given}: their {shape[1]} classes stand in the middle and "
            f"are not the "
            "last axis, so that classes and places are scrambled, and targets do not match what they are compared "
            "with.",
            evidence={"shape": list(shape), "given": list(given)},
        )


@before_first_step(BROADCAST)
def broadcast(exam: Exam) -> Iterator[Finding]:
    if exam.trial is not None and exam.trial.spread_out is not None:
        yield _broadcast(exam.trial.spread_out, None)


@on_step(BROADCAST, asks="spread_out")
def broadcast_in_step(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    if record.spread_out is not None:
        yield _broadcast(record.spread_out, record.number)


def _broadcast(shapes: tuple[tuple[int, ...], tuple[int, ...]], step: int | None) -> Finding:
    given, target = shapes
    return BROADCAST.finding(
        severity="fault",
        step=step,
        where="loss",
        says=f"predictions of shape {given} and targets of shape {target} are compared all with all: each prediction "
        "is pulled towards the mean of all targets.",
        evidence={"prediction": list(given), "target": list(target)},
    )


@on_step(PROBABILITIES_GIVEN, asks="squashed_before")
def logits_expected(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    name = record.squashed_before
    if name:
        yield PROBABILITIES_GIVEN.finding(
            severity="fault",
            step=record.number,
            where="loss",
            says=f"binary_cross_entropy_with_logits is given what {name} returned, and applies a sigmoid to it: every "
            "probability lies between 0.5 and 0.73.",
            cause=f"{name} in the model, or before a loss that applies it itself",
            evidence={"made_by": name},
        )


@on_step(PROBABILITIES_GIVEN, asks="not_logarithms")
def logarithms_expected(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    if record.not_logarithms is None:
        return
    least, largest = record.not_logarithms
    what = "probabilities" if least >= 0 and largest <= 1 else "numbers that are no logarithms of probabilities"
    yield PROBABILITIES_GIVEN.finding(
        severity="fault",
        step=record.number,
        where="loss",
        says=f"kl_div is given {what} ({least:.2g} … {largest:.2g}) where it expects log-probabilities, which are "
        "never above 0: its value is no divergence, and may fall below 0.",
        cause="softmax where log_softmax is meant",
        meant=None if what == "probabilities" else "logarithms of densities, which may be above 1",
        evidence={"least": least, "largest": largest},
    )


@on_step(PROBABILITIES_GIVEN)
def others_expected(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    by_parts = "cross-entropy by parts"  # nll_loss of logits and their log Σ exp, added
    history.counts[by_parts] += any(gradient.misfit < FITS for gradient in record.downhill)
    for finding in found(PROBABILITIES_GIVEN, record, history):
        if not (finding.where.startswith("nll_loss") and history.counts[by_parts]):
            yield finding
