"""Two models on the same records: which measures suit what the records hold, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from limpid.config import ModelConfig, TuneConfig
from limpid.config.options import require
from limpid.config.tuning import RolloutConfig
from limpid.data.tuning.shapes import Kind
from limpid.errors import ConfigError
from limpid.evaluation.compared import Compared, Measure
from limpid.evaluation.inputs import open_evaluated_model
from limpid.evaluation.metrics import Difference, Metric, Words
from limpid.evaluation.records import drawn, given
from limpid.evaluation.records.chosen import Records, records_of, trained_on_too
from limpid.loaded import LoadedModel
from limpid.objectives import Policy
from limpid.objectives.tuned import objective_of
from limpid.reporter import Reporter
from limpid.training.tuning.rewards import Rewards, find_rewards, require_columns

LONGEST = 512
"""Tokens of an answer, where the run has no greatest length of its own."""
MEASURED = ("reward", "KL to the teacher", "accuracy of the implicit reward", "accuracy of the score", "loss")
"""What says most, the first of them that was measured."""
SMALLER_IS_BETTER = ("loss", "KL to the teacher")


@dataclass(frozen=True)
class Asked:
    """What is asked of two models, as options have it."""

    records: tuple[str, ...]
    reward: tuple[str, ...]
    num_generations: int | None
    max_completion_length: int | None
    temperature: float | None
    max_records: int | None
    text_field: str


@dataclass(frozen=True)
class Judged:
    """What came of it."""

    kind: Kind
    origin: str
    count: int
    of: int
    rows: tuple[Compared, ...]
    names: tuple[str, str]
    confidence: float
    asking: drawn.Asking | None = None
    notes: tuple[str, ...] = ()

    def metrics(self, side: Literal["before", "after"]) -> dict[str, Metric]:
        """What was measured of one of the two, by name."""
        found = ((row.name, row.before if side == "before" else row.after) for row in self.rows)
        return {name: metric for name, metric in found if metric is not None}

    @property
    def difference(self) -> Difference | None:
        """Which model is better by what says most."""
        found = {row.name: row for row in self.rows}
        row = next((found[name] for name in MEASURED if name in found), None)
        if row is None or row.difference is None:
            return None
        scale = (1 if row.name in SMALLER_IS_BETTER else -1) * (100 if row.share else 1)
        unit = "percentage points" if row.share else row.after.unit
        words = Words(f"{unit} in {row.name}".strip(), "do equally well on these records", "there are too few records",
                      "as many records")  # fmt: skip
        before, after = self.names
        estimate = row.difference.estimate and row.difference.estimate.times(scale)
        return Difference(after, before, scale * row.difference.value, estimate, self.confidence, words)

    def as_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        difference = self.difference
        return {
            "kind": self.kind, "origin": self.origin, "records": self.count, "of": self.of,
            "before": self.names[0], "after": self.names[1],
            "drawn": None if self.asking is None else vars(self.asking),
            "rows": [row.as_dict() for row in self.rows],
            "sentence": None if difference is None else difference.sentence(),
            "notes": list(self.notes),
        }  # fmt: skip


def judge(models: Sequence[LoadedModel], asked: Asked, confidence: float, seed: int, reporter: Reporter) -> Judged:
    """`models` are the one before and the one after, which decides on records, objective and rewards.

    Raises  ConfigError for models that do not go together, DataError for records or rewards that fail
    """
    before, after = models
    tune = None if after.run is None else after.run.read_config().tune
    rewards = _rewards(asked, tune)
    _require_one_tokenizer(before, after)
    records = records_of(after, asked.records, bool(asked.reward), asked.max_records, asked.text_field, reporter)
    measure = Measure(confidence, seed)
    notes: tuple[str, ...] = ()
    asking = _asking(asked, tune, seed) if records.kind == "prompts" else None
    if asking is None:
        rows = _given(models, records, tune, measure, reporter)
    else:
        _require_predicting(models)
        if rewards.functions:
            require_columns(rewards, {name for one in records.columns() for name in one})
        beside = _beside(after, tune)
        rows = list(drawn.of_prompts(models, *beside, rewards, records, asking, measure, reporter))
        if rewards.functions and not any(row.name == "reward" for row in rows):
            notes = (f"no answer has a reward: {', '.join(rewards.functions)} returned None for each",)
    if learned := trained_on_too(after, records):
        notes += (f"{learned:,} of these {len(records):,} records are among those that {after.title} was trained on",)
    names = before.title, after.title
    return Judged(records.kind, records.origin, len(records), records.of, tuple(rows), names, confidence, asking, notes)


def _given(
    models: Sequence[LoadedModel], records: Records, tune: TuneConfig | None, measure: Measure, reporter: Reporter
) -> list[Compared]:
    """Of answers that records hold."""
    scores = {model.transformer.score is not None for model in models}
    require(
        len(scores) == 1,
        f"one of {models[1].title} and {models[0].title} gives scores, one predicts tokens: compare two of a kind",
    )
    if records.kind == "pairs" and scores == {True}:
        return given.of_scores(models, records, measure, reporter)
    _require_predicting(models)
    if records.kind == "answers":
        return given.of_answers(models, records, measure, reporter)
    of = given.of_pairs if records.kind == "pairs" else given.of_judged
    reference, _ = _beside(models[1], tune)
    return of(models, reference, _beta(tune), records, measure, reporter)


def _beta(tune: TuneConfig | None) -> float:
    """β of the run; 1 where there is none, so that a margin is one of log-ratios, nats."""
    return float(getattr(objective_of(tune), "beta", 1.0))


def _rewards(asked: Asked, tune: TuneConfig | None) -> Rewards:
    """Those that are asked for, else the run's own."""
    if asked.reward:
        return find_rewards(asked.reward, ())
    own = _rollouts(tune)
    return find_rewards(own.reward, own.reward_weights)


