"""Alignment: parameters of a low-rank change, the loss of a reward model, the advantage within a group."""

from __future__ import annotations

import math

import numpy as np

from limpid.maths.operation import Array
from limpid.planning.adapters import low_rank
from limpid.primer.aligned import group, preferred, reward_loss
from limpid.primer.exercise import Exercise, Numbers, Slip, shown
from limpid.primer.exercises.twists import BASE_2


def _matrix(rng: np.random.Generator) -> Numbers:
    return {
        "outputs": int(rng.choice([512, 768, 1024, 2048, 3072, 4096, 8192])),
        "inputs": int(rng.choice([640, 1280, 1600, 2560, 5120])),
        "rank": int(rng.choice([4, 8, 16, 32, 64])),
    }


def _pair(rng: np.random.Generator) -> Numbers:
    return {
        "chosen": round(float(rng.integers(-20, 31)) / 10, 1),
        "rejected": round(float(rng.integers(-30, 21)) / 10, 1),
    }


def _first(rewards: Array) -> float:
    return round(float(group(rewards)[0]), 12)


def _spread(rewards: Array) -> float:
    return float(np.std(rewards, ddof=1))


EXERCISES = (
    Exercise(
        name="low-rank-parameters",
        chapter="alignment",
        first={"outputs": 4096, "inputs": 4096, "rank": 8},
        draw=_matrix,
        ask="A weight matrix has {outputs} rows and {inputs} columns. LoRA adds B A of rank {rank} to it. How many "
        "parameters are trained?",
        right=lambda outputs, inputs, rank: low_rank(inputs, outputs, rank),
        solution=lambda outputs, inputs, rank: (
            f"B has {shown(outputs)} · {rank}, A has {rank} · {shown(inputs)}: {rank} · ({shown(outputs)} + "
            f"{shown(inputs)}) = {shown(low_rank(inputs, outputs, rank))}"
        ),
        slips=(
            Slip(
                "whole-matrix",
                lambda outputs, inputs, rank: outputs * inputs,
                "{given} is the matrix itself, which stays as it is.",
            ),
            Slip(
                "one-factor",
                lambda outputs, inputs, rank: rank * inputs,
                "{given} is A, one of the two factors: B is trained too.",
            ),
            Slip(
                "other-factor",
                lambda outputs, inputs, rank: rank * outputs if outputs != inputs else None,
                "{given} is B, one of the two factors: A is trained too.",
            ),
            Slip(
                "product",
                lambda outputs, inputs, rank: rank * inputs * outputs,
                "{given} multiplies the sizes: the two factors stand beside each other, so add theirs.",
            ),
            Slip(
                "core",
                lambda outputs, inputs, rank: rank * (inputs + outputs) + rank * rank,
                "{given} counts a small matrix between the two: there is none.",
            ),
        ),
        hints=(
            "B has as many rows as the matrix, and as many columns as the rank.",
            "A has as many rows as the rank, and as many columns as the matrix.",
            "Add the sizes of both.",
        ),
        unit="parameters",
    ),
    Exercise(
        name="reward-loss",
        chapter="alignment",
        first={"chosen": 1.5, "rejected": 0.5},
        draw=_pair,
        ask="A reward model gives the answer that was chosen {chosen} and the other one {rejected}. What is its "
        "loss, in nats?",
        right=reward_loss,
        solution=lambda chosen, rejected: (
            f"σ({shown(chosen)} − ({shown(rejected)})) = σ({shown(round(chosen - rejected, 6))}) = "
            f"{shown(preferred(chosen, rejected))}, and −ln of it is {shown(reward_loss(chosen, rejected))}"
        ),
        slips=(
            Slip(
                "swapped",
                lambda chosen, rejected: reward_loss(rejected, chosen),
                "{given} is the loss had the other answer been chosen.",
            ),
            Slip(
                "sign",
                lambda chosen, rejected: -reward_loss(chosen, rejected),
                "{given} lacks the minus: ln of a number below 1 is negative, and the loss is −ln.",
            ),
            Slip(
                "no-logarithm",
                preferred,
                "{given} is how likely the choice was: the loss is −ln of it.",
            ),
            Slip(
                "added",
                lambda chosen, rejected: reward_loss(chosen, -rejected),
                "{given} adds both rewards: their difference counts.",
            ),
            Slip(
                "chosen-alone",
                lambda chosen, rejected: reward_loss(chosen, 0.0),
                "{given} looks at the chosen answer alone: it was chosen against another.",
            ),
            Slip(
                "no-sigmoid",
                lambda chosen, rejected: math.exp(rejected - chosen),
                "{given} is e to the power of minus the gap: it is part of σ, whose logarithm is asked for.",
            ),
        ),
        hints=(
            "Take the gap: the chosen answer's reward less the other's.",
            "σ of the gap, 1 / (1 + e^(−gap)), is how likely the choice was.",
            "The loss is −ln of that.",
        ),
        twists=(BASE_2,),
        unit="nats",
    ),
    Exercise(
        name="group-advantage",
        chapter="alignment",
        first={"rewards": np.array([1, 0, 0, 0])},
        draw=lambda rng: {"rewards": rng.integers(0, 11, 4)},
        ask="Four answers to one prompt got the rewards {rewards}. What is the advantage of the first in GRPO? Take "
        "the standard deviation with n − 1.",
        right=_first,
        solution=lambda rewards: (
            f"mean {shown(np.mean(rewards))}, standard deviation {shown(_spread(rewards))}: "
            f"({shown(rewards[0])} − {shown(np.mean(rewards))}) / {shown(_spread(rewards))} = {shown(_first(rewards))}"
        ),
        slips=(
            Slip(
                "not-divided",
                lambda rewards: float(group(rewards, scale="none")[0]),
                "{given} is how far it lies from the mean: divide by the standard deviation.",
            ),
            Slip(
                "not-centred",
                lambda rewards: rewards[0] / _spread(rewards) if _spread(rewards) else None,
                "{given} divides the reward itself: take the mean of the group off first.",
            ),
            Slip(
                "all-of-n",
                lambda rewards: float(group(rewards, unbiased=False)[0]),
                "{given} divides the squares by n: here it is n − 1.",
            ),
            Slip(
                "variance",
                lambda rewards: (rewards[0] - np.mean(rewards)) / _spread(rewards) ** 2 if _spread(rewards) else None,
                "{given} divides by the variance: take its root.",
            ),
        ),
        hints=(
            "What is the mean of the four rewards, and how far is the first above it, or below?",
            "Add the squares of all four distances, divide by n − 1, take the root.",
            "The distance of the first, divided by this root.",
        ),
        decimals=2,
    ),
)
