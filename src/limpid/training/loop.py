"""The loop: calls the step; evaluates, logs, saves. It owns no mathematics."""

from __future__ import annotations

import dataclasses
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch
from rich.console import Console

from limpid.config import ModelConfig, TrainConfig
from limpid.data.batches import Batches, validation_batches
from limpid.data.tokenizer import Tokenizer
from limpid.data.tokens import Tokens, open_tokens, prepare
from limpid.errors import CheckpointError, ConfigError
from limpid.model import Transformer, initialise
from limpid.model.convert import load_folder, save_folder
from limpid.objectives.language_model import count_labels, language_model, log_probabilities
from limpid.plan import parameter_count
from limpid.run import Run, new_run, write_atomically, write_config
from limpid.training import checkpoint
from limpid.training.journal import Journal
from limpid.training.precision import arithmetic, device, resolve
from limpid.training.record import record_step
from limpid.training.step import Outcome, State, make_scaler, step
from limpid.training.update import make_optimizer

Sampler = Callable[[Transformer, Tokenizer], str]


class Diverged(Exception):
    """A loss or gradient was not finite and no update was made; `step` is the one to open."""

    def __init__(self, outcome: Outcome) -> None:
        self.step = outcome.number
        what = "loss" if not math.isfinite(outcome.loss) else "gradient norm"
        value = outcome.loss if what == "loss" else outcome.grad_norm
        super().__init__(f"step {outcome.number}: {what} is {value}; the parameters were left as they were")


class Interrupted(Exception):
    """The user asked to stop; everything is saved."""


@dataclass
class Training:
    """A run in progress: what it is, what it reads, where it stands."""

    run: Run
    config: TrainConfig
    tokens: Tokens
    batches: Batches
    state: State


def start(config: TrainConfig, name: str | None, console: Console, progress: Callable[..., None] | None) -> Training:
    """A new run: resolve what was left open, tokenize, draw the initial weights, save the state before step 1."""
    source = None if config.run.init_from is None else initial_model(Path(config.run.init_from))
    if source is not None:
        config = _adopted(config, source[0], source[2])
    tokens = prepare(config.data, config.model.context_length, config.run.seed, progress)
    for note in tokens.notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    vocab_size = config.model.vocab_size or tokens.tokenizer.vocab_size
    if vocab_size < tokens.tokenizer.vocab_size:
        raise ConfigError(
            f"vocab_size {vocab_size} is smaller than the tokenizer's {tokens.tokenizer.vocab_size}: leave it out"
        )
    set_threads(config)
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, vocab_size=vocab_size),
        run=dataclasses.replace(
            config.run,
            precision=resolve(config.run.precision),
            threads=torch.get_num_threads(),
            sample_prompt=config.run.sample_prompt,
        ),
    )
    state = fresh_state(config)
    if source is not None:
        state.model.load_state_dict(source[1])
    training = _assembled(None, config, tokens, state)  # every size is checked before a folder appears
    training.run = new_run(name)
    write_atomically(training.run.tokenizer_file, tokens.tokenizer.to_json().encode())
    checkpoint.save(training.run, state, config, tokens.fingerprint)
    write_config(training.run.config_file, config)  # last: from here on the folder is a run
    return training


def resume(run: Run, max_steps: int | None, console: Console) -> Training:
    """A run as if it had never stopped: its own configuration, data and newest complete checkpoint."""
    config = run.read_config()
    latest = run.latest_checkpoint()
    if max_steps is not None and max_steps != config.run.max_steps:
        if max_steps < latest:
            raise ConfigError(f"max_steps {max_steps} lies before step {latest}, which {run.path} has already taken")
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, max_steps=max_steps))
        write_config(run.config_file, config)
        console.print(
            f"extended to {max_steps} steps; the learning rate now follows the longer schedule", highlight=False
        )
    training = open_run(run, config, latest)
    console.print(f"resuming {run.path} after step {latest} of {config.run.max_steps}", highlight=False, soft_wrap=True)
    return training


def open_run(run: Run, config: TrainConfig, at: int) -> Training:
    """A run in the state it had after step `at`, a checkpoint's."""
    record = checkpoint.read_record(run.checkpoint(at))
    set_threads(config)
    tokens = open_tokens(record["data"], config.data, config.model.context_length, config.run.seed)
    training = _assembled(run, config, tokens, fresh_state(config))
    checkpoint.load(run, at, training.state, config)
    return training


def replay(run: Run, number: int) -> Training:
    """A run in the state just before step `number`: the nearest checkpoint before it, replayed without a trace."""
    config = run.read_config()
    steps = run.checkpoint_steps()
    if not steps:
        raise CheckpointError(f"{run.path} holds no complete checkpoint: nothing to replay from")
    reachable = min(steps[-1] + 1, config.run.max_steps)
    if not 1 <= number <= max(reachable, steps[-1]):
        raise CheckpointError(f"step {number} lies outside the run: {run.path} can open steps 1 … {reachable}")
    before = [at for at in steps if at < number]
    if not before:
        raise CheckpointError(
            f"no checkpoint before step {number} is left in {run.path}: the oldest is {steps[0]}; "
            "train with --save-total-limit 0 to keep them all"
        )
    training = open_run(run, config, before[-1])
    while training.state.step < number - 1:
        step(training.state, training.batches.batch(training.state.step + 1), config)
    return training


def fresh_state(config: TrainConfig) -> State:
    """Model, optimizer and loss scaling before the first step."""
    formats = arithmetic(config.run.precision)
    model = initialise(Transformer(config.model, formats.compute).to(formats.parameters), config.run.seed)
    model.to(device())
    return State(model, make_optimizer(model, config.update), make_scaler(formats))


