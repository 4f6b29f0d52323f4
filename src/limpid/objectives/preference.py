"""Preferences: raise the log-odds of the chosen answer against the rejected one, relative to a reference model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from limpid.objectives.answers import token_quantities
from limpid.objectives.objective import POLICY, Loss
from limpid.quantities import Quantity

if TYPE_CHECKING:
    from limpid.config import ModelConfig
    from limpid.data.batches import MicroBatch
    from limpid.maths.chain import Chain
    from limpid.model.observe import Mode
    from limpid.model.transformer import Transformer


@dataclass(frozen=True)
class DPO:
    """Direct preference optimisation: -ln σ(β · margin), the mean over the pairs of a step, in nats.

    The margin is how much further the policy is from the reference on the chosen answer than on the rejected one.

    Takes   tokens              (answer, position)  token ids; a chosen answer, then the rejected one, and so on
            targets             (answer, position)  the token after each; -100 where there is none
            mask                (answer, position)  1 where the target belongs to the answer, 0 in prompt and padding
            reference_chosen    (pair,)             log-probability of the whole answer under the reference, nats
            reference_rejected  (pair,)
    Limits  policy = reference: ln 2, and ∂loss/∂ln π(chosen) = -β/2 of each pair's share
    Source  Rafailov et al. 2023, eq. 7, arXiv:2305.18290
    """

    beta: float = 0.1  # β, per nat: how strongly to stay with the reference

    name: ClassVar[str] = "dpo"
    fields: ClassVar[tuple[str, ...]] = ("tokens", "targets", "mask", "reference_chosen", "reference_rejected")

    def labels(self, micro: MicroBatch) -> int:
        return len(micro["reference_chosen"])

    def loss(self, models: Mapping[str, Transformer], micro: MicroBatch, labels: int, mode: Mode) -> Loss:
        import torch
        import torch.nn.functional as F

        from limpid.objectives.answers import token_log_probabilities

        model = models[POLICY]
        device = model.output_matrix.device
        tokens, targets, mask, *reference = (torch.as_tensor(micro[name]).to(device) for name in self.fields)
        answered = token_log_probabilities(model, tokens, targets, mode).log_probabilities
        answers = mode.report("answer_log_probabilities", (answered * mask).sum(-1))
        chosen = mode.report("chosen_log_probabilities", answers[0::2])
        rejected = mode.report("rejected_log_probabilities", answers[1::2])
        rewards = self.beta * (chosen - reference[0]), self.beta * (rejected - reference[1])
        margins = rewards[0] - rewards[1]
        losses = mode.report("pair_losses", -F.logsigmoid(margins))
        metrics = {
            "rewards/chosen": rewards[0].detach().sum() / labels,
            "rewards/rejected": rewards[1].detach().sum() / labels,
            "rewards/margins": margins.detach().sum() / labels,
            "rewards/accuracies": (margins.detach() > 0).sum() / labels,
        }
        return Loss(mode.report("loss", losses.sum() / labels), metrics)

    def chain(self, chain: Chain, config: ModelConfig) -> str:
        from limpid.maths.alignment import answer_log_probability, dpo, every, mean
        from limpid.objectives.answers import token_chain

        tokens = token_chain(chain, config)
        answers = chain.apply("answer_log_probabilities", answer_log_probability.operation(), tokens, "mask")
        chosen = chain.apply("chosen_log_probabilities", every.operation(start=0), answers)
        rejected = chain.apply("rejected_log_probabilities", every.operation(start=1), answers)
        reference = ("reference_chosen", "reference_rejected")
        losses = chain.apply("pair_losses", dpo.operation(beta=self.beta), chosen, rejected, *reference)
        return chain.apply("loss", mean.operation(), losses)

    def quantities(self, config: ModelConfig) -> tuple[Quantity, ...]:
        return (
            *token_quantities(config),
            Quantity("answer_log_probabilities", ("batch",), "nats"),
            Quantity("chosen_log_probabilities", ("pair",), "nats"),
            Quantity("rejected_log_probabilities", ("pair",), "nats"),
            Quantity("pair_losses", ("pair",), "nats"),
            Quantity("loss", (), "nats per pair"),
        )
