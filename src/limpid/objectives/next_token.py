"""Language modelling: minimise the mean negative log-probability of each next token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from limpid.objectives.objective import POLICY, Loss
from limpid.quantities import NO_LABEL, Quantity, quantities

if TYPE_CHECKING:
    from limpid.config import ModelConfig
    from limpid.data.batches import MicroBatch
    from limpid.maths.chain import Chain
    from limpid.model.observe import Mode
    from limpid.model.transformer import Transformer


@dataclass(frozen=True)
class NextToken:
    """-1/N Σ log p(target), over the N positions of a step that have a label, in nats.

    Takes   tokens   (batch, position)  token ids
            targets  (batch, position)  the token after each; -100 where there is none to learn
    Limits  a uniform prediction: ln vocab_size; certainty of the right token: 0
    Source  Bengio et al. 2003, eq. 1, JMLR 3
    """

    name: ClassVar[str] = "next_token"
    fields: ClassVar[tuple[str, ...]] = ("tokens", "targets")

    def labels(self, micro: MicroBatch) -> int:
        return int((micro["targets"] != NO_LABEL).sum())

    def loss(self, models: Mapping[str, Transformer], micro: MicroBatch, labels: int, mode: Mode) -> Loss:
        import torch

        from limpid.model.kernels.linear_cross_entropy import linear_cross_entropy
        from limpid.objectives.losses import log_probabilities, next_token_loss

        model = models[POLICY]
        model.require_vocabulary()
        device = model.device
        tokens, targets = (torch.as_tensor(micro[name]).to(device) for name in self.fields)
        if not mode.plain:
            hidden = model(tokens, path=mode.path, observe=mode.observe, form_logits=False)
            loss = linear_cross_entropy(hidden.stream, hidden.output_matrix, targets, labels, mode.loss_scale)
            return Loss(mode.report("loss", loss))
        logits = model(tokens, path=mode.path, observe=mode.observe)
        answers = mode.report("log_probabilities", log_probabilities(logits))
        return Loss(mode.report("loss", next_token_loss(answers, targets, labels)))

    def chain(self, chain: Chain, config: ModelConfig) -> str:
        from limpid.maths.step import forward

        return forward(chain, config)

    def quantities(self, config: ModelConfig) -> tuple[Quantity, ...]:
        return quantities(config)
