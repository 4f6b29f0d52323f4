"""Attention in tiles: some queries of some heads at a time, against the keys up to the last; never forms all weights.

Query heads that share a key head lie one after the other: `rows` are `repeats` times the positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from limpid.kernel_limits import TILE_BYTES, TILE_QUERIES


class Tile(NamedTuple):
    """Which heads, which queries; keys after the last query are hidden from all of them."""

    heads: slice
    queries: slice
    last: bool  # of the queries of these heads

    @property
    def keys(self) -> slice:
        return slice(0, self.queries.stop)


def mixed_in_tiles(
    query: Float[Tensor, "head rows d_head"],
    key: Float[Tensor, "head key d_head"],
    value: Float[Tensor, "head key d_head"],
    mask: Float[Tensor, "query key"],
) -> Float[Tensor, "head rows d_head"]:
    """softmax(query · key / √d_head + mask) · value."""
    mixed, (weights,) = torch.empty_like(query), buffers(query, key, 1)
    for tile in tiles(query, key):
        w = weights_of(tile, query, key, mask, weights)
        _put(mixed, key, tile, w, value[tile.heads, tile.keys])
    return mixed


def gradients_in_tiles(
    query: Float[Tensor, "head rows d_head"],
    key: Float[Tensor, "head key d_head"],
    value: Float[Tensor, "head key d_head"],
    mask: Float[Tensor, "query key"],
    mixed_bar: Float[Tensor, "head rows d_head"],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value; the weights are formed again."""
    query_bar, key_bar, value_bar = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    scale, (weights, bars) = 1 / math.sqrt(query.shape[-1]), buffers(query, key, 2)
    for tile in tiles(query, key):
        heads, keys = tile.heads, tile.keys
        w, q = weights_of(tile, query, key, mask, weights), rows_of(query, key, tile)
        bar = rows_of(mixed_bar, key, tile)
        w_bar = torch.bmm(bar, value[heads, keys].transpose(1, 2), out=_shaped(bars, w.shape))
        _add(value_bar, tile, w.transpose(1, 2), bar)
        torch.ops.aten._softmax_backward_data.out(w_bar, w, -1, w.dtype, grad_input=w_bar)
        _put(query_bar, key, tile, w_bar, key[heads, keys])
        _add(key_bar, tile, w_bar.transpose(1, 2), q)
    return query_bar.mul_(scale), key_bar.mul_(scale), value_bar


def tiles(query: Tensor, key: Tensor) -> Iterator[Tile]:
    """The last queries first: they see every key, so that gradients of keys begin with them."""
    positions, repeats = key.shape[1], query.shape[1] // key.shape[1]
    count = max(1, TILE_BYTES // (repeats * TILE_QUERIES * positions * key.dtype.itemsize))
    for head in range(0, len(key), count):
        for start in reversed(range(0, positions, TILE_QUERIES)):
            stop = min(start + TILE_QUERIES, positions)
            yield Tile(slice(head, min(head + count, len(key))), slice(start, stop), stop == positions)


def buffers(query: Tensor, key: Tensor, count: int) -> list[Tensor]:
    """Room for the largest tile, so many times."""
    first = next(tiles(query, key))
    rows = query.shape[1] // key.shape[1] * min(TILE_QUERIES, key.shape[1])
    return [query.new_empty(first.heads.stop * rows * key.shape[1]) for _ in range(count)]


def weights_of(tile: Tile, query: Tensor, key: Tensor, mask: Tensor, buffer: Tensor) -> Tensor:
    """The weights of a tile, in its place."""
    q, k = rows_of(query, key, tile), key[tile.heads, tile.keys]
    added = mask[tile.queries, tile.keys].repeat(query.shape[1] // key.shape[1], 1).expand(len(q), -1, -1)
    w = _shaped(buffer, (q.shape[0], q.shape[1], k.shape[1]))
    torch.baddbmm(added, q, k.transpose(1, 2), alpha=1 / math.sqrt(q.shape[-1]), out=w)
    return torch.softmax(w, -1, out=w)


def rows_of(x: Float[Tensor, "head rows d"], key: Tensor, tile: Tile) -> Float[Tensor, "some_heads some_rows d"]:
    """The rows of a tile's queries."""
    return _queries(x, key, tile).flatten(1, 2)


def _queries(x: Tensor, key: Tensor, tile: Tile) -> Tensor:
    """The same in their place: heads, repeats, queries, and the rest."""
    return x.unflatten(1, (-1, key.shape[1]))[tile.heads, :, tile.queries]


def _put(rows: Tensor, key: Tensor, tile: Tile, left: Tensor, right: Tensor) -> None:
    """left · right as the rows of a tile's queries."""
    place = _queries(rows, key, tile)
    if place.shape[1] == 1:
        torch.bmm(left, right, out=place.squeeze(1))
    else:
        place.copy_(torch.bmm(left, right).view(place.shape))


def _shaped(buffer: Tensor, shape: tuple[int, ...]) -> Tensor:
    return buffer[: math.prod(shape)].view(shape)


def _add(bar: Tensor, tile: Tile, left: Tensor, right: Tensor) -> None:
    """left · right into the gradients of a tile's keys, of which the last queries' are the first."""
    if tile.last:
        torch.bmm(left, right, out=bar[tile.heads])
    else:
        bar[tile.heads, tile.keys].baddbmm_(left, right)
