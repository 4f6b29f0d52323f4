"""Runs that end at a given time (`--minutes`): the size of the model, the tokens, and the number of steps."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch

from limpid.config import ModelConfig, TrainConfig
from limpid.data.batches import MicroBatch
from limpid.errors import ConfigError
from limpid.planning import parameter_count
from limpid.planning.laws.scaling import Law
from limpid.reporter import Reporter
from limpid.training.autotune import estimated_step_seconds, resolve_auto
from limpid.training.mesh import Mesh

LAW = Law("small scale", 2.1156, 67.519, 163.48, 0.37548, 0.35421, "`limpid plan fit benchmarks/small_scale.csv`")
"""Of the fast recipe with a plain MLP on Python's library: 20 runs, 0.4 to 7 M parameters, up to 8e12 FLOPs."""
WIDTHS = (64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280)
"""Values of d_model to choose from."""
REPEAT_DECAY = 15.39
"""Epochs after which repeated text is worth little. Source: Muennighoff et al. 2023, eq. 5, arXiv:2305.16264."""

FINISH_SECONDS = 4.0
"""Assumed time of evaluation and sample after the last step, until it is measured."""
EXIT_SECONDS = 0.5
"""Time that the process takes to end."""
MOST_FORGOTTEN = 0.02
"""Of a weight in one step, at most: what the shortest texts allow."""
UNTIMED_STEPS = 3
"""First steps of a run, which allocate and may compile, and say nothing about its speed."""
LAST_STEPS = 2
"""Steps before the end whose number stands: the state before the last one is kept, and there is only one last one."""
FINAL_WRITES = 3
"""Checkpoints' worth of bytes that are written at the end: two checkpoints and the model's folder."""


@dataclass(frozen=True)
class Deadline:
    """When a run is to end, and what of it was given."""

    at_seconds: float
    """On the clock of time.perf_counter."""
    size_given: bool
    decay_given: bool = True
    """Whether the options name a weight decay; where not, it follows from the text and the number of steps."""

    def fit(
        self,
        config: TrainConfig,
        unique_tokens: int,
        device: torch.device,
        reporter: Reporter,
    ) -> tuple[TrainConfig, StepBudget]:
        """The configuration that makes the most of the time left, and the budget that keeps to the deadline.

        Raises  ConfigError when no time is left
        """
        if self._seconds_left() <= 0:
            over = -self._seconds_left() / 60
            raise ConfigError(
                f"no time is left to train: reading the text and finishing take {over:.2g} minutes more than given; "
                "give more of them"
            )
        reporter.progress("measuring steps", 0, 1)
        chosen = best_size(config, self._seconds_left(), unique_tokens, device, size_given=self.size_given)
        model = chosen.config.model
        steps = max(1, int(max(0.0, self._seconds_left()) / chosen.step_seconds))  # measuring took some of the time
        fitted = with_max_steps(chosen.config, steps)
        tokens = steps * tokens_per_step(fitted)
        decay = ""
        if not self.decay_given:
            fitted = _with_weight_decay(fitted, unique_tokens)
            decay = f", weight decay {fitted.update.weight_decay:g}"
        reporter.line(
            f"chosen for the time: {parameter_count(model):,} parameters and about {tokens:,} tokens, "
            f"{tokens / unique_tokens:.1f} of the text, {steps:,} steps of {1e3 * chosen.step_seconds:.0f} ms{decay}",
        )
        return fitted, StepBudget(self.at_seconds)

    def _seconds_left(self) -> float:
        return self.at_seconds - FINISH_SECONDS - time.perf_counter()


@dataclass
class StepBudget:
    """Sets `max_steps` from the clock after each step: the time left, at the mean speed of all steps so far.

    Under warm-up–stable–decay no step before the decay depends on how many there are. In the decay the rate follows the
    steps left, and so the time left: where other programs take the processors it goes on falling at the same pace.
    The log has the number that each step was taken with, so that every step can be replayed bit for bit.
    """

    deadline_seconds: float
    """On the clock of time.perf_counter."""
    finish_seconds: float | None = None
    """Time of evaluation and sample after the last step; None until it is measured."""
    write_seconds: float = 0.0
    """Time of writing the last checkpoints and the model's folder."""
    most_steps: int | None = None
    """Upper bound, whatever time there is."""
    decaying: bool = False
    """Whether the learning rate falls."""
    final: bool = False
    """Whether the number of steps stands."""
    _timed_from: tuple[int, float] | None = None  # step, clock

    def adjust(self, config: TrainConfig, step: int) -> TrainConfig:
        """The configuration after `step` steps, with as many steps in all as end on time."""
        now = time.perf_counter()
        if self.final or step < UNTIMED_STEPS:
            return config
        if self._timed_from is None:
            self._timed_from = (step, now)
            return config
        first, began = self._timed_from
        step_seconds = (now - began) / (step - first)
        finish = FINISH_SECONDS if self.finish_seconds is None else self.finish_seconds
        left = self.deadline_seconds - finish - self.write_seconds - EXIT_SECONDS - now
        steps = step + max(1, int(left / max(step_seconds, 1e-9)))
        if self.most_steps is not None:
            steps = max(step + 1, min(self.most_steps, steps))
        config = with_max_steps(config, steps)
        self.decaying = decays_next(config, step)
        self.final = self.decaying and steps - step <= LAST_STEPS
        return config

    def adjust_all(self, config: TrainConfig, step: int, mesh: Mesh) -> TrainConfig:
        """The same, by the clock of the main process, on every process."""
        config, self.decaying, self.final = mesh.decided(lambda: (self.adjust(config, step), self.decaying, self.final))
        return config


