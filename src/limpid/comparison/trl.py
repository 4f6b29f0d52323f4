"""A step of a tuned run through transformers' model and TRL's own loss, each variable of it under our names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from limpid.comparison import huggingface, trl_losses
from limpid.comparison.observed import Observed
from limpid.comparison.variant import Tokens, Variant
from limpid.errors import ConfigError
from limpid.objectives import DPO, KTO, NextToken, Objective, Policy, Reward
from limpid.objectives.losses import entropy, log_probabilities, tempered, token_log_probabilities
from limpid.quantities import NO_LABEL
from limpid.training.precision import FORMATS

Layout = Callable[[Tensor], Tensor]


def _same(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True)
class Named:
    """One variable of a loss, with its value and its gradient as we lay them out; none where that cannot be done."""

    name: str
    tensor: Tensor
    laid_out: Layout = _same
    slopes: Layout | None = _same


def run(variant: Variant, seen: Observed, tokens: Tokens, targets: Tokens, backward: bool) -> None:
    """Forward of transformers' model, loss and metrics of TRL, backward."""
    require_counterpart(seen.objective)
    objective, rates = seen.objective, isinstance(seen.objective, Reward)
    model, recorder = huggingface.opened(variant, seen, rates=rates)
    kept = torch.promote_types(FORMATS[variant.precision], torch.float32)
    arrays = {name: torch.as_tensor(array) for name, array in {**seen.given, "targets": seen.targets}.items()}
    arrays = {name: array.to(kept) if array.is_floating_point() else array for name, array in arrays.items()}
    if isinstance(objective, Reward):
        stream = getattr(model, model.base_model_prefix)(tokens, use_cache=False).last_hidden_state
        hidden = stream[torch.arange(len(tokens)), arrays["last"]]
        recorder.record("last_hidden", hidden)
        scores = model.score(hidden).squeeze(-1)
        recorder.record("rewards", scores)
        loss, named = _reward(objective, scores, arrays)
    else:
        log_p, spread = _log_probabilities(objective, model, recorder, tokens, targets)
        loss, named = LOSSES[type(objective)](objective, log_p, spread, arrays)
    for one in named:
        recorder.record_as(one.name, one.tensor, one.laid_out, one.slopes)
    recorder.record("loss", loss)
    if backward:
        loss.backward()
        recorder.record_parameter_gradients(model)


def _log_probabilities(
    objective: Any, model: Any, recorder: huggingface.Recorder, tokens: Tokens, targets: Tokens
) -> tuple[Tensor, Tensor]:
    """Of each target, nats, 0 where there is none; and the entropy there."""
    logits = huggingface.logits(model, recorder, tokens)
    if (heat := getattr(objective, "temperature", 1.0)) != 1:
        logits = tempered(logits, heat)
        recorder.record("tempered_logits", logits)
    every = log_probabilities(logits)
    recorder.record("log_probabilities", every)
    found = token_log_probabilities(every, targets)
    labelled = targets != NO_LABEL

    def answered(x: Tensor) -> Tensor:  # TRL adds up the rest too, which is 0 whatever the model says
        return x * labelled

    recorder.record_as("token_log_probabilities", found, answered, answered)
    return found, entropy(every.detach(), targets)


Found = tuple[Tensor, list[Named]]
Arrays = Mapping[str, Tensor]


def _answers(objective: NextToken, log_p: Tensor, spread: Tensor, arrays: Arrays) -> Found:
    args = SimpleNamespace(loss_type="nll", average_tokens_across_devices=False)
    learned = arrays["targets"] != NO_LABEL
    asked = trl_losses.completions(log_p, learned.float())
    loss, _ = trl_losses.called(
        trl_losses.method("sft_trainer.py", "compute_loss"),
        trl_losses.trainer(args=args), trl_losses.model(log_p, spread), asked, False, learned.sum(),
    )  # fmt: skip
    return loss, []


