"""A training run, new or resumed: its configuration, tokens, batches and state."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass
from typing import Any

import torch

from limpid.config import TrainConfig
from limpid.config.files import write_config
from limpid.config.options import LARGEST, require, shown
from limpid.config.parallel import require_divides
from limpid.config.tuning import HEADS, head_of
from limpid.data.held_out import changed_since, data_of
from limpid.data.token_splits import Tokens
from limpid.data.tokenizer import Tokenizer
from limpid.data.tokenizer_folder import tokenizer_damage, write_tokenizer
from limpid.data.tuning.examples import Examples
from limpid.errors import ConfigError, DataError
from limpid.lock import hold
from limpid.native.build import failure, is_to_be_compiled
from limpid.objectives import NEXT_TOKEN, Objective
from limpid.objectives.tuned import objective_of
from limpid.reporter import SILENT, Reporter
from limpid.run import Run
from limpid.run_folder import new_run
from limpid.training import checkpoint
from limpid.training.autotune import resolve_auto
from limpid.training.feed import batches_of, prepared
from limpid.training.initial import Initial
from limpid.training.memory import require_fits
from limpid.training.mesh import Mesh
from limpid.training.metrics import take_up
from limpid.training.own import NOTHING, Own
from limpid.training.parallel.pipeline import require_stages
from limpid.training.state import State, fresh_state, set_threads
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
    mesh = Mesh() if mesh is None else mesh.laid_out(config.run.parallel)
    mesh.wait_at_most(config.run.timeout)
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
    initial = None if config.run.init_from is None else Initial.of(config.run.init_from, config.model)
    if initial is not None:
        config = initial.adopted(config, reporter)
    elif config.model.lora_rank:
        reporter.note("low-rank factors are trained beside weights as they were drawn: --init-from names trained ones")
    _require_shareable(config, mesh)
    require_installed(config.run.report_to)
    if mesh.world == 1:
        require_fits(config, mesh.device)
    with mesh.main_first():
        tokens = prepared(config, None if initial is None else initial.source, reporter)
    mesh.require_alike("data", tokens.fingerprint)
    config, step_budget = resolved(config, tokens, mesh, deadline, reporter)
    state = fresh_state(config, mesh)
    if initial is not None:
        initial.give(state, config)
    objective = own.objective or objective_of(config.tune)
    run = mesh.decided(lambda: new_run(name))
    batches, held_out = batches_of(run, config, tokens, answerer)
    if mesh.is_main:
        write_tokenizer(run.path, tokens.tokenizer)
    began = time.perf_counter()
    checkpoint.save(
        run,
        state,
        config,
        tokens.fingerprint,
        lambda folder: write_config(folder / run.config_file.name, asked, config),
    )
    if step_budget is not None:
        step_budget.write_seconds = FINAL_WRITES * (time.perf_counter() - began)
    if mesh.is_main:
        own.write(run)
        run.write_config(config, asked)  # last: from here on the folder is a run
    return Training(run, config, tokens, own.batches or batches, state, step_budget, objective, held_out)


def resolved(
    config: TrainConfig, tokens: Tokens | Examples, mesh: Mesh, deadline: Deadline | None, reporter: Reporter
) -> tuple[TrainConfig, StepBudget | None]:
    """What was left open, decided by the data, the machine and the time there is.

    Raises  ConfigError for a vocabulary or a prompt of samples that does not go with the data
    """
    vocab_size = config.model.vocab_size or tokens.tokenizer.vocab_size
    if vocab_size < tokens.tokenizer.vocab_size:
        way = "leave it out; tokenizer_vocab_size trains a smaller tokenizer"
        if config.run.init_from is not None:
            way = f"give the tokenizer that {config.run.init_from} was trained with"
        raise ConfigError(
            f"vocab_size {vocab_size} is smaller than the tokenizer's {tokens.tokenizer.vocab_size}: {way}"
        )
    _require_sample(config, tokens)
    set_threads(config)
    if mesh.is_main and is_to_be_compiled():
        reporter.note("limpid's kernels are compiled for this processor, once: about 5 s")
        if why := failure():
            reporter.note(f"they cannot be compiled, and PyTorch's are used: {why}")
    config = dataclasses.replace(
        share_micro_batches(config, mesh.parallel.micro_batches),
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
    return config, step_budget


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


def resume(
    run: Run,
    max_steps: int | None = None,
    reporter: Reporter = SILENT,
    mesh: Mesh | None = None,
    at: int | None = None,
    own: Own = NOTHING,
    answerer: Answerer | None = None,
    parallel: str | None = None,
) -> Training:
    """A run as if it had never stopped: its own configuration, data and newest checkpoint, or the one after step `at`.

    The number of processes may be another one, and so may their axes, which `parallel` names anew: each step has the
    rows that it would have had. Nothing is written before everything was read and checked.
    """
    mesh = Mesh() if mesh is None else mesh
    if mesh.world > 1:
        mesh.wait_at_most(run.read_config().run.timeout)
    before, asked, step = mesh.decided(lambda: _taken_up(run, at))
    require_installed(before.run.report_to)
    config = before
    if parallel is not None:
        config, asked = (_with_run(one, parallel=parallel) for one in (config, asked))
    if mesh.world > 1 or parallel is not None:
        mesh = mesh.laid_out(config.run.parallel)
    _require_shareable(config, mesh)
    config = share_micro_batches(config, mesh.parallel.micro_batches)
    if max_steps is not None and max_steps != config.run.max_steps:
        if max_steps < step:
            raise ConfigError(f"max_steps {max_steps} lies before step {step}, which {run.path} has already taken")
        config, asked = (_with_run(one, max_steps=max_steps) for one in (config, asked))
    training = open_run(run, config, step, mesh, own, answerer)
    tokenizer = training.tokens.tokenizer
    for note in mesh.decided(lambda: _go_on(run, step, None if config == before else config, asked, tokenizer)):
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


def _with_run(config: TrainConfig, **options: Any) -> TrainConfig:
    """The same with other options of the run."""
    return dataclasses.replace(config, run=dataclasses.replace(config.run, **options))


def _taken_up(run: Run, at: int | None) -> tuple[TrainConfig, TrainConfig, int]:
    """A run that this process alone may write now: its configuration, what was asked for, and where it goes on."""
    hold(run.path)
    config, asked, step = run.read_config(), run.read_asked(), run.latest_checkpoint() if at is None else at
    if (run.checkpoint(step) / run.config_file.name).is_file():
        run.verify(step, run.config_file.name)  # the spare copy: whole while the first one is, or of no use
    return config, asked, step


def _go_on(run: Run, step: int, config: TrainConfig | None, asked: TrainConfig, tokenizer: Tokenizer) -> list[str]:
    """Make a run's folder that of a run after `step` steps; returns what a user should know about it."""
    aside = run.set_aside_after(step)
    notes = [] if aside is None else [f"what came after step {step} lies in {aside} now: delete it when you like"]
    checkpoint.remove_unfinished(run)
    if wrong := tokenizer_damage(run):
        write_tokenizer(run.path, tokenizer)
        notes.append(f"{wrong}; it was written again, from the tokens that are kept")
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
    mesh.require_alike("data", tokens.fingerprint)
    state = fresh_state(config, mesh)
    checkpoint.load(run, at, state, config)
    batches, held_out = batches_of(run, config, tokens, answerer)
    objective = own.objective or objective_of(config.tune)
    return Training(run, config, tokens, own.batches or batches, state, None, objective, held_out)


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
    """Raise ConfigError for what these processes cannot do together."""
    require_divides(config.model, mesh.parallel)
    require_stages(config, mesh.parallel)
    _require_pairs(config, mesh)
    if config.model.base_precision != "fp32":
        mesh.require_one("--base-precision", "leave it out: a process then holds its share of the base only")
    if config.run.record_steps:
        mesh.require_one("--record-steps", "leave it out; `limpid trace RUN --step N` records any step afterwards")
    if "-" in (*config.data.paths, *config.data.validation_paths):
        mesh.require_one("text from standard input", "put it into a file")


