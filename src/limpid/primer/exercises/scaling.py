"""Scaling: the FLOPs of a training, the bytes of its state, the cache of keys and values."""

from __future__ import annotations

import numpy as np

from limpid.planning.laws.scaling import six_n_d
from limpid.primer.exercise import Exercise, Numbers, Slip, shown
from limpid.primer.sizes import bytes_each, cache_per_token, in_words, training_bytes

BILLION = 1e9


def _training(rng: np.random.Generator) -> Numbers:
    return {"parameters": int(rng.integers(1, 200)), "tokens": int(rng.integers(1, 150)) * 20}


def _flops(parameters: int, tokens: int) -> float:
    return six_n_d(parameters * BILLION, tokens * BILLION)


def _plain(billions: float) -> str:
    return f"{shown(billions)}e9" if billions >= 1 else shown(round(billions * BILLION))


def _gigabytes(parameters: int) -> float:
    return training_bytes(parameters * BILLION) / 1e9


def _caches(rng: np.random.Generator) -> Numbers:
    kv_heads = int(rng.choice([2, 4, 8]))
    return {
        "layers": int(rng.integers(12, 100)),
        "heads": kv_heads * int(rng.choice([4, 6, 8])),
        "kv_heads": kv_heads,
        "d_head": int(rng.choice([64, 80, 96, 128])),
    }


EXERCISES = (
    Exercise(
        name="training-flops",
        chapter="scaling",
        first={"parameters": 7, "tokens": 1000},
        draw=_training,
        ask=lambda parameters, tokens: (
            f"A model of {in_words(parameters)} parameters is trained on {in_words(tokens)} tokens. About how many "
            "FLOPs is that?"
        ),
        right=_flops,
        solution=lambda parameters, tokens: (
            f"6 N D = 6 · {_plain(parameters)} · {_plain(tokens)} = {shown(_flops(parameters, tokens))}"
        ),
        slips=(
            Slip(
                "forward-only",
                lambda parameters, tokens: _flops(parameters, tokens) / 3,
                "{given} is the forward pass: the backward pass costs twice as much again.",
            ),
            Slip(
                "backward-only",
                lambda parameters, tokens: _flops(parameters, tokens) * 2 / 3,
                "{given} is the backward pass: the forward pass comes before it.",
            ),
            Slip(
                "one-each",
                lambda parameters, tokens: _flops(parameters, tokens) / 6,
                "{given} counts one FLOP for each parameter and token: how many are there?",
            ),
            Slip(
                "add-forgotten",
                lambda parameters, tokens: _flops(parameters, tokens) / 2,
                "{given} counts products alone: each is also added, which is a second FLOP.",
            ),
            Slip(
                "one-token",
                lambda parameters, tokens: 6 * parameters * BILLION,
                "{given} is the cost of one token: there are many.",
            ),
        ),
        hints=(
            "In the forward pass each parameter is multiplied once and added once for each token.",
            "The backward pass costs twice the forward pass.",
            "Six FLOPs for each parameter and each token.",
        ),
        about=0.05,
        unit="FLOPs",
    ),
    Exercise(
        name="training-memory",
        chapter="scaling",
        first={"parameters": 7},
        draw=lambda rng: {"parameters": int(rng.integers(1, 500))},
        ask=lambda parameters: (
            f"A model of {in_words(parameters)} parameters is trained with AdamW in mixed precision: weights and "
            "gradients of 2 bytes each, and in 4 bytes each a master and two running means. How many gigabytes is that?"
        ),
        right=_gigabytes,
        solution=lambda parameters: (
            f"{' + '.join(shown(each) for each in bytes_each().values())} = {shown(sum(bytes_each().values()))} bytes "
            f"a parameter, times {in_words(parameters)}: {shown(_gigabytes(parameters))} gigabytes"
        ),
        slips=(
            Slip("weights-only", lambda parameters: 2 * parameters, "{given} holds the weights and nothing else."),
            Slip(
                "no-optimizer",
                lambda parameters: 4 * parameters,
                "{given} holds weights and gradients: masters and running means come on top.",
            ),
            Slip(
                "one-missing",
                lambda parameters: 12 * parameters,
                "{given} leaves out one of the numbers of 4 bytes: there are three.",
            ),
            Slip(
                "two-missing",
                lambda parameters: 8 * parameters,
                "{given} leaves out two of the numbers of 4 bytes: a master and two running means.",
            ),
        ),
        hints=(
            "Add up the bytes of one parameter.",
            "Two and two, and three times four.",
            "A billion parameters of one byte each are a gigabyte.",
        ),
        unit="gigabytes",
    ),
    Exercise(
        name="cache-of-a-token",
        chapter="scaling",
        first={"layers": 80, "heads": 64, "kv_heads": 8, "d_head": 128},
        draw=_caches,
        ask="A model has {layers} layers, {heads} query heads, {kv_heads} heads of keys and values, each of size "
        "{d_head}. Numbers take 2 bytes. How many bytes of cache does one token need?",
        right=lambda layers, heads, kv_heads, d_head: cache_per_token(layers, kv_heads, d_head),
        solution=lambda layers, heads, kv_heads, d_head: (
            f"a key and a value: 2 · {kv_heads} · {d_head} numbers in each of {layers} layers, 2 bytes each: "
            f"{shown(cache_per_token(layers, kv_heads, d_head))}"
        ),
        slips=(
            Slip(
                "keys-only",
                lambda layers, heads, kv_heads, d_head: cache_per_token(layers, kv_heads, d_head) / 2,
                "{given} is half: keys and values are kept, and each number has two bytes.",
            ),
            Slip(
                "query-heads",
                lambda layers, heads, kv_heads, d_head: cache_per_token(layers, heads, d_head),
                "{given} counts the query heads: only keys and values are kept.",
            ),
            Slip(
                "one-layer",
                lambda layers, heads, kv_heads, d_head: cache_per_token(1, kv_heads, d_head),
                "{given} is what one layer keeps: each layer has its own.",
            ),
            Slip(
                "numbers",
                lambda layers, heads, kv_heads, d_head: cache_per_token(layers, kv_heads, d_head) / 4,
                "{given} lacks two factors of 2: keys and values, and the bytes of a number.",
            ),
        ),
        hints=(
            "What does a layer keep of a token? A key and a value.",
            "Each has as many numbers as there are heads of keys and values, times their size.",
            "Times the layers, times the bytes of a number.",
        ),
        unit="bytes",
    ),
)
