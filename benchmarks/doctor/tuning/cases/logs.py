"""Logs of other tools: curves by TRL's names, made by simple dynamics with noise, as a Trainer writes them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from benchmarks.doctor.tuning.case import Bench, fault, honest

Shape = Callable[[float], float]


def log(bench: Bench, steps: int = 200, scatter: float = 0.05, **named: Shape) -> None:
    """A log with these names (/ written as __), each a function of how much of the run is done."""
    noise, entries = random.Random(1), []
    for step in range(1, steps + 1):
        done = step / steps
        entry = {"step": step, "learning_rate": 1e-5, "grad_norm": math.exp(0.2 * noise.gauss(0, 1))}
        for name, shape in ({"loss": lambda t: 0.69 * math.exp(-t)} | named).items():
            entry[name.replace("__", "/")] = shape(done) * (1 + scatter * noise.gauss(0, 1))
        entries.append(entry)
    bench.log(entries)


def line(start: float, end: float) -> Shape:
    return lambda t: start + (end - start) * t


def level(value: float) -> Shape:
    return lambda _: value


@fault("kl-without-end", wanted=("KL|reference", "rate|β|beta"))
def _(bench: Bench, wrong: bool) -> None:
    """KL passes the entropy of the start and goes on, while the reward stands still; the twin levels off."""
    kl = line(0.01, 12) if wrong else lambda t: 0.6 * (1 - math.exp(-5 * t))
    log(bench, kl=kl, entropy=line(1.4, 0.6), reward=lambda t: 0.5 * (1 - math.exp(-8 * t)), loss=level(0.01))


@fault("longer-is-better-to-the-judge", wanted=("reward", "length|longer|broken off"))
def _(bench: Bench, wrong: bool) -> None:
    """Reward, length and KL rise until answers hit their limit; in the twin they rise and end in time."""
    log(
        bench, reward=line(0.5, 4.0), completions__mean_length=line(60, 250), kl=line(0.01, 0.8),
        entropy=line(1.4, 1.0), completions__clipped_ratio=line(0.02, 0.8) if wrong else level(0.02), loss=level(0.01),
    )  # fmt: skip


@fault("one-reward-of-a-thousand", wanted=("reward", "scale|weigh"))
def _(bench: Bench, wrong: bool) -> None:
    """A judge's scores of thousands are added to a reward of 0 and 1."""
    size = 1000.0 if wrong else 1.0
    log(
        bench, reward=line(size / 2, size), rewards__judge__mean=line(size / 2, size), rewards__judge__std=level(size),
        rewards__right__mean=line(0.2, 0.4), rewards__right__std=level(0.4), loss=level(0.01),
    )  # fmt: skip


@fault("both-sides-fall", wanted=("chosen", "fall|fell|unlikely|lost"))
def _(bench: Bench, wrong: bool) -> None:
    """Chosen answers lose far more than the margin gains; in the twin they lose a little."""
    log(
        bench, rewards__chosen=line(0, -9 if wrong else -0.5), rewards__rejected=line(0, -12 if wrong else -4),
        rewards__margins=line(0, 3 if wrong else 3.5), rewards__accuracies=line(0.5, 0.9),
    )  # fmt: skip


@fault("sampler-is-another", wanted=("ratio|sampler", "sampler|trainer|draw"))
def _(bench: Bench, wrong: bool) -> None:
    """The mean ratio of trainer to sampler is 1.3 from the first step on; in the twin it scatters about 1."""
    log(
        bench,
        scatter=0.002,
        reward=line(0.2, 0.4),
        sampling__importance_sampling_ratio__mean=level(1.3 if wrong else 1.0),
    )


@honest("chain-of-thought-grows")
def _(bench: Bench) -> None:
    """Answers grow fivefold with a verifiable reward, KL with them, below the entropy."""
    log(
        bench, reward=line(0.1, 0.8), completions__mean_length=line(80, 400), kl=line(0.0, 0.3), entropy=line(1.0, 0.8),
        completions__clipped_ratio=level(0.03), frac_reward_zero_std=line(0.3, 0.1), loss=level(0.01),
    )  # fmt: skip


@honest("groups-become-easy")
def _(bench: Bench) -> None:
    """A fifth of the groups tells nothing at first, four in ten at the end, because the model is right by then."""
    log(bench, reward=line(0.3, 0.9), frac_reward_zero_std=line(0.2, 0.4), loss=level(0.01))


@honest("preferences-learned")
def _(bench: Bench) -> None:
    """A DPO run whose loss falls to 0.05, below what any text allows, with four evaluations."""
    log(
        bench, loss=lambda t: 0.69 * math.exp(-3 * t), rewards__chosen=line(0, 2), rewards__rejected=line(0, -3),
        rewards__margins=line(0, 5), rewards__accuracies=line(0.5, 0.98), eval_rewards__accuracies=line(0.55, 0.7),
    )  # fmt: skip


@honest("kl-spikes-once")
def _(bench: Bench) -> None:
    """KL jumps for ten steps to ten times its level and comes back."""
    log(
        bench, kl=lambda t: 3.0 if 0.5 < t < 0.55 else 0.3 * (1 - math.exp(-5 * t)), entropy=line(1.4, 1.1),
        reward=line(0.2, 0.5), loss=level(0.01),
    )  # fmt: skip
