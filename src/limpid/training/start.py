"""A training run, new or resumed: its configuration, tokens, batches and state."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from limpid.config import ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.config.effect import CHOSEN_ANEW
from limpid.config.options import as_typed, require, shown, to_dict
from limpid.config.sections import USUAL_WARMUP
from limpid.config.tuning import HEADS, head_of
from limpid.data.held_out import changed_since, data_of
from limpid.data.tokenizer import write_settings
from limpid.data.tokens import Tokens
from limpid.data.tuning.examples import Examples
from limpid.data.validation import validation_sets
from limpid.errors import CheckpointError, ConfigError, DataError
from limpid.files import write_atomically
from limpid.lock import hold
from limpid.model.convert import dropout_of
from limpid.model.linear import begun_magnitudes
from limpid.model.peft_files import load_adapter
from limpid.model.pissa import principal
from limpid.model.weights import load_weights, value_function
from limpid.objectives import NEXT_TOKEN, Objective, to_document
from limpid.objectives.tuned import objective_of
from limpid.planning import parameter_count
from limpid.quantities import parameters
from limpid.reporter import SILENT, Reporter
from limpid.run import Run
from limpid.run_folder import new_run
from limpid.source import Adapted, Model, ModelFolder, find_model
from limpid.terminal import counted
from limpid.training import average, checkpoint
from limpid.training.autotune import resolve_auto
from limpid.training.feed import batches_of, prepared
from limpid.training.memory import require_fits
from limpid.training.mesh import Mesh
from limpid.training.metrics import take_up
from limpid.training.own import NOTHING, Own
from limpid.training.state import State, fresh_state, set_threads, set_weights
from limpid.training.stored_batches import BatchSource
from limpid.training.time_budget import FINAL_WRITES, Deadline, StepBudget
from limpid.training.trackers import require_installed
from limpid.training.tuning import Answerer, HeldOut


@dataclass
class Training:
    """A run in progress: what it is, what it reads, where it stands."""

    run: Run
    config: TrainConfig
    tokens: Tokens | Examples
    batches: BatchSource
    state: State
    step_budget: StepBudget | None = None
    objective: Objective = NEXT_TOKEN
    held_out: HeldOut | None = None  # batches to validate on, where no text is held out


def start(
    config: TrainConfig,
    name: str | None,
    reporter: Reporter = SILENT,
    deadline: Deadline | None = None,
    mesh: Mesh | None = None,
    own: Own = NOTHING,
    answerer: Answerer | None = None,
) -> Training:
    """A new run: resolve what was left open, tokenize, draw the initial weights, save the state before step 1.

    With a deadline, the number of steps, and the size where that is open, follow from the time there is.

    answerer  how a model answers prompts, for objectives that learn from its own answers
    """
    mesh = Mesh() if mesh is None else mesh
    asked = config
    require(
        own.objective is not None or config.model.head in ("vocabulary", head_of(config.tune)),
        f"head is {config.model.head}, which this run would not train: it is for limpid tune "
        f"{' '.join(name for name, head in HEADS.items() if head == config.model.head)}, or an objective of your own",
    )
    require(
        config.model.init_lora_weights != "pissa" or config.run.init_from is not None,
        "init_lora_weights is pissa, which takes the singular values of a model that was trained before: name one with "
        "--init-from",
    )
    source = None if config.run.init_from is None else _first_model(config.run.init_from)
    if source is not None:
        sizes, weights, factors = _initial(source, config.model)
        theirs = dropout_of(source.path) if isinstance(source, ModelFolder) else sizes.dropout
        if config.model.dropout != theirs:
            reporter.line(f"{source} has dropout {theirs:g}, this run {config.model.dropout:g}: --dropout sets it")
        config = _adopted(config, sizes, source)
        if factors:
            config = dataclasses.replace(config, model=dataclasses.replace(config.model, **factors))
            dropped = f", their input dropped by {config.model.lora_dropout:g}" if config.model.lora_dropout else ""
            reporter.line(f"the factors of {source}, of rank {config.model.lora_rank}, go on being trained{dropped}")
    _require_shareable(config, mesh)
    require_installed(config.run.report_to)
    if mesh.world == 1:
        require_fits(config, mesh.device)
    with mesh.main_first():
        tokens = prepared(config, source, reporter)
    vocab_size = config.model.vocab_size or tokens.tokenizer.vocab_size
    if vocab_size < tokens.tokenizer.vocab_size:
        raise ConfigError(
            f"vocab_size {vocab_size} is smaller than the tokenizer's {tokens.tokenizer.vocab_size}: leave it out"
        )
    _require_sample(config, tokens)
    set_threads(config)
    config = dataclasses.replace(
        share_micro_batches(config, mesh.world),
        model=dataclasses.replace(config.model, vocab_size=vocab_size),
    )
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, threads=torch.get_num_threads()))
    config = mesh.decided(lambda: resolve_auto(config, mesh.device))
    set_threads(config)
    step_budget = None
    if deadline is not None:
        config, step_budget = mesh.decided(lambda: deadline.fit(config, _size(tokens), mesh.device, reporter))
    config = _with_epochs(config, tokens)
    update = dataclasses.replace(config.update, warmup_steps=config.update.warmup(config.run.max_steps))
    config = dataclasses.replace(config, update=update)  # it stays when the run is extended
    state = fresh_state(config, mesh)
    if source is not None:
        weights = dict(weights) | begun_magnitudes(config.model, weights) | value_function(source)
        weights = principal(config.model, weights) if config.model.init_lora_weights == "pissa" else weights
        known = {parameter.name for parameter in parameters(config.model)}  # factors and a new head begin here
        set_weights(state.model, {name: tensor for name, tensor in weights.items() if name in known})
        state.average = average.begun(state.model, config.update)
    objective = own.objective or objective_of(config.tune)
    run = mesh.decided(lambda: new_run(name))
    batches, held_out = batches_of(run, config, tokens, answerer)
    if mesh.is_main:
        write_atomically(run.tokenizer_file, tokens.tokenizer.to_json().encode())
        write_settings(run.path, tokens.tokenizer)
    began = time.perf_counter()
    checkpoint.save(run, state, config, tokens.fingerprint)
    if step_budget is not None:
        step_budget.write_seconds = FINAL_WRITES * (time.perf_counter() - began)
    if mesh.is_main:
        own.write(run)
        run.write_config(config, asked)  # last: from here on the folder is a run
    return Training(run, config, tokens, own.batches or batches, state, step_budget, objective, held_out)


def _require_sample(config: TrainConfig, tokens: Tokens | Examples) -> None:
    """Raise ConfigError for a prompt of samples that no sample could continue, before the run begins."""
    for prompt in config.run.sample_prompt:
        try:
            count = len(tokens.tokenizer.encode(prompt))
        except DataError as error:
            raise ConfigError(f"sample_prompt: {error}") from error
        if count > config.model.context_length:
            raise ConfigError(
                f"sample_prompt {shown(prompt)} has {count} tokens, and context_length is "
                f"{config.model.context_length}: shorten it"
            )


def _first_model(what: str) -> Model:
    """The model that --init-from names."""
    try:
        return find_model(what)
    except CheckpointError as error:
        raise CheckpointError(f"--init-from {what}: {error}") from error


def _initial(source: Model, asked: ModelConfig) -> tuple[ModelConfig, dict[str, Tensor], dict[str, Any]]:
    """A model to start from: its configuration, its weights, and the options of factors that it brings.

    An adapter's own factors go on being trained, unless new ones are asked for, which are trained over it added in.
    """
    if not isinstance(source, Adapted) or asked.lora_rank:
        return *load_weights(source), {}
    config, weights = load_weights(source.base)
    try:
        options, factors = load_adapter(source.path, config, str(source.base)).trainable(config)
    except ConfigError as error:
        raise ConfigError(f"--init-from {source}: {error}") from error
    return config, weights | factors, options


def resume(
    run: Run,
    max_steps: int | None = None,
    reporter: Reporter = SILENT,
    mesh: Mesh | None = None,
    at: int | None = None,
    own: Own = NOTHING,
    answerer: Answerer | None = None,
) -> Training:
    """A run as if it had never stopped: its own configuration, data and newest checkpoint, or the one after step `at`.

    The number of processes may be another one: each step has the rows that it would have had. Nothing is written
    before everything was read and checked.
    """
    mesh = Mesh() if mesh is None else mesh
    before, asked, step = mesh.decided(lambda: _taken_up(run, at))
    require_installed(before.run.report_to)
    _require_shareable(before, mesh)
    config = share_micro_batches(before, mesh.world)
    if max_steps is not None and max_steps != config.run.max_steps:
        if max_steps < step:
            raise ConfigError(f"max_steps {max_steps} lies before step {step}, which {run.path} has already taken")
        config, asked = (
            dataclasses.replace(one, run=dataclasses.replace(one.run, max_steps=max_steps)) for one in (config, asked)
        )
    training = open_run(run, config, step, mesh, own, answerer)
    for note in mesh.decided(lambda: _go_on(run, step, None if config == before else config, asked)):
        reporter.line(note)
    if before.run.max_steps != config.run.max_steps:
        what = "extended" if before.run.max_steps < config.run.max_steps else "shortened"
        reporter.line(f"{what} from {before.run.max_steps} to {max_steps} steps; the learning rate now follows these")
    for note in training.tokens.notes:
        reporter.line(note)
    if changed := mesh.decided(lambda: changed_since(training.tokens, run, config)):
        reporter.line(f"{changed}: the run goes on with those that it began with, which are kept")
    said = f"resuming {run.path} after step {step} of {config.run.max_steps}"
    if step == config.run.max_steps:
        said = f"{run.path} is already at step {step} of {step}: extend it with --max-steps {2 * step}"
    reporter.line(said)
    return training


def _taken_up(run: Run, at: int | None) -> tuple[TrainConfig, TrainConfig, int]:
    """A run that this process alone may write now: its configuration, what was asked for, and where it goes on."""
    hold(run.path)
    return run.read_config(), run.read_asked(), run.latest_checkpoint() if at is None else at


def _go_on(run: Run, step: int, config: TrainConfig | None, asked: TrainConfig) -> list[str]:
    """Make a run's folder that of a run after `step` steps; returns what a user should know about it."""
    aside = run.set_aside_after(step)
    notes = [] if aside is None else [f"what came after step {step} lies in {aside} now: delete it when you like"]
    checkpoint.remove_unfinished(run)
    notes += take_up(run, step + 1)
    if config is not None:
        run.remove_batches_after(step)
        run.write_config(config, asked)
    return notes


