"""Keys and values of the positions already seen, so that decoding computes each of them once."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from limpid.config import ModelConfig


class Cache:
    """Room for `capacity` positions of every block, allocated once and filled in place.

    Rows of different lengths are aligned at their ends: row i starts after `padding[i]` unused positions.
    """

    def __init__(
        self, config: ModelConfig, batch: int, capacity: int, dtype: torch.dtype, padding: Int[Tensor, " batch"] | None
    ) -> None:
        shape = (config.num_layers, batch, config.num_kv_heads, capacity, config.d_head)
        self.keys = torch.zeros(shape, dtype=dtype)
        self.values = torch.zeros(shape, dtype=dtype)
        self.padding = padding
        self.length = 0

    def extend(self, block: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store these keys and values, (batch, head, position, d_head); returns all of the block's so far."""
        end = self.length + key.shape[2]
        self.keys[block, :, :, self.length : end] = key
        self.values[block, :, :, self.length : end] = value
        return self.keys[block, :, :, :end], self.values[block, :, :, :end]

    def advance(self, positions: int) -> None:
        """Count positions as seen, once every block has stored them."""
        self.length += positions

    def positions(self, count: int) -> Int[Tensor, "*rows position"]:
        """Absolute positions of the next `count` tokens of each row."""
        positions = torch.arange(self.length, self.length + count)
        return positions if self.padding is None else (positions - self.padding[:, None]).clamp(min=0)

    def visible(self, count: int, window: int | None) -> Bool[Tensor, "..."] | None:
        """Which stored keys each of `count` new queries may see; None when that is simply causal or everything."""
        end = self.length + count
        unbounded = window is None or window >= end
        if self.padding is None and unbounded and (count == 1 or self.length == 0):
            return None
        query = torch.arange(self.length, end)[:, None]
        key = torch.arange(end)
        visible = key <= query
        if window is not None:
            visible &= key > query - window
        if self.padding is None:
            return visible
        inside = key >= self.padding[:, None, None, None]
        return (visible & inside) | (key == query)  # an unused position sees itself: no row is empty

    def select(self, rows: Int[Tensor, " batch"]) -> None:
        """Reorder or repeat rows, as a beam search does."""
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]
        self.padding = None if self.padding is None else self.padding[rows]
