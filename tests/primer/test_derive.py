"""Deriving a backward pass: the right gradient is right in any spelling, slips are named, what is hostile refused."""

import contextlib

import numpy as np
import pytest
from benchmarks.derivations import SPELLINGS, measured, outcome
from hypothesis import given, settings
from hypothesis import strategies as st

from limpid.cli import main
from limpid.primer.answer import Unreadable
from limpid.primer.puzzles.derive.case import Case
from limpid.primer.puzzles.derive.derivation import CASES, derivation
from limpid.primer.puzzles.derive.expression import evaluated
from limpid.tracing.worked import opened

EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
NAMES = {"x": np.array([1.0, 2.0, 3.0]), "g": np.array([1.0, 0.0, -1.0]), "W": np.arange(6.0).reshape(2, 3), "n": 3}


@EACH
def test_both_of_limpids_own_passes_agree_with_the_right_expression(case: Case) -> None:
    derived = derivation(CASES.index(case))
    assert derived.case is case
    for values, by_hand, made in zip(derived.measured, derived.derived, derived.made(case.right), strict=True):
        assert np.abs(values.gradient - by_hand[case.of]).max() <= values.within.max() < 1e-6
        assert made == pytest.approx(by_hand[case.of], rel=1e-9, abs=1e-12)
    assert case.name in SPELLINGS


def test_right_gradients_are_right_and_slips_named_on_many_draws() -> None:
    spelled, refused, slips, unnamed, tried, named, right = measured(8 * len(CASES))
    assert (refused, unnamed, right) == (0, 0, 0)
    assert spelled > 600
    assert slips > 600
    assert named <= 0.02 * tried


@EACH
def test_slips_of_any_operation_are_named(case: Case) -> None:
    derived = derivation(CASES.index(case) + len(CASES))
    right = derived.derived[0][case.of]
    assert outcome(derived, f"-({case.right})") == "sign"
    assert outcome(derived, f"7 * ({case.right})") == "factor"
    assert "7 times" in derived.judged(f"7 * ({case.right})").says
    if right.ndim == 2:
        assert outcome(derived, f"({case.right}).T") == "transposed"
    assert outcome(derived, f"sum({case.right})") == "shape"
    for slip in case.slips:
        assert outcome(derived, f"-({slip.way})") == f"{slip.note}+sign"
        assert case.right not in slip.says


@pytest.mark.parametrize(("name", "text", "note"), [
    ("a matrix product by its left factor", "X.T @ G", "other-argument"),
    ("a linear layer's weight, as PyTorch keeps it", "X.T @ G", "transposed"),
    ("attention's scores by the queries", "G.T @ Q / sqrt(d)", "other-argument"),
    ("attention's mix by the weights", "A.T @ G", "other-argument"),
    ("tanh", "1 - y**2", "no-upstream"),
    ("a scaled dot product", "k / sqrt(n)", "no-upstream"),
    ("the loss of logits", "Y - P", "mean-forgotten+sign"),
    ("softmax", "p * (g - sum(g * p)) / n", "factor"),
    ("softmax", "g + p", "wrong"),
])  # fmt: skip
def test_a_wrong_gradient_is_told_which_one_it_is(name: str, text: str, note: str) -> None:
    (at,) = [place for place, case in enumerate(CASES) if case.name == name]
    judged = derivation(at).judged(text)
    assert judged.note == note
    assert judged.outcome == ("wrong" if note == "wrong" else "slip")


def test_it_is_told_where_it_differs_and_by_how_much() -> None:
    derived = derivation(0)
    (made, *_), (right, *_) = derived.made("g * p"), derived.measured
    says = derived.judged("g * p").says
    assert f"At z[0] it gives {made[0]:.4g}, and central differences {right.gradient[0]:.4g}" in says.replace("−", "-")
    assert f"{made[0] / right.gradient[0]:.4g} times as much" in says.replace("−", "-")
    first_off = derived.judged(f"({derived.case.right}) + exp(-1000 * (z - z)**2) - 1 + 0 * g")
    assert first_off.outcome == "right"


READ = {
    "x * g": [1, 0, -3], "2·x²": [2, 8, 18], "x^2": [1, 4, 9], "sum(x)": 6, "x.sum() * np.mean(g + 1)": 6,
    "W @ x": [8, 26],
    "Wᵀ.sum(-1)": [3, 5, 7], "W.sum(axis=0, keepdims=True)": [[3, 5, 7]], "√(n + 1)": 2, "dx = -x": [-1, -2, -3],
    "∂L/∂x = x − 1": [0, 1, 2], "outer(g, g)[0]": None, "exp(ln(x))": [1, 2, 3], "torch.sum(W, dim=1)": [3, 12],
    "mean(x, axis=0)": 2, "softmax(0*x)": [1 / 3] * 3, "(x @ g)": -2, "abs(g) ** -1 + 0": None,
}  # fmt: skip


@pytest.mark.parametrize("text", READ)
def test_an_expression_is_computed_as_numpy_would(text: str) -> None:
    if READ[text] is None:
        with pytest.raises(Unreadable):
            evaluated(text, NAMES)
    else:
        assert evaluated(text, NAMES) == pytest.approx(np.array(READ[text], dtype=float))


HOSTILE = (
    "", "x x", "2x", "x.__class__", "__import__('os').system('id')", "().__class__.__bases__[0].__subclasses__()",
    "9**9**9", "x**1e9", "x ** x", "[x for x in x]", "lambda: x", "x if x else g", "open('/etc/passwd')", "x[0]",
    "x; g", "exec('1')", "'a' * 9", "f'{x}'", "x := 3", "eval(x)", "np.load('a')", "np.core.sum(x)", "x.tofile('a')",
    "q + x", "outer(outer(x, x), outer(x, x)) @ outer(W, W)", "x / 0", "sum(x, axis=9)", "sum(x, axis=g)",
    "sum(x, where=x)", "sum()", "exp(x, g)", "(" * 200 + "x" + ")" * 200, "(" * 140 + "x", "-" * 290 + "x" + "+" * 8,
    "x" * 400, "1j * x", "True * x",
    "W @ W", "x + W.T", "exp(1000 * x)", "sum(x, axis=__import__('os'))", "\x00", "x\n+\n", "np", "np.x", "x.T.T.shape",
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_hostile_or_no_expression_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(Unreadable) as caught:
        evaluated(text, NAMES)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 320


@settings(max_examples=300)
@given(st.text(alphabet="xgWn.T@*/+-()[]{}=,:_'\"0189eE sumepaxilrot\n²ᵀ√\\", max_size=60))
def test_nothing_typed_ends_in_pythons_own_error(text: str) -> None:
    with contextlib.suppress(Unreadable):
        assert evaluated(text, NAMES).dtype == np.float64


@EACH
def test_it_opens_at_an_entry_of_a_step_and_is_asked_within_a_terminal(case: Case) -> None:
    with opened() as worked:
        assert not case.opens or case.opens in worked.names()
    derived = derivation(CASES.index(case))
    assert all(name in derived.question for name in derived.names[0])
    assert max(map(len, derived.question.splitlines())) <= 125
    assert derived.solution.endswith(case.right)


def test_from_the_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", "derive", "--seed", "0", "--answer", "p * (g - sum(g * p))"]) == 0
    assert "central differences" in capsys.readouterr().out
    assert main(["learn", "derive", "--seed", "0", "--answer", "g * p"]) == 1
    assert main(["learn", "derive", "--seed", "0", "--answer", "import os"]) == 2
    assert main(["learn", "derive", "--of", "worked"]) == 2
    assert capsys.readouterr().err.count("\n") == 2
