"""Exercises about probabilities, losses and their spread, with numbers of a recorded step."""

from __future__ import annotations

import math

import numpy as np

from limpid.errors import ConfigError
from limpid.maths.foundations import green_z, normal_probability
from limpid.maths.operation import Array
from limpid.objectives.objective import to_document
from limpid.primer.own.draw import Own, matrix, number, own, rounded
from limpid.tracing.trace import Trace

LARGEST_KEY = 1000
"""Of the watermarks that are looked for."""


def _labels(trace: Trace) -> tuple[Array, Array]:
    """Where the step has a target (labels, 2), and the log-probability that it gave to each."""
    targets = trace.array("targets")
    at = np.argwhere(targets >= 0)
    rows, positions = at.T
    return at, trace.array("log_probabilities")[rows, positions, targets[rows, positions]]


def _entry(trace: Trace, at: Array) -> str:
    row, position = map(int, at)
    return f"log_probabilities[{row}, {position}, {int(trace.array('targets')[row, position])}]"


def _run(trace: Trace, rng: np.random.Generator, count: int) -> tuple[list[str], Array]:
    """Targets one after the other: their entries, and their log-probabilities."""
    at, found = _labels(trace)
    begins = [i for i in range(len(at) - count + 1) if _follow(at[i : i + count])]
    if not begins:
        raise ConfigError(f"this step has no {count} targets one after the other: take a run on plain text")
    i = begins[int(rng.integers(len(begins)))]
    return [_entry(trace, one) for one in at[i : i + count]], found[i : i + count]


def _follow(at: Array) -> bool:
    return bool((at[:, 0] == at[0, 0]).all() and (np.diff(at[:, 1]) == 1).all())


def surprise(trace: Trace, rng: np.random.Generator) -> Own:
    """What the model gave to a token that came."""
    (entry,), (logarithm,) = _run(trace, rng, 1)
    return own({"p": number(np.exp(logarithm))}, f"exp of {entry}.", f"{entry}, times −1", -logarithm)


def undo_ln(trace: Trace, rng: np.random.Generator) -> Own:
    """The logarithm of what the model gave to a token that came."""
    (entry,), (logarithm,) = _run(trace, rng, 1)
    return own({"y": number(logarithm)}, f"ln x is {entry}.", f"the probability behind {entry}", np.exp(logarithm))


def logs_add(trace: Trace, rng: np.random.Generator) -> Own:
    """The losses of two tokens that came one after the other."""
    entries, logarithms = _run(trace, rng, 2)
    a, b = rounded(-logarithms)
    of = "The exponents are the losses of two targets, one after the other."
    return own({"a": float(a), "b": float(b)}, of, f"−({' + '.join(entries)})", -logarithms.sum())


def log_laws(trace: Trace, rng: np.random.Generator) -> Own:
    """What the model gave to two tokens that came one after the other."""
    entries, logarithms = _run(trace, rng, 2)
    a, b = rounded(logarithms)
    first, second = np.exp(logarithms)
    of = "x and y are the probabilities of two targets, one after the other."
    return own({"a": float(a), "b": float(b)}, of, f"2 {entries[0]} − {entries[1]}", np.log(first**2 / second))


def chain_of_tokens(trace: Trace, rng: np.random.Generator) -> Own:
    """What the model gave to tokens that came one after the other."""
    entries, logarithms = _run(trace, rng, 3)
    return own({"p": rounded(np.exp(logarithms))}, f"The three are exp of {', '.join(entries)}.", " + ".join(entries),
               logarithms.sum())  # fmt: skip


def perplexity(trace: Trace, _: np.random.Generator) -> Own:
    """Of the mean loss of the targets, which is the step's own loss where it learns the next token."""
    mean, name = -float(_labels(trace)[1].mean()), trace.record.objective.name
    held = trace.array("loss").item() if name == "next_token" else mean
    where = "loss, to whose power e is raised" if name == "next_token" else "log_probabilities of the targets"
    return own({"h": number(mean)}, "This is the mean loss of the targets of this step.", where, math.exp(held))


