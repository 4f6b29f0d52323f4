"""Parts of the model that took part in training and have left the graph on the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, on_step

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "left_out"
ADAPTERS = ("lora", "adapter")

LEFT_OUT = Rule(
    "left-out-since",
    FAMILY,
    detects="Blocks or adapters that were trained, and that no loss has reached since an evaluation in between.",
    equation=r"\partial L_t / \partial \theta \neq \text{None for } t \le s,\; = \text{None for all } t > s",
    source="definition; reverse-mode differentiation",
    threshold="exact, of gradients that are there or not: whole blocks of the model, or all of its adapters, had one "
    "at every look up to an evaluation, {looks:g} or more, and at none of {since:g} looks since; they require one "
    "still, are part of the model, other parameters go on, and none has come in their place",
    thresholds={
        "looks": Threshold(4, "the first three updates and the tenth"),
        "since": Threshold(6, "60 updates: what is dropped by chance is back by then"),
    },
    cost="one look at whether each gradient is there, on sampled steps",
    meant="a stage that begins after an evaluation and trains other parts, or a smaller model",
    needs=(Probe.PARAMETERS, Probe.EVENTS, Probe.WEIGHTS_KEPT),
    cause="a hook, an ablation or a merged adapter of the evaluation that was not undone",
    fix="handle.remove(), unmerge_adapter(), or what else undoes it, in a finally or a with block",
    refuted_by="a gradient in one of them",
    explains=("loss-plateau",),
)


@on_step(LEFT_OUT)
def left_out(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, state = LEFT_OUT, history.taking_part
    state.evaluated |= record.after_evaluation
    if not record.sampled or not record.updated or not record.has_gradient:
        return
    now = record.has_gradient
    if not state.since:
        gone = state.always - now
        if state.looks >= rule["looks"] and gone and now < state.always and state.evaluated:
            state.gone, state.since = gone, 1
        else:
            state.always, state.looks = (now, 1) if now - state.always or gone else (now, state.looks + 1)
            state.evaluated = False
        return
    if now & state.gone or now - state.always:  # they come back, or others take their turn
        state.always, state.looks, state.since, state.evaluated = now, 1, 0, False
        return
    state.since += 1
    if state.since != rule["since"]:
        return
    names = sorted(name for name, p in watched.info.parameters.items() if id(p) in state.gone and p.requires_grad)
    parts = _whole_parts(watched, names)
    if parts and {id(p) for p in watched.info.model.parameters()} >= state.gone:
        size = sum(watched.info.parameters[name].numel() for name in names)
        yield rule.finding(
            severity="warning",
            step=record.number,
            where=parts[0],
            says=f"{', '.join(parts[:4])} ({len(names)} tensors, {size:,} parameters) had a gradient at every update "
            f"up to an evaluation, and none at {state.since} looks since, though nothing is frozen: they are no "
            "longer part of the forward pass, and learn no more.",
            sure=0.85,
            evidence={"tensors": len(names), "parameters": size, "names": names[:32]},
        )


def _whole_parts(watched: Watched, names: list[str]) -> list[str]:
    """Blocks that these are all trained parameters of, or the adapters; nothing where more is among them."""
    trained = {name for name, p in watched.info.parameters.items() if p.requires_grad}
    adapters = {name for name in trained if any(word in name.lower() for word in ADAPTERS)}
    if adapters and adapters == set(names):
        return ["the adapters", *sorted(names)[:1]]
    whole, own = [], set()
    for block, _ in watched.info.blocks:
        inside = {name for name in trained if name.startswith(f"{block}.")}
        if inside and inside <= set(names):
            whole.append(block)
            own |= inside
    return whole if own == set(names) else []
