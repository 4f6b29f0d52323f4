"""Other models that a loop calls: their modes, what they are given and what they give, and nothing of what is none."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid


class Taught(nn.Module):
    """A student that holds its teacher, frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Linear(8, 4)
        self.teacher = nn.Sequential(nn.Linear(8, 4)).requires_grad_(False)


def told(model: nn.Module, loss: Callable[[Tensor], Tensor]) -> list[str]:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.01)
    watch = limpid.watch(model, optimizer, say=False)
    for _ in range(3):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        value = loss(x)
        value.backward()
        optimizer.step()
        watch.step(value, x)
    watch.close()
    assert dict(watch.skipped) == {}
    return [line for line in watch.description.of("model") if line.startswith("beside it")]


@pytest.fixture
def student() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(8, 4)


def distilled(student: nn.Module, teacher: nn.Module, given: Callable[[Tensor], Tensor]) -> list[str]:
    def loss(x: Tensor) -> Tensor:
        with torch.no_grad():
            taught = teacher(given(x))
        return F.mse_loss(student(x), taught)

    return told(student, loss)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda x: x, "given what this model is given;"),
        (lambda x: x.clone(), "given what this model is given;"),
        (lambda x: x.flip(0), "given the rows of what this model is given, in another order;"),
        (lambda x: torch.cat([x[:-1], x[:1]]), "given what this model is given, but for 1 row of 16;"),
        (lambda x: 2 * x + 0.1, "; correlation 1 with what this model is given"),
    ],
)
def test_what_a_teacher_is_given_is_held_against_the_student_s(
    student: nn.Module, given: Callable[[Tensor], Tensor], said: str
) -> None:
    teacher = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5)).requires_grad_(False)
    (line,) = distilled(student, teacher, given)
    assert said in line
    assert "(36 parameters, none of its 2 tensors require a gradient) was called once in this step" in line
    assert "in training mode (Dropout), without gradients" in line
    assert "it gives 16 × 4" in line
    (line,) = distilled(student, teacher.eval(), given)
    assert "in evaluation mode, without gradients" in line


def test_other_numbers_are_told_as_what_they_are(student: nn.Module) -> None:
    (line,) = distilled(student, nn.Linear(8, 4).eval(), lambda x: torch.full_like(x, 3.0))
    assert "given 16 × 8, mean 3, deviation 0" in line
    assert "all of its 2 tensors require a gradient" in line


@pytest.mark.parametrize("given", [torch.arange(16) % 4, torch.tensor(3)])
def test_a_model_may_be_given_numbers_that_are_no_rows(student: nn.Module, given: Tensor) -> None:
    table = nn.Embedding(4, 4).requires_grad_(False)
    (line,) = told(student, lambda x: (student(x) - table(given)).square().mean())
    assert "int64" in line


def test_a_critic_of_outputs_takes_a_gradient(student: nn.Module) -> None:
    critic = nn.Linear(4, 1)
    (line,) = told(student, lambda x: critic(student(x)).square().mean() + critic(torch.ones(16, 4)).mean())
    assert "was called 2 times in this step, in training mode, with gradients: given the first time 16 × 4" in line
    assert "which takes a gradient" in line


def test_a_frozen_part_that_is_called_beside_what_learns_is_another_model() -> None:
    torch.manual_seed(0)
    model = Taught()
    (line,) = told(model, lambda x: F.mse_loss(model.student(x), model.teacher(x)))
    assert line.startswith("beside it Sequential")
    assert "given what this model is given" in line


def test_neither_a_loss_nor_a_frozen_layer_inside_nor_a_wrapper_is_another_model() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 4))
    around, criterion = nn.Sequential(model), nn.MSELoss()

    def loss(x: Tensor) -> Tensor:
        with torch.no_grad():
            model(x)
        return criterion(around(x), torch.zeros(16, 4))

    assert told(model, loss) == []


def test_modules_are_called_as_before_once_a_step_is_not_described(student: nn.Module) -> None:
    before = nn.Module.__call__
    optimizer = torch.optim.SGD(student.parameters(), 0.01)
    with limpid.watch(student, optimizer, say=False) as watch:
        for _ in range(20):
            loss = student(torch.randn(16, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.step(loss)
        assert nn.Module.__call__ is before
    assert nn.Module.__call__ is before


@pytest.mark.parametrize("cooled", [1.0, 4.0])
def test_temperatures_of_a_student_and_its_teacher(student: nn.Module, cooled: float) -> None:
    teacher = nn.Linear(8, 4).eval().requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), 0.01)
    with limpid.watch(student, optimizer, say=False) as doctor:
        for _ in range(3):
            x = torch.randn(16, 8)
            with torch.no_grad():
                aims = (teacher(x) / 4).softmax(-1)
            loss = F.kl_div((student(x) / cooled).log_softmax(-1), aims, reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, x)
    said = doctor.description.of("labels")
    assert f"what is held against them is the softmax of the model's outputs times {1 / cooled:g}" in said
    assert "the targets are the softmax of the outputs of Linear times 0.25" in said