def _require_pairs(config: TrainConfig, mesh: Mesh) -> None:
    """Raise ConfigError for micro-batches of one answer where each is compared with others."""
    shared = share_micro_batches(config, mesh.parallel.micro_batches).run.batch_size
    parts = f", in {mesh.parallel.micro_batches} parts" if shared < config.run.batch_size else ""
    require(
        config.tune is None or config.tune.objective != "kto" or shared > 1,
        f"batch_size is {config.run.batch_size}{parts}: kto compares each answer with those to other prompts, so there "
        "must be two at least in each",
    )


def _size(data: Tokens | Examples) -> int:
    """Tokens to train on."""
    return len(data.train.tokens) if isinstance(data, Examples) else len(data.train)


def _with_epochs(config: TrainConfig, tokens: Tokens | Examples) -> TrainConfig:
    """The same with the steps of so many passes over the records, where that was asked for."""
    if config.tune is None or config.tune.epochs is None or not isinstance(tokens, Examples):
        return config
    rows = config.run.batch_size * config.run.gradient_accumulation_steps
    steps = max(1, math.ceil(config.tune.epochs * tokens.train.records / rows))
    require(
        steps <= LARGEST, f"epochs is {config.tune.epochs:g}: so many passes have more steps than 64 bits can count"
    )
    return dataclasses.replace(config, run=dataclasses.replace(config.run, max_steps=steps))
