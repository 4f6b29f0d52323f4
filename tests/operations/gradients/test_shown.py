"""The account of a gradient's error from the command line, as a document, and in a notebook."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import limpid
from limpid.cli import main
from limpid.jsonable import to_json
from limpid.operations.document import recording_from
from limpid.operations.step import Step, recorded

STEPS = """
import torch
from torch import nn

def small():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    def step():
        loss = model(torch.ones(2, 4).bfloat16()).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss
    return model, optimizer, step
"""


@pytest.fixture
def steps(tmp_path: Path) -> str:
    (tmp_path / "steps.py").write_text(STEPS)
    return f"{tmp_path}/steps.py:small"


def test_a_step_of_ones_own_says_who_moved_its_gradients(steps: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", steps, "--error-of", "grad(0.weight)", "--error-of", "grad"]) == 0
    said = capsys.readouterr().out
    assert "who moved grad(0.weight), to first order" in said
    assert "tanh_backward" in said.partition("who moved grad, to first order")[2]


def test_in_json_calls_are_named_by_their_numbers(steps: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", steps, "--error-of", "grad", "--json"]) == 0
    document = recording_from(json.loads(capsys.readouterr().out))
    (found,) = document.gradients
    assert found.error == pytest.approx(sum(found.errors))
    assert {document.calls[number].phase for number in found.calls} == {"forward", "backward"}


def test_what_no_parameter_is_called_is_one_line(steps: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", steps, "--error-of", "grad(0.wieght)"]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "no parameter that requires a gradient is called '0.wieght', did you mean 0.weight" in said


def test_where_the_loss_is_known_by_itself_the_gradient_is_measured_before_the_update() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def loss() -> torch.Tensor:
        return model(torch.ones(2, 4).bfloat16()).float().square().mean()

    def take() -> None:
        loss().backward()
        optimizer.step()

    report = recorded(Step(model, optimizer, take, "a step", [], loss), errors_of=["grad"])
    found = report.error_of("grad")
    assert found.measured
    assert found.remainder is not None
    assert abs(found.remainder) < 1e-6 * abs(found.measured)
    assert report.document().gradients[0].exact == found.exact
    assert "who moved grad" in report._repr_html_()
    assert "measured against float64" in str(report)


def test_a_document_from_before_there_were_such_opens() -> None:
    with limpid.recording(nn.Identity()) as found:
        torch.ones(2).sum()
    plain = to_json(found.verify().document())
    del plain["gradients"]
    assert recording_from(plain).gradients == ()
