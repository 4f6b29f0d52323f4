"""Proximal policy optimisation: a policy, and the value function that its advantages are measured from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limpid.config.domain import NotNegative, Share
from limpid.errors import CheckpointError
from limpid.objectives.objective import Loss, Mean
from limpid.objectives.policy import TOKENS, Policy
from limpid.quantities import VALUE, Quantity

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from limpid.config import ModelConfig
    from limpid.maths.chain import Chain
    from limpid.model.observe import Mode
    from limpid.model.transformer import Hidden, Transformer

REWARD = "reward"


@dataclass(frozen=True)
class PPO(Policy):
    """The loss of a policy, and vf_coef times that of a value function on the same last hidden states.

    Takes   what a policy takes, and
            old_values  (answer, position)  before the first step on these answers
            returns     (answer, position)  what the values are to be: the advantages of GAE and old_values
    Limits  just drawn: no value is clipped, and the value loss is half the mean square of the advantages of GAE
    Source  Schulman et al. 2017, eq. 9, arXiv:1707.06347; for language models Ziegler et al. 2019, arXiv:1909.08593;
            names and defaults as in TRL
    """

    vf_coef: NotNegative = 0.1
    """What the loss of the value function weighs beside that of the policy."""
    cliprange_value: NotNegative = 0.2
    """How far a value may move on one draw of answers, in the unit of the rewards."""
    gamma: Share = 1.0
    """γ, what a reward is worth a token earlier."""
    lam: Share = 0.95
    """λ of GAE: 0 trusts the value of the next token, 1 what was earned to the end."""

    name = "ppo"

    @property
    def fields(self) -> tuple[str, ...]:
        return (*super().fields, "old_values", "returns")

    def require_heads(self, model: Transformer) -> None:
        model.require_vocabulary()
        if model.value is None:
            raise CheckpointError(
                f"{model.title} has no value function: PPO trains a model with head vocabulary_and_value"
            )

    def _of_hidden(self, hidden: Hidden, log_p: Tensor, given: Mapping[str, Tensor], labels: int, mode: Mode) -> Loss:
        from limpid.objectives.losses import scored

        assert hidden.value_matrix is not None
        policy = self.of_log_probabilities(log_p, given, labels, mode, "policy_loss")
        values = mode.report("values", scored(hidden.stream, hidden.value_matrix))
        value = self.of_values(values, given, labels, mode)
        loss = mode.report("loss", policy.value + self.vf_coef * value.value)
        return Loss(loss, {**policy.metrics, "loss/policy_avg": policy.value.detach(), **value.metrics})

    def of_values(
        self, values: Float[Tensor, "answer position"], given: Mapping[str, Tensor], labels: int, mode: Mode
    ) -> Loss:
        """The loss of the value function, given what it says before each token."""
        from limpid.objectives import policy_terms as terms

        mask, old, returns = given["mask"], given["old_values"], given["returns"]
        clipped = mode.report("clipped_values", terms.clipped_values(values, old, returns, self.cliprange_value))
        losses = mode.report("value_losses", terms.value_losses(clipped, returns))
        loss = mode.report("value_loss", terms.aggregated(losses, mask, self.aggregation, labels))

        def mean(x: Tensor) -> Mean:
            return Mean((x.detach() * mask).sum(), mask.sum())

        return Loss(loss, {
            "loss/value_avg": loss.detach(), "val/clipfrac_avg": mean((clipped != values).to(mask.dtype)),
            "values/mean": mean(values), "returns/mean": mean(returns),
        })  # fmt: skip

    def chain(self, chain: Chain, config: ModelConfig) -> str:
        from limpid.maths import alignment as maths
        from limpid.maths.transformer import hidden_states
        from limpid.objectives.answers import token_chain

        hidden = hidden_states(chain, config)
        losses = self._loss_chain(chain, token_chain(chain, config, self.temperature, hidden))
        policy = chain.apply("policy_loss", self._mean_over_answers(), losses, "mask")
        values = chain.apply("values", maths.score.operation(), hidden, VALUE)
        clip = maths.clipped_values.operation(cliprange_value=self.cliprange_value)
        clipped = chain.apply("clipped_values", clip, values, "old_values", "returns")
        losses = chain.apply("value_losses", maths.value_losses.operation(), clipped, "returns")
        value = chain.apply("value_loss", self._mean_over_answers(), losses, "mask")
        return chain.apply("loss", maths.actor_critic_loss.operation(vf_coef=self.vf_coef), policy, value)

    def quantities(self, config: ModelConfig) -> tuple[Quantity, ...]:
        square = f"{REWARD}², half"
        return (
            *self._token_quantities(config),
            Quantity("policy_loss", (), f"advantage per {self._counted}"),
            Quantity("values", TOKENS, REWARD),
            Quantity("clipped_values", TOKENS, REWARD),
            Quantity("value_losses", TOKENS, square),
            Quantity("value_loss", (), f"{square}, per {self._counted}"),
            Quantity("loss", (), f"advantage, and {self.vf_coef:g} of {square}, per {self._counted}"),
        )
