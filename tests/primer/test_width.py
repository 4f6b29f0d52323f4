"""What width does, where descent ends, and what a batch norm lets through: against PyTorch, SciPy and NumPy."""

import numpy as np
import pytest
import scipy.linalg
import torch

from limpid.errors import DomainError, ShapeError
from limpid.maths.foundations import least_norm, tangent_change, tangent_kernel
from limpid.primer.cases import surfaces, width
from limpid.primer.chapter import Text, chapter
from limpid.primer.figures import as_svg, as_text


def text(name: str) -> str:
    return " ".join(" ".join(part.markdown for part in chapter(name).parts if isinstance(part, Text)).split())


@pytest.mark.parametrize("bends", [3, 4, 8, 33])
def test_the_fitted_network_is_the_line_through_the_wave(bends: int) -> None:
    at = np.linspace(0, 1, bends + 1)
    assert width.fitted(bends) == pytest.approx(np.interp(width.X, at, np.sin(2 * np.pi * at)), abs=1e-12)
    assert width.worst(bends) <= (2 * np.pi / bends) ** 2 / 8


def torch_trained(size: int, seed: int, steps: int) -> float:
    """The same training by PyTorch."""
    rng = np.random.Generator(np.random.PCG64(seed))
    sides = np.where(np.arange(size) % 2, -1.0, 1.0)
    start = [sides, -sides * rng.random(size), rng.standard_normal(size) / size**0.5, np.zeros(1)]
    u, b, v, c = learned = [torch.tensor(one, requires_grad=True) for one in start]
    x, optimizer = torch.tensor(width.X), torch.optim.AdamW(learned, width.TRAINING_RATE, weight_decay=0.0)
    for _ in range(steps):
        some = x[:: width.POINTS_APART, None]
        optimizer.zero_grad()
        ((torch.relu(some * u + b) @ v + c - torch.sin(2 * torch.pi * some[:, 0])).square().mean() / 2).backward()
        optimizer.step()
    return float((torch.relu(x[:, None] * u + b) @ v + c - torch.sin(2 * torch.pi * x)).abs().max().detach())


def test_training_on_the_wave_is_that_of_pytorch() -> None:
    assert width.trained(6, 1, 100) == pytest.approx(torch_trained(6, 1, 100), rel=1e-8)


def test_wide_networks_can_do_more_than_their_training_finds() -> None:
    assert width.errors(64)[-1] < width.errors(4)[0]
    assert all(width.errors(size)[0] > 1.5 * width.worst(size) for size in (16, 64))


def torch_outputs(flat: torch.Tensor, net: width.Net) -> torch.Tensor:
    u, b, v = flat.split(len(net.b))
    return torch.tanh(torch.tensor(width.POINTS) * u + b) @ v / len(net.b) ** 0.5


@pytest.mark.parametrize("size", [3, 100])
def test_kernel_and_step_are_those_of_pytorch(size: int) -> None:
    net = width.drawn(size, 5)
    flat = torch.tensor(np.concatenate((net.u.ravel(), net.b, net.v.ravel())), requires_grad=True)
    jacobian = torch.func.jacrev(lambda at: torch_outputs(at, net))(flat).detach().numpy()
    assert tangent_kernel(net.gradients(width.POINTS)) == pytest.approx(jacobian @ jacobian.T, rel=1e-12)
    assert net.outputs(width.POINTS) == pytest.approx(torch_outputs(flat, net).detach().numpy(), rel=1e-12)
    optimizer = torch.optim.SGD([flat], 0.1)
    (torch_outputs(flat, net) - torch.tensor(width.TARGETS)).square().sum().div(2).backward()
    optimizer.step()
    after = torch_outputs(flat, net).detach().numpy()
    assert net.stepped(0.1).outputs(width.POINTS) == pytest.approx(after, rel=1e-12)


def test_what_the_kernel_misses_is_of_second_order() -> None:
    missed = []
    for rate in (1e-2, 1e-3):
        found = width.moved(50, rate)
        missed.append(np.linalg.norm(found.changed - found.predicted))
    assert missed[0] / missed[1] == pytest.approx(100, rel=0.05)


def test_wider_networks_keep_their_kernel() -> None:
    """Of ten times the width about a third of the change, or less, is left."""
    assert width.drift(100) < width.drift(10) / 2.5
    assert width.drift(1000) < width.drift(100) / 2.5


@pytest.mark.parametrize(("rows", "unknowns"), [(1, 2), (3, 7), (5, 5)])
def test_descent_from_zero_ends_at_the_shortest_solution(rows: int, unknowns: int) -> None:
    rng = np.random.default_rng(rows)
    a, b = rng.standard_normal((rows, unknowns)), rng.standard_normal(rows)
    ours = least_norm(a, b)
    assert ours == pytest.approx(np.linalg.pinv(a) @ b, rel=1e-9)
    assert ours == pytest.approx(scipy.linalg.lstsq(a, b)[0], rel=1e-9)
    values = np.linalg.svd(a)[1]
    at, rate, steps = np.zeros(unknowns), 1 / values[0] ** 2, int(30 * (values[0] / values[-1]) ** 2)
    for _ in range(min(steps, 200_000)):
        at = at - rate * a.T @ (a @ at - b)
    assert at == pytest.approx(ours, rel=1e-6)


def test_eigenvalues_of_the_surfaces_by_hand() -> None:
    assert surfaces.bends(surfaces.valley, [3, 4]).tolist() == [1, 10]
    assert surfaces.bends(surfaces.saddle, [3, 4]).tolist() == [-2, 2]
    flat = -2 * np.tanh(5) * (1 - np.tanh(5) ** 2)
    assert surfaces.bends(surfaces.flat, [5, 5]) == pytest.approx([flat, flat], rel=1e-6)


def test_the_chapters_say_so() -> None:
    assert "ends at [1.0000, 2.0000]" in text("gradient-descent")
    assert "From [3, 0] it ends at [3.4000, 0.8000]" in text("gradient-descent")
    assert "the first becomes −1.225" in text("residual-stream")
    assert "the first becomes −0.8429" in text("residual-stream")
    assert "8 bends" in as_text("fit-by-width", {"widths": [4, 8]})
    assert "8 bends" in as_svg("fit-by-width", {"widths": [4, 8]})


@pytest.mark.usefixtures("unchecked")
def test_mistakes_name_what_does_not_fit() -> None:
    with pytest.raises(DomainError, match="only 1 are independent"):
        least_norm([[1, 2], [2, 4]], [1, 2])
    with pytest.raises(ShapeError, match=r"kernel \(2, 2\), residual \(3,\)"):
        tangent_change(np.eye(2), [1.0, 2.0, 3.0], 0.1)
