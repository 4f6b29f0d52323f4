"""The loop: calls the step; evaluates, logs, saves. It owns no mathematics."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from limpid.data.batches import Batches, MicroBatch
from limpid.errors import CheckpointError, ConfigError, DataError
from limpid.loaded import conversation_of
from limpid.model.export import save_folder
from limpid.model.peft_files import factors_alone, save_adapter
from limpid.model.weights import TensorFile, adapter_base, beside_the_start
from limpid.objectives import POLICY
from limpid.reporter import Reporter
from limpid.run import Run
from limpid.training import checkpoint
from limpid.training.callbacks import Best, Callback
from limpid.training.failure import named_failures
from limpid.training.metrics import MetricsLogger, NoMetrics, mean_of
from limpid.training.record import record_step
from limpid.training.samples import Sampler, asked_of, samples
from limpid.training.saver import Saver
from limpid.training.signals import interruptions
from limpid.training.start import Training
from limpid.training.step import Outcome, begin_next, step
from limpid.training.time_budget import UNTIMED_STEPS
from limpid.training.validation import evaluate


class Watcher(Protocol):
    """Called after every step; changes nothing."""

    @property
    def looks_inside(self) -> bool:
        """Whether it sees more of the next step's passes than what goes into the model and what comes out of it."""

    def step(self, loss: float, batch: Any, metrics: Mapping[str, float]) -> None: ...


class Diverged(Exception):
    """A loss or gradient was not finite and no update was made; `step` is the one to open."""

    def __init__(self, run: Run, outcome: Outcome) -> None:
        self.run, self.step = run, outcome.number
        what = "loss" if not math.isfinite(outcome.loss) else "gradient norm"
        value = outcome.loss if what == "loss" else outcome.grad_norm
        super().__init__(f"step {outcome.number}: {what} is {value}; the parameters were left as they were")


class BrokeOff(DataError):
    """What a run is fed from failed, such as a reward function; everything is saved."""

    def __init__(self, run: Run, step: int, why: DataError) -> None:
        self.run, self.step = run, step
        super().__init__(str(why))


class Interrupted(Exception):
    """The user asked to stop; everything is saved."""

    def __init__(self, run: Run, step: int) -> None:
        self.run, self.step = run, step
        super().__init__(f"stopped after step {step}, everything saved")


def loop(
    training: Training,
    reporter: Reporter,
    sampler: Sampler,
    watcher: Watcher | None = None,
    callbacks: Sequence[Callback] = (),
    sample_at_end: bool = False,
) -> None:
    """Train to the last step, or until the validation loss falls no more; show every step to the watcher.

    sample_at_end   whether a sample is drawn after the last step although the configuration asks for none
    Raises  Interrupted when asked to end or when the console is gone, everything saved; Diverged at a number that is
            not finite
    """
    run, state, every = training.run, training.state, training.config.run
    mesh, config = state.mesh, training.config
    metrics = MetricsLogger(run, config, reporter, state.step + 1, mesh.device) if mesh.is_main else NoMetrics(config)
    best = mesh.agree(Best.of(run.read_metrics().evaluations))
    if 0 < every.early_stopping <= best.worse_since:
        best.worse_since = 0  # it had stopped early: who resumes it wants it to go on
    sampled = mesh.agree(max((sample.step for sample in run.read_samples()), default=None))
    told = Told(training, metrics, best, callbacks if mesh.is_main else (), Saver(run, mesh), sampled)
    try:
        with named_failures(mesh, (Interrupted, Diverged)), contextlib.closing(told.saver):
            mesh.wait_at_most(every.timeout)
            told.tell("on_start")
            with interruptions(mesh) as asked:
                while state.step < (last := training.config.run.max_steps):
                    outcome = _one(told, watcher)
                    told.look_after_saver()
                    broken = not outcome.updated and not state.scaler.is_enabled()
                    state.step -= broken  # nothing moved: the state is still the one before this step
                    told.tell("on_step", outcome)
                    if broken:
                        told.save(wait=True)
                        raise Diverged(run, outcome)
                    judged = _due(state.step, every.eval_steps, last)
                    if judged:
                        told.evaluated()
                    if every.sample_steps and state.step % every.sample_steps == 0:
                        told.sample(sampler)
                    if _due(state.step, every.save_steps, last) or state.step == last - 1:
                        told.save()  # the state before the last step too: that step then opens at once
                    if mesh.any(asked() or not reporter.listened_to):
                        told.save(wait=True)
                        raise Interrupted(run, state.step)
                    if judged and state.step < last and 0 < every.early_stopping <= best.worse_since:
                        told.save()
                        metrics.say(f"stopped after step {state.step}: no evaluation since step {best.step} was better")
                        break
                    _keep_time(training, metrics, sampler)
            if (sample_at_end or every.sample_steps) and told.sampled != state.step:
                told.sample(sampler)
            told.wait_for_saver()
    finally:
        metrics.close()


