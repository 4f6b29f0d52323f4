"""Units of a linear map that no step teaches: slices that are cut off, units that are dead."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, on_step

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.idle_units import IdleUnits
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "units"

LOOKS = Threshold(3, "other rows at each: what no batch teaches is no matter of one batch")
TURNS = Threshold(10, "a loop that chooses what it learns, by size or in turn, has come to each of ten parts by then")

SLICE_UNTAUGHT = Rule(
    "slice-without-gradient",
    FAMILY,
    detects="A slice of a matrix, rows or columns side by side, whose gradient is exactly 0 at every step.",
    equation=r"\bar W = \textstyle\sum_t \bar y_t x_t^\top:\; \bar W_{i\cdot} = 0 \Leftarrow \bar y_{t i} = 0,\;"
    r"\bar W_{\cdot j} = 0 \Leftarrow x_{t j} = 0",
    source="definition; reverse-mode differentiation",
    threshold="exact zeros at {looks:g} looks in a row, {turns:g} where the loop makes them after the backward pass "
    "and leaves the rest of the gradient as it was, in a run of {units:g} units or more and {share:.0%} of them, "
    "that as many single idle units as there are else would form by chance once in {chance:.0e}",
    thresholds={
        "looks": LOOKS,
        "turns": TURNS,
        "units": Threshold(8, "two or three neighbours may be idle by themselves"),
        "share": Threshold(0.1, "the least that is a head, or a part of a joint projection"),
        "chance": Threshold(1e9, "a thousand matrices at a thousand looks"),
    },
    cost="eight columns and rows of each gradient on sampled steps, and all of those that are 0 there",
    meant="a part that rests on purpose: masked, pruned, of a later task, of a width that grows",
    needs=(Probe.PARAMETERS, Probe.UNITS, Probe.PASSES),
    cause="a part of the output is detached, overwritten or never read, or a part of the input is masked away",
    fix="look at where this part of the output goes, or this part of the input comes from; freeze it if that is meant",
    refuted_by="one element of this slice with a gradient",
    explains=("loss-plateau", "units-dead"),
)

UNITS_DEAD = Rule(
    "units-dead",
    FAMILY,
    detects="Units that no token of a batch teaches: they are 0 for every input, as behind a ReLU that never opens.",
    equation=r"\phi'(w_i \cdot x_t) = 0 \;\text{for all } t \Rightarrow \partial L / \partial w_i = 0",
    source="Lu et al. 2020, section 1, arXiv:1903.06733; Voita et al. 2023, section 4, arXiv:2309.04827",
    threshold="the same units idle at {looks:g} looks in a row: a warning above {most:.0%} of a matrix of {units:g} "
    "outputs or more, a notice above {half:.0%}",
    thresholds={
        "looks": LOOKS,
        "units": Threshold(16, "a share of fewer says little"),
        "half": Threshold(0.5, "trained models with ReLU have layers with as many"),
        "most": Threshold(0.9, "what is left carries next to nothing"),
    },
    cost="eight columns and rows of each gradient on sampled steps, and all of those that are 0 there",
    meant="a sparse code of which few units are in use",
    needs=(Probe.PARAMETERS, Probe.UNITS),
    cause="a rate or an initialisation that has pushed the inputs of a ReLU below 0, or one activation after another "
    "that lets nothing through",
    fix="a lower rate with warm-up, GELU or SiLU, biases that begin at 0; a unit that is dead does not come back",
    refuted_by="a gradient for one of these units",
    explains=("loss-plateau", "gradient-vanishes-with-depth"),
)


@on_step(SLICE_UNTAUGHT, UNITS_DEAD, asks="sampled")
def never_taught(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """What is idle at this look and was at those before."""
    if record.units is None or not record.updated or record.skipped or record.has_no_gradient:
        return
    if any(ids.shape[1] == 1 for ids in record.token_ids):  # scores of one key are no choice: nothing to learn there
        return
    if record.passes is not None and record.passes.dropped is not None:
        history.drops = record.passes.dropped
    before, history.idle = history.idle, {}
    for units in record.units:
        looks, known = before.get((units.name, units.side), (0, units.idle))
        if known.shape == units.idle.shape:
            history.idle[units.name, units.side] = looks + 1, known & units.idle
    lasting = list(_lasting(record, history))
    cut = next(filter(None, (_slice(*one, record.number) for one in lasting)), None)
    dead = next(filter(None, (_dead(*one, record.number) for one in lasting if cut is None)), None)
    yield from filter(None, [cut, dead])


def _lasting(record: StepRecord, history: History) -> Iterator[tuple[IdleUnits, int, bool]]:
    """Units that were idle long enough, at how many looks, and whether the loop makes them so after its last pass."""
    after_pass = {(one.name, one.side): one.idle for one in record.idle_after_pass or ()}
    for units in record.units or ():
        looks, idle = history.idle.get((units.name, units.side), (0, units.idle))
        by_loss = after_pass.get((units.name, units.side))
        made = by_loss is None or bool((idle & ~by_loss).any())
        if made and "backward" in record.events and not history.drops:  # what is left out may be owed to later steps
            continue
        if looks >= (TURNS if made else LOOKS):
            yield units._replace(idle=idle), looks, made


def _slice(units: IdleUnits, looks: int, made: bool, step: int) -> Finding | None:
    from limpid.doctor.idle_units import longest_run

    rule, all_units, idle = SLICE_UNTAUGHT, len(units.idle), int(units.idle.sum())
    first, length = longest_run(units.idle)
    if length < max(rule["units"], rule["share"] * all_units):
        return None
    # others of the idle units lie anywhere: a run of this length begins at one of n places with p^length each
    p = (idle - length + 1) / (all_units - length + 2)
    if math.log(all_units) + length * math.log(p) > -math.log(rule["chance"]):
        return None
    last = first + length - 1
    why = "the loss does not depend on them" if units.side == "outputs" else "they are 0 in every row"
    why = "what the loop does to gradients after its backward pass leaves them out" if made else why
    return rule.finding(
        severity="fault",
        step=step,
        where=units.name,
        says=f"{units.side} {first} … {last} of {all_units} of {units.name} have a gradient of exactly 0 at "
        f"{looks} looks in a row: {why}, and {length / all_units:.0%} of the matrix is not trained.",
        sure=0.95,
        evidence={"side": units.side, "first": first, "last": last, "units": all_units, "idle": idle},
    )


def _dead(units: IdleUnits, looks: int, made: bool, step: int) -> Finding | None:
    rule, share = UNITS_DEAD, float(units.idle.double().mean())
    if made or units.side != "outputs" or len(units.idle) < rule["units"] or share <= rule["half"]:
        return None
    return rule.finding(
        severity="warning" if share > rule["most"] else "notice",
        step=step,
        where=units.name,
        says=f"{int(units.idle.sum())} of {len(units.idle)} outputs of {units.name} have a gradient of exactly 0 at "
        f"{looks} looks in a row: they are 0 for every token, and do not learn.",
        sure=0.85,
        evidence={"units": len(units.idle), "dead": share},
    )
