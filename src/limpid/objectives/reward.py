"""A reward model: the chosen answer of a pair is to have the larger score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limpid.config.domain import NotNegative
from limpid.config.options import Checked
from limpid.errors import CheckpointError
from limpid.objectives.objective import POLICY, Least, Loss, Metric, Most
from limpid.quantities import SCORE, Quantity, hidden_quantities

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from limpid.config import ModelConfig
    from limpid.data.batches import MicroBatch
    from limpid.maths.chain import Chain
    from limpid.model.observe import Mode
    from limpid.model.transformer import Transformer


def rewards(
    model: Transformer, tokens: Int[Tensor, "answer position"], last: Int[Tensor, " answer"], mode: Mode | None = None
) -> Float[Tensor, " answer"]:
    """The score of each answer, read at its last token, in at least float32; known up to a constant.

    Raises  CheckpointError for a model that predicts tokens instead
    """
    import torch

    from limpid.model.observe import FAST
    from limpid.objectives.losses import scored

    if model.score is None:
        raise CheckpointError(f"{model.title} predicts tokens and gives no score: give a reward model (head score)")
    mode = mode or FAST
    hidden = model(tokens, path=mode.path, observe=mode.observe, form_logits=False)
    answers = torch.arange(len(last), device=last.device)
    state = mode.report("last_hidden", hidden.stream[answers, last])
    return mode.report("rewards", scored(state, hidden.output_matrix))


@dataclass(frozen=True, repr=False)
class Reward(Checked):
    """Bradley–Terry: -ln σ(r(chosen) - r(rejected) - margin), the mean over the pairs of a step, in nats.

    Takes   tokens  (answer, position)  token ids; a chosen answer with its prompt, then the rejected one, and so on
            last    (answer,)           position of the last token of each, which has seen all others
            margin  (pair,)             by how much the chosen one is to win at least, if asked for
    Limits  all scores alike: ln 2
    Source  Ouyang et al. 2022, eq. 1, arXiv:2203.02155; names as in TRL 1.16
    """

    margin: bool = False
    """The batch holds a margin for each pair."""
    center_rewards_coefficient: NotNegative = 0.0
    """c of c (r(chosen) + r(rejected))², which draws scores to 0."""

    name = "reward"

    @property
    def fields(self) -> tuple[str, ...]:
        return ("tokens", "last", "margin") if self.margin else ("tokens", "last")

    def labels(self, micro: MicroBatch) -> int:
        return len(micro["tokens"]) // 2

    def loss(self, models: Mapping[str, Transformer], micro: MicroBatch, labels: int, mode: Mode) -> Loss:
        import torch
        import torch.nn.functional as F

        model = models[POLICY]
        device = model.device
        tokens, last, *margin = (torch.as_tensor(micro[name]).to(device) for name in self.fields)
        scores = rewards(model, tokens, last, mode)
        chosen = mode.report("chosen_rewards", scores[0::2])
        rejected = mode.report("rejected_rewards", scores[1::2])
        lead = chosen - rejected
        losses = -F.logsigmoid(lead - margin[0] if margin else lead)
        if self.center_rewards_coefficient:
            losses = losses + self.center_rewards_coefficient * (chosen + rejected).square()
        losses = mode.report("pair_losses", losses)
        metrics: dict[str, Metric] = {
            "accuracy": (lead.detach() > 0).sum() / labels,
            "margin": lead.detach().sum() / labels,
            "mean_reward": scores.detach().sum() / (2 * labels),
            "min_reward": Least(scores.detach().amin()),
            "max_reward": Most(scores.detach().amax()),
        }
        return Loss(mode.report("loss", losses.sum() / labels), metrics)

    def chain(self, chain: Chain, config: ModelConfig) -> str:
        from limpid.maths.alignment import at_position, every, mean, reward_loss, score
        from limpid.maths.transformer import hidden_states

        state = chain.apply("last_hidden", at_position.operation(), hidden_states(chain, config), "last")
        scores = chain.apply("rewards", score.operation(), state, SCORE)
        sides = [
            chain.apply(f"{side}_rewards", every.operation(start=start), scores)
            for start, side in enumerate(("chosen", "rejected"))
        ]
        operation = reward_loss.operation(center_rewards_coefficient=self.center_rewards_coefficient)
        losses = chain.apply("pair_losses", operation, *sides, *(("margin",) if self.margin else ()))
        return chain.apply("loss", mean.operation(), losses)

    def quantities(self, config: ModelConfig) -> tuple[Quantity, ...]:
        odds = "nats of log-odds, up to a constant"
        return (
            *hidden_quantities(config),
            Quantity("last_hidden", ("batch", "d_model")),
            Quantity("rewards", ("batch",), odds),
            Quantity("chosen_rewards", ("pair",), odds),
            Quantity("rejected_rewards", ("pair",), odds),
            Quantity("pair_losses", ("pair",), "nats"),
            Quantity("loss", (), "nats per pair"),
        )
