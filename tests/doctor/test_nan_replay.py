"""When a loss breaks: the step is redone, and the first operation that went wrong is named."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from doctor.bench import VOCAB, Decoder, Loop, batch


class Half(nn.Module):
    """Attention scores formed in float16, scaled afterwards."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.head = nn.Embedding(VOCAB, 16), nn.Linear(16, VOCAB)
        self.query, self.key = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        scores = (self.query(x).half() @ self.key(x).half().transpose(-1, -2)).float() / 4
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return self.head(x + scores.masked_fill(hidden, -math.inf).softmax(-1) @ x)


def test_a_break_is_opened_and_the_operation_named() -> None:
    loop = Loop(Half(), rate=1e-4)

    def step() -> tuple[float, list[Any]]:
        if loop.number == 6:
            with torch.no_grad():
                loop.model.query.weight *= 1e3
                loop.model.key.weight *= 1e3
        return Loop.step(loop)

    loop.step = step
    _, doctor = loop.run(9)
    first = doctor.findings[0]
    assert first.rule == "scores-overflow-half"
    assert first.step == 7
    assert first.evidence["value"] > 65504
    assert "float16" in first.says


class Blind(Half):
    """An explicit mask of padding and causality: left-padded rows leave queries without a key."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        scores = self.query(x) @ self.key(x).transpose(-1, -2) / 4
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1) | (ids == 0)[:, None, :]
        return self.head(x + scores.masked_fill(hidden, -math.inf).softmax(-1) @ x)


def test_a_row_that_sees_nothing_is_found_when_it_comes() -> None:
    loop = Loop(Blind())

    def some(number: int) -> Any:
        x, y = batch(number)
        x = x.clamp(min=1)
        if number == 4:
            x[2, :5] = 0
        return x, y

    loop.batch = some
    _, doctor = loop.run(6)
    assert doctor.findings[0].rule == "attention-row-sees-nothing"
    assert doctor.findings[0].step == 5
    assert doctor.findings[0].evidence["rows_that_break_alone"] == [2]


def test_logarithm_of_zero_in_the_model_is_named() -> None:
    class Logarithm(Decoder):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) + (0.0 * self.norm.bias.sum()).log()

    _, doctor = Loop(Logarithm()).run(2)
    assert doctor.findings[0].rule == "not-finite"
    assert "log" in doctor.findings[0].says
