"""Which objective each word of `limpid tune` stands for, with which options, and what its advantages are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from limpid.config import TuneConfig
from limpid.config.options import from_dict
from limpid.objectives.kto import KTO
from limpid.objectives.named import NAMED, Named
from limpid.objectives.next_token import NextToken
from limpid.objectives.objective import Objective
from limpid.objectives.policy import Policy
from limpid.objectives.preference import DPO
from limpid.objectives.reward import Reward


@dataclass(frozen=True)
class Tuned:
    """An objective, and the options that a word sets of it; they can be typed, too."""

    kind: type[Any]
    preset: Mapping[str, Any] = field(default_factory=dict)
    policy: Named | None = None
    """Where answers are the model's own: what their advantages are."""


TUNED: dict[str, Tuned] = {
    "sft": Tuned(NextToken),
    "dpo": Tuned(DPO),
    "ipo": Tuned(DPO, {"loss_type": "ipo"}),
    "kto": Tuned(KTO),
    "reward": Tuned(Reward),
    "distill": Tuned(Policy, {"clip": "none"}),
    **{name: Tuned(type(one.objective), one.objective.chosen(), one) for name, one in NAMED.items()},
}


def objective_of(tune: TuneConfig | None) -> Objective:
    """What a run minimises.

    Raises  ConfigError for an option that its objective does not have
    """
    if tune is None:
        return NextToken()
    tuned, options = TUNED[tune.objective], dict(tune.options)
    if tuned.policy is not None and tuned.policy.kl_in_reward:
        options["beta"] = 0.0  # the price is in the rewards
    objective: Objective = from_dict(tuned.kind, {**tuned.preset, **options}, "tune.options.")
    return objective