def _pairs(objective: DPO, log_p: Tensor, spread: Tensor, arrays: Arrays) -> Found:
    """TRL's rows are all chosen answers, then all rejected ones."""
    order = torch.cat([torch.arange(0, len(log_p), 2), torch.arange(1, len(log_p), 2)])

    def back(x: Tensor) -> Tensor:
        return x[order.argsort()]

    asked = trl_losses.completions(log_p[order], arrays["mask"][order])
    asked |= {f"ref_{side}_logps": arrays[f"reference_{side}"] for side in ("chosen", "rejected")}
    trainer = trl_losses.trainer(
        loss_types=[objective.loss_type], loss_weights=[1.0], beta=objective.beta,
        label_smoothing=objective.label_smoothing, f_divergence_type=objective.f_divergence_type,
        f_alpha_divergence_coef=objective.f_alpha_divergence_coef,
    )  # fmt: skip
    loss, there = trl_losses.called(
        trl_losses.method("dpo_trainer.py", "_compute_loss"), trainer,
        trl_losses.model(log_p[order], spread[order]), asked, False,
    )  # fmt: skip
    names = {"chosen_logps": "chosen_log_probabilities", "rejected_logps": "rejected_log_probabilities",
             "per_sequence_loss": "pair_losses"}  # fmt: skip
    if objective.scored:
        names |= {f"{side}_scores": f"{side}_scores" for side in ("chosen", "rejected")}
    if objective.per_token:
        names |= {f"{side}_avg_score": f"{side}_scores_per_token" for side in ("chosen", "rejected")}
    named = [Named("answer_log_probabilities", there["logps"], back, back)]
    return loss, named + [Named(ours, there[theirs]) for theirs, ours in names.items()]


def _judged(objective: KTO, log_p: Tensor, spread: Tensor, arrays: Arrays) -> Found:
    """TRL's losses are those of all good answers, then of all bad ones."""
    good = arrays["desirable"] > 0
    order = torch.cat([good.nonzero()[:, 0], (~good).nonzero()[:, 0]])

    def back(x: Tensor) -> Tensor:
        return x[order.argsort()]

    asked = trl_losses.completions(log_p, arrays["mask"])
    asked |= {"label": good, "ref_logps": arrays["reference"], "ref_KL_logps": torch.zeros_like(arrays["baseline"])}
    trainer = trl_losses.trainer(
        loss_type="kto", beta=objective.beta, desirable_weight=objective.desirable_weight,
        undesirable_weight=objective.undesirable_weight, _compute_kl_logps=lambda model, batch: arrays["baseline"],
    )  # fmt: skip
    loss, there = trl_losses.called(
        trl_losses.method("kto_trainer.py", "_compute_loss"), trainer, trl_losses.model(log_p, spread), asked, False
    )
    named = [Named("answer_log_probabilities", there["completion_logps"])]
    return loss, [*named, Named("answer_losses", there["losses"], back, back)]


def _reward(objective: Reward, scores: Tensor, arrays: Arrays) -> Found:
    order = torch.cat([torch.arange(0, len(scores), 2), torch.arange(1, len(scores), 2)])
    asked: dict[str, Any] = {"attention_mask": torch.ones_like(order)}
    if objective.margin:
        asked["margin"] = arrays["margin"]
    trainer = trl_losses.trainer(
        args=SimpleNamespace(center_rewards_coefficient=objective.center_rewards_coefficient or None)
    )
    loss, there = trl_losses.called(
        trl_losses.method("reward_trainer.py", "compute_loss"), trainer,
        lambda **_: SimpleNamespace(logits=scores[order, None]), asked,
    )  # fmt: skip
    return loss, [Named(f"{side}_rewards", there[f"rewards_{side}"]) for side in ("chosen", "rejected")]


def _policy(objective: Policy, log_p: Tensor, spread: Tensor, arrays: Arrays) -> Found:
    mask, advantages = arrays["mask"], arrays["advantages"]
    file, options = policy_options(objective)
    trainer = trl_losses.policy_trainer(log_p, spread, options)
    if file == "rloo_trainer.py":  # one advantage per answer
        advantages = (advantages * mask).sum(1) / mask.sum(1).clamp(min=1)
    given = arrays["old_log_probabilities"], arrays.get("reference_log_probabilities")
    asked = trl_losses.policy_inputs(mask, advantages, *given)
    loss, there = trl_losses.called(trl_losses.method(file, "_compute_loss"), trainer, None, asked)
    return loss, list(_of_policy(objective, there, mask))


