"""Settings that are written where nobody reads them: a name that looks like PyTorch's, on an object that ignores it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, on_step

if TYPE_CHECKING:
    from torch import nn

    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "attributes"

RATE_NOT_READ = Rule(
    "optimizer-attribute-not-read",
    FAMILY,
    detects="A rate or another setting that is set on an optimizer of PyTorch: it reads its parameter groups alone.",
    equation=r"\text{optimizer.lr} \neq \eta",
    source="documentation of torch.optim: per-parameter options",
    threshold="exact: an optimizer of torch.optim has an attribute of its own by the name of one of its settings, with "
    "a value that no group has",
    cost="one look at the optimizer's attributes, on sampled steps",
    needs=(Probe.SCHEDULE,),
    cause="optimizer.lr = rate, which makes a new attribute",
    fix="for group in optimizer.param_groups: group['lr'] = rate; or a scheduler",
    refuted_by="a group with that value",
    explains=("nothing-learned", "loss-plateau", "learning-rate-too-high", "loss-diverges"),
)

FREEZING_NOT_READ = Rule(
    "module-attribute-not-read",
    FAMILY,
    detects="requires_grad = False that is set on a module: it makes an attribute, and all its parameters train on.",
    equation=r"\text{module: False},\; \text{parameter: True}",
    source="documentation of torch.nn.Module.requires_grad_; torch.nn.Module has no such attribute",
    threshold="exact: a module with requires_grad False among its attributes, all parameters of which require a "
    "gradient, are held by the optimizer and had one at this update",
    cost="one look at each module's attributes, on sampled steps",
    needs=(Probe.PARAMETERS, Probe.UPDATES),
    cause="module.requires_grad = False",
    fix="module.requires_grad_(False)",
    refuted_by="parameters of that module that require no gradient",
)


@on_step(RATE_NOT_READ, asks="sampled")
def set_on_the_optimizer(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    if not record.sampled:
        return
    for optimizer in watched.optimizers:
        for name, value in _unread(optimizer):
            there = [group.get(name) for group in optimizer.param_groups]
            yield RATE_NOT_READ.finding(
                severity="fault",
                step=record.number,
                where=f"{type(optimizer).__name__}.{name}",
                says=f"{name} = {value:g} is set on the optimizer, where nothing reads it: its groups have {name} = "
                f"{', '.join(f'{one:g}' for one in there[:3])}, which never changes by it.",
                cause=f"optimizer.{name} = …, which makes a new attribute",
                fix=f"for group in optimizer.param_groups: group[{name!r}] = …",
                evidence={"attribute": name, "value": value, "groups": there[:8]},
            )


def _unread(optimizer: Any) -> Iterator[tuple[str, float]]:
    """Settings among an optimizer's own attributes; classes of others may read what they keep there."""
    if not type(optimizer).__module__.startswith("torch.optim."):
        return
    for name, value in vars(optimizer).items():
        groups = [group.get(name) for group in optimizer.param_groups]
        known = name in optimizer.defaults and all(isinstance(one, int | float) for one in groups)
        if known and isinstance(value, int | float) and value not in groups:
            yield name, float(value)


@on_step(FREEZING_NOT_READ, asks="judged_update")
def set_on_a_module(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    update = record.judged_update
    if not record.sampled or update is None:
        return
    moved = set(update.names)
    held = {id(p) for p in watched.held}
    for name, module in watched.info.model.named_modules():
        if vars(module).get("requires_grad") is not False:
            continue
        own = dict(module.named_parameters(prefix=name))
        if own and moved & own.keys() and all(_trains(p, held) for p in own.values()):
            size = sum(p.numel() for p in own.values())
            yield FREEZING_NOT_READ.finding(
                severity="fault",
                step=record.number,
                where=name or "model",
                says=f"requires_grad = False is set on the module {name or 'itself'}, where nothing reads it: its "
                f"{len(own)} parameters ({size:,} numbers) are not frozen, have gradients and still move.",
                evidence={"module": name, "tensors": len(own), "parameters": size},
            )
            return


def _trains(parameter: nn.Parameter, held: set[int]) -> bool:
    return parameter.requires_grad and id(parameter) in held
