"""Answers judged one at a time, good or bad: each is to be better, or worse, than what the policy usually gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limpid.config.domain import NotNegative, Positive
from limpid.config.options import Checked
from limpid.objectives.answers import token_quantities
from limpid.objectives.objective import POLICY, Loss, Mean, Metric
from limpid.quantities import Quantity

if TYPE_CHECKING:
    from limpid.config import ModelConfig
    from limpid.data.batches import MicroBatch
    from limpid.maths.chain import Chain
    from limpid.model.observe import Mode
    from limpid.model.transformer import Transformer


@dataclass(frozen=True, repr=False)
class KTO(Checked):
    """Kahneman–Tversky optimisation: λ (1 - σ(±β (ln π/π₀ - z₀))), the mean over the answers of a step.

    Takes   tokens     (answer, position)  token ids
            targets    (answer, position)  the token after each; -100 where there is none
            mask       (answer, position)  1 where the target belongs to the answer, 0 in prompt and padding
            reference  (answer,)           log-probability of the whole answer under the reference, nats
            desirable  (answer,)           1 where it was judged good, 0 where bad
            baseline   (answer,)           z₀ ≥ 0, nats: how far the policy is from the reference on answers to other
                                           prompts, which its source estimates before the step; it has no gradient
    Limits  policy = reference and z₀ = 0: λ/2
    Source  Ethayarajh et al. 2024, eq. 7 and 8, arXiv:2402.01306; names as in TRL 1.16
    """

    beta: Positive = 0.1
    """β, per nat: how strongly to stay with the reference."""
    desirable_weight: NotNegative = 1.0
    """λ of good answers."""
    undesirable_weight: NotNegative = 1.0
    """λ of bad ones; the two are to balance how many there are."""

    name = "kto"
    fields = ("tokens", "targets", "mask", "reference", "desirable", "baseline")

    def labels(self, micro: MicroBatch) -> int:
        return len(micro["tokens"])

    def loss(self, models: Mapping[str, Transformer], micro: MicroBatch, labels: int, mode: Mode) -> Loss:
        import torch

        from limpid.objectives.answers import entropy_of, token_log_probabilities

        model = models[POLICY]
        device = model.device
        tokens, targets, mask, reference, desirable, baseline = (
            torch.as_tensor(micro[name]).to(device) for name in self.fields
        )
        answered, entropy = token_log_probabilities(model, tokens, targets, mode, with_entropy=True)
        answers = mode.report("answer_log_probabilities", (answered * mask).sum(-1))
        good = desirable > 0
        ratio = answers - reference
        lead = torch.where(good, ratio - baseline, baseline - ratio)
        weight = torch.full_like(lead, self.undesirable_weight).masked_fill(good, self.desirable_weight)
        losses = mode.report("answer_losses", weight * (self.beta * -lead).sigmoid())  # 1 - σ(x) is σ(-x)
        rewards, log_p = self.beta * ratio.detach(), answers.detach()
        metrics: dict[str, Metric] = {
            "rewards/chosen": Mean(rewards[good].sum(), good.sum()),
            "rewards/rejected": Mean(rewards[~good].sum(), (~good).sum()),
            "logps/chosen": Mean(log_p[good].sum(), good.sum()),
            "logps/rejected": Mean(log_p[~good].sum(), (~good).sum()),
            "kl": baseline.sum() / labels,
            "entropy": entropy_of(entropy, mask),
        }
        return Loss(mode.report("loss", losses.sum() / labels), metrics)

    def chain(self, chain: Chain, config: ModelConfig) -> str:
        from limpid.maths.alignment import answer_log_probability, kto, mean
        from limpid.objectives.answers import token_chain

        answers = chain.apply(
            "answer_log_probabilities", answer_log_probability.operation(), token_chain(chain, config), "mask"
        )
        operation = kto.operation(
            beta=self.beta, desirable_weight=self.desirable_weight, undesirable_weight=self.undesirable_weight
        )
        losses = chain.apply("answer_losses", operation, answers, "reference", "desirable", "baseline")
        return chain.apply("loss", mean.operation(), losses)

    def quantities(self, config: ModelConfig) -> tuple[Quantity, ...]:
        return (
            *token_quantities(config),
            Quantity("answer_log_probabilities", ("batch",), "nats"),
            Quantity("answer_losses", ("batch",)),
            Quantity("loss", (), "per answer"),
        )
