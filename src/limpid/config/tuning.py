"""The section of a run that tunes a model: to which objective, on which records, against which reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from limpid.config.domain import Count, Positive
from limpid.config.model import Head
from limpid.config.options import Checked, require

ObjectiveName = Literal[
    "sft", "dpo", "ipo", "kto", "reward",
    "grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_plus_plus", "ppo", "distill",
]  # fmt: skip
Kind = Literal["answers", "pairs", "judged", "prompts"]
GIVEN: dict[str, Kind] = {"sft": "answers", "reward": "pairs", "dpo": "pairs", "ipo": "pairs", "kto": "judged"}
HEADS: dict[str, Head] = {"reward": "score", "ppo": "vocabulary_and_value"}
"""What the last hidden state becomes, where an objective asks for more than tokens."""
KINDS: dict[str, Kind] = {name: GIVEN.get(name, "prompts") for name in get_args(ObjectiveName)}
"""What each objective learns from: answers, the better of two, good and bad ones, or the model's own to prompts."""


@dataclass(frozen=True, repr=False)
class RolloutConfig(Checked):
    """How the model's own answers are drawn and rewarded."""

    reward: tuple[str, ...] = ()
    """module:function or file.py:function, called with prompts, completions and the records' other fields; or a
    reward model. Several are added up."""
    reward_weights: tuple[float, ...] = ()
    """One per reward: how much it counts; none counts each once."""
    num_generations: Count = 8
    """Answers to each prompt."""
    num_iterations: Count = 1
    """Steps that are taken on each draw of answers."""
    mask_truncated_completions: bool = False
    """Learn nothing from answers that were broken off at their greatest length."""
    teacher: str | None = None
    """Model that is imitated, for distill."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not self.reward_weights or len(self.reward_weights) == len(self.reward),
            f"reward_weights are {len(self.reward_weights)} and rewards {len(self.reward)}: give one weight per "
            "reward, in their order",
        )


@dataclass(frozen=True, repr=False)
class TuneConfig(Checked):
    """What a model that was trained before is tuned to."""

    objective: ObjectiveName = field(default="sft", metadata={"flag": False})
    """What is learned: a word of `limpid tune`, see objectives/tuned.py."""
    epochs: Positive | None = None
    """Passes over the records, instead of max_steps."""
    chat_template: str | None = None
    """File with the Jinja template of conversations; none is the model's own."""
    too_long: Literal["skip", "cut", "refuse"] | None = None
    """Records that are longer than the context: passed over, cut at the right, or an error; none cuts for sft, and
    skips for others."""
    skip_bad_rows: bool = False
    """Pass over records that cannot be used, with a count, instead of stopping at the first."""
    reference: str | None = None
    """Model that the tuned one is held near to; none is the one that tuning starts from."""
    options: Mapping[str, Any] = field(default_factory=dict, metadata={"flag": False})
    """The objective's own hyperparameters, such as beta."""
    rollouts: RolloutConfig | None = field(default=None, metadata={"flag": False})
    """How the model's own answers are drawn and rewarded, where the objective learns from them."""


def head_of(tune: TuneConfig | None) -> Head:
    """What the last hidden state becomes in a run, unless its objective is the user's own."""
    return "vocabulary" if tune is None else HEADS.get(tune.objective, "vocabulary")
