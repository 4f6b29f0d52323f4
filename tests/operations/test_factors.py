"""Linear algebra and Fourier transforms: honest results pass, ill-conditioned ones too, and planted faults do not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import limpid
from limpid.operations import Report
from limpid.operations.call import Check


class Planted(TorchDispatchMode):
    """One result of the operations of a name gives something else."""

    def __init__(self, name: str, output: int, how: str) -> None:
        super().__init__()
        self.name, self.output, self.how = name, output, how

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ == self.name:
            result = made[self.output] if isinstance(made, list | tuple) else made
            if self.how == "scaled":
                result.mul_(1.03)
            else:
                flat = result.abs().flatten()
                result[torch.unravel_index(flat.argmax(), result.shape)] *= 1.1
        return made


def square(size: int = 6, condition: float = 3.0) -> Tensor:
    torch.manual_seed(size)
    left, right = (torch.linalg.qr(torch.randn(2, size, size, dtype=torch.float64))[0] for _ in range(2))
    sizes = torch.logspace(0, -torch.log10(torch.tensor(condition)).item(), size, dtype=torch.float64)
    return (left * sizes @ right).float()


def definite(size: int = 6, condition: float = 3.0) -> Tensor:
    one = square(size, condition**0.5)
    return one @ one.mT


def triangle(size: int = 6) -> Tensor:
    return square(size).tril() + 2 * torch.eye(size)


RIGHT = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(5))
CALLS: list[tuple[str, list[int], Callable[[Tensor], Any], Callable[..., Tensor]]] = [
    ("_linalg_solve_ex", [0, 1], lambda a: torch.linalg.solve(a, RIGHT), square),
    ("_linalg_solve_ex", [0, 1], lambda a: torch.linalg.solve(a, RIGHT.mT, left=False), square),
    ("linalg_inv_ex", [0], torch.linalg.inv, square),
    ("linalg_lu_factor_ex", [0], torch.linalg.lu_factor, square),
    ("linalg_lu", [1, 2], torch.linalg.lu, square),
    ("linalg_lu_solve", [0], lambda a: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), RIGHT), square),
    ("linalg_cholesky_ex", [0], torch.linalg.cholesky, definite),
    ("cholesky_solve", [0], lambda a: torch.cholesky_solve(RIGHT, torch.linalg.cholesky(a)), definite),
    ("cholesky_inverse", [0], lambda a: torch.cholesky_inverse(torch.linalg.cholesky(a)), definite),
    ("_linalg_det", [0, 1], torch.linalg.det, square),
    ("_linalg_slogdet", [0, 1, 2], torch.linalg.slogdet, square),
    ("_linalg_eigh", [0, 1], torch.linalg.eigh, definite),
    ("_linalg_svd", [0, 1, 2], torch.linalg.svd, square),
    ("linalg_qr", [0, 1], torch.linalg.qr, square),
    ("linalg_eig", [0, 1], torch.linalg.eig, square),
    ("linalg_matrix_exp", [0], torch.linalg.matrix_exp, square),
    ("linalg_solve_triangular", [0], lambda a: torch.linalg.solve_triangular(a.tril(), RIGHT, upper=False), square),
    ("_fft_r2c", [0], torch.fft.rfft2, square),
    ("_fft_c2c", [0], lambda a: torch.fft.fft(torch.complex(a, a.mT)), square),
    ("_fft_c2r", [0], lambda a: torch.fft.irfft(torch.complex(a, a.mT)), square),
    ("polar", [0], lambda a: torch.polar(a, a.mT), square),
]
PLACES = [(name, output, call, made) for name, outputs, call, made in CALLS for output in outputs]
NAMES = [f"{name}-{output}" for name, output, *_ in PLACES]


def recorded_of(call: Callable[[Tensor], Any], given: Tensor) -> Report:
    with limpid.recording(nn.Identity()) as recorded:
        call(given)
    return recorded.verify()


@pytest.mark.parametrize("condition", [3.0, 1e4, 1e7])
@pytest.mark.parametrize(("name", "outputs", "call", "made"), CALLS, ids=[one[0] for one in CALLS])
def test_honest_results_are_within_rounding(
    name: str, outputs: list[int], call: Callable[[Tensor], Any], made: Callable[..., Tensor], condition: float
) -> None:
    if "cholesky" in name and condition > 1e6:
        pytest.skip("not positive definite in float32")
    for size in (6, 40) if "solve" not in name else (6,):
        report = recorded_of(call, made(size, condition))
        assert not report.wrong, str(report.wrong[0])
        assert not report.unchecked, str(report.unchecked[0])


@pytest.mark.parametrize("how", ["scaled", "one entry"])
@pytest.mark.parametrize(("name", "output", "call", "made"), PLACES, ids=NAMES)
def test_planted_faults_are_found(
    name: str, output: int, call: Callable[[Tensor], Any], made: Callable[..., Tensor], how: str
) -> None:
    given = made()
    with Planted(name, output, how):
        report = recorded_of(call, given)
    assert [one.operation.split(".")[1] for one in report.wrong] == [name]


def test_what_a_solution_loses_is_in_the_account() -> None:
    given, right = square(condition=1e3).requires_grad_(), RIGHT.clone()
    exact = torch.linalg.solve(given.detach().double(), right.double()).sum().item()
    with limpid.recording(nn.Identity()) as recorded:
        made = torch.linalg.solve(given, right).double().sum()
        made.backward()
    [call] = [one for one in recorded.calls if "_linalg_solve_ex" in one.operation and one.phase == "forward"]
    assert call.error == pytest.approx(made.item() - exact, rel=1e-3)


def test_matrices_without_entries_are_checked() -> None:
    report = recorded_of(
        lambda a: (torch.linalg.det(a), torch.linalg.inv(a), torch.linalg.eigh(a)), torch.ones(2, 0, 0)
    )
    assert not report.unchecked
    assert not report.wrong


def test_strides_are_steps_through_memory() -> None:
    values = torch.arange(12.0)
    report = recorded_of(lambda one: torch.as_strided(one, (2, 2), (3, 1)), values[3:])
    assert not report.wrong
    assert [call.check for call in report.calls] == [Check.MOVED]