def decays_next(config: TrainConfig, step: int) -> bool:
    """Whether the learning rate begins to fall within the next step."""
    last = config.run.max_steps
    warmup = config.update.warmup(last)
    return (step + 1 - warmup) / max(1, last - warmup) > 1 - config.update.decay_fraction


def with_max_steps(config: TrainConfig, steps: int) -> TrainConfig:
    """The same configuration with another number of steps."""
    return dataclasses.replace(config, run=dataclasses.replace(config.run, max_steps=steps))


def _with_weight_decay(config: TrainConfig, unique_tokens: int) -> TrainConfig:
    """The configuration with the decay λ = 1 / (η n), n the steps of one pass over the text; none where it comes once.

    Decayed weights are an average of the updates of the last 1 / (η λ) steps: over one pass they hold what all of the
    text has in common and not what its rows are. Source: Wang & Aitchison 2024, arXiv:2405.13698
    """
    steps = max(1.0, unique_tokens / tokens_per_step(config))
    decay = min(MOST_FORGOTTEN, 1 / steps) / config.update.learning_rate if steps < config.run.max_steps else 0.0
    return dataclasses.replace(config, update=dataclasses.replace(config.update, weight_decay=float(f"{decay:.2g}")))


@dataclass(frozen=True)
class SizeChoice:
    """A configuration of one size, and what it reaches in the time there is."""

    config: TrainConfig
    step_seconds: float
    measured: bool
    """Whether `step_seconds` was measured; otherwise it follows from other sizes."""
    loss: float
    """By the law, nats per token; only differences mean something."""


def best_size(
    config: TrainConfig, seconds: float, unique_tokens: int, device: torch.device, *, size_given: bool
) -> SizeChoice:
    """The configuration with the least predicted loss after so many seconds of training.

    A step takes a time per block and a time per FLOP. Two sizes are measured first, then the one that the fit of both
    times prefers, until the preferred one has been measured.
    """
    models = [config.model] if size_given else [with_width(config.model, width) for width in WIDTHS]
    configs = [resolve_auto(dataclasses.replace(config, model=model), device) for model in models]
    measured = {place: measured_step_seconds(configs[place], device) for place in {0, min(3, len(configs) - 1)}}
    while True:
        predicted = predicted_step_seconds(configs, measured, device)
        choices = [
            _choice(one, measured.get(place, predicted[place]), place in measured, seconds, unique_tokens)
            for place, one in enumerate(configs)
        ]
        best = min(range(len(choices)), key=lambda place: choices[place].loss)
        if choices[best].measured:
            break
        measured[best] = measured_step_seconds(configs[best], device)
    chosen = choices[best]
    steps = max(1, int(seconds / chosen.step_seconds))
    warmup = min(chosen.config.update.warmup(steps), steps // 10)
    update = dataclasses.replace(chosen.config.update, warmup_steps=warmup)
    return dataclasses.replace(chosen, config=with_max_steps(dataclasses.replace(chosen.config, update=update), steps))


def _choice(config: TrainConfig, step_seconds: float, measured: bool, seconds: float, unique_tokens: int) -> SizeChoice:
    tokens = max(1, int(seconds / step_seconds)) * tokens_per_step(config)
    loss = LAW.loss(parameter_count(config.model), effective_tokens(tokens, unique_tokens))
    return SizeChoice(config, step_seconds, measured, loss)


def with_width(model: ModelConfig, width: int) -> ModelConfig:
    """`model` in another size: a block per 64 features, heads of 32 features, of 64 from 512 on."""
    heads = width // (64 if width >= 512 else 32)
    return dataclasses.replace(
        model,
        d_model=width,
        num_layers=max(2, round(width / 64)),
        num_heads=heads,
        num_kv_heads=None,
        d_head=None,
        d_ff=None,
    )


def predicted_step_seconds(configs: list[TrainConfig], measured: dict[int, float], device: torch.device) -> list[float]:
    """Seconds per step of every size, from those measured: so much per block, and so much per estimated second."""
    terms = np.array([(one.model.num_layers, estimated_step_seconds(one, device)) for one in configs])
    places, seconds = list(measured), np.array(list(measured.values()))
    solved, *_ = np.linalg.lstsq(terms[places] / seconds[:, None], np.ones(len(places)), rcond=None)
    if (solved < 0).any() or len(places) == 1:
        solved = np.array([0.0, float(np.median(seconds / terms[places, 1]))])
    return [float(value) for value in terms @ solved]


def tokens_per_step(config: TrainConfig) -> int:
    """Tokens of one update, all micro-batches together."""
    return config.run.batch_size * config.run.gradient_accumulation_steps * config.model.context_length


def effective_tokens(tokens: float, unique_tokens: float) -> float:
    """How many tokens of fresh text as many tokens are worth when they repeat. Source: that of `REPEAT_DECAY`."""
    repeats = max(0.0, tokens / unique_tokens - 1)
    return min(tokens, unique_tokens) + unique_tokens * REPEAT_DECAY * (1 - math.exp(-repeats / REPEAT_DECAY))


def measured_step_seconds(config: TrainConfig, device: torch.device, steps: int = 5) -> float:
    """Median time of a step on random tokens, the first two left out."""
    from limpid.training.state import fresh_state
    from limpid.training.step import step

    uncompiled = dataclasses.replace(config, run=dataclasses.replace(config.run, compile="off"))
    state, rng, seconds = fresh_state(uncompiled, Mesh(device)), np.random.default_rng(0), []
    for _ in range(steps):
        shape = (config.run.batch_size, config.model.context_length + 1)
        batch = [
            MicroBatch({"tokens": tokens[:, :-1], "targets": tokens[:, 1:]})
            for tokens in (
                rng.integers(0, config.model.vocab_size, shape) for _ in range(config.run.gradient_accumulation_steps)
            )
        ]
        began = time.perf_counter()
        step(state, batch, uncompiled)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[2:])
