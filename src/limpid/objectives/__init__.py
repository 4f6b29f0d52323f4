"""What training minimises: one file per objective, all of one protocol."""

from collections.abc import Mapping
from typing import Any

from limpid.errors import ConfigError
from limpid.objectives.kto import KTO as KTO
from limpid.objectives.next_token import NextToken as NextToken
from limpid.objectives.objective import POLICY as POLICY
from limpid.objectives.objective import Least as Least
from limpid.objectives.objective import Loss as Loss
from limpid.objectives.objective import Mean as Mean
from limpid.objectives.objective import Metric as Metric
from limpid.objectives.objective import Most as Most
from limpid.objectives.objective import Objective as Objective
from limpid.objectives.objective import to_document as to_document
from limpid.objectives.policy import Policy as Policy
from limpid.objectives.ppo import PPO as PPO
from limpid.objectives.preference import DPO as DPO
from limpid.objectives.reward import Reward as Reward

NEXT_TOKEN = NextToken()
OBJECTIVES: dict[str, type[Any]] = {kind.name: kind for kind in (NextToken, DPO, KTO, Reward, Policy, PPO)}


def from_document(document: Mapping[str, Any]) -> Objective:
    """The objective that a record was made with."""
    options = dict(document)
    name = options.pop("name")
    if name not in OBJECTIVES:
        raise ConfigError(f"objective is {name!r}: this limpid knows {', '.join(OBJECTIVES)}")
    objective: Objective = OBJECTIVES[name](**options)
    return objective
