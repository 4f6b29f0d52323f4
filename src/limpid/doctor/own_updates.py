"""Whether a loop updates its weights in a way of its own, which laws of the usual update do not foresee.

These laws follow from one learner, gradients of its backward passes, a library's rule, and weights that nothing else
writes. Each of them is nearly always right; there are so many that unusual ones among sound loops meet one after
another. So where the update is the loop's own, they ask, unless the run suffers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpid.doctor.libraries import is_library

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.description.kept import KeptWeights
    from limpid.doctor.rule import Rule
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

LAWS = frozenset(
    (
        "accumulation",
        "adam",
        "backward_passes",
        "clipping",
        "decay",
        "gradients",
        "group_rates",
        "left_out",
        "learning_rate",
        "moments",
        "units",
        "updates",
        "weights_over_time",
    )
)
"""Families of rules that follow from the usual update."""
WHATEVER_WRITES = ("weights-never-change",)
"""Rules of these families that do not."""


def presumes_usual_update(rule: Rule) -> bool:
    """Whether a rule is such a law; one that says that the run suffers is none."""
    return rule.family in LAWS and not rule.suffers and rule.slug not in WHATEVER_WRITES


def own_rule(watched: Watched) -> str:
    """The first optimizer that no library has, in words; empty where there is none."""
    own = next((one for one in watched.optimizers if not is_library(type(one).__module__)), None)
    return "" if own is None else f"a rule of one's own ({type(own).__name__})"


def own_update(watched: Watched, record: StepRecord, kept: KeptWeights) -> str:
    """What is the loop's own in its updates so far, in words; empty where nothing is.

    kept    what became of the weights between updates
    """
    returns = len(kept.versions.back)  # all updates taken back would be none
    if record.moved_between_updates or 0 < returns < kept.versions.updates - 1:
        return "updates that are taken back, or that begin anew from earlier weights"
    if kept.changes.groups:
        return "weights that something beside the update writes"
    if record.beside:
        return "another model that learns in the same loop"
    if record.norm and "backward" not in record.events:
        return "gradients that no backward() makes"
    if record.sampled and any(map(_is_hooked, watched.held)):
        return "gradients that a hook of one's own changes"
    return ""


def _is_hooked(parameter: Tensor) -> bool:
    """Whether somebody's own function is told of a parameter's gradient before the update."""
    hooks = [*(parameter._backward_hooks or {}).values()]
    hooks += (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values()
    return any(not is_library(getattr(hook, "__module__", None)) for hook in hooks)