def _asking(asked: Asked, tune: TuneConfig | None, seed: int) -> drawn.Asking:
    """As the run draws answers, where nothing else is asked for."""
    own = objective_of(tune)
    length, heat = (own.max_completion_length, own.temperature) if isinstance(own, Policy) else (LONGEST, 1.0)
    return drawn.Asking(
        asked.num_generations or _rollouts(tune).num_generations,
        asked.max_completion_length or length,
        asked.temperature or heat,
        seed,
    )


def _beside(after: LoadedModel, tune: TuneConfig | None) -> tuple[LoadedModel | None, LoadedModel | None]:
    """The reference and the teacher that a run names.

    Raises  ConfigError where one reads other tokens
    """
    found = []
    for named in (None if tune is None else tune.reference, _rollouts(tune).teacher):
        model = None if named is None else open_evaluated_model(named)
        if model is not None:
            _require_one_vocabulary(model.transformer.config, after.transformer.config, model.title, after.title)
        found.append(model)
    return found[0], found[1]


def _rollouts(tune: TuneConfig | None) -> RolloutConfig:
    return (None if tune is None else tune.rollouts) or RolloutConfig()


def _require_predicting(models: Sequence[LoadedModel]) -> None:
    for model in models:
        model.transformer.require_vocabulary()


def _require_one_tokenizer(before: LoadedModel, after: LoadedModel) -> None:
    """Raise ConfigError for models that read one record as different tokens."""
    _require_one_vocabulary(before.transformer.config, after.transformer.config, before.title, after.title)
    if before.tokenizer.to_json() != after.tokenizer.to_json():
        raise ConfigError(
            f"{before.title} has another tokenizer than {after.title}: probabilities of the same records cannot be "
            "compared; name a model with the same one with --against, or compare on a text"
        )


def _require_one_vocabulary(first: ModelConfig, second: ModelConfig, name: str, other: str) -> None:
    if first.vocab_size != second.vocab_size:
        raise ConfigError(
            f"{name} has a vocabulary of {first.vocab_size:,} tokens, {other} one of {second.vocab_size:,}: their "
            "probabilities cannot be compared; name a model with the same tokenizer"
        )
