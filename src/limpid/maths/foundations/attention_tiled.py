"""Tiled attention: exact, and never more than one tile of scores at a time."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from limpid.errors import DomainError
from limpid.maths.formula import floats, formula
from limpid.maths.foundations.attention_variants import require_fit
from limpid.maths.operation import Array, Branch


class Tiled(NamedTuple):
    """Attention computed tile by tile, and the one number per query that its backward pass needs."""

    output: Array  # (query, d_value)
    log_sum: Array  # (query,)  logarithm of each row's sum of exponentials


@formula(
    r"m' = \max(m, \max_j s_j), \quad \ell' = e^{m - m'} \ell + \sum_j e^{s_j - m'}, \quad "
    r"o' = e^{m - m'} o + \sum_j e^{s_j - m'} v_j",
    Branch.PROBABILITY,
    "Milakov & Gimelshein 2018, algorithm 3, arXiv:1805.02867; Dao et al. 2022, algorithm 1, arXiv:2205.14135",
)
def tiled_attention(
    query: Float[Array, "query d"],
    key: Float[Array, "key d"],
    value: Float[Array, "key d_value"],
    *,
    causal: bool = False,
    tile: int = 64,
) -> Tiled:
    """Exact attention that never holds more than one tile of scores: a running maximum, a running sum, a running mix.

    Takes   query, key, value  as for `attention`, one head
            tile               positions per tile: tile² scores at a time in place of query × key
    Gives   the output, and each query's logarithm of the sum of exponentials
    Raises  ShapeError when sizes do not fit, DomainError for a tile below 1
    """
    query, key, value = floats(query), floats(key), floats(value)
    if tile < 1:
        raise DomainError(f"tile is {tile}: it must be at least 1")
    require_fit(query, key, value)
    output, log_sum = np.zeros((len(query), value.shape[-1])), np.empty(len(query))
    for rows in _tiles(len(query), tile):
        top = np.full((len(query[rows]), 1), -np.inf)
        total, mixed = np.zeros_like(top), np.zeros((len(top), value.shape[-1]))
        for columns in _tiles(len(key), tile):
            scores = _tile_scores(query, key, rows, columns, causal)
            if scores is None:
                break
            new_top = np.maximum(top, scores.max(-1, keepdims=True))
            shrink, terms = np.exp(top - new_top), np.exp(scores - new_top)
            total, mixed = shrink * total + terms.sum(-1, keepdims=True), shrink * mixed + terms @ value[columns]
            top = new_top
        output[rows], log_sum[rows] = mixed / total, (top + np.log(total))[:, 0]
    return Tiled(output, log_sum)


@formula(
    r"w_{ij} = e^{s_{ij} - \ell_i}, \quad \bar s_{ij} = w_{ij} \bigl(\bar o_i \cdot v_j - \bar o_i \cdot o_i\bigr)",
    Branch.PROBABILITY,
    "Dao et al. 2022, algorithm 4, arXiv:2205.14135",
)
def tiled_attention_gradient(
    o_bar: Float[Array, "query d_value"],
    query: Float[Array, "query d"],
    key: Float[Array, "key d"],
    value: Float[Array, "key d_value"],
    tiled: Tiled,
    *,
    causal: bool = False,
    tile: int = 64,
) -> tuple[Array, Array, Array]:
    """The gradients of tiled attention: weights are formed again, tile by tile, from the saved logarithm.

    Takes   o_bar  (query, d_value)  gradient of the output
            tiled                    what `tiled_attention` gave
    Gives   gradients of query, key and value
    """
    query, key, value, o_bar = floats(query), floats(key), floats(value), floats(o_bar)
    query_bar, key_bar, value_bar = np.zeros_like(query), np.zeros_like(key), np.zeros_like(value)
    scale = 1 / math.sqrt(query.shape[-1])
    along = (o_bar * tiled.output).sum(-1, keepdims=True)
    for rows in _tiles(len(query), tile):
        for columns in _tiles(len(key), tile):
            scores = _tile_scores(query, key, rows, columns, causal)
            if scores is None:
                break
            weights = np.exp(scores - tiled.log_sum[rows, None])
            scores_bar = scale * weights * (o_bar[rows] @ value[columns].T - along[rows])
            query_bar[rows] += scores_bar @ key[columns]
            key_bar[columns] += scores_bar.T @ query[rows]
            value_bar[columns] += weights.T @ o_bar[rows]
    return query_bar, key_bar, value_bar


def _tiles(length: int, tile: int) -> list[slice]:
    return [slice(start, min(start + tile, length)) for start in range(0, length, tile)]


def _tile_scores(query: Array, key: Array, rows: slice, columns: slice, causal: bool) -> Array | None:
    """One tile of scores; None where every key lies ahead of every query."""
    ahead = len(key) - len(query)
    if causal and columns.start > rows.stop - 1 + ahead:
        return None
    scores: Array = query[rows] @ key[columns].T / math.sqrt(query.shape[-1])
    if not causal:
        return scores
    behind = np.arange(rows.start, rows.stop)[:, None] + ahead - np.arange(columns.start, columns.stop)
    return np.where(behind >= 0, scores, -np.inf)