def _keep_time(training: Training, metrics: MetricsLogger | NoMetrics, sampler: Sampler) -> None:
    """Where the run ends at a given time: as many steps as fit into what is left of it, until that is settled."""
    budget, state = training.step_budget, training.state
    if budget is None or budget.final:
        return
    if budget.finish_seconds is None and state.step == UNTIMED_STEPS:
        budget.finish_seconds = rehearsed(training, sampler)
    decayed = budget.decaying
    metrics.config = training.config = budget.adjust_all(training.config, state.step, state.mesh)
    if (budget.final or budget.decaying > decayed) and state.mesh.is_main:
        training.run.write_config(training.config)
    if budget.final and state.mesh.is_main:
        metrics.say(f"step {state.step} | {training.config.run.max_steps} steps fit the time")


def finish(training: Training) -> str | None:
    """Write the model as Hugging Face expects it, and trained factors beside it as peft does; returns why not when it
    has no such form."""
    mesh, tokenizer, config = training.state.mesh, training.tokens.tokenizer, training.config

    def write() -> str | None:
        training.run.require_there()
        single = {name: tensor.detach().float() for name, tensor in _weights(training).items()}
        try:
            save_folder(
                training.run.model_folder,
                config.model,
                single,
                tokenizer_json=tokenizer.to_json(),
                end_of_text=tokenizer.end_of_text,
                conversation=conversation_of(tokenizer),
                step=training.state.step,
            )
            if factors_alone(config.model) and (base := adapter_base(training.run)) is not None:
                model, factors = beside_the_start(training.run, config.model, single)
                save_adapter(training.run.adapter_folder, model, factors, base)
        except ConfigError as error:
            return str(error)
        return None

    return mesh.decided(write)


def _weights(training: Training) -> Mapping[str, Tensor]:
    """Of the trained model, in one piece; of several processes they lie on the disk, put together by all of them."""
    state = training.state
    if state.mesh.world == 1:
        return dict(state.model.named_parameters())
    return TensorFile(training.run.checkpoint(state.step) / checkpoint.weights_file(POLICY), {})


def rehearsed(training: Training, sampler: Sampler) -> float:
    """Seconds that evaluation and sample after the last step will take: they are tried out, first to warm up."""
    for _ in range(2):
        began = time.perf_counter()
        evaluate(training)
        with contextlib.suppress(CheckpointError):
            samples(training, sampler)
    return time.perf_counter() - began


def _one(told: Told, watcher: Watcher | None) -> Outcome:
    """Take the next step, recorded when asked for, and log it."""
    training, metrics = told.training, told.metrics
    batch, seconds = told.drawn()
    number = training.state.step + 1
    began = time.perf_counter() - seconds
    if number in training.config.run.record_steps:
        outcome = record_step(
            training.run.recorded_step(number),
            training.state,
            batch,
            training.config,
            run=training.run.path.name,
            token_text=training.tokens.tokenizer.token_text,
            objective=training.objective,
        )
    else:
        looked_into = watcher is not None and watcher.looks_inside
        outcome = step(training.state, batch, training.config, training.objective, looked_into=looked_into)
    if outcome.updated and watcher is None:  # who watches reads numbers of the device, and would wait for the next step
        told.begin_next()
    if watcher is not None:
        logged = {**outcome.metrics, **mean_of([micro.measured for micro in batch])}
        mesh = training.state.mesh
        watcher.step(outcome.loss, mesh.share(batch) if mesh.answers else (), logged)  # rows are read once
    metrics.step(outcome, batch, time.perf_counter() - began, training.batches.epoch(number))
    return outcome


