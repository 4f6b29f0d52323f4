"""Steps of one's own by MODULE:FUNCTION: taken, checked, and every way to get it wrong one line."""

from pathlib import Path

import pytest

from limpid.cli import main

STEPS = """
import sys
import torch
from torch import nn

def small():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def step():
        loss = model(torch.arange(8.0).view(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
        return loss
    print("made")
    return model, optimizer, step

class Many:
    @staticmethod
    def without_optimizer():
        model, _, step = small()
        return model, None, step

def to_nan():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    def step():
        loss = (model(torch.ones(1, 2)).sum() * 0 - 1).log()
        loss.backward()
        optimizer.step()
        return loss
    return model, optimizer, step

def nothing(): pass
def two(): return nn.Linear(2, 2), lambda: None
def no_model(): return 3, None, print
def no_optimizer(): return nn.Linear(2, 2), "adam", print
def no_step(): return nn.Linear(2, 2), None, 7
def idle(): return nn.Linear(2, 2), None, lambda: None
def raises(): raise ValueError("of\\nmine")
def leaves(): sys.exit(3)
def shapes():
    model = nn.Linear(2, 2)
    return model, None, lambda: model(torch.ones(3, 5))
value = 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_steps.py").write_text(STEPS)
    (tmp_path / "broken.py").write_text("def f(:")
    (tmp_path / "lacking.py").write_text("import no_such_module")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("what", ["own_steps.py:small", "own_steps.py:Many.without_optimizer"])
def test_a_step_of_ones_own_is_taken_and_checked(what: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", what]) == 0
    said = capsys.readouterr()
    assert "100% of the arithmetic" in said.out
    assert "✓ within rounding" in said.out
    assert "made" in said.err  # what it prints stands beside the report
    assert "made" not in said.out


def test_a_module_is_found_in_this_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "own_steps:small", "--brief"]) == 0
    assert "own_steps:small: Sequential" in capsys.readouterr().out


def test_the_call_that_made_the_first_nan_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "own_steps.py:to_nan"]) == 1
    said = capsys.readouterr().out
    assert "✗ not finite: the loss" in said
    assert "✗ log float32[] forward outside of modules" in said
    line = next(at for at, text in enumerate(STEPS.splitlines(), 1) if ".log()" in text)
    assert f"own_steps.py:{line}" in said


@pytest.mark.parametrize(
    ("what", "told", "traced"),
    [
        ("nothing", "own_steps.py:nothing returned None, expected (model, optimizer, step)", ""),
        ("two", "returned 2 values, expected", ""),
        ("no_model", "returned a int as its model", ""),
        ("no_optimizer", "returned a str as its optimizer", ""),
        ("no_step", "returned a int as its step", ""),
        ("idle", "took no step: no operation of PyTorch ran", ""),
        ("value", "is a int, expected a function", ""),
        ("smal", "has no smal: did you mean small?", ""),
        ("raises", "own_steps.py:raises raised ValueError: of mine", "in raises"),
        ("leaves", "own_steps.py:leaves raised SystemExit: 3", "in leaves"),
        ("shapes", "the step of own_steps.py:shapes raised RuntimeError: mat1 and mat2", "in <lambda>"),
    ],
)
def test_what_is_no_step_is_one_line_below_its_own_traceback(
    what: str, told: str, traced: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", f"own_steps.py:{what}"]) == 2
    *above, last = capsys.readouterr().err.splitlines()
    assert last.startswith("limpid: error: ")
    assert told in last
    assert bool(above) == bool(traced)
    if traced:
        assert above[0] == "Traceback (most recent call last):"
        assert traced in above[1]  # from the user's own first line on


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("nowhere.py:f", "there is no file nowhere.py"),
        ("no_such.module:f", "there is no module no_such here"),
        ("broken.py:f", "reading broken.py raised SyntaxError"),
        ("lacking.py:f", "reading lacking.py raised ModuleNotFoundError: No module named 'no_such_module'"),
        ("own_steps.py:small --text x", "feeds its model itself: leave out --text"),
        ("own_steps.py:small --step 3", "--step has no use for own_steps.py:small"),
        ("own_steps.py:small --precision bf16", "leave out --precision"),
    ],
)
def test_wrong_use_is_one_line(what: str, told: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", *what.split()]) == 2
    assert told in capsys.readouterr().err.splitlines()[-1]
