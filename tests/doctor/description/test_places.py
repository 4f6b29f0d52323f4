"""Whether attention tells places apart by its queries and keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid

HEADS, PLACES, WORDS, WIDTH = 4, 12, 11, 16
HEAD_AXIS, PLACE_AXIS = 1, 2


def rotated(x: Tensor, axis: int) -> Tensor:
    """(batch, head, place, d), turned by angles that grow along an axis; Su et al. 2021, eq. 34."""
    d = x.shape[-1]
    index = torch.arange(x.shape[axis], dtype=x.dtype).reshape([-1 if i == axis else 1 for i in range(4)])
    angle = index * 100 ** (-torch.arange(0, d, 2) / d)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1).flatten(-2)


class Block(nn.Module):
    def __init__(self, axis: int | None) -> None:
        super().__init__()
        self.axis, self.norm, self.qkv = axis, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if self.axis is not None:
            q, k = rotated(q, self.axis), rotated(k, self.axis)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = x + self.out(y.transpose(1, 2).flatten(-2))
        return out


class Decoder(nn.Module):
    def __init__(self, axis: int | None, learned: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(PLACES, WIDTH) if learned else None
        self.blocks, self.head = nn.ModuleList(Block(axis) for _ in range(2)), nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) if self.places is None else self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x)
        return out


def lines(model: nn.Module, where: str = "all places") -> list[str]:
    """Those of the page of a few steps that tell of it."""
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            ids = torch.randint(0, WORDS, (8, PLACES + 1))
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, ids)
    assert dict(doctor.skipped) == {}
    return [line.text for line in doctor.description.lines if line.text.startswith(f"one token in {where}")]


def test_queries_and_keys_that_are_turned_differ_from_place_to_place() -> None:
    torch.manual_seed(0)
    (line,) = lines(Decoder(PLACE_AXIS))
    assert "queries differ from place to place by 0." in line
    assert "keys differ from place to place by 0." in line


@pytest.mark.parametrize("axis", [HEAD_AXIS, None], ids=["turned by heads", "never turned"])
def test_places_that_are_not_known_are_told(axis: int | None) -> None:
    torch.manual_seed(0)
    (line,) = lines(Decoder(axis))
    assert line.endswith("in the first attention neither queries nor keys differ from place to place")


def test_nothing_is_told_where_vectors_of_places_are_added() -> None:
    torch.manual_seed(0)
    assert lines(Decoder(None, learned=True)) == []


class Counted(Decoder):
    """Places that are added to tokens, counted up to a last one."""

    def __init__(self, last: int) -> None:
        super().__init__(None, learned=True)
        self.last = last

    def forward(self, ids: Tensor) -> Tensor:
        assert self.places is not None
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]).clamp(max=self.last))
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x)
        return out


@pytest.mark.parametrize(("last", "said"), [(PLACES - 1, []), (7, ["4 keys are those of the place after them, at 7"])])
def test_places_that_are_those_of_their_neighbours_are_told(last: int, said: list[str]) -> None:
    torch.manual_seed(0)
    found = [line.partition("in the first attention ")[2] for line in lines(Counted(last), f"all {PLACES} places")]
    assert [one[: len(said[0])] if said else one for one in found] == said