@dataclass
class Told:
    """A run's checkpoints, and its user's code, which is told of them."""

    training: Training
    metrics: MetricsLogger
    best: Best
    callbacks: Sequence[Callback]
    saver: Saver
    sampled: int | None = None
    """Step of the last sample."""
    ahead: Sequence[MicroBatch] | None = None
    """The batch of the next step, where it was drawn in the time of the one before."""

    def drawn(self) -> tuple[Sequence[MicroBatch], float]:
        """The batch of the next step, and how many seconds it took."""
        if self.ahead is not None:
            batch, self.ahead = self.ahead, None
            return batch, 0.0
        state, began = self.training.state, time.perf_counter()
        state.mesh.at(state.step + 1, "reading data")
        with self.saved_first():
            batch = self.training.batches.batch(state.step + 1, state)
        return batch, time.perf_counter() - began

    def begin_next(self) -> None:
        """Have the device work on the next step while this one is told of, where its batch is sure to come."""
        training, state, run = self.training, self.training.state, self.training.config.run
        sure = isinstance(training.batches, Batches) and state.step < run.max_steps
        if state.graphs is not None and sure and state.step + 1 not in run.record_steps:
            self.ahead, _ = self.drawn()
            begin_next(state, self.ahead, training.objective)

    @contextmanager
    def saved_first(self) -> Iterator[None]:
        """Save everything before an error of what the run is fed from, such as a reward function, goes on."""
        try:
            yield
        except DataError as error:
            self._begin_to_write()
            raise BrokeOff(self.training.run, self.training.state.step, error) from error

    def evaluated(self) -> None:
        """Evaluate, keep and show it, where there is something to evaluate on."""
        self.training.state.mesh.at(self.training.state.step, "evaluating")
        with self.saved_first():
            evaluation = evaluate(self.training)
        if evaluation.sets:
            self.best.add(evaluation.step, evaluation.loss)
            self.metrics.evaluation(evaluation)
            self.tell("on_evaluation", evaluation)

    def sample(self, sampler: Sampler) -> None:
        """Draw samples, keep and show them."""
        if not asked_of(self.training):
            return
        self.sampled = self.training.state.step
        self.training.state.mesh.at(self.sampled, "sampling")
        try:
            drawn = samples(self.training, sampler)
        except CheckpointError as error:
            self.metrics.say(f"no sample after step {self.sampled}: {error}")
            return
        self.metrics.samples(drawn)
        for one in drawn:
            self.tell("on_sample", one)

    def tell(self, event: str, *about: Any) -> None:
        """Call every callback; at an error everything is saved first, where that takes one process."""
        try:
            for callback in self.callbacks:
                getattr(callback, event)(self.training.run, *about)
        except Exception:
            if self.training.state.mesh.world == 1:
                self._begin_to_write()
            raise

    def save(self, *, wait: bool = False) -> None:
        """Begin to save the state, unless it was just saved; the next steps go on while it is written, or wait."""
        self._begin_to_write()
        if wait:
            self.wait_for_saver()

    def look_after_saver(self) -> None:
        """Tell of a checkpoint that is there now, or raise what kept it from being written."""
        self._tell_of(self.saver.ended())

    def wait_for_saver(self) -> None:
        """The same, once what was begun is there."""
        self._tell_of(self.saver.wait())

    def _begin_to_write(self) -> None:
        run, state, config = self.training.run, self.training.state, self.training.config
        state.mesh.at(state.step, "saving")
        self.metrics.sync()
        if state.step == self.saver.begun or state.mesh.decided(lambda: run.checkpoint(state.step).is_dir()):
            return
        self.wait_for_saver()
        self.saver.begin(checkpoint.snapshot(state, config, self.training.tokens.fingerprint))

    def _tell_of(self, step: int | None) -> None:
        """Of a checkpoint that was written: remove those that it makes superfluous, and call every callback."""
        if step is None:
            return
        every = self.training.config.run
        if self.training.state.mesh.is_main:
            protected = {0, every.max_steps - 1, every.max_steps, step, self.best.step or 0}
            checkpoint.prune(self.training.run, every.save_total_limit, protected)
        self.tell("on_checkpoint", step)


def _due(number: int, every: int, last: int) -> bool:
    return number == last or bool(every and number % every == 0)