def open_run(
    run: Run,
    config: TrainConfig,
    at: int,
    mesh: Mesh | None = None,
    own: Own = NOTHING,
    answerer: Answerer | None = None,
) -> Training:
    """A run in the state it had after step `at`, a checkpoint's.

    Raises  CheckpointError where it was begun with an objective or batches of the user's own, and goes on without them
    """
    own.require_as_before(run)
    record = run.read_state(at)
    set_threads(config)
    mesh = Mesh() if mesh is None else mesh
    with mesh.main_first():
        tokens = data_of(run, config, record["data"])
    state = fresh_state(config, mesh)
    checkpoint.load(run, at, state, config)
    batches, held_out = batches_of(run, config, tokens, answerer)
    objective = own.objective or objective_of(config.tune)
    return Training(run, config, tokens, own.batches or batches, state, None, objective, held_out)


def _adopted(config: TrainConfig, model: ModelConfig, source: Model) -> TrainConfig:
    """The configuration of a run that continues another model: its sizes, its tokenizer, a context it can hold."""
    context = min(config.model.context_length, model.context_length)
    if config.model.positions != "learned" and model.positions != "learned":
        model = dataclasses.replace(model, context_length=context)
    asked = config.model.head if config.tune is None else head_of(config.tune)
    head = "score" if model.head == "score" else asked
    return dataclasses.replace(
        config,
        model=dataclasses.replace(model, head=head, **{name: getattr(config.model, name) for name in CHOSEN_ANEW}),
        data=dataclasses.replace(config.data, tokenizer=str(source.tokenizer_file)),
        run=dataclasses.replace(config.run, init_from=str(source)),  # `last` is another run tomorrow
    )


