"""From the section `tune` of a configuration to the batches of its run."""

from __future__ import annotations

from collections.abc import Sequence

from limpid.config import ModelConfig, Sampling, TrainConfig, TuneConfig
from limpid.config.options import require
from limpid.config.tuning import RolloutConfig
from limpid.data.tokenizer import Tokenizer
from limpid.data.tokenizer_folder import load_tokenizer
from limpid.data.tuning.examples import Examples
from limpid.errors import CheckpointError, ConfigError
from limpid.model import Transformer
from limpid.model.weights import sizes_of
from limpid.objectives import Policy
from limpid.objectives.tuned import TUNED, objective_of
from limpid.run import Run
from limpid.source import find_model
from limpid.training.stored_batches import BatchSource, StoredBatches
from limpid.training.tuning.examples import ExampleBatches, HeldOut, with_reference
from limpid.training.tuning.judged import with_baseline
from limpid.training.tuning.measured import Answer
from limpid.training.tuning.reference import Reference, require_same_vocabulary
from limpid.training.tuning.rewards import find_rewards, require_columns
from limpid.training.tuning.rollouts import Answerer, Rollouts

COLUMNS_OF = 100
"""Records whose columns are looked at before the first step."""


def example_batches(
    run: Run, config: TrainConfig, examples: Examples, answerer: Answerer | None = None
) -> tuple[BatchSource, HeldOut]:
    """Batches of a run that tunes a model, and those to validate on; what follows from the state is stored."""
    tune = config.tune
    assert tune is not None
    if examples.kind == "prompts":
        drawn, steps = rollouts(run, config, tune, examples, answerer), _settings(tune).num_iterations
        return StoredBatches(drawn, run.path / "batches", steps), drawn.held_out
    objective = objective_of(tune)
    if not {"reference", "reference_chosen"} & set(objective.fields):  # nothing is held to a reference
        plain = ExampleBatches(examples, config, whole="last" in objective.fields)
        return plain, plain.held_out
    reference = Reference(run, config, tune.reference)
    complete = with_baseline(reference) if tune.objective == "kto" else with_reference(reference)
    source = ExampleBatches(examples, config, complete)
    return StoredBatches(source, run.path / "batches"), source.held_out


def rollouts(
    run: Run, config: TrainConfig, tune: TuneConfig, examples: Examples, answerer: Answerer | None
) -> Rollouts:
    """Where the model's own answers come from, and what they are worth."""
    settings, method, objective = _settings(tune), TUNED[tune.objective].policy, objective_of(tune)
    assert isinstance(objective, Policy)
    price = float(tune.options.get("beta", 0.0)) if method is not None and method.kl_in_reward else 0.0
    needed = method is None or price or objective.beta
    named = settings.teacher if method is None else tune.reference
    reference = Reference(run, config, named, asked="teacher" if method is None else "reference") if needed else None
    return Rollouts(examples, config, settings, objective, method, price, answerer or _unasked, reference)


def require_rollouts(tune: TuneConfig) -> None:
    """Raise ConfigError for what a run that learns from its own answers lacks, before anything is made."""
    settings, method = _settings(tune), TUNED[tune.objective].policy
    if method is None and settings.teacher is None:
        raise ConfigError("distill imitates a teacher: name a model of the same tokenizer with --teacher")
    if method is not None and not settings.reward:
        raise ConfigError(f"{tune.objective} learns from a reward: name one with --reward module:function")
    if method is not None and method.of_groups and settings.num_generations < 2:
        raise ConfigError(
            f"num_generations is {settings.num_generations}: {tune.objective} compares the answers to one prompt, so "
            "there must be two at least"
        )
    find_rewards(settings.reward, settings.reward_weights)


def require_answerable(tune: TuneConfig, examples: Examples) -> None:
    """Raise for rewards that ask for more than the records hold."""
    settings = _settings(tune)
    if settings.reward and examples.train.records:
        columns = {name for record in examples.train.columns[:COLUMNS_OF] for name in record}
        require_columns(find_rewards(settings.reward, settings.reward_weights), columns)


def require_comparable(tune: TuneConfig, model: ModelConfig, tokenizer: Tokenizer) -> None:
    """Raise for a reference or teacher that is not there, or reads other tokens."""
    teacher = _settings(tune).teacher
    for asked, named in (("reference", tune.reference), ("teacher", teacher)):
        if named is not None:
            try:
                other = find_model(named)
                sizes, theirs = sizes_of(other), load_tokenizer(other)
            except CheckpointError as error:
                raise CheckpointError(f"--{asked} {named}: {error}") from error
            require_same_vocabulary(f"--{asked} {named}", sizes.vocab_size, model.vocab_size)
            require(
                theirs.vocabulary() == tokenizer.vocabulary(),
                f"--{asked} {named} has another tokenizer: the same numbers stand for other tokens; name a model with "
                "the same one",
            )


def _settings(tune: TuneConfig) -> RolloutConfig:
    return tune.rollouts or RolloutConfig()


def _unasked(
    model: Transformer, tokenizer: Tokenizer, prompts: Sequence[tuple[int, ...]], sampling: Sampling
) -> Sequence[Answer]:
    raise CheckpointError("the answers of this step are no longer stored in the run: resume it, which draws them anew")