def loop(training: Training, console: Console, sampler: Sampler) -> None:
    """Train to the last step.

    Raises  Interrupted after Ctrl-C or SIGTERM, everything saved; Diverged at a number that is not finite
    """
    run, config, state = training.run, training.config, training.state
    journal = Journal(run, config, console, state.step + 1)
    last = config.run.max_steps
    try:
        with interruptions() as asked:
            while state.step < last:
                outcome = _one(training, journal)
                if not outcome.updated and not state.scaler.is_enabled():
                    state.step -= 1  # nothing moved: the state is still the one before this step
                    _save(training, journal)
                    raise Diverged(outcome)
                if _due(state.step, config.run.eval_steps, last):
                    journal.evaluation(state.step, *evaluate(training))
                if config.run.sample_steps and state.step % config.run.sample_steps == 0 and state.step < last:
                    journal.say(sampler(state.model, training.tokens.tokenizer))
                if _due(state.step, config.run.save_steps, last) or state.step == last - 1:
                    _save(training, journal)  # the state before the last step too: that step then opens at once
                if asked():
                    _save(training, journal)
                    raise Interrupted
    finally:
        journal.close()


def finish(training: Training) -> str | None:
    """Write the model as Hugging Face expects it; returns why not when it has no such form."""
    tokenizer = training.tokens.tokenizer
    weights = {name: tensor.detach().float() for name, tensor in training.state.model.named_parameters()}
    try:
        save_folder(
            training.run.model_folder,
            training.config.model,
            weights,
            tokenizer_json=tokenizer.to_json(),
            end_of_text=tokenizer.end_of_text,
        )
    except ConfigError as error:
        return str(error)
    return None


def evaluate(training: Training) -> tuple[float, float]:
    """Mean loss over the fixed validation batches, nats per token and bits per byte of text."""
    config, tokens, model = training.config, training.tokens, training.state.model
    total, labels = 0.0, 0
    model.eval()
    with torch.no_grad():
        for micro in validation_batches(
            tokens.validation, config.model.context_length, config.run.batch_size, config.run.eval_batches
        ):
            targets = torch.as_tensor(micro.targets).to(device())
            logits = model(torch.as_tensor(micro.inputs).to(device()))
            total += float(language_model(log_probabilities(logits), targets, 1))
            labels += count_labels(targets)
    loss = total / max(1, labels)
    bytes_per_token = tokens.validation_bytes / len(tokens.validation)
    return loss, loss / math.log(2) / bytes_per_token


@contextmanager
def interruptions() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or SIGTERM into a request to stop after the current step; the second one kills."""
    asked: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def set_threads(config: TrainConfig) -> None:
    """Use as many threads as the run did before: the order of sums, hence the last bit, depends on it."""
    if config.run.threads:
        torch.set_num_threads(config.run.threads)


def initial_model(path: Path) -> tuple[ModelConfig, dict[str, torch.Tensor], Path]:
    """Sizes, weights and tokenizer file of a run or Hugging Face folder to start from."""
    if (path / "config.toml").is_file():
        run = Run(path)
        config = run.read_config()
        state = fresh_state(config)
        checkpoint.load(run, run.latest_checkpoint(), state, config)
        return config.model, dict(state.model.named_parameters()), run.tokenizer_file
    model, weights = load_folder(path)
    return model, weights, path / "tokenizer.json"


def _adopted(config: TrainConfig, model: ModelConfig, tokenizer: Path) -> TrainConfig:
    """The configuration of a run that continues another model: its sizes, its tokenizer, a context it can hold."""
    context = min(config.model.context_length, model.context_length)
    if config.model.positions != "learned" and model.positions != "learned":
        model = dataclasses.replace(model, context_length=context)
    return dataclasses.replace(
        config,
        model=dataclasses.replace(model, dropout=config.model.dropout),
        data=dataclasses.replace(config.data, tokenizer=str(tokenizer)),
    )


def _assembled(run: Run | None, config: TrainConfig, tokens: Tokens, state: State) -> Training:
    batches = Batches(
        tokens.train,
        config.model.context_length,
        config.run.batch_size,
        config.run.gradient_accumulation_steps,
        config.run.seed,
    )
    return Training(run or Run(Path()), config, tokens, batches, state)


def _one(training: Training, journal: Journal) -> Outcome:
    """Take the next step, recorded when asked for, and log it."""
    number = training.state.step + 1
    began = time.perf_counter()
    batch = training.batches.batch(number)
    if number in training.config.run.record_steps:
        outcome = record_step(
            training.run.recorded_step(number),
            training.state,
            batch,
            training.config,
            run=training.run.path.name,
            token_text=training.tokens.tokenizer.token_text,
        )
    else:
        outcome = step(training.state, batch, training.config)
    journal.step(outcome, batch, time.perf_counter() - began, training.batches.epoch(number))
    return outcome


def _save(training: Training, journal: Journal) -> None:
    journal.sync()
    checkpoint.save(training.run, training.state, training.config, training.tokens.fingerprint)
    last = training.config.run.max_steps
    checkpoint.prune(training.run, training.config.run.save_total_limit, {0, last - 1, last, training.state.step})


def _due(number: int, every: int, last: int) -> bool:
    return number == last or bool(every and number % every == 0)


def describe(training: Training) -> str:
    """One line: what is being trained on how much of what."""
    config, tokens = training.config, training.tokens
    return (
        f"{parameter_count(config.model):,} parameters ({config.model.num_layers} layers × {config.model.d_model},"
        f" {config.model.num_heads} heads, vocabulary {config.model.vocab_size:,})"
        f" | {len(tokens.train):,} tokens to train on, {len(tokens.validation):,} held out"
        f" | {config.run.precision} on {device().type}, {torch.get_num_threads()} threads"
    )
