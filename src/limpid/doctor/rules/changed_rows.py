"""Rows that come back changed by what was done to them at their last visit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, on_step

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "changed_rows"

DATA_CHANGED_IN_PLACE = Rule(
    "data-changed-in-place",
    FAMILY,
    detects="Rows that are changed in the data itself: noise, or a scale, is added to what the last epoch has added.",
    equation=r"\langle x_3 - x_2,\, x_2 - x_1 \rangle = 0 \text{ where } x_{k+1} = x_k + \epsilon_k,\; "
    r"-\tfrac12 \text{ where } x_k = x + \epsilon_k",
    source="definition of a random walk; documentation of torch.from_numpy and of operations in place",
    threshold="{rows:g} rows or more of the first batch, seen three times and changed each time: the second change is "
    "at a right angle to the first (a cosine between -{cosine:g} and {cosine:g}, {errors:g} standard errors from -1/2, "
    "that scatters like {scatter:g} / √n of n numbers or less) and the squared distance from the first visit grows by "
    "{least:g} to {most:g}; or both changes are one map x → a x + b to {rounding:g}",
    thresholds={
        "rows": Threshold(6, "that fewer agree may be chance"),
        "cosine": Threshold(0.15, "what a network computes anew each time drifts along one way, and lies above"),
        "errors": Threshold(3, "one in a thousand, and of these few grow"),
        "scatter": Threshold(2, "cosines of noise scatter by 1/√n; those of rows that are taken for others by half"),
        "least": Threshold(1.5, "noise that is added to the same row each time gives 1"),
        "most": Threshold(2.7, "a random walk gives 2, a noise that is made stronger more"),
        "rounding": Threshold(1e-4, "a thousand roundings of float32"),
    },
    cost="one product of 16 rows and the batch per step, until these rows have come three times",
    needs=(Probe.BATCH, Probe.ROWS),
    cause="an augmentation or a normalisation in place (+=, *=, add_, clamp_) on a row that is a view of the data set",
    fix="x = x + noise, or x = data[i].clone() first",
    meant="a pool of samples that walk on (chains of an energy model, cellular automata)",
    refuted_by="a row that is the same at each visit but for what was added at this one",
    explains=("loss-plateau", "loss-diverges", "nothing-learned", "overfitting"),
)


@on_step(DATA_CHANGED_IN_PLACE)
def changed_for_good(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule = DATA_CHANGED_IN_PLACE
    seen = history.returning.take(record)
    if seen is None or len(seen.first) < rule["rows"] or seen.now_and_then:
        return
    same = seen.same_map(rule["rounding"])
    along, growth = seen.along, seen.growth
    mean, error = float(along.mean()), float(along.std()) / len(along) ** 0.5
    width = rule["scatter"] / seen.first.shape[1] ** 0.5
    walks = float(along.std()) < width + 0.05 and abs(mean) < rule["cosine"] and mean > rule["errors"] * error - 0.5
    walks = walks and rule["least"] < growth < rule["most"]
    if same is None and not walks:
        return
    ratio = float(seen.third.std() / seen.first.std().clamp(min=1e-30))
    if same is not None:
        says = f"each time they come again, rows are {same[0]:.4g} x + {same[1]:.3g} of what they were before"
    else:
        says = (
            "each time they come again, rows are changed further: what was added at one visit is still there at the "
            f"next (the squared distance from the first grows {growth:.1f}-fold, cosine of two changes {mean:.2f})"
        )
    yield rule.finding(
        severity="warning",
        step=record.number,
        where="data",
        says=f"{says}, in {len(seen.first)} rows that were seen three times; their deviation is {ratio:.2f} times that "
        "of the first time. What the data holds drifts away.",
        meant="" if same is None else None,
        sure=0.9,
        evidence={"rows": len(seen.first), "cosine": mean, "growth": growth, "deviation": ratio},
    )
