"""Connectionist temporal classification: a loss over all ways to align labels with times."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import special

from limpid.maths.operation import Array
from limpid.operations.exact.elementwise import FUNCTION
from limpid.operations.exact.exact import Exact, arithmetic, growth


class _Alignment(NamedTuple):
    """Of one row: labels with blanks between, ln of the paths to each place and on from it, - ln of all."""

    labels: Array
    to: Array
    since: Array
    loss: float


def _paths(p: Array, labels: Array, blank: int) -> Array:
    """ln Σ over paths to each place (time, place): on, from the label before, or past a blank between two labels."""
    skips = np.zeros(len(labels), bool)
    skips[2:] = (labels[2:] != blank) & (labels[2:] != labels[:-2])
    found = np.full((len(p), len(labels)), -np.inf)
    found[0, :2] = p[0, labels[:2]]
    for t in range(1, len(p)):
        one = np.concatenate([[-np.inf], found[t - 1, :-1]])
        two = np.where(skips, np.concatenate([[-np.inf, -np.inf], found[t - 1]])[: len(labels)], -np.inf)
        found[t] = np.logaddexp(np.logaddexp(found[t - 1], one), two) + p[t, labels]
    return found


def _aligned(p: Array, targets: Array, blank: int) -> _Alignment:
    labels = np.full(2 * len(targets) + 1, blank)
    labels[1::2] = targets
    if not len(p):
        empty = np.zeros((0, len(labels)))
        return _Alignment(labels, empty, empty, np.inf if len(targets) else 0.0)
    to = _paths(p, labels, blank)
    since = _paths(p[::-1], labels[::-1], blank)[::-1, ::-1]
    return _Alignment(labels, to, since, -float(special.logsumexp(to[-1, -2:])))


def _rows(
    p: Array, targets: Array, input_lengths: Any, target_lengths: Any, blank: int
) -> list[tuple[int, _Alignment]]:
    times, counts = (np.asarray(one).astype(int) for one in (input_lengths, target_lengths))
    begins = np.cumsum(counts) - counts
    found = []
    for row, (time, count) in enumerate(zip(times, counts, strict=True)):
        own = targets[begins[row] : begins[row] + count] if targets.ndim == 1 else targets[row, :count]
        found.append((int(time), _aligned(p[:time, row], np.asarray(own).astype(int), blank)))
    return found


def _off(p: Array, alignment: _Alignment) -> float:
    """Errors of a logarithm of all paths, in units of u: one of its size at each time."""
    seen = alignment.to[np.isfinite(alignment.to)]
    most = float(np.abs(seen).max(initial=0.0)) + float(np.abs(p[np.isfinite(p)]).max(initial=0.0))
    return growth(len(p)) * FUNCTION * (1 + most)


@arithmetic("_ctc_loss")
def ctc_loss(
    log_probs: Array, targets: Array, input_lengths: Any, target_lengths: Any, results: list[Array], blank: int = 0,
    zero_infinity: bool = False,
) -> list[Exact | None]:  # fmt: skip
    """- ln of the sum over paths (Graves and others 2006), and of those to each place, where there is one."""
    rows = _rows(log_probs, targets, input_lengths, target_lengths, blank)
    value = np.array([alignment.loss for _, alignment in rows])
    rounding = np.array([_off(log_probs[:time, row], one) for row, (time, one) in enumerate(rows)])
    tables, off = results[1].copy(), np.zeros(results[1].shape)
    for row, (time, one) in enumerate(rows):
        tables[row, :time, : len(one.labels)] = one.to
        off[row] = rounding[row]
    return [Exact(value, rounding), Exact(tables, off)]


@arithmetic("_ctc_loss_backward")
def ctc_loss_backward(
    grad: Array, log_probs: Array, targets: Array, input_lengths: Any, target_lengths: Any, neg_log_likelihood: Array,
    log_alpha: Array, blank: int, zero_infinity: bool = False,
) -> Exact:  # fmt: skip
    """ȳ (p - share of the paths through a label)."""
    value, rounding = np.zeros_like(log_probs), np.zeros_like(log_probs)
    for row, (time, one) in enumerate(_rows(log_probs, targets, input_lengths, target_lengths, blank)):
        loss, to = float(neg_log_likelihood[row]), log_alpha[row, :time, : len(one.labels)]
        if np.isinf(loss) and zero_infinity:
            continue
        p, through = log_probs[:time, row], to + one.since
        shares = np.zeros_like(p)
        for place, label in enumerate(one.labels):
            shares[:, label] += np.exp(through[:, place] + loss - p[:, label])
        value[:time, row] = grad[row] * (np.exp(p) - shares)
        size = np.abs(grad[row]) * (np.exp(p) * (1 + np.where(np.isfinite(p), np.abs(p), 0.0)) + shares)
        rounding[:time, row] = FUNCTION * size + np.abs(grad[row]) * shares * 2 * _off(p, one)
    return Exact(value, rounding)
