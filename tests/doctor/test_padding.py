"""Padding may not change what comes out for the text beside it, whatever is done with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel

import limpid

VOCAB, LENGTH = 40, 24


def rows(left: bool, shortest: int = 6) -> tuple[Tensor, Tensor]:
    """Eight rows of unequal texts of tokens from 1 on, and what is text in them."""
    ids, mask = torch.zeros(8, LENGTH, dtype=torch.long), torch.zeros(8, LENGTH, dtype=torch.long)
    for row in range(8):
        length = min(LENGTH, shortest + 3 * row)
        place = slice(LENGTH - length, None) if left else slice(0, length)
        ids[row, place], mask[row, place] = torch.randint(1, VOCAB, (length,)), 1
    return ids, mask


class Reader(nn.Module):
    """Classes of texts by a recurrent network; `read` says how its states become one."""

    def __init__(self, read: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.embedding, self.read = nn.Embedding(VOCAB, 16), read
        self.cells, self.head = nn.LSTM(16, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = self.head(self.read(self.cells(self.embedding(ids))[0], mask))
        return out


def last(states: Tensor, mask: Tensor) -> Tensor:
    return states[torch.arange(len(states)), mask.sum(1) - 1]


def mean(states: Tensor, mask: Tensor) -> Tensor:
    return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def said(model: nn.Module, call: Callable[[int], Tensor], steps: int = 1) -> list[tuple[str, str]]:
    """What is said of padding in a loop of so many steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for step in range(steps):
            loss = call(step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss)
    return [(one.rule, one.severity) for one in doctor.findings if one.rule == "padding-counts"]


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (last, []),
        (mean, []),
        (lambda states, mask: states[:, -1], [("padding-counts", "fault")]),
        (lambda states, mask: states.mean(1), [("padding-counts", "fault")]),
    ],
)
def test_a_class_is_read_from_the_text(read: Callable[[Tensor, Tensor], Tensor], expected: list[Any]) -> None:
    torch.manual_seed(0)
    model = Reader(read)
    ids, mask = rows(left=False)
    assert said(model, lambda step: F.cross_entropy(model(ids, mask), torch.arange(8) % 3)) == expected


def gpt2(kind: type) -> Any:
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": VOCAB, "pad_token_id": 0}
    return kind(GPT2Config(**sizes, bos_token_id=1, eos_token_id=2))


def test_gpt2_reads_the_last_token_by_its_own_padding_id() -> None:
    model = gpt2(GPT2ForSequenceClassification)
    ids, mask = rows(left=False)
    assert said(model, lambda _: model(ids, attention_mask=mask, labels=torch.arange(8) % 2).loss) == []


@pytest.mark.parametrize(
    ("hidden", "placed", "expected"),
    [(True, True, []), (False, True, [("padding-counts", "warning")]), (True, False, [("padding-counts", "notice")])],
)
def test_padding_at_the_left_needs_mask_and_positions(hidden: bool, placed: bool, expected: list[Any]) -> None:
    model = gpt2(GPT2LMHeadModel)
    ids, mask = rows(left=True)
    given = {"attention_mask": mask} if hidden else {}
    given |= {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)} if placed else {}
    labels = ids.masked_fill(mask == 0, -100)
    assert said(model, lambda _: model(ids, labels=labels, **given).loss) == expected


def test_what_the_first_batch_does_not_hold_is_seen_in_a_later_one() -> None:
    model = gpt2(GPT2LMHeadModel)
    full, padded = rows(left=True, shortest=LENGTH)[0], rows(left=True)[0]

    def loss(step: int) -> Tensor:
        found: Tensor = model(full if step < 4 else padded, labels=full).loss
        return found

    assert said(model, loss, steps=4) == []
    assert said(model, loss, steps=10) == [("padding-counts", "notice")]  # positions are counted from the padding on
