"""What is logged of drawn answers beside the loss, by TRL's names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np
from jaxtyping import Float64

Array = np.ndarray


class Answer(Protocol):
    """What the model said to a prompt."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """Without the token that ended it."""

    @property
    def text(self) -> str:
        """The same, to read."""

    @property
    def end(self) -> int | None:
        """The token that ended it; None where it was broken off at its greatest length."""


def measured(
    names: Collection[str],
    said: Float64[Array, "reward answer"],
    total: Float64[Array, " answer"],
    count: int,
    answers: Sequence[Answer],
    arrays: Mapping[str, Array],
) -> dict[str, float]:
    """Rewards over the answers that have one, lengths, and how far the answers are from the reference.

    names  of the rewards; count is how many answers there are to each prompt
    """
    lengths = np.array([len(answer.tokens) for answer in answers])
    found = {
        "completions/mean_length": float(lengths.mean()),
        "completions/max_length": float(lengths.max()),
        "completions/clipped_ratio": float(np.mean([answer.end is None for answer in answers])),
    }
    known = np.isfinite(total)
    if len(said) and known.any():
        found["reward"] = float(total[known].mean())
        groups = [group[np.isfinite(group)] for group in total.reshape(-1, count)]
        spreads = [float(group.std(ddof=1)) for group in groups if len(group) > 1]
        if spreads:
            found["reward_std"] = float(np.mean(spreads))
            found["frac_reward_zero_std"] = float(np.mean(np.array(spreads) == 0))
    for name, values in zip(names, said, strict=True):
        if np.isfinite(values).any():
            found[f"rewards/{name}/mean"] = float(np.nanmean(values))
            found[f"rewards/{name}/std"] = float(np.nanstd(values))
    if "reference_log_probabilities" in arrays:
        apart = (arrays["old_log_probabilities"] - arrays["reference_log_probabilities"]) * arrays["mask"]
        found["kl_before"] = float(apart.sum() / max(1.0, float(arrays["mask"].sum())))
    return found


def explained_variance(arrays: Mapping[str, Array]) -> dict[str, float]:
    """How much of what differs between the returns of a draw its values had foreseen: 1 all, 0 as much as their mean.

    Nothing where no values are learned, or all returns are alike.
    """
    if "returns" not in arrays:
        return {}
    there = arrays["mask"] > 0
    returns, values = (arrays[name][there].astype(np.float64) for name in ("returns", "old_values"))
    spread = float(returns.var()) if len(returns) else 0.0
    return {"explained_variance": 1 - float((returns - values).var()) / spread} if spread else {}
