"""Which columns outputs read and which they read together; which places read early ones of a series."""

import pytest
import torch
from torch import Tensor, nn

import limpid


class FirstTwo(nn.Module):
    """A coupling: two columns pass on as they are and say how the other two are scaled; or all four do."""

    def __init__(self, turns: bool) -> None:
        super().__init__()
        self.net, self.back, self.turns = nn.Linear(2, 2), nn.Linear(2, 2), turns

    def forward(self, x: Tensor) -> Tensor:
        a, b = x[:, :2], x[:, 2:]
        b = b * self.net(a).tanh().exp()
        a = a * self.back(b).tanh().exp() if self.turns else a
        return torch.cat([a, b], 1)


class Pairs(nn.Module):
    """A factorisation machine over columns, or one that adds up what each column says."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        self.vectors, self.apart = nn.Parameter(torch.randn(3, 5)), apart

    def forward(self, x: Tensor) -> Tensor:
        each = x[:, :, None] * self.vectors
        axis = 2 if self.apart else 1
        return 0.5 * (each.sum(axis).square() - each.square().sum(axis)).sum(1, keepdim=True)


class Walk(nn.Module):
    """A sum over the places so far, begun anew every so many places."""

    def __init__(self, piece: int, last: bool) -> None:
        super().__init__()
        self.gain, self.piece, self.last = nn.Parameter(torch.ones(3)), piece, last

    def forward(self, x: Tensor) -> Tensor:
        y = (x * self.gain).unflatten(1, (-1, self.piece)).cumsum(2).flatten(1, 2)
        return y[:, -1] if self.last else y


class Filtered(nn.Module):
    """A filter as long as the row by Fourier's transform: circular, or filled up with noughts (Gu et al. 2022)."""

    def __init__(self, circular: bool) -> None:
        super().__init__()
        self.kernel, self.circular = nn.Parameter(torch.randn(16)), circular

    def forward(self, x: Tensor) -> Tensor:
        size = 16 if self.circular else 32
        return torch.fft.irfft(torch.fft.rfft(x, size) * torch.fft.rfft(self.kernel, size), size)[:, :16]


class Grouped(nn.Module):
    """Two groups of channels, mixed before the second layer or not (Zhang et al. 2018, ShuffleNet)."""

    def __init__(self, mixed: bool) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv1d(4, 4, 1, groups=2) for _ in range(2))
        self.mixed = mixed

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        y = y.unflatten(1, (2, 2)).transpose(1, 2).flatten(1, 2) if self.mixed else y
        made: Tensor = self.two(y)
        return made


class Bag(nn.Module):
    """Classes of tokens, of which the last one is never read."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        made: Tensor = self.head(self.table(ids[:, :-1]).mean(1))
        return made


def told(model: nn.Module, x: Tensor) -> list[str]:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(2):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, x)
    assert dict(doctor.skipped) == {}
    return doctor.description.of("model")


@pytest.mark.parametrize("turns", [True, False])
def test_columns_that_outputs_read(turns: bool) -> None:
    torch.manual_seed(0)
    said = [line for line in told(FirstTwo(turns), torch.randn(16, 4)) if "output 0 reads" in line]
    if turns:
        assert "output 0 reads 0 1 2 3, 1 reads 0 1 2 3, 2 reads 0 1 2, 3 reads 0 1 3" in said[0]
    else:
        assert said == ["of 4 columns of x output 0 reads 0, 1 reads 1, 2 reads 0 1 2, 3 reads 0 1 3"]


@pytest.mark.parametrize("apart", [True, False])
def test_columns_that_are_read_together(apart: bool) -> None:
    torch.manual_seed(0)
    said = [line for line in told(Pairs(apart), torch.randn(16, 3)) if "add up" in line]
    pairs = "effects of all pairs of columns of x add up, none bears on the other's: 0 and 1, 0 and 2, 1 and 2"
    assert said == ([pairs] if apart else [])


@pytest.mark.parametrize(("piece", "span"), [(16, "0 to 15"), (8, "0 to 7")])
def test_places_of_a_series_that_read_its_first(piece: int, span: str) -> None:
    torch.manual_seed(0)
    (said,) = [line for line in told(Walk(piece, last=False), torch.randn(6, 16, 3)) if "at one place" in line]
    first = "another x at one place of row 0, of 16, moves of its 16 outputs"
    assert said == f"{first}: at 0 those at {span}; at 8 those at 8 to 15; at 15 those at 15"


def test_how_far_a_place_moves_the_one_output_of_its_row() -> None:
    torch.manual_seed(0)
    (line,) = [one for one in told(Walk(8, last=True), torch.randn(6, 16, 3)) if "the output of its row" in one]
    assert "another x moves the output of its row: at 0 by 0, at 4 by 0, at 8 by " in line
    (line,) = [one for one in told(Bag(), torch.randint(0, 20, (6, 12))) if "the output of its row" in one]
    assert "at 11 by 0 of its size" in line
    assert "at 0 by 0," not in line


@pytest.mark.parametrize("circular", [True, False])
def test_places_of_rows_of_many_numbers(circular: bool) -> None:
    torch.manual_seed(0)
    said = told(Filtered(circular), torch.randn(6, 16))
    (line,) = [one for one in said if "at one place" in one]
    assert ("at 8 those at 0 to 15" if circular else "at 8 those at 8 to 15; at 15 those at 15") in line


@pytest.mark.parametrize(("mixed", "moved"), [(True, "0 to 3"), (False, "0 to 1")])
def test_channels_and_times_are_tried_apart(mixed: bool, moved: str) -> None:
    torch.manual_seed(0)
    said = told(Grouped(mixed), torch.randn(6, 4, 10))
    channels, times = (line for line in said if "at one" in line)
    assert f"at one place of row 0, of 4, moves of its 4 outputs: at 0 those at {moved};" in channels
    assert times.endswith(
        "of axis 2 of row 0, of 10, moves of its 10 outputs: at 0 those at 0; at 5 those at 5; at 9 those at 9"
    )
