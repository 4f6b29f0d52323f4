"""Models and loops that are unlike others: the doctor watches what it can, says what it cannot, changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.bench import VOCAB, Decoder, batch, mean_loss, rules
from limpid.model.narrow import narrow

STEPS = 12


class Odd:
    """A model, its optimizer and its loss on the batch of a number."""

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module, int], Any], rate: float = 1e-3) -> None:
        self.model, self.loss = model, loss
        kept = [p for p in dict.fromkeys(model.parameters()) if p.requires_grad]
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(kept, lr=rate, weight_decay=0.0)

    def run(self, watched: bool) -> tuple[list[float], Any]:
        doctor = limpid.watch(self.model, self.optimizer, say=False) if watched else None
        losses = []
        for number in range(STEPS):
            reported = self.loss(self.model, number)
            loss = reported["loss"] if isinstance(reported, dict) else reported
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(float(loss.detach()))
            if doctor is not None:
                doctor.step(reported, batch(number))
        if doctor is not None:
            doctor.close()
        return losses, doctor


def language(model: nn.Module, number: int) -> Tensor:
    return mean_loss(model, batch(number))


def no_tokens() -> Odd:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def loss(model: nn.Module, number: int) -> Tensor:
        return model(torch.randn(5, 4, generator=torch.Generator().manual_seed(number))).pow(2).mean()

    return Odd(model, loss)


def no_attention() -> Odd:
    torch.manual_seed(0)
    return Odd(nn.Sequential(nn.Embedding(VOCAB, 8), nn.Tanh(), nn.Linear(8, VOCAB)), language)


class Segments(nn.Module):
    """Takes tokens, segments and a weight for each token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.decoder, self.segments = Decoder(), nn.Embedding(2, VOCAB)

    def forward(self, weight: Tensor, ids: Tensor, *, segments: Tensor, note: str) -> Tensor:
        return self.decoder(ids) * weight[..., None] + self.segments(segments)


def several_inputs() -> Odd:
    def loss(model: nn.Module, number: int) -> Tensor:
        x, y = batch(number)
        logits = model(torch.ones(x.shape), x, segments=(x > 50).long(), note="train")
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())

    return Odd(Segments(), loss)


def tied() -> Odd:
    model = Decoder()
    model.head.weight = model.tokens.weight
    return Odd(model, language)


def shared() -> Odd:
    model = Decoder()
    model.blocks[1] = model.blocks[0]
    return Odd(model, language)


def frozen() -> Odd:
    model = Decoder()
    for parameter in (*model.tokens.parameters(), *model.places.parameters()):
        parameter.requires_grad_(False)
    return Odd(model, language)


def quantised() -> Odd:
    """The embedding is trained, through matrices whose numbers lie in tensors inside of them."""
    model = Decoder()
    for one in model.blocks.modules():
        if isinstance(one, nn.Linear):
            narrow(one, "int8")
    return Odd(model, language)


def sparse() -> Odd:
    torch.manual_seed(0)
    table = nn.Embedding(50, 4, sparse=True)
    odd = Odd(table, lambda model, number: model(batch(number)[0] % 50).pow(2).mean())
    odd.optimizer = torch.optim.SparseAdam(list(table.parameters()), lr=0.01)
    return odd


def several_devices() -> Odd:
    model = Decoder()
    model.elsewhere = nn.Parameter(torch.empty(4, 4, device="meta"), requires_grad=False)
    return Odd(model, language)


def loss_in_a_dict() -> Odd:
    return Odd(Decoder(), lambda model, number: {"loss": language(model, number), "tokens": 144})


CASES = [
    no_tokens, no_attention, several_inputs, tied, shared, frozen, quantised, sparse, several_devices, loss_in_a_dict,
]  # fmt: skip


@pytest.mark.parametrize("make", CASES, ids=[case.__name__ for case in CASES])
def test_an_odd_model_is_watched_and_trains_the_same_to_the_bit(make: Callable[[], Odd]) -> None:
    losses, doctor = make().run(watched=True)
    assert losses == make().run(watched=False)[0]
    assert doctor.steps == STEPS
    assert doctor.history.losses.all.tolist() == pytest.approx(losses)
    assert rules(doctor.findings) == []
    assert doctor.skipped == {}


def test_what_cannot_be_checked_is_said_once() -> None:
    """The forward pass looks at a counter that is not there for a probe of fewer rows."""

    class Sized(Decoder):
        def forward(self, ids: Tensor) -> Tensor:
            if len(ids) != 6:
                raise ValueError(f"this model takes 6 rows, not {len(ids)}")
            return super().forward(ids)

    said: list[str] = []
    model = Sized()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=said.append) as doctor:
        for number in range(STEPS):
            loss = mean_loss(model, batch(number))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            doctor.step(loss, batch(number))
    assert doctor.steps == STEPS
    assert said[0].startswith("doctor: not examined: the forward pass, ")
    assert 0 < len(said) < len(doctor.skipped)  # what has one reason stands in one line
    assert len(set(said)) == len(said)
    assert doctor.skipped["the forward pass"] == "ValueError: this model takes 6 rows, not 4"
