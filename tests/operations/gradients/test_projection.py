"""Which number of a gradient is asked for."""

import pytest
import torch
from torch import nn

import limpid
from limpid.errors import ConfigError
from limpid.operations.gradients.projection import wanted

MODEL = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))


def test_a_gradient_is_projected_on_itself_and_an_entry_is_itself() -> None:
    gradients = {"0.weight": torch.tensor([[3.0, 0, 0], [0, 4, 0]])}
    directions = wanted("grad(0.weight)", MODEL).directions(gradients)
    assert float((directions["0.weight"] * gradients["0.weight"]).sum()) == 5
    entry = wanted("grad(0.weight)[1, -2]", MODEL).directions(gradients)
    assert float((entry["0.weight"] * gradients["0.weight"]).sum()) == 4


def test_all_are_one_direction() -> None:
    assert wanted("grad", MODEL).parameters == ("0.weight", "0.bias", "1.weight", "1.bias")
    gradients = {"0.bias": torch.tensor([3.0, 0]), "1.bias": torch.tensor([4.0])}
    directions = wanted("grad", MODEL).directions(gradients)
    assert directions["1.bias"].tolist() == [0.8]


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ("grad(0.wieght)", r"no parameter that requires a gradient is called '0.wieght', did you mean 0.weight"),
        ("grad(0.weight)[1]", r"expected an entry of shape \[2, 3\]"),
        ("grad(0.weight)[2, 0]", r"expected an entry of shape \[2, 3\]"),
        ("grad(0.weight)[-, 0]", r"expected an entry of shape \[2, 3\]"),
        ("weight", r"'weight' is no gradient: expected grad\(NAME\), grad\(NAME\)\[i, j\], grad, .* or loss"),
    ],
)
def test_what_there_is_not_is_said_in_one_line_before_the_step(of: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        limpid.recording(MODEL, errors_of=[of]).__enter__()


@pytest.mark.parametrize(
    ("of", "along", "said"),
    [
        ("mine", {"0.weight": torch.zeros(3)}, r"'mine': the direction of 0.weight has shape \[3\] of torch.float32, "),
        ("mine", {"0.bias": torch.tensor([0, torch.nan])}, r"expected finite real numbers of shape \[2\]"),
        ("mine", {"0.wieght": torch.zeros(2, 3)}, r"is called '0.wieght', did you mean 0.weight"),
        ("mine", {}, "'mine' has no direction: expected a tensor of each parameter in it, by its name"),
        ("x", 3, "errors_of 'x' is 3: expected None, or a direction, a tensor for each parameter by name"),
        ("grad", {"0.bias": torch.ones(2)}, "'grad' has a direction of its own and the name of another number"),
        ("mine", None, "'mine' is no gradient: expected"),
    ],
)
def test_what_is_no_direction_is_said_in_one_line(of: str, along: dict[str, torch.Tensor] | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        limpid.recording(MODEL, errors_of={of: along}).__enter__()


def test_without_calls_there_is_no_account() -> None:
    with pytest.raises(ConfigError, match="calls is False, which sees no call whose error errors_of asks for"):
        limpid.recording(MODEL, keep="new", calls=False, errors_of=["grad"])