def standard_deviation(trace: Trace, rng: np.random.Generator) -> Own:
    """The losses of four tokens that came one after the other."""
    entries, logarithms = _run(trace, rng, 4)
    of = f"Losses of four targets, one after the other: the first is −{entries[0]}."
    return own({"x": rounded(-logarithms)}, of, f"{', '.join(entries)}, times −1", np.std(logarithms))


def standard_error(trace: Trace, _: np.random.Generator) -> Own:
    """Of the loss: the mean of as many losses as there are targets."""
    found = _labels(trace)[1]
    if len(found) < 2:
        raise ConfigError("this step has one target, whose loss has no spread: take a run with more")
    of = f"The {len(found)} targets of this step, as if their losses were independent."
    held = float(np.std(found)) / math.sqrt(len(found))
    return own({"sigma": number(np.std(found)), "n": len(found)}, of,
               f"loss, {trace.array('loss').item():.4g}, give or take so much", held)  # fmt: skip


def conditional(trace: Trace, rng: np.random.Generator) -> Own:
    """Pairs of a token and its target, two of each, counted in the batch."""
    tokens, targets = trace.array("tokens"), trace.array("targets")
    seen = targets >= 0
    first, first_at = np.unique(tokens[seen], return_inverse=True)
    second, second_at = np.unique(targets[seen], return_inverse=True)
    counts = np.zeros((len(first), len(second)), int)
    np.add.at(counts, (first_at, second_at), 1)
    a, b, (c, d) = _two_rows(counts, rng)
    of = f"A and B are the tokens {first[a]} and {first[b]}, C and D the targets {second[c]} and {second[d]}."
    of_a = targets[seen & (tokens == first[a])]
    held = np.mean(of_a[np.isin(of_a, second[[c, d]])] == second[c])
    return own({"n": counts[np.ix_([a, b], [c, d])]}, of, f"targets, of this batch, where tokens is {first[a]}", held)


def _two_rows(counts: Array, rng: np.random.Generator) -> tuple[int, int, tuple[int, int]]:
    """A row with two columns that are not 0, and another row that has one of the two as well."""
    for a in map(int, rng.permutation(len(counts))):
        if np.count_nonzero(counts[a]) > 1:
            c, d = map(int, rng.choice(np.flatnonzero(counts[a]), 2, replace=False))
            rest = [row for row in range(len(counts)) if row != a and counts[row, [c, d]].any()]
            if rest:
                return a, max(rest, key=lambda row: np.count_nonzero(counts[row, [c, d]]) + rng.random()), (c, d)
    raise ConfigError("in this step no two tokens stand before the same two: take a run with more text in a batch")


def turn_round(trace: Trace, rng: np.random.Generator) -> Own:
    """How far to believe the model when a token is its first choice: counted over the batch."""
    at, _ = _labels(trace)
    rows, positions = at.T
    came = trace.array("targets")[rows, positions]
    chosen = trace.array("log_probabilities")[rows, positions].argmax(-1)
    fit = [one for one in np.unique(chosen) if 0 < np.mean(came[chosen == one] == one) < 1]
    if not fit:
        raise ConfigError("no token of this step is the first choice both rightly and wrongly: take a later step")
    token = int(rng.choice(fit))
    is_it, said = came == token, chosen == token
    numbers = {"prior": number(is_it.mean()), "hit": number(said[is_it].mean()), "false": number(said[~is_it].mean())}
    of = f"“the” stands here for token {token}, and the text is this batch."
    where = f"targets, where {token} is the largest of log_probabilities"
    return own(numbers, of, where, is_it[said].mean())


