"""How the advantage of a drawn answer's token was made of rewards."""

from __future__ import annotations

import numpy as np

from limpid.maths.operation import Array
from limpid.tracing.drawn import EPS, WHITENING_EPS, FromRewards
from limpid.tracing.entries.entry import Entry, Index, Reader, Source, factor, number
from limpid.tracing.entries.forward import derive_entry


@derive_entry.register
def _from_rewards(operation: FromRewards, index: Index, reader: Reader) -> Entry:
    inputs = [np.asarray(reader(place)) for place in range(reader.inputs or 0)]
    value = float(operation.forward(*inputs)[0][index])
    if not inputs[1][index] > 0:
        numbers = "0, for the mask is 0 here: no token of an answer, or of one without a reward"
        return Entry(value, "A_t = 0", numbers, (Source(1, index, 0.0),))
    if operation.method in ("group", "group_mean", "leave_one_out"):
        return _of_group(operation, index, inputs, value)
    return _of_all(operation, index, inputs, value)


def _of_group(operation: FromRewards, index: Index, inputs: list[Array], value: float) -> Entry:
    """Of the rewards of the answers to one prompt."""
    rewards, _, prices, _ = operation._given(tuple(inputs))
    first = index[0] - index[0] % operation.count
    group = range(first, first + operation.count)
    r = (rewards - prices.sum(-1))[first : first + operation.count]
    own, n = float(r[index[0] - first]), operation.count
    if operation.method == "leave_one_out":
        symbols = f"A = r - mean of the {n - 1} others"
        numbers, divisor, others = f"{number(own)} - {factor(float((r.sum() - own) / (n - 1)))}", 1.0, 1 / (n - 1)
    elif operation.method == "group_mean":
        symbols, numbers = f"A = r - mean of the {n}", f"{number(own)} - {factor(float(r.mean()))}"
        divisor, others = 1.0, 1 / n
    else:
        deviation = float(r.std(ddof=1))
        symbols = f"A = (r - mean of the {n}) / (their deviation + {EPS:g})"
        numbers = f"({number(own)} - {factor(float(r.mean()))}) / ({number(deviation)} + {EPS:g})"
        divisor, others = deviation + EPS, 1 / n
    if not r.max() > r.min():
        numbers += ": answers that are alike teach nothing"
    itself = 1.0 if operation.method == "leave_one_out" else 1 - others
    shares = {place: float(r[place - first]) * (itself if place == index[0] else -others) / divisor for place in group}
    if operation.price:
        numbers += f", r less {operation.price:g} per nat from the reference"
    ordered = (index[0], *(place for place in group if place != index[0]))
    return Entry(value, symbols, numbers, tuple(Source(0, (place,), shares[place]) for place in ordered))


def _of_all(operation: FromRewards, index: Index, inputs: list[Array], value: float) -> Entry:
    """Of the answer's own reward and prices, and, whitened, of all tokens of the step."""
    rewards, mask, prices, values = operation._given(tuple(inputs))
    ahead = operation._looking_back(rewards, mask, prices, values)
    here, answer = float(ahead[index]), index[0]
    sources = [Source(0, (answer,), float(rewards[answer]))]
    expected = operation.method in ("generalised", "returns")
    if expected:
        sources.append(Source(len(inputs) - 1, index, -float(values[index])))
    if operation.method == "returns":
        numbers = f"{number(here)} + {factor(float(values[index]))}"
        return Entry(value, "G_t = A_t + V_t, A_t the advantage of GAE", numbers, tuple(sources))
    what = "the advantage of GAE" if expected else "what was still to come"
    there = mask > 0
    if int(there.sum()) < 2:
        return Entry(value, f"A_t = {what}", number(here), tuple(sources))
    mean, variance = float(ahead[there].mean()), float(ahead[there].var(ddof=1))
    symbols = f"A_t = (x_t - mean) / √(variance + {WHITENING_EPS:g}), x_t {what}"
    numbers = f"({number(here)} - {factor(mean)}) / √({number(variance)} + {WHITENING_EPS:g})"
    return Entry(value, symbols, numbers, tuple(sources))
