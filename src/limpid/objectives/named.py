"""Policy methods as they are known: a loss, the advantages that go with it, and where the price of leaving stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from limpid.objectives.policy import Policy
from limpid.objectives.ppo import PPO


@dataclass(frozen=True)
class Named:
    """A method as it is known: its loss, what its advantages are, and where it puts the price of leaving."""

    objective: Policy
    advantage: Literal["group", "group_mean", "leave_one_out", "global", "generalised"]
    """group: in deviations of it. group_mean: not divided. global: whitened over all tokens. generalised: GAE,
    whitened."""
    kl_in_reward: bool = False
    """Whether each token's reward is less by β k1, and the loss has no beta of its own."""

    @property
    def of_groups(self) -> bool:
        """Whether an answer is compared with others to its prompt."""
        return self.advantage in ("group", "group_mean", "leave_one_out")


NAMED: Mapping[str, Named] = {
    "grpo": Named(Policy(aggregation="sequence"), "group"),
    "dr_grpo": Named(Policy(aggregation="fixed_length"), "group_mean"),
    "dapo": Named(Policy(epsilon_high=0.28), "group"),
    "gspo": Named(
        Policy(importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4, aggregation="sequence"), "group"
    ),
    "cispo": Named(Policy(clip="weight", epsilon_high=5.0), "group"),
    "rloo": Named(Policy(importance_sampling_level="product", aggregation="sequence"), "leave_one_out", True),
    "reinforce_plus_plus": Named(Policy(), "global", True),
    "ppo": Named(PPO(), "generalised", True),
}
"""Known combinations. Those of GRPO's kin put β into the loss and have β = 0, as TRL has; the paper's is 0.04 with k3.

Source: Shao et al. 2024 (GRPO), arXiv:2402.03300; Liu et al. 2025 (Dr. GRPO), arXiv:2503.20783; Yu et al. 2025 (DAPO),
arXiv:2503.14476; Zheng et al. 2025 (GSPO), section 5.1, arXiv:2507.18071; MiniMax 2025 (CISPO), arXiv:2506.13585, with
the bound of Khatri et al. 2025, arXiv:2510.13786; Ahmadian et al. 2024 (RLOO), arXiv:2402.14740, as TRL has it; Hu et
al. 2025 (REINFORCE++), arXiv:2501.03262; Schulman et al. 2017 (PPO), arXiv:1707.06347.
"""