def _of_policy(objective: Policy, there: Mapping[str, Any], mask: Tensor) -> Iterator[Named]:
    """What belongs to an answer is spread over its tokens, where its gradient is not that of one of them."""
    of_tokens = objective.importance_sampling_level == "token"
    ratio = "log_ratio" if objective.importance_sampling_level == "product" else "log_importance_weights"

    def spread(x: Tensor) -> Tensor:
        return (x if x.ndim == 2 else x[:, None]) * mask

    def filled(x: Tensor) -> Tensor:
        return torch.where(mask > 0, x if x.ndim == 2 else x[:, None], 1.0)

    slopes = spread if of_tokens else None
    yield Named("log_ratios", there[ratio], spread, slopes)
    yield Named("ratios", there["coef_1"], filled, slopes)
    if objective.clip == "weight":
        yield Named("clipped_ratios", there["clamped_ratios"], filled, None)
    if objective.beta:
        yield Named("kl", there["per_token_kl"], spread, slopes)
        yield Named("token_losses", there["per_token_loss"], spread, slopes)
        return
    of_answers = objective.importance_sampling_level == "product"
    yield Named("policy_losses", there["per_sequence_loss" if of_answers else "per_token_loss"], spread, slopes)


LOSSES: dict[type, Callable[..., Found]] = {NextToken: _answers, DPO: _pairs, KTO: _judged, Policy: _policy}


def require_counterpart(objective: Objective) -> None:
    """Raise ConfigError for a loss that TRL does not have."""
    why = ""
    if isinstance(objective, DPO):
        if objective.reference_free:
            why = "reference_free"
        elif objective.loss_type == "ipo_sum":
            why = "loss_type ipo_sum"
        elif objective.label_smoothing and objective.loss_type != "robust":
            why = f"label_smoothing with loss_type {objective.loss_type}"
    elif type(objective) is Policy:
        policy_options(objective)
    elif type(objective) not in (*LOSSES, Reward):
        why = f"objective {objective.name}"
    if why:
        raise _without(why)


def policy_options(objective: Policy) -> tuple[str, dict[str, Any]]:
    """The file of the trainer that has this loss, and its options as TRL names them.

    Raises  ConfigError for a combination that TRL does not have
    """
    level, over = objective.importance_sampling_level, objective.aggregation
    high = objective.epsilon if objective.epsilon_high is None else objective.epsilon_high
    options: dict[str, Any] = {
        "epsilon_low": objective.epsilon, "epsilon_high": high, "beta": objective.beta,
        "max_completion_length": objective.max_completion_length,
        "use_bias_correction_kl": objective.kl == "k3_ratio",
    }  # fmt: skip
    if objective.clip == "none":
        raise _without("clip none")
    if objective.beta and objective.kl not in ("k3", "k3_ratio"):
        raise _without(f"kl {objective.kl} in the loss")
    if level == "product":
        if (objective.clip, over, objective.beta) != ("ratio", "sequence", 0.0):
            raise _without(f"importance_sampling_level product with clip {objective.clip}, aggregation {over} and "
                           f"beta {objective.beta:g}")  # fmt: skip
        return "rloo_trainer.py", options
    if objective.clip == "weight" and over != "token":
        raise _without(f"clip weight with aggregation {over}")
    kinds = {"token": "dapo", "sequence": "grpo", "fixed_length": "dr_grpo"}
    kind = "cispo" if objective.clip == "weight" else kinds[over]
    return "grpo_trainer.py", options | {"loss_type": kind, "importance_sampling_level": level}


def _without(what: str) -> ConfigError:
    return ConfigError(f"TRL {trl_losses.KNOWN} has no loss for {what}: compare with :transformers, or open the step")
