"""What a run reads, prepared before its first step or found again: plain text, or records to tune on; its batches."""

from __future__ import annotations

from limpid.config import TrainConfig
from limpid.config.options import require
from limpid.config.tuning import KINDS, head_of
from limpid.data.batches import Batches, Region
from limpid.data.held_out import wanted
from limpid.data.terminal import data_table
from limpid.data.token_splits import Tokens
from limpid.data.tokenizer_folder import load_tokenizer
from limpid.data.tokens import prepare
from limpid.data.tuning.bad_row import BadRow
from limpid.data.tuning.examples import Examples, Wanted, prepare_examples
from limpid.data.tuning.make import TOO_LONG
from limpid.data.tuning.terminal import examples_table, shown_rows
from limpid.errors import ConfigError
from limpid.objectives import Policy
from limpid.objectives.tuned import objective_of
from limpid.reporter import Reporter
from limpid.run import Run
from limpid.source import Model
from limpid.training.stored_batches import BatchSource
from limpid.training.tuning import (
    Answerer,
    HeldOut,
    example_batches,
    order_of,
    require_answerable,
    require_comparable,
    require_rollouts,
)


def prepared(config: TrainConfig, source: Model | None, reporter: Reporter) -> Tokens | Examples:
    """What a new run trains on, and a table of it; `source` is the model that the run starts from."""
    if config.tune is None:
        tokens = prepare(config.data, config.model.context_length, config.run.seed, reporter.progress)
        reporter.line(data_table(tokens, config.data))
        found: Tokens | Examples = tokens
    else:
        if source is None:
            raise ConfigError(f"{config.tune.objective} tunes a model: name one with --init-from")
        require(
            config.model.head == head_of(config.tune),
            f"{source} gives scores and predicts no token: tune reward goes on with it, {config.tune.objective} cannot",
        )
        if KINDS[config.tune.objective] == "prompts":
            require_rollouts(config.tune)
        tokenizer = load_tokenizer(source)
        require_comparable(config.tune, config.model, tokenizer)
        asked = wanted(config, config.tune, tokenizer, config.tune.chat_template)
        examples = _prepared(asked, reporter)
        reporter.line(examples_table(examples, order_of(examples, config)))
        for row in shown_rows(examples):
            reporter.line(row)
        if one_sided := _one_sided(examples):
            reporter.line(one_sided)
        if examples.kind == "prompts":
            require_answerable(config.tune, examples)
            _say_room(config, examples, reporter)
        found = examples
    for note in found.notes:
        reporter.line(note)
    return found


def _prepared(asked: Wanted, reporter: Reporter) -> Examples:
    """The examples, or which option passes over a row that is of no use."""
    try:
        return prepare_examples(asked, reporter.progress)
    except BadRow as error:
        way = (
            "raise --context-length, or leave such rows out with --too-long skip"
            if error.reason == TOO_LONG
            else "pass over such rows with --skip-bad-rows"
        )
        raise BadRow(error.reason, f"{error}; or {way}") from error


def _one_sided(examples: Examples) -> str | None:
    """What is said of judged answers that are all good, or all bad."""
    good = examples.train.desirable
    if good is None or not len(good) or bool(good.any()) != bool(good.all()):
        return None
    judged, other = ("good", "bad") if good.all() else ("bad", "good")
    return (
        f"all {len(good):,} answers to train on are judged {judged}: nothing holds what is learned of them against "
        f"{other} ones, which kto is for; check the label, or use tune sft for good answers alone"
    )


def _say_room(config: TrainConfig, examples: Examples, reporter: Reporter) -> None:
    """Where the context ends answers before their greatest length."""
    objective, context = objective_of(config.tune), config.model.context_length
    room = context - int(examples.train.lengths.max(initial=1)) + 1
    if isinstance(objective, Policy) and room < objective.max_completion_length:
        reporter.line(
            f"answers end with the context of {context} tokens: the longest prompt leaves {room} of "
            f"max_completion_length {objective.max_completion_length}"
        )


def batches_of(
    run: Run, config: TrainConfig, data: Tokens | Examples, answerer: Answerer | None = None
) -> tuple[BatchSource, HeldOut | None]:
    """Where a run's batches come from: windows of a text, records, or answers of the model itself; and records to
    validate on.
    """
    if isinstance(data, Examples):
        return example_batches(run, config, data, answerer)
    rows, weights = config.run.batch_size, config.data.weights
    regions = [
        Region(start, end - start, weights[path]) for path, (start, end) in data.regions.items() if path < len(weights)
    ]
    length, accumulation = config.model.context_length, config.run.gradient_accumulation_steps
    return Batches(data.train, length, rows, accumulation, config.run.seed, regions), None