def share_micro_batches(config: TrainConfig, processes: int) -> TrainConfig:
    """The same rows a step, and the same to validate on, in micro-batches that so many processes can share evenly.

    Raises  ConfigError when there are too few rows
    """
    run = config.run
    rows, count = run.batch_size * run.gradient_accumulation_steps, run.gradient_accumulation_steps
    count = math.lcm(count, processes)
    if rows % count:
        raise ConfigError(
            f"a step has {rows} rows (batch_size {run.batch_size} × gradient_accumulation_steps "
            f"{run.gradient_accumulation_steps}), which {processes} processes cannot share evenly: "
            f"choose a batch_size that {processes} divides"
        )
    run = dataclasses.replace(
        run,
        batch_size=rows // count,
        gradient_accumulation_steps=count,
        eval_batches=run.eval_batches * count // run.gradient_accumulation_steps,
    )
    return dataclasses.replace(config, run=run)


def _require_shareable(config: TrainConfig, mesh: Mesh) -> None:
    if config.run.record_steps:
        mesh.require_one("--record-steps", "leave it out; `limpid trace RUN --step N` records any step afterwards")
    if "-" in (*config.data.paths, *config.data.validation_paths):
        mesh.require_one("text from standard input", "put it into a file")


def _size(data: Tokens | Examples) -> int:
    """Tokens to train on."""
    return len(data.train.tokens) if isinstance(data, Examples) else len(data.train)


