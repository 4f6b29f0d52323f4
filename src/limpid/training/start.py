"""A training run, new or resumed: its configuration, tokens, batches and state."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

import torch
from rich.console import Console

from limpid.config import ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.config.options import to_dict
from limpid.data.batches import Batches
from limpid.data.tokens import Tokens, open_tokens, prepare
from limpid.errors import ConfigError
from limpid.files import write_atomically
from limpid.model.weights import load_weights
from limpid.objectives import NEXT_TOKEN, Objective
from limpid.plan import parameter_count
from limpid.reporter import Report
from limpid.run import Run, new_run
from limpid.source import Model, find_model
from limpid.training import checkpoint
from limpid.training.autotune import resolve_auto
from limpid.training.mesh import Mesh
from limpid.training.state import State, fresh_state, set_threads
from limpid.training.stored_batches import BatchSource
from limpid.training.time_budget import FINAL_WRITES, Deadline, StepBudget


@dataclass
class Training:
    """A run in progress: what it is, what it reads, where it stands."""

    run: Run
    config: TrainConfig
    tokens: Tokens
    batches: BatchSource
    state: State
    step_budget: StepBudget | None = None
    objective: Objective = NEXT_TOKEN


def start(
    config: TrainConfig,
    name: str | None,
    console: Console,
    progress: Report | None = None,
    deadline: Deadline | None = None,
    mesh: Mesh | None = None,
) -> Training:
    """A new run: resolve what was left open, tokenize, draw the initial weights, save the state before step 1.

    With a deadline, the number of steps, and the size where that is open, follow from the time there is.
    """
    mesh = Mesh() if mesh is None else mesh
    asked = config
    source = None if config.run.init_from is None else find_model(config.run.init_from)
    if source is not None:
        sizes, weights = load_weights(source)
        config = _adopted(config, sizes, source)
    tokens = prepare(config.data, config.model.context_length, config.run.seed, progress)
    for note in tokens.notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    vocab_size = config.model.vocab_size or tokens.tokenizer.vocab_size
    if vocab_size < tokens.tokenizer.vocab_size:
        raise ConfigError(
            f"vocab_size {vocab_size} is smaller than the tokenizer's {tokens.tokenizer.vocab_size}: leave it out"
        )
    set_threads(config)
    config = resolve_auto(
        dataclasses.replace(
            config,
            model=dataclasses.replace(config.model, vocab_size=vocab_size),
            run=dataclasses.replace(config.run, threads=torch.get_num_threads()),
        ),
        mesh.device,
    )
    step_budget = None
    if deadline is not None:
        config, step_budget = deadline.fit(config, len(tokens.train), mesh.device, console, progress)
    state = fresh_state(config, mesh)
    if source is not None:
        state.model.load_state_dict(weights)
    batches = _batches(config, tokens)  # every size is checked before a folder appears
    run = new_run(name)
    write_atomically(run.tokenizer_file, tokens.tokenizer.to_json().encode())
    began = time.perf_counter()
    checkpoint.save(run, state, config, tokens.fingerprint)
    if step_budget is not None:
        step_budget.write_seconds = FINAL_WRITES * (time.perf_counter() - began)
    run.write_config(config, asked)  # last: from here on the folder is a run
    return Training(run, config, tokens, batches, state, step_budget)


def resume(run: Run, max_steps: int | None, console: Console) -> Training:
    """A run as if it had never stopped: its own configuration, data and newest complete checkpoint."""
    config = run.read_config()
    latest = run.latest_checkpoint()
    if max_steps is not None and max_steps != config.run.max_steps:
        if max_steps < latest:
            raise ConfigError(f"max_steps {max_steps} lies before step {latest}, which {run.path} has already taken")
        config, asked = (
            dataclasses.replace(one, run=dataclasses.replace(one.run, max_steps=max_steps))
            for one in (config, run.read_asked())
        )
        run.write_config(config, asked)
        console.print(
            f"extended to {max_steps} steps; the learning rate now follows the longer schedule", highlight=False
        )
    training = open_run(run, config, latest)
    said = f"resuming {run.path} after step {latest} of {config.run.max_steps}"
    if latest == config.run.max_steps:
        said = f"{run.path} is already at step {latest} of {latest}: extend it with --max-steps {2 * latest}"
    console.print(said, highlight=False, soft_wrap=True)
    return training


def open_run(run: Run, config: TrainConfig, at: int) -> Training:
    """A run in the state it had after step `at`, a checkpoint's."""
    record = run.read_state(at)
    set_threads(config)
    tokens = open_tokens(record["data"], config.data, config.model.context_length, config.run.seed)
    state = fresh_state(config)
    checkpoint.load(run, at, state, config)
    return Training(run, config, tokens, _batches(config, tokens), state)


def _adopted(config: TrainConfig, model: ModelConfig, source: Model) -> TrainConfig:
    """The configuration of a run that continues another model: its sizes, its tokenizer, a context it can hold."""
    context = min(config.model.context_length, model.context_length)
    if config.model.positions != "learned" and model.positions != "learned":
        model = dataclasses.replace(model, context_length=context)
    return dataclasses.replace(
        config,
        model=dataclasses.replace(model, dropout=config.model.dropout),
        data=dataclasses.replace(config.data, tokenizer=str(source.tokenizer_file)),
        run=dataclasses.replace(config.run, init_from=str(source)),  # `last` is another run tomorrow
    )


def _batches(config: TrainConfig, tokens: Tokens) -> Batches:
    run = config.run
    return Batches(tokens.train, config.model.context_length, run.batch_size, run.gradient_accumulation_steps, run.seed)


def describe(training: Training) -> list[str]:
    """What is being trained on how much of what, and every option that is not the default."""
    config, tokens = training.config, training.tokens
    model = config.model
    chosen = [
        f"{name} {value}"
        for section, default in ((config.model, ModelConfig), (config.update, UpdateConfig), (config.run, RunConfig))
        for name, value in to_dict(section).items()
        if value != to_dict(default()).get(name)
        and name not in ("vocab_size", "threads", "precision", "compile", "gradient_checkpointing")
    ]
    how = [f"{config.run.precision} on {training.state.mesh.device.type}, {torch.get_num_threads()} threads"]
    how += ["blocks compiled"] if config.run.compile == "on" else []
    how += ["activations computed again"] if config.run.gradient_checkpointing == "on" else []
    return [
        f"model      {parameter_count(model):,} parameters: {model.num_layers} layers × {model.d_model}, "
        f"{model.num_heads} heads, vocabulary {model.vocab_size:,}, context {model.context_length}",
        f"data       {len(tokens.train):,} tokens to train on, {len(tokens.validation):,} held out",
        f"engine     {', '.join(how)}; `limpid plan --explain-engine` says why",
        f"options    {', '.join(chosen) if chosen else 'all at their defaults'}",
        f"run        {training.run.path}/ (config.toml holds every option)",
    ]
