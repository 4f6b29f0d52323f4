"""`--minutes`: which size of model to train, and on how many tokens, in the time there is on this machine."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from dataclasses import dataclass

import numpy as np

from limpid.config import ModelConfig, TrainConfig
from limpid.data.batches import MicroBatch
from limpid.plan import parameter_count
from limpid.plan.scaling import Law
from limpid.training.engine import settle, step_seconds

LAW = Law("small scale", 2.1156, 67.519, 163.48, 0.37548, 0.35421, "`limpid plan fit benchmarks/small_scale.csv`")
"""Of the fast recipe with a plain MLP on Python's standard library, 0.4 to 7 million parameters, 20 runs."""

WIDTHS = (64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280)
REPEATS = 15.39
"""Epochs after which repeated text is worth little. Source: Muennighoff et al. 2023, eq. 5, arXiv:2305.16264."""
RESERVE = 4.0
"""Seconds kept for what comes after the last step, until that is tried out."""


@dataclass(frozen=True)
class Choice:
    """A size, and what it comes to in the time there is."""

    config: TrainConfig
    seconds_per_step: float
    measured: bool
    loss: float  # by the law; only differences mean something


def shaped(model: ModelConfig, width: int) -> ModelConfig:
    """`model` in another size: a block per 64 features, heads of 32 features, of 64 from 512 on."""
    heads = width // (64 if width >= 512 else 32)
    return dataclasses.replace(
        model, d_model=width, num_layers=max(2, round(width / 64)), num_heads=heads, num_kv_heads=0, d_head=0, d_ff=0
    )


def within(config: TrainConfig, seconds: float, unique_tokens: int, *, sized: bool) -> Choice:
    """The best choice for so much training time; the size is chosen too unless the configuration is `sized`.

    A step takes a time per block and a time per FLOP: two sizes are measured for a start, and then the one that seems
    best, until the best one is one that was measured.
    """
    models = [config.model] if sized else [shaped(config.model, width) for width in WIDTHS]
    configs = [settle(dataclasses.replace(config, model=model)) for model in models]
    known = {place: measured_step_seconds(configs[place]) for place in {0, min(3, len(configs) - 1)}}
    while True:
        estimated, choices = fitted(configs, known), []
        for place, one in enumerate(configs):
            per_step = known.get(place, estimated[place])
            tokens = max(1, int(seconds / per_step)) * tokens_per_step(one)
            loss = LAW.loss(parameter_count(one.model), worth(tokens, unique_tokens))
            choices.append(Choice(one, per_step, place in known, loss))
        best = min(range(len(choices)), key=lambda place: choices[place].loss)
        if choices[best].measured:
            break
        known[best] = measured_step_seconds(configs[best])
    chosen = choices[best]
    steps = max(1, int(seconds / chosen.seconds_per_step))
    update = dataclasses.replace(chosen.config.update, warmup_steps=min(chosen.config.update.warmup_steps, steps // 10))
    run = dataclasses.replace(chosen.config.run, max_steps=steps)
    return dataclasses.replace(chosen, config=dataclasses.replace(chosen.config, update=update, run=run))


def fitted(configs: list[TrainConfig], known: dict[int, float]) -> list[float]:
    """Seconds per step of every size, from those measured: so much per block, and so many times what its FLOPs take."""
    terms = np.array([(one.model.num_layers, step_seconds(one)) for one in configs])
    places, seconds = list(known), np.array(list(known.values()))
    solved, *_ = np.linalg.lstsq(terms[places] / seconds[:, None], np.ones(len(places)), rcond=None)
    if (solved < 0).any() or len(places) == 1:
        solved = np.array([0.0, float(np.median(seconds / terms[places, 1]))])
    return [float(value) for value in terms @ solved]


def tokens_per_step(config: TrainConfig) -> int:
    return config.run.batch_size * config.run.gradient_accumulation_steps * config.model.context_length


def worth(tokens: float, unique_tokens: float) -> float:
    """How many tokens of fresh text as many tokens are worth when they repeat. Source: that of `REPEATS`."""
    repeats = max(0.0, tokens / unique_tokens - 1)
    return min(tokens, unique_tokens) + unique_tokens * REPEATS * (1 - math.exp(-repeats / REPEATS))


def measured_step_seconds(config: TrainConfig, steps: int = 5) -> float:
    """Median time of a step on random tokens, the first ones left out."""
    from limpid.training.begin import fresh_state
    from limpid.training.step import step

    plain = dataclasses.replace(config, run=dataclasses.replace(config.run, compile="off"))
    state, rng, seconds = fresh_state(plain), np.random.default_rng(0), []
    for _ in range(steps):
        shape = (config.run.batch_size, config.model.context_length + 1)
        batch = [
            MicroBatch(tokens[:, :-1], tokens[:, 1:], ())
            for tokens in (
                rng.integers(0, config.model.vocab_size, shape) for _ in range(config.run.gradient_accumulation_steps)
            )
        ]
        began = time.perf_counter()
        step(state, batch, plain)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[2:])
