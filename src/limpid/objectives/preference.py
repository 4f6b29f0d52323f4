"""Preferences: raise the log-odds of the chosen answer against the rejected one, relative to a reference model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from limpid.config.domain import Fraction, Positive
from limpid.config.options import Checked, require
from limpid.objectives.answers import token_quantities
from limpid.objectives.objective import POLICY, Loss, Metric
from limpid.quantities import Quantity

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.config import ModelConfig
    from limpid.data.batches import MicroBatch
    from limpid.maths.chain import Chain
    from limpid.maths.formula import FormulaOperation
    from limpid.model.observe import Mode
    from limpid.model.transformer import Transformer

SMOOTHED = ("sigmoid", "sigmoid_norm", "robust")
"""Losses that know of wrong labels."""


@dataclass(frozen=True, repr=False)
class DPO(Checked):
    """Preference optimisation without a reward model: the mean over the pairs of a step of a loss of their margin.

    The margin is how much further the policy is from the reference on the chosen answer than on the rejected one.

    Takes   tokens              (answer, position)  token ids; a chosen answer, then the rejected one, and so on
            targets             (answer, position)  the token after each; -100 where there is none
            mask                (answer, position)  1 where the target belongs to the answer, 0 in prompt and padding
            reference_chosen    (pair,)             log-probability of the whole answer under the reference, nats
            reference_rejected  (pair,)             neither of them if reference_free
    Limits  policy = reference: ln 2, and ∂loss/∂ln π(chosen) = -β/2 of each pair's share; hinge 1; IPO 1/(4β²)
    Source  Rafailov et al. 2023, eq. 7, arXiv:2305.18290; names as in TRL 1.16
    """

    beta: Positive = 0.1
    """β, per nat: how strongly to stay with the reference."""
    loss_type: Literal["sigmoid", "sigmoid_norm", "hinge", "ipo", "ipo_sum", "robust"] = "sigmoid"
    """-ln σ(βh) of the margin h, of that per token, max(0, 1 - βh), (h - 1/2β)² per token or not, robust to flips."""
    label_smoothing: Fraction = 0.0
    """How often the label is believed to be wrong; of the sigmoid losses."""
    reference_free: bool = False
    """The margin is between the policy's own log-probabilities."""
    f_divergence_type: Literal["reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"] = "reverse_kl"
    """What holds the policy to the reference."""
    f_alpha_divergence_coef: float = 0.5
    """α of the α-divergence."""

    name = "dpo"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not self.label_smoothing or self.loss_type in SMOOTHED,
            f"label_smoothing is {self.label_smoothing}, but loss_type {self.loss_type} knows of no wrong labels: "
            f"choose one of {', '.join(SMOOTHED)}",
        )
        require(
            self.loss_type != "robust" or self.label_smoothing < 0.5,
            f"label_smoothing is {self.label_smoothing}: of wrong labels loss_type robust takes less than 0.5",
        )
        require(
            not (self.reference_free and self.f_divergence_type != "reverse_kl"),
            f"f_divergence_type is {self.f_divergence_type}, but reference_free: there is nothing to diverge from",
        )

    @property
    def fields(self) -> tuple[str, ...]:
        reference = () if self.reference_free else ("reference_chosen", "reference_rejected")
        return ("tokens", "targets", "mask", *reference)

    @property
    def per_token(self) -> bool:
        """Whether scores are divided by the tokens of their answer, so that long answers weigh no more."""
        return self.loss_type in ("ipo", "sigmoid_norm")

    @property
    def scored(self) -> bool:
        """Whether answers have scores of their own before they meet, other than their log-probabilities."""
        return not self.reference_free and (self.per_token or self.f_divergence_type != "reverse_kl")

    def labels(self, micro: MicroBatch) -> int:
        return len(micro["tokens"]) // 2

    def loss(self, models: Mapping[str, Transformer], micro: MicroBatch, labels: int, mode: Mode) -> Loss:
        import torch

        from limpid.objectives.answers import entropy_of, token_log_probabilities

        model = models[POLICY]
        device = model.device
        tokens, targets, mask, *reference = (torch.as_tensor(micro[name]).to(device) for name in self.fields)
        answered, entropy = token_log_probabilities(model, tokens, targets, mode, with_entropy=True)
        answers = mode.report("answer_log_probabilities", (answered * mask).sum(-1))
        chosen = mode.report("chosen_log_probabilities", answers[0::2])
        rejected = mode.report("rejected_log_probabilities", answers[1::2])
        before = reference or [torch.zeros_like(chosen), torch.zeros_like(rejected)]
        ratios = [chosen - before[0], rejected - before[1]]
        scores = ratios
        if self.scored:
            names = ("chosen_scores", "rejected_scores")
            scores = [mode.report(name, self._score(ratio)) for name, ratio in zip(names, ratios, strict=True)]
        if self.per_token:
            lengths = mask.sum(-1).clamp(min=1)
            scores = [
                mode.report("chosen_scores_per_token", scores[0] / lengths[0::2]),
                mode.report("rejected_scores_per_token", scores[1] / lengths[1::2]),
            ]
        losses = mode.report("pair_losses", self._pair_losses(scores[0] - scores[1]))
        rewards = [self.beta * ratio.detach() for ratio in ratios]
        metrics: dict[str, Metric] = {
            "rewards/chosen": rewards[0].sum() / labels,
            "rewards/rejected": rewards[1].sum() / labels,
            "rewards/margins": (rewards[0] - rewards[1]).sum() / labels,
            "rewards/accuracies": (rewards[0] > rewards[1]).sum() / labels,
            "logps/chosen": chosen.detach().sum() / labels,
            "logps/rejected": rejected.detach().sum() / labels,
            "entropy": entropy_of(entropy, mask),
        }
        return Loss(mode.report("loss", losses.sum() / labels), metrics)

    def _score(self, log_ratio: Tensor) -> Tensor:
        from limpid.objectives import losses

        return losses.divergence_score(log_ratio, self.f_divergence_type, self.f_alpha_divergence_coef)

    def _pair_losses(self, margin: Tensor) -> Tensor:
        import torch.nn.functional as F

        if self.loss_type in ("ipo", "ipo_sum"):
            return (margin - 1 / (2 * self.beta)).square()
        h, wrong = self.beta * margin, self.label_smoothing
        if self.loss_type == "hinge":
            return (1 - h).relu()
        if self.loss_type == "robust":
            return (wrong * F.logsigmoid(-h) - (1 - wrong) * F.logsigmoid(h)) / (1 - 2 * wrong)
        return -(1 - wrong) * F.logsigmoid(h) - wrong * F.logsigmoid(-h) if wrong else -F.logsigmoid(h)

    def chain(self, chain: Chain, config: ModelConfig) -> str:
        from limpid.maths.alignment import answer_log_probability, divergence_score, every, mean, per_token
        from limpid.objectives.answers import token_chain

        tokens = token_chain(chain, config)
        answers = chain.apply("answer_log_probabilities", answer_log_probability.operation(), tokens, "mask")
        sides = ("chosen", "rejected")
        scores = [
            chain.apply(f"{side}_log_probabilities", every.operation(start=start), answers)
            for start, side in enumerate(sides)
        ]
        references = [] if self.reference_free else ["reference_chosen", "reference_rejected"]
        if self.scored:
            operation = divergence_score.operation(
                f_divergence_type=self.f_divergence_type, f_alpha_divergence_coef=self.f_alpha_divergence_coef
            )
            pairs = zip(sides, scores, references, strict=True)
            scores = [chain.apply(f"{side}_scores", operation, score, before) for side, score, before in pairs]
            references = []
        if self.per_token:
            scores = [
                chain.apply(f"{side}_scores_per_token", per_token.operation(start=start), score, "mask")
                for start, (side, score) in enumerate(zip(sides, scores, strict=True))
            ]
        losses = chain.apply("pair_losses", self._operation(), *scores, *references)
        return chain.apply("loss", mean.operation(), losses)

    def _operation(self) -> FormulaOperation:
        """Of scores, and of references where the scores do not know them."""
        from limpid.maths.alignment import dpo, hinge_preference, ipo, robust_preference

        match self.loss_type:
            case "hinge":
                return hinge_preference.operation(beta=self.beta)
            case "ipo" | "ipo_sum":
                return ipo.operation(beta=self.beta)
            case "robust":
                return robust_preference.operation(beta=self.beta, label_smoothing=self.label_smoothing)
        return dpo.operation(beta=self.beta, label_smoothing=self.label_smoothing)

    def quantities(self, config: ModelConfig) -> tuple[Quantity, ...]:
        sides = ("chosen", "rejected")
        squared = "nats²" if self.loss_type in ("ipo", "ipo_sum") else "" if self.loss_type == "hinge" else "nats"
        return (
            *token_quantities(config),
            Quantity("answer_log_probabilities", ("batch",), "nats"),
            *(Quantity(f"{side}_log_probabilities", ("pair",), "nats") for side in sides),
            *(Quantity(f"{side}_scores", ("pair",), "nats") for side in sides if self.scored),
            *(Quantity(f"{side}_scores_per_token", ("pair",), "nats per token") for side in sides if self.per_token),
            Quantity("pair_losses", ("pair",), squared),
            Quantity("loss", (), f"{squared} per pair".strip()),
        )