def _with_epochs(config: TrainConfig, tokens: Tokens | Examples) -> TrainConfig:
    """The same with the steps of so many passes over the records, where that was asked for."""
    if config.tune is None or config.tune.epochs is None or not isinstance(tokens, Examples):
        return config
    rows = config.run.batch_size * config.run.gradient_accumulation_steps
    steps = max(1, math.ceil(config.tune.epochs * tokens.train.records / rows))
    return dataclasses.replace(config, run=dataclasses.replace(config.run, max_steps=steps))


def describe(training: Training) -> list[str]:
    """What is being trained on how much of what, and every option that was asked for and is not the default."""
    config, tokens, asked = training.config, training.tokens, training.run.read_asked()
    model = config.model
    chosen = [
        f"{name} {as_typed(value)}"
        for section, default in ((asked.model, ModelConfig), (asked.update, UpdateConfig), (asked.run, RunConfig))
        for name, value in to_dict(section).items()
        if value != to_dict(default()).get(name)
    ]
    how = [f"{config.run.precision} on {training.state.mesh.device.type}, {counted(torch.get_num_threads(), 'thread')}"]
    if (processes := training.state.mesh.world) > 1:
        micro_batches = config.run.gradient_accumulation_steps // processes
        how += [f"{processes} processes, each {micro_batches} × {config.run.batch_size} rows a step"]
    if config.run.compile == "on":
        how += ["blocks compiled in the first step, which may wait for another process that compiles"]
    how += ["activations computed again"] if config.run.gradient_checkpointing == "on" else []
    return [
        f"model      {parameter_count(model):,} parameters: {counted(model.num_layers, 'layer')} × {model.d_model}, "
        f"{counted(model.num_heads, 'head')}, vocabulary {model.vocab_size:,}, context {model.context_length}",
        *_objective(training),
        *_data(config, tokens),
        f"engine     {', '.join(how)}; `limpid plan --explain-engine` says why",
        f"schedule   {_schedule(config, asked, timed=training.step_budget is not None)}",
        f"options    {', '.join(chosen) if chosen else 'all at their defaults'}",
        f"run        {training.run.path}/ (config.toml holds every option)",
    ]


def _objective(training: Training) -> list[str]:
    """What a run that tunes a model minimises, with its hyperparameters."""
    tune = training.config.tune
    if tune is None:
        return []
    chosen = {**to_document(training.objective), **tune.options}  # a price may be in the rewards
    options = [f"{name} {as_typed(value)}" for name, value in chosen.items() if name != "name" and value is not None]
    return [f"objective  {', '.join([tune.objective, *options])}"]


def _data(config: TrainConfig, tokens: Tokens | Examples) -> list[str]:
    """How much there is to train on, and what the validation loss is a mean over."""
    if isinstance(tokens, Examples):
        what = {"answers": "answers", "pairs": "pairs", "judged": "judged answers", "prompts": "prompts"}[tokens.kind]
        held_out = min(tokens.validation.records, config.run.batch_size * config.run.eval_batches)
        judged = [f"validation {held_out:,} of them, spread evenly"] if config.run.eval_steps and held_out else []
        return [
            f"data       {tokens.train.records:,} {what} to train on, {tokens.validation.records:,} held out",
            *judged,
        ]
    said = f"data       {len(tokens.train):,} tokens to train on, {len(tokens.validation):,} held out"
    if not config.run.eval_steps:
        return [said]
    rows, length = config.run.batch_size * config.run.eval_batches, config.model.context_length
    parts = []
    for one in validation_sets(tokens, config.data):
        size = min(rows, (len(one.tokens) - 1) // length) * length
        parts.append(f"{one.name + ' ' if one.name else ''}{size:,} of {len(one.tokens):,}")
    weighted = "; each counts once, --weights are for training" if config.data.weights else ""
    decides = "; the first decides which checkpoint is best" if len(parts) > 1 else ""
    return [said, f"validation {', '.join(parts)} held-out tokens, spread evenly{weighted}{decides}"]


def _schedule(config: TrainConfig, asked: TrainConfig, timed: bool) -> str:
    """How many steps there will be, and how the learning rate goes along."""
    steps, update = config.run.max_steps, config.update
    warmup = update.warmup(steps)
    short = asked.update.warmup_steps is None and warmup == steps // 10 < USUAL_WARMUP and not timed
    why = ", a tenth of this short run" if short else ""
    rises = f"warm-up over {warmup}{why}, then " if warmup else f"no warm-up{' in so short a run' if short else ''}, "
    count = f"about {steps:,} steps, counted anew while it trains" if timed else f"{steps:,} steps"
    return f"{count}: {rises}{update.schedule.replace('_', ' ')}"
