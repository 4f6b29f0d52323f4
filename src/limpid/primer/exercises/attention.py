"""Attention: its matrices, its scores, and why they are divided."""

from __future__ import annotations

import math

import numpy as np

from limpid.primer.exercise import Exercise, Numbers, Slip, shown

HEADS = (4, 6, 8, 10, 12, 16, 20, 24, 32)
HEAD_SIZES = (32, 48, 64, 80, 96, 128)


def _heads(rng: np.random.Generator) -> Numbers:
    heads, d_head = int(rng.choice(HEADS)), int(rng.choice(HEAD_SIZES))
    return {"d_model": heads * d_head, "heads": heads, "d_head": d_head}


def _tokens(rng: np.random.Generator) -> Numbers:
    return {"tokens": int(rng.integers(5, 41)) * 10, "heads": int(rng.choice(HEADS))}


EXERCISES = (
    Exercise(
        name="query-weights",
        chapter="attention",
        first={"d_model": 768, "heads": 12, "d_head": 64},
        draw=_heads,
        ask="The vector of a token has {d_model} numbers; there are {heads} heads of size {d_head}. How many weights "
        "have all heads' query matrices together?",
        right=lambda d_model, heads, d_head: heads * d_model * d_head,
        solution=lambda d_model, heads, d_head: (
            f"a head has ({shown(d_model)} × {d_head}), {heads} of them {shown(heads * d_model * d_head)}"
        ),
        slips=(
            Slip(
                "one-head", lambda d_model, heads, d_head: d_model * d_head, "{given} is one head's: there are several."
            ),
            Slip(
                "full-size-a-head",
                lambda d_model, heads, d_head: heads * d_model**2,
                "{given} gives every head queries as long as the token's vector: they have the size of a head.",
            ),
            Slip(
                "query-key-value",
                lambda d_model, heads, d_head: 3 * heads * d_model * d_head,
                "{given} counts keys and values too: only queries are asked for.",
            ),
        ),
        hints=(
            "What comes into a head is the whole vector of a token.",
            "Its queries have as many numbers as the head has size.",
            "Multiply by the heads.",
        ),
        unit="weights",
    ),
    Exercise(
        name="why-divide",
        chapter="attention",
        first={"d_k": 64},
        draw=lambda rng: {"d_k": int(rng.choice([16, 25, 36, 49, 64, 81, 100, 121, 128, 144, 192, 256]))},
        ask="q and k have {d_k} entries, all independent, of mean 0 and variance 1. What is the standard "
        "deviation of q · k?",
        right=lambda d_k: math.sqrt(d_k),
        solution=lambda d_k: (
            f"each product has variance 1, {d_k} of them {d_k}; scores are divided by its root, {shown(math.sqrt(d_k))}"
        ),
        slips=(
            Slip("variance", lambda d_k: d_k, "{given} is the variance: the standard deviation is its root."),
            Slip("one", lambda d_k: 1, "{given} is that of one product, or of the score once it is divided."),
            Slip(
                "inverse",
                lambda d_k: 1 / math.sqrt(d_k),
                "{given} is what scores are multiplied by, to come back to 1.",
            ),
            Slip(
                "doubled",
                lambda d_k: math.sqrt(2 * d_k),
                "{given} counts q and k apart: there is one product for each pair.",
            ),
        ),
        hints=("What is the variance of one product?", "Variances of independent numbers add up.", "Take the root."),
    ),
    Exercise(
        name="scores",
        chapter="attention",
        first={"tokens": 100, "heads": 8},
        draw=_tokens,
        ask="{tokens} tokens, {heads} heads, no mask. How many scores does attention form?",
        right=lambda tokens, heads: heads * tokens**2,
        solution=lambda tokens, heads: (
            f"each token with each, in every head: {heads} · {tokens}² = {shown(heads * tokens**2)}"
        ),
        slips=(
            Slip("one-head", lambda tokens, heads: tokens**2, "{given} is one head's."),
            Slip("not-pairs", lambda tokens, heads: heads * tokens, "{given}: every token is scored with every token."),
            Slip(
                "causal",
                lambda tokens, heads: heads * tokens * (tokens + 1) // 2,
                "{given} is right with a causal mask, where each token sees itself and those before.",
            ),
            Slip(
                "not-itself",
                lambda tokens, heads: heads * tokens * (tokens - 1),
                "{given} leaves out each token with itself: attention looks at itself too.",
            ),
        ),
        hints=("How many pairs of tokens are there, each with itself too?", "So many for each head."),
        unit="scores",
    ),
    Exercise(
        name="causal-scores",
        chapter="attention",
        first={"tokens": 100, "heads": 8},
        draw=_tokens,
        ask="{tokens} tokens, {heads} heads, with a causal mask. How many scores are left?",
        right=lambda tokens, heads: heads * tokens * (tokens + 1) // 2,
        solution=lambda tokens, heads: (
            f"1 + 2 + … + {tokens} = {shown(tokens * (tokens + 1) // 2)} in a head, "
            f"{shown(heads * tokens * (tokens + 1) // 2)} in {heads}"
        ),
        slips=(
            Slip("no-mask", lambda tokens, heads: heads * tokens**2, "{given} is without the mask."),
            Slip(
                "half",
                lambda tokens, heads: heads * tokens**2 / 2,
                "{given} is half of all: those with itself stay whole.",
            ),
            Slip(
                "not-itself",
                lambda tokens, heads: heads * tokens * (tokens - 1) // 2,
                "{given} leaves out each token with itself.",
            ),
            Slip("one-head", lambda tokens, heads: tokens * (tokens + 1) // 2, "{given} is one head's."),
        ),
        hints=("The first token sees one, the second two.", "Add up to the last.", "So many for each head."),
        unit="scores",
    ),
)
