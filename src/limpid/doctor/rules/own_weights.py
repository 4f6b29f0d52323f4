"""Weights that are not what the loop takes them for: put in the place of others, kept without a copy, out of reach."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, on_step
from limpid.doctor.rules.optimizer import OPTIMIZER_HOLDS_STRANGERS

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "own_weights"
FEW, STILL = 8, 10
"""Parameters whose sum is remembered, and the update after which they are looked at again."""
LOOKS = Threshold(2, "an average may stand in the place of the weights for a moment")

LOADS_ITSELF = Rule(
    "loaded-from-itself",
    FAMILY,
    detects="Weights that were to be kept by state_dict() and are loaded back: it keeps no copy, and they are the "
    "current ones.",
    equation=r"\text{state} \equiv \theta",
    source="documentation of torch.nn.Module.state_dict: the returned object is a shallow copy",
    threshold="exact: tensors that this model's state_dict() returned before an update, which share its memory, are "
    "loaded into it",
    cost="one weak reference for each call of state_dict()",
    needs=(Probe.ARGUMENTS,),
    cause="best = model.state_dict()",
    fix="copy.deepcopy(model.state_dict()), or torch.save",
    refuted_by="tensors with memory of their own",
)

CHECKPOINT_BLIND = Rule(
    "checkpoint-without-gradient",
    FAMILY,
    detects="A checkpointed part of the model that gets no gradient, because nothing that goes into it has one.",
    equation=r"\partial L / \partial \theta_{\text{inside}} = \text{None}",
    source="documentation of torch.utils.checkpoint.checkpoint: use_reentrant=True needs an input that requires grad",
    threshold="exact: checkpoint(use_reentrant=True) without an input that requires a gradient, and trainable "
    "parameters without one at {steps:g} updates",
    thresholds={"steps": Threshold(2, "one batch may use other parameters")},
    cost="none",
    needs=(Probe.ARGUMENTS,),
    cause="use_reentrant=True on the first layers, whose inputs are data, or behind frozen embeddings",
    fix="use_reentrant=False; or inputs.requires_grad_(), model.enable_input_require_grads()",
    refuted_by="a gradient in these parameters",
    explains=("gradient-cut", "module-never-called", "loss-plateau", "weights-never-change"),
)


@on_step(LOADS_ITSELF, asks="loaded_itself")
def loads_itself(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    if record.loaded_itself:
        yield LOADS_ITSELF.finding(
            severity="fault",
            step=record.number,
            where="load_state_dict",
            says=f"the model loads what its own state_dict() returned {record.loaded_itself:,} updates ago: these are "
            "the weights as they are now, and nothing is brought back.",
            evidence={"updates": record.loaded_itself},
        )


@on_step(CHECKPOINT_BLIND, asks="checkpoint_blind")
def inside_a_checkpoint(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    rule, names = CHECKPOINT_BLIND, watched.info.names
    without = [names[i] for i, count in history.without.items() if i in names and count >= rule["steps"]]
    if record.checkpoint_blind and without:
        yield rule.finding(
            severity="fault",
            step=record.number,
            where=without[0],
            says=f"checkpoint(use_reentrant=True) is given no input that requires a gradient, and {len(without)} "
            f"parameters ({', '.join(without[:3])}{', …' if len(without) > 3 else ''}) get none.",
            evidence={"tensors": len(without), "names": without[:32]},
        )


def _sum(parameter: Tensor) -> float:
    """Of all elements: the same to the bit where none has moved."""
    return float(parameter.detach().double().sum())


@on_step(OPTIMIZER_HOLDS_STRANGERS)
def left_as_they_were(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """Weights that get gradients and stand still, while the optimizer updates nothing of the model."""
    info, rule = watched.info, OPTIMIZER_HOLDS_STRANGERS
    if info.sharded or info.shapeless:
        return
    if record.number == 1 and watched.held and not any(id(p) in info.names for p in watched.held):
        own = [(name, p) for name, p in info.parameters.items() if p.grad is not None and p.element_size() >= 4]
        history.own_at_first = {name: _sum(p) for name, p in own[:FEW]}
    if record.number != STILL or not history.own_at_first or min(history.rates, default=0.0) <= 0 or record.skipped:
        return
    kept = history.own_at_first
    if all(_sum(info.parameters[name]) == before for name, before in kept.items()):
        yield rule.finding(
            severity="fault",
            step=record.number,
            where=next(iter(kept)),
            says=f"the optimizer holds no parameter of the model, whose own get gradients and are the same after "
            f"{record.number} updates.",
            meant=None,
            evidence={"names": list(kept)},
        )


@on_step(OPTIMIZER_HOLDS_STRANGERS, asks="sampled")
def replaced_since(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """Parameters that other ones of the same name have taken the place of since watching began."""
    from limpid.doctor.other_optimizers import held_by, other_optimizers

    info, rule = watched.info, OPTIMIZER_HOLDS_STRANGERS
    if not record.sampled or info.sharded or info.shapeless or not watched.optimizers:
        return
    now = dict(info.model.named_parameters())
    held = {id(p) for p in watched.held}
    new = [
        name
        for name, old in info.parameters.items()
        if name in now and now[name] is not old and now[name].shape == old.shape and now[name].requires_grad
    ]
    lost = [name for name in new if id(now[name]) not in held and id(info.parameters[name]) in held]
    if history.in_a_row(f"{rule.slug} since", bool(lost)) < LOOKS:
        return
    others = held_by(other_optimizers(watched.optimizers))
    lost = [name for name in lost if id(now[name]) not in others]
    if lost:
        size = sum(now[name].numel() for name in lost)
        yield rule.finding(
            severity="fault",
            step=record.number,
            where=", ".join(lost[:4]),
            says=f"{len(lost)} parameters ({size:,} numbers) are other tensors than when the optimizer was made: it "
            "updates the old ones, which the model does not use any more.",
            cause="nn.Parameter(…) inside of forward, or modules that are replaced or made again",
            fix="change values in place, with torch.no_grad(): parameter.copy_(…)",
            evidence={"tensors": len(lost), "parameters": size, "names": lost[:32]},
        )
