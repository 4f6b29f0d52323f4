"""States of recurrent layers: handed on along the texts, beside them, or not at all."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.core, self.head = nn.Embedding(32, 6), nn.GRU(6, 8, batch_first=True), nn.Linear(8, 32)


def page(shuffled: bool, handed: str) -> tuple[str, str]:
    """Pieces of six words that overlap by one, in the order of the texts or shuffled."""
    torch.manual_seed(0)
    model = Reader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    texts = torch.randint(0, 32, (8, 61))
    pieces = torch.cat([texts[:, 6 * k : 6 * k + 7] for k in range(10)])
    pieces = pieces[torch.randperm(80)] if shuffled else pieces
    state = None
    with limpid.watch(model, optimizer, say=False) as doctor:
        for rows in pieces.split(8):
            out, made = model.core(model.tokens(rows[:, :-1]), state)
            loss = F.cross_entropy(model.head(out).flatten(0, 1), rows[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, rows)
            state = {"on": made.detach(), "mixed": made.detach().flip(1), "never": None}[handed]
    assert dict(doctor.skipped) == {}
    assert doctor.description is not None
    return "\n".join(doctor.description.of("model")), "\n".join(doctor.description.of("data"))


@pytest.mark.parametrize(("shuffled", "on"), [(False, "in 100% of"), (True, "% of")])
def test_pieces_of_texts(shuffled: bool, on: str) -> None:
    model, data = page(shuffled, "on")
    assert "core is given a state" in model
    assert "the one that came out of the pass before, row for row in" in model
    assert "the row at its place in the batch before in" in model
    assert on in model
    assert ("in 100% of" in model) is not shuffled
    assert "the model as a whole is not called, its parts are: tokens, core, head" in data
    assert "input: 8 × 6, int64" in data
    assert "weights at the first pass: spread as drawn ones are" in model


def test_states_whose_rows_are_mixed() -> None:
    assert "that one with its rows in another order" in page(False, "mixed")[0]


def test_a_layer_without_states_is_not_told() -> None:
    model, _ = page(True, "never")
    assert "is given a state" not in model
    assert "a row begins with the token" not in model


@pytest.mark.parametrize("handed", ["on", "cleared", "mixed"])
def test_a_memory_that_the_model_is_given_and_returns(handed: str) -> None:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.keep, self.head = nn.Embedding(32, 8), nn.Linear(8, 8), nn.Linear(8, 32)

        def forward(self, ids: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
            x = self.tokens(ids)
            return self.head(x + memory[:, None]), torch.tanh(memory + self.keep(x).mean(1))

    torch.manual_seed(0)
    model = Remembers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory = torch.zeros(4, 8)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(4):
            ids = torch.randint(0, 32, (4, 7))
            said, made = model(ids[:, :-1], memory)
            loss = F.cross_entropy(said.flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, ids)
            memory = {"on": made.detach(), "cleared": torch.zeros(4, 8), "mixed": made.detach().flip(0)}[handed]
    assert dict(doctor.skipped) == {}
    assert doctor.description is not None
    told = "\n".join(doctor.description.of("model"))
    assert ("the model, as memory, is given a state; of 2 passes looked at: " in told) is (handed != "cleared")
    assert ("row for row in 2" in told) is (handed == "on")
    assert ("with its rows in another order in 2" in told) is (handed == "mixed")


@pytest.mark.parametrize("cut", [False, True])
def test_a_state_that_is_detached_at_every_word(cut: bool) -> None:
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.cell, self.head = nn.Embedding(32, 6), nn.GRUCell(6, 8), nn.Linear(8, 32)

        def forward(self, ids: Tensor) -> Tensor:
            state, made = torch.zeros(len(ids), 8), []
            for x in self.tokens(ids).unbind(1):
                state = self.cell(x, state.detach() if cut else state)
                made.append(self.head(state))
            return torch.stack(made, 1)

    torch.manual_seed(0)
    model = Cells()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(2):
            ids = torch.randint(0, 32, (4, 9))
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, ids)
    assert dict(doctor.skipped) == {}
    assert doctor.description is not None
    told = "\n".join(doctor.description.of("model"))
    line = "another one at position 4 moves the last output, whose gradient comes back to tokens at 7 alone"
    assert (line in told) is cut
