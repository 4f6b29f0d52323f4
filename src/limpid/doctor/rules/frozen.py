"""What is frozen: by intent, by a filter that matched too much, or on the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, on_step

if TYPE_CHECKING:
    from torch import nn

    from limpid.doctor.exam import Exam
    from limpid.doctor.history import History
    from limpid.doctor.model_info import ModelInfo
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "frozen"

FIRST_UPDATES = 20

FROZEN_ON_THE_WAY = Rule(
    "frozen-on-the-way",
    FAMILY,
    detects="Parameters that were trained, are in the optimizer still, and require no gradient any more.",
    equation=r"\text{requires\_grad}_t = \text{True},\; \text{requires\_grad}_{t+1} = \text{False}",
    source="definition",
    threshold="exact, at {looks:g} looks in a row; a notice where others that stood still before have learned since: "
    "they take turns",
    thresholds={"looks": Threshold(2, "once may be a look in between")},
    cost="one flag of each parameter, on sampled steps",
    needs=(Probe.PARAMETERS, Probe.UPDATES),
    cause="requires_grad_(False) for a look at the model (a saliency map, an evaluation, a player of a game), not set "
    "back",
    fix="set requires_grad_(True) afterwards; to freeze them for good, take them out of the optimizer",
    meant="layers frozen for good once they have learned (FreezeOut, stages of fine-tuning)",
    refuted_by="requires_grad True",
    explains=("loss-plateau", "gradient-cut"),
)

FROZEN_YET_MOVED = Rule(
    "frozen-yet-moved",
    FAMILY,
    detects="Parameters that require no gradient any more, and that the optimizer moves all the same.",
    equation=r"\text{requires\_grad} = \text{False},\; g_t = 0,\; \theta_{t+1} \neq \theta_t",
    source="documentation of torch.optim.Optimizer.zero_grad: a gradient of 0 is stepped with, one of None is not",
    threshold="exact, on a sample of each tensor, at {looks:g} looks in a row: trained before, requires_grad False, a "
    "gradient that is there and 0, and another value after the update",
    thresholds={"looks": Threshold(3, "momentum may be on its way out for one or two")},
    cost="one flag of each parameter, on sampled steps",
    needs=(Probe.PARAMETERS, Probe.UPDATES),
    cause="zero_grad(set_to_none=False) leaves gradients of 0, with which momentum and weight decay go on",
    fix="p.grad = None for what is frozen, or take it out of the optimizer",
    refuted_by="the same values before and after an update",
    explains=("decay-on-gains",),
)

PARAMETERS_FROZEN = Rule(
    "parameters-frozen",
    FAMILY,
    detects="Parameters whose requires_grad is False while their siblings train.",
    equation=r"\text{requires\_grad} = \text{False}",
    source="definition",
    threshold="exact; a fault where nothing trains, a warning where some of like modules are frozen with fresh "
    "weights, in a loop at each of the first {updates:g} updates, and they are neither all that comes first nor the "
    "lowest blocks, held to be thawed later, nor all but one; else a notice",
    thresholds={
        "updates": Threshold(
            FIRST_UPDATES, "one of three blocks that take turns by chance has not had one in 1 of 3,000"
        )
    },
    cost="a look at each flag, in the first steps",
    needs=(Probe.PARAMETERS, Probe.BACKWARD),
    cause="frozen by a filter on names that matched more than meant",
    fix="requires_grad_(True) for what should train; leave the others out of the optimizer",
    meant="random features, an ablation, or blocks that are kept for a later stage",
    refuted_by="requires_grad True",
    explains=("weights-never-change",),
    at_first_update=True,
)


@on_step(FROZEN_ON_THE_WAY, asks="sampled")
def stopped_on_the_way(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """What an earlier update had a gradient of, and can have none any more."""
    rule = FROZEN_ON_THE_WAY
    if not record.sampled or not record.updated:
        return
    now = set() if record.judged_update is None else set(record.judged_update.names)  # gradients of one's own, too
    history.trained |= now
    held = {id(p) for p in watched.held}
    parameters = watched.info.parameters
    history.turns |= bool(now & history.stood)
    frozen = {name for name, p in parameters.items() if not p.requires_grad}
    history.stage = record.number if history.frozen not in (None, frozen) else history.stage
    history.frozen = frozen
    history.stood |= frozen | (set(parameters) - now if now else set())
    stopped = sorted(n for n in history.trained - now if n in parameters and not parameters[n].requires_grad)
    names = [name for name in stopped if id(parameters[name]) in held]
    if history.in_a_row(rule.slug, bool(names)) == rule["looks"]:
        size = sum(parameters[name].numel() for name in names)
        turns = "; others began to learn that stood still before: they take turns, it seems" if history.turns else ""
        yield rule.finding(
            severity="notice" if turns else "warning",
            step=record.number,
            where=names[0],
            says=f"{len(names)} tensors ({size:,} parameters: {', '.join(names[:3])}) were trained before and have "
            f"requires_grad False now, though the optimizer holds them still: they stopped learning on the way{turns}.",
            cause="frozen and thawed on purpose, it seems" if turns else "",
            fix="nothing" if turns else "",
            sure=0.5 if turns else 0.8,
            evidence={"tensors": len(names), "parameters": size, "names": names[:32]},
        )


@on_step(FROZEN_YET_MOVED, asks="judged_update")
def moved_all_the_same(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, update, parameters = FROZEN_YET_MOVED, record.judged_update, watched.info.parameters
    if not record.sampled or update is None:
        return
    names = [
        name
        for name, slope, change in zip(update.names, update.slopes, update.change, strict=True)
        if change > 0 and not slope and name in history.learned and not parameters[name].requires_grad
    ]
    history.learned |= {n for n in update.names if n in parameters and parameters[n].requires_grad}
    if history.in_a_row(rule.slug, bool(names)) == rule["looks"]:
        size = sum(parameters[name].numel() for name in names)
        yield rule.finding(
            severity="fault",
            step=record.number,
            where=names[0],
            says=f"{len(names)} tensors ({size:,} parameters: {', '.join(names[:3])}) are frozen, requires_grad is "
            "False, and their gradient is 0, yet each update still moves them, by momentum or weight decay.",
            evidence={"tensors": len(names), "parameters": size, "names": names[:32]},
        )


@before_first_step(PARAMETERS_FROZEN)
def frozen(exam: Exam) -> Iterator[Finding]:
    """requires_grad is how freezing is done on purpose; in fresh weights, or kept in the optimizer, it hardly is."""
    info = exam.info
    names = [name for name, p in info.parameters.items() if _is_frozen(p)]
    if not names:
        return
    blocks = _partly_frozen(info, names)
    nothing = len(names) == len(info.parameters)
    waits = exam.call is not None and bool(_in_optimizer(exam, names))  # for its turn, as one step alone may show
    suspicious = nothing or (not waits and _suspicious(exam, names, blocks, exam.fresh))
    yield _frozen(exam, names, blocks, exam.fresh, suspicious, None)


@on_step(PARAMETERS_FROZEN)
def frozen_for_long(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """What an optimizer holds and none of its first updates could teach: blocks that take turns have had theirs."""
    made = max(history.made.values(), default=0)
    if made < PARAMETERS_FROZEN["updates"] or history.times(PARAMETERS_FROZEN.slug) > 1:
        return
    names = [name for name, p in watched.info.parameters.items() if history.frozen_at[id(p)] >= made]
    blocks = _partly_frozen(watched.info, names)
    if _suspicious(watched, names, blocks, history.began_fresh):
        yield _frozen(watched, names, blocks, history.began_fresh, True, record.number)


def _suspicious(watched: Watched, names: list[str], blocks: list[str], fresh: bool) -> bool:
    """Whether some of like blocks are frozen with fresh weights, in no order in which one freezes, nor in turn."""
    info = watched.info
    adapters = any("lora" in name.lower() or "adapter" in name.lower() for name in info.parameters)
    meant = adapters or _by_depth(info, names) or (bool(_in_optimizer(watched, names)) and _lowest(info, blocks))
    alone = len(info.blocks) - len(blocks) == 1 < len(blocks)
    return bool(blocks) and fresh and not meant and not alone


def _in_optimizer(watched: Watched, names: list[str]) -> list[str]:
    held = {id(p) for p in watched.held}
    return [name for name in names if id(watched.info.parameters[name]) in held]


def _frozen(
    watched: Watched, names: list[str], blocks: list[str], fresh: bool, suspicious: bool, step: int | None
) -> Finding:
    info = watched.info
    size, nothing = sum(info.parameters[name].numel() for name in names), len(names) == len(info.parameters)
    in_optimizer = _in_optimizer(watched, names)
    says = f"{len(names)} tensors ({size:,} parameters, {size / info.size:.0%}) have requires_grad False"
    says += f" in each of the first {FIRST_UPDATES} updates" if step else ""
    if blocks:
        says += f": {', '.join(blocks[:4])} but not its siblings"
    if in_optimizer:
        says += f"; {len(in_optimizer)} of them are in the optimizer all the same"
    if fresh and blocks:
        says += ", and their weights are fresh"
    return PARAMETERS_FROZEN.finding(
        severity="fault" if nothing else "warning" if suspicious else "notice",
        step=step,
        where=blocks[0] if blocks else names[0],
        says=f"{says}.",
        cause="" if suspicious else "frozen on purpose, it seems",
        fix="" if suspicious else "nothing",
        meant=_who_means_it(nothing, in_optimizer),
        sure=0.9 if suspicious else 0.5,
        evidence={"tensors": len(names), "parameters": size, "blocks": blocks, "in_optimizer": len(in_optimizer)},
    )


def _who_means_it(nothing: bool, in_optimizer: list[str]) -> str | None:
    """Nobody, where an optimizer is to train what is frozen, and nothing else of the model."""
    if not nothing:
        return ""
    return None if in_optimizer else "what learns lies outside of the model: inputs, prompts, a readout"


def _is_frozen(parameter: nn.Parameter) -> bool:
    """Whether nothing trains it; a gradient that is written by hand needs no graph."""
    return not parameter.requires_grad and parameter.is_floating_point() and parameter.grad is None


def _by_depth(info: ModelInfo, names: list[str]) -> bool:
    """Whether what is frozen is all that comes first in the model: what lies below needs no backward pass."""
    frozen = [name in set(names) for name, p in info.parameters.items() if p.is_floating_point()]
    return frozen == sorted(frozen, reverse=True)


def _lowest(info: ModelInfo, blocks: list[str]) -> bool:
    """Whether the frozen blocks are the lowest: those that are thawed last."""
    return set(blocks) == {block for block, _ in info.blocks[: len(blocks)]}


def _partly_frozen(info: ModelInfo, names: list[str]) -> list[str]:
    """Blocks of which a part is frozen that trains in other blocks."""
    parts: dict[str, set[str]] = {}  # what part of a block -> blocks in which it is frozen
    for name in names:
        block = info.block_of(name)
        if block is not None:
            parts.setdefault(name[len(block) :], set()).add(block)
    some = [where for where in parts.values() if len(where) < len(info.blocks)]
    return sorted({block for where in some for block in where})
