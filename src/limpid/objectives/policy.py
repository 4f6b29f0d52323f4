"""Policies: raise the log-probability of answers that were better than expected, as independent choices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from limpid.config.domain import Count, NotNegative, Positive
from limpid.config.options import Checked
from limpid.objectives.answers import token_quantities
from limpid.objectives.objective import POLICY, Least, Loss, Mean, Metric, Most
from limpid.quantities import Quantity

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from limpid.config import ModelConfig
    from limpid.data.batches import MicroBatch
    from limpid.maths.chain import Chain
    from limpid.maths.operation import Operation
    from limpid.model.observe import Mode
    from limpid.model.transformer import Hidden, Transformer

TOKENS = ("batch", "position")
OLD = "old_log_probabilities"


@dataclass(frozen=True)
class Policy(Checked):
    """-ρ̂ A, the gain of answers over what was expected of them, and a price for leaving a reference.

    GRPO and its relatives are points of this family: see `objectives/named.py`; PPO adds a value function. ρ is the
    ratio to the policy that drew the answers, ρ̂ what of it counts.

    Takes   tokens                       (answer, position)  token ids
            targets                      (answer, position)  the token after each; -100 where there is none
            mask                         (answer, position)  1 where the target belongs to the answer
            old_log_probabilities        (answer, position)  of each target under the policy that drew it, nats; left
                                         out where that is the policy of the step: its own, without a gradient
            advantages                   (answer, position)
            reference_log_probabilities  (answer, position)  nats; only where beta is not 0
    Limits  just drawn: every ratio is 1, nothing clipped, and the loss minus the mean advantage, with a gradient
    Source  Schulman et al. 2017, arXiv:1707.06347; Shao et al. 2024, arXiv:2402.03300; each choice names its own
    """

    importance_sampling_level: Literal["token", "sequence", "product"] = "token"
    """Whose ratio: each token's; the geometric mean over the answer (GSPO); the whole answer's (RLOO)."""
    clip: Literal["ratio", "weight", "none"] = "ratio"
    """ratio: beyond the clip nothing is learned (PPO). weight: the ratio is a weight without a gradient (CISPO)."""
    epsilon: NotNegative = 0.2
    """How far the ratio may fall below 1; and rise, where epsilon_high is not given."""
    epsilon_high: NotNegative | None = None
    """How far it may rise above 1 (DAPO); for clip = "weight" the largest weight itself, as in TRL."""
    aggregation: Literal["token", "sequence", "fixed_length"] = "token"
    """All tokens of the step alike (DAPO); all answers alike (GRPO); or divided by max_completion_length (Dr. GRPO)."""
    max_completion_length: Count = 512
    """Tokens of an answer at most; for aggregation = "fixed_length" also what it is divided by."""
    beta: NotNegative = 0.0
    """β, the price of leaving the reference, per nat of kl; 0 needs no reference."""
    kl: Literal["k1", "k2", "k3", "k3_ratio"] = "k3_ratio"
    """The estimator in the loss. Its mean gradient on policy: k1 none; k2 and k3_ratio ∇KL(π‖π₀); k3 ∇KL(π₀‖π)."""
    temperature: Positive = 1.0
    """What logits are divided by, as when the answers were drawn."""

    name = "policy"

    @property
    def fields(self) -> tuple[str, ...]:
        given = ("tokens", "targets", "mask", OLD, "advantages")
        return (*given, "reference_log_probabilities") if self.beta else given

    @property
    def bounds(self) -> tuple[float, float]:
        """Between which the ratio counts in full; for clip = "weight" the second is the largest weight."""
        high = self.epsilon if self.epsilon_high is None else self.epsilon_high
        return 1 - self.epsilon, high if self.clip == "weight" else 1 + high

    def labels(self, micro: MicroBatch) -> int:
        """Tokens, answers, or answers times max_completion_length: what the loss of the step is divided by."""
        if self.aggregation == "token":
            return int(micro["mask"].sum())
        return len(micro["mask"]) * (self.max_completion_length if self.aggregation == "fixed_length" else 1)

    def loss(self, models: Mapping[str, Transformer], micro: MicroBatch, labels: int, mode: Mode) -> Loss:
        import torch

        from limpid.objectives.answers import scores_of

        model = models[POLICY]
        self.require_heads(model)
        device = model.device
        tokens, targets = (torch.as_tensor(micro[name]).to(device) for name in self.fields[:2])
        hidden = model(tokens, path=mode.path, observe=mode.observe, form_logits=False)
        log_p, entropy = scores_of(hidden, targets, mode, self.temperature, with_entropy=True)
        there = [name for name in self.fields[2:] if name != OLD or name in micro.arrays]
        given = {name: torch.as_tensor(micro[name]).to(device, log_p.dtype) for name in there}
        given.setdefault(OLD, log_p.detach())
        loss = self._of_hidden(hidden, log_p, given, labels, mode)
        assert entropy is not None
        return Loss(loss.value, {**loss.metrics, "entropy": _mean(entropy, given["mask"])})

    def require_heads(self, model: Transformer) -> None:
        """Raise CheckpointError for a model that cannot learn this."""
        model.require_vocabulary()

    def _of_hidden(self, hidden: Hidden, log_p: Tensor, given: Mapping[str, Tensor], labels: int, mode: Mode) -> Loss:
        """The loss, given where the forward pass ended; a policy alone needs no more of it than log-probabilities."""
        return self.of_log_probabilities(log_p, given, labels, mode)

    def of_log_probabilities(
        self,
        log_p: Float[Tensor, "answer position"],
        given: Mapping[str, Tensor],
        labels: int,
        mode: Mode,
        name: str = "loss",
    ) -> Loss:
        """The loss as a function of each token's log-probability and the other arrays of the batch."""
        from limpid.objectives import policy_terms as terms

        losses, metrics = self._token_losses(log_p, given, mode)
        return Loss(mode.report(name, terms.aggregated(losses, given["mask"], self.aggregation, labels)), metrics)

    def _token_losses(
        self, log_p: Tensor, given: Mapping[str, Tensor], mode: Mode
    ) -> tuple[Float[Tensor, "answer position"], dict[str, Metric]]:
        """What each token loses, and what is logged of it."""
        from limpid.objectives import policy_terms as terms

        mask, old, advantages = (given[name] for name in self.fields[2:5])
        log_ratios = mode.report("log_ratios", terms.log_ratios(log_p, old, mask, self.importance_sampling_level))
        ratios = mode.report("ratios", log_ratios.exp())
        losses = mode.report("policy_losses", self._gain(log_p, ratios, advantages, mode))
        metrics = _metrics(self, mask, ratios.detach(), advantages)
        if self.beta:
            kl = mode.report("kl", terms.kl_estimate(log_p, given["reference_log_probabilities"], ratios, self.kl))
            losses = mode.report("token_losses", losses + self.beta * kl)
            metrics["kl"] = _mean(kl.detach(), mask)
        return losses, metrics

    def _gain(self, log_p: Tensor, ratios: Tensor, advantages: Tensor, mode: Mode) -> Tensor:
        """What each token loses by not being likelier, as far as its ratio counts."""
        from limpid.objectives import policy_terms as terms

        low, high = self.bounds
        if self.clip == "weight":
            weights = mode.report("clipped_ratios", ratios.detach().clamp(max=high))
            return terms.weighted_policy_losses(log_p, weights, advantages)
        if self.clip == "ratio":
            ratios = mode.report("clipped_ratios", terms.clipped_ratios(ratios, advantages, low, high))
        return terms.policy_losses(ratios, advantages)

    def chain(self, chain: Chain, config: ModelConfig) -> str:
        from limpid.objectives.answers import token_chain

        losses = self._loss_chain(chain, token_chain(chain, config, self.temperature))
        return chain.apply("loss", self._mean_over_answers(), losses, "mask")

    def _mean_over_answers(self) -> Operation:
        from limpid.maths.alignment import aggregate

        return aggregate.operation(over=self.aggregation, max_completion_length=self.max_completion_length)

    def _loss_chain(self, chain: Chain, log_p: str) -> str:
        """From the log-probability of each token to what it loses; returns the name of the result."""
        from limpid.maths import alignment as maths

        levelled = maths.log_ratios.operation(level=self.importance_sampling_level)
        chain.apply("log_ratios", levelled, log_p, "old_log_probabilities", "mask")
        ratios = chain.apply("ratios", maths.importance_ratios.operation(), "log_ratios")
        if self.clip == "ratio":
            clip = maths.clipped_ratios.operation(epsilon=self.epsilon, epsilon_high=self.epsilon_high)
            ratios = chain.apply("clipped_ratios", clip, "ratios", "advantages")
        if self.clip == "weight":
            chain.apply("clipped_ratios", maths.capped_ratios.operation(cap=self.bounds[1]), "ratios")
            losses = chain.apply(
                "policy_losses", maths.weighted_policy_losses.operation(), log_p, "clipped_ratios", "advantages"
            )
        else:
            losses = chain.apply("policy_losses", maths.policy_losses.operation(), ratios, "advantages")
        if self.beta:
            if self.kl == "k3_ratio":
                weighted = maths.weighted_kl_estimate.operation()
                chain.apply("kl", weighted, log_p, "reference_log_probabilities", "ratios")
            else:
                chain.apply("kl", maths.kl_estimate.operation(kind=self.kl), log_p, "reference_log_probabilities")
            losses = chain.apply("token_losses", maths.penalised_losses.operation(beta=self.beta), losses, "kl")
        return losses

    def quantities(self, config: ModelConfig) -> tuple[Quantity, ...]:
        return (*self._token_quantities(config), Quantity("loss", (), f"advantage per {self._counted}"))

    @property
    def _counted(self) -> str:
        """What the loss of a step is divided by the number of."""
        per = {"token": "token", "sequence": "answer", "fixed_length": f"{self.max_completion_length} tokens"}
        return per[self.aggregation]

    def _token_quantities(self, config: ModelConfig) -> tuple[Quantity, ...]:
        """Every quantity up to what each token loses."""
        of = {"token": "token", "sequence": "answer, per token", "product": "answer"}[self.importance_sampling_level]
        clipped = (Quantity("clipped_ratios", TOKENS, "ratio"),)
        penalised = (Quantity("kl", TOKENS, f"nats, {self.kl}"), Quantity("token_losses", TOKENS, "advantage"))
        return (
            *token_quantities(config, self.temperature),
            Quantity("log_ratios", TOKENS, f"nats, of the {of}"),
            Quantity("ratios", TOKENS, "ratio"),
            *(() if self.clip == "none" else clipped),
            Quantity("policy_losses", TOKENS, "advantage"),
            *(penalised if self.beta else ()),
        )