def interval(trace: Trace, rng: np.random.Generator) -> Own:
    """Two weights, measured in standard deviations from the mean of their matrix."""
    name, rows, columns = matrix(trace, rng)
    weights = trace.array(name)
    scaled = (weights - weights.mean()) / weights.std()
    low, high = sorted(scaled[int(rng.integers(rows)), int(rng.integers(columns))] for _ in range(2))
    share = np.mean((scaled >= low) & (scaled <= high))
    of = f"Both ends are weights of {name}, in standard deviations from their mean."
    where = f"{name}, of whose {rows * columns:,} weights {share:.1%} lie there"
    return own({"low": number(low), "high": number(high)}, of, where, normal_probability(low, high))


def green_count(trace: Trace, rng: np.random.Generator) -> Own:
    """A watermark looked for in the batch, with a key that nobody wrote it by."""
    from limpid.generation.watermark import detect_all  # brings torch

    tokens, vocab = trace.array("tokens"), trace.record.config.model.vocab_size
    key, gamma = int(rng.integers(1, LARGEST_KEY)), float(rng.choice([0.25, 0.5]))
    found = detect_all(tokens.tolist(), vocab, key, gamma)
    of = f"The pairs of this batch, looked through with the key {key}: chance alone."
    numbers = {"n": found.counted, "gamma": number(found.gamma), "g": found.green}
    return own(numbers, of, f"tokens, by limpid.detect with key {key}",
               green_z(found.green, found.counted, found.gamma))  # fmt: skip


def _two_rewards(trace: Trace, pair: int) -> tuple[float, float]:
    """Of the answer that was chosen and the other: a reward model's, or those of DPO, β times log-ratios."""
    names = trace.names()
    sides = ("chosen", "rejected")
    if "chosen_rewards" in names:
        chosen, rejected = (trace.array(f"{side}_rewards", (pair,)).item() for side in sides)
        return chosen, rejected
    beta = to_document(trace.record.objective).get("beta")
    if "reference_chosen" not in names or not isinstance(beta, float):
        raise ConfigError("this step has no answers with rewards: take one of objective reward or dpo")
    now = (trace.array(f"{side}_log_probabilities", (pair,)).item() for side in sides)
    before = (trace.array(f"reference_{side}", (pair,)).item() for side in sides)
    chosen, rejected = (beta * (one - other) for one, other in zip(now, before, strict=True))
    return chosen, rejected


def reward_loss(trace: Trace, rng: np.random.Generator) -> Own:
    """Rewards of two answers to one prompt."""
    if "pair_losses" not in trace.names():
        raise ConfigError("this step has no pairs of answers: take one of objective reward or dpo")
    pair = int(rng.integers(trace.array("pair_losses").size))
    chosen, rejected = _two_rewards(trace, pair)
    return own({"chosen": number(chosen), "rejected": number(rejected)}, f"Pair {pair} of the batch.",
               f"pair_losses[{pair}]", trace.array("pair_losses", (pair,)))  # fmt: skip


def group_advantage(trace: Trace, rng: np.random.Generator) -> Own:
    """Four rewards of a batch, as if they were of one prompt."""
    if "rewards" not in trace.names() or (rewards := trace.array("rewards")).size < 4:
        raise ConfigError("this step has no four rewards: take one of objective reward, with two pairs or more")
    at = rng.choice(rewards.size, 4, replace=False)
    four = rewards[at]
    of = f"The rewards of answers {', '.join(map(str, at))} of the batch, as if all were to one prompt."
    return own({"rewards": rounded(four)}, of, f"rewards[{at[0]}], among these",
               (four[0] - four.mean()) / np.std(four, ddof=1))  # fmt: skip


DRAWN = {
    "surprise": surprise, "undo-ln": undo_ln, "logs-add": logs_add, "log-laws": log_laws,
    "chain-of-tokens": chain_of_tokens, "perplexity": perplexity, "standard-deviation": standard_deviation,
    "standard-error": standard_error, "conditional": conditional, "turn-round": turn_round, "interval": interval,
    "green-count": green_count, "reward-loss": reward_loss, "group-advantage": group_advantage,
}  # fmt: skip
