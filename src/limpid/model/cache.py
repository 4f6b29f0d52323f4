"""Keys and values of the positions already seen, so that decoding computes each of them once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from limpid.config import ModelConfig


class Cache:
    """Room for `capacity` positions of every block, allocated once and filled in place; `batch` rows of it are used.

    Rows of different lengths are aligned at their ends: row i starts after `padding[i]` unused positions.
    """

    def __init__(
        self,
        config: ModelConfig,
        batch: int,
        capacity: int,
        dtype: torch.dtype,
        padding: Int[Tensor, " batch"] | None,
        device: torch.device | None = None,
    ) -> None:
        shape = (config.num_layers, batch, config.sizes.num_kv_heads, capacity, config.sizes.d_head)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.padding = None if padding is None else padding.to(device)
        self.batch, self.length = batch, 0

    def extend(self, block: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store these keys and values, (batch, head, position, d_head); returns all of the block's so far."""
        end = self.length + key.shape[2]
        keys, values = self.keys[block, : self.batch], self.values[block, : self.batch]
        keys[:, :, self.length : end] = key
        values[:, :, self.length : end] = value
        return keys[:, :, :end], values[:, :, :end]

    def advance(self, positions: int) -> None:
        """Count positions as seen, once every block has stored them."""
        self.length += positions

    def positions(self, count: int) -> Int[Tensor, "*rows position"]:
        """Absolute positions of the next `count` tokens of each row."""
        positions = torch.arange(self.length, self.length + count, device=self.keys.device)
        return positions if self.padding is None else (positions - self.padding[:, None]).clamp(min=0)

    def visible(self, count: int, window: int | None) -> Bool[Tensor, "..."] | None:
        """Which stored keys each of `count` new queries may see; None when that is simply causal or everything."""
        end = self.length + count
        unbounded = window is None or window >= end
        if self.padding is None and unbounded and (count == 1 or self.length == 0):
            return None
        query = torch.arange(self.length, end, device=self.keys.device)[:, None]
        key = torch.arange(end, device=self.keys.device)
        visible = key <= query
        if window is not None:
            visible &= key > query - window
        if self.padding is None:
            return visible
        inside = key >= self.padding[:, None, None, None]
        return (visible & inside) | (key == query)  # an unused position sees itself: no row is empty

    @property
    def full(self) -> bool:
        """Whether no position is left."""
        return self.length == self.keys.shape[3]

    def trim(self) -> None:
        """Give up the first positions that no row uses any more."""
        if self.padding is not None:
            self._move(-int(self.padding.min()))

    def replace(self, row: int, other: Cache, place: int = 0) -> None:
        """Let `row` go on from row `place` of `other` instead, aligned at its end with the others."""
        if self.padding is None:
            self.padding = torch.zeros(self.batch, dtype=torch.int64, device=self.keys.device)
        unused = 0 if other.padding is None else int(other.padding[place])
        held = slice(unused, other.length)
        self._move(max(0, other.length - unused - self.length))
        start = self.length - (other.length - unused)
        self.keys[:, row, :, start : self.length] = other.keys[:, place, :, held]
        self.values[:, row, :, start : self.length] = other.values[:, place, :, held]
        self.padding[row] = start

    def _move(self, by: int) -> None:
        """Move every row to the right, or to the left."""
        if by == 0:
            return
        for stored in (self.keys, self.values):
            used = stored[:, : self.batch]
            used[:, :, :, max(0, by) : self.length + by] = used[:, :, :, max(0, -by) : self.length].clone()
        self.length += by
        if self.padding is not None:
            self.padding += by

    def select(self, rows: Int[Tensor, " batch"]) -> None:
        """Reorder or repeat rows, as a beam search does."""
        rows = rows.to(self.keys.device)
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]
        self.padding = None if self.padding is None else self.padding[rows]
        self.batch = len(rows)

    def keep(self, rows: Sequence[int]) -> list[int]:
        """Give up all rows but these; which row stands at each place from now on.

        The last ones move to the places of those that go: little is copied.
        """
        kept, last = set(rows), sorted(row for row in rows if row >= len(rows))
        order = [place if place in kept else last.pop() for place in range(len(rows))]
        for place, row in enumerate(order):
            if place != row:
                for stored in (self.keys, self.values):
                    stored[:, place, :, : self.length] = stored[:, row, :, : self.length]
        if self.padding is not None:
            self.padding = self.padding[torch.tensor(order, dtype=torch.int64, device=self.padding.device)]
        self.batch = len(order)
        return order