def _metrics(objective: Policy, mask: Tensor, ratios: Tensor, advantages: Tensor) -> dict[str, Metric]:
    """Ratios and clips over the tokens of the answers, or over the answers where these have one each; TRL's names."""
    import math

    there, (low, high) = mask > 0, objective.bounds
    if objective.importance_sampling_level != "token":
        mask = mask / mask.sum(-1, keepdim=True).clamp(min=1)
    rising = (ratios > high) & (advantages > 0)
    metrics: dict[str, Metric] = {
        "ratio/mean": _mean(ratios, mask),
        "ratio/min": Least(ratios.where(there, math.inf).amin()),
        "ratio/max": Most(ratios.where(there, -math.inf).amax()),
    }
    if objective.clip == "weight":
        metrics["cispo_clip_ratio"] = _mean(rising, mask)
    if objective.clip == "ratio":
        falling = (ratios < low) & (advantages < 0)
        metrics["clip_ratio/low_mean"] = _mean(falling, mask)
        metrics["clip_ratio/high_mean"] = _mean(rising, mask)
        metrics["clip_ratio/region_mean"] = _mean(falling | rising, mask)
    return metrics


def _mean(x: Tensor, mask: Tensor) -> Mean:
    return Mean((x * mask).sum(), mask.sum())
