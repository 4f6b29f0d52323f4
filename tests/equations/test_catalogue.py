"""Every equation: complete, measured, and true to what others published."""

import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from limpid import maths
from limpid.cli import main
from limpid.equations.answers import KINDS
from limpid.equations.catalogue import STAGES, chosen, entries
from limpid.equations.errata import OURS, errata
from limpid.equations.measure import measure
from limpid.equations.published import reproduce, rows
from limpid.errors import ConfigError
from limpid.maths import Branch, Formula, Operation, alignment, catalogue, foundations

UNANSWERABLE = {
    "sca-epoch-refit-constants": "its runs have no licence and are not shipped",
    "clu-gpt3-v100-mfu": "21.3 % needs a token rate that the paper does not state",
}
ENTRIES = entries()
ANSWERED = [row for row in rows() if row["id"] not in UNANSWERABLE]


@pytest.mark.parametrize("row", ANSWERED, ids=lambda row: row["id"])
def test_published_numbers_are_reproduced(row: dict) -> None:
    assert reproduce(row).holds


@pytest.mark.parametrize("row", ANSWERED, ids=lambda row: row["id"])
def test_every_answer_runs_code_of_limpid(row: dict) -> None:
    """Arithmetic written in the answer alone would confirm nothing but itself."""
    ran = functions_run_by(lambda: KINDS[row["kind"]].answer(row["inputs"]))
    assert [name for name in ran if not name.startswith("limpid.equations")]


def functions_run_by(call: Callable[[], Any]) -> set[str]:
    """Functions of limpid that were entered, by module; what an import runs does not count."""
    ran: set[str] = set()

    def enter(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            module = frame.f_globals.get("__name__", "")
            if module.startswith("limpid."):
                ran.add(f"{module}.{frame.f_code.co_name}")

    sys.setprofile(enter)
    try:
        call()
    except ConfigError:
        pass
    finally:
        sys.setprofile(None)
    return ran


def test_an_answer_that_only_computes_by_itself_would_be_noticed() -> None:
    assert not functions_run_by(lambda: 2 * 3)


def test_what_cannot_be_reproduced_is_known() -> None:
    assert not reproduce(next(row for row in rows() if row["id"] == "clu-gpt3-v100-mfu")).holds
    with pytest.raises(ConfigError, match="no licence"):
        reproduce(next(row for row in rows() if row["id"] == "sca-epoch-refit-constants"))


def test_a_wrong_number_would_be_noticed() -> None:
    for row in rows():
        if row["kind"] in KINDS and isinstance(row["expected"], float):
            moved = row["expected"] * 1.1 + 10 * row["tolerance"].get("abs", 0.0)
            assert not reproduce({**row, "expected": moved}).holds


def test_a_kind_that_nothing_answers_is_named() -> None:
    with pytest.raises(ConfigError, match="no-such-kind"):
        reproduce({"id": "x", "kind": "no-such-kind", "inputs": {}})


def test_every_kind_names_entries_that_exist() -> None:
    names = {entry.name for entry in ENTRIES}
    assert {name for kind in KINDS.values() for name in kind.tests} <= names


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_equation_says_what_it_is(entry) -> None:
    assert entry.purpose.endswith((".", ":")) or entry.kind == "update rule"
    assert entry.source
    assert any(character.isdigit() for character in entry.source)
    assert entry.stages
    for line in (entry.equation, *entry.adjoint):
        assert line.count("{") == line.count("}")
    if entry.kind == "formula" and "progress" not in entry.signature and entry.name != "warmup":
        assert "Takes" in entry.text
        assert "Gives" in entry.text


@pytest.mark.parametrize("name", [formula.name for formula in catalogue(Formula) if formula.adjoint])
def test_a_formula_with_an_adjoint_has_a_gradient_that_holds(name: str) -> None:
    found = measure(name)
    assert found
    for one in found:
        assert one.value <= 1e-12
        assert one.gradient is not None
        assert one.gradient <= 1e-11
        assert one.difference is not None
        assert one.difference <= 1e-7


def test_every_public_operation_and_formula_is_in_the_catalogue() -> None:
    names = {entry.name for entry in ENTRIES}
    public = [value for room in (maths, foundations) for value in vars(room).values()]
    assert {formula.name for formula in public if isinstance(formula, Formula)} <= names
    assert {operation.__name__ for operation in catalogue(Operation)} <= names
    assert {"SGD", "Momentum", "Adam", "AdamW", "Muon"} <= names


def test_help_shows_the_equation_its_gradient_and_its_source() -> None:
    for thing in (foundations.softmax, maths.RMSNorm, alignment.dpo, foundations.best_rank_k):
        text = inspect.getdoc(thing)
        assert text is not None
        assert f"Equation {thing.equation}" in text
        assert all(line in text for line in thing.adjoint)
        assert f"Source   {thing.source}" in text


def test_filters_leave_what_they_name() -> None:
    for branch in Branch:
        assert {entry.branch for entry in chosen(branch=branch.value)} == {branch}
    for stage in STAGES:
        assert all(stage in entry.stages for entry in chosen(stage=stage))
    assert {entry.name for entry in chosen(paper="Azar")} == {"ipo"}
    assert [entry.name for entry in chosen(("softmax",))] == ["softmax"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["equations", "--branch", "geometry"], "geometry"),
        (["equations", "--stage", "lunch"], "lunch"),
        (["equations", "no-such-thing"], "no equation matches"),
    ],
)
def test_a_filter_that_finds_nothing_is_one_line(words: list[str], named: str, capsys) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1


def test_the_catalogue_in_json_holds_what_was_measured(capsys) -> None:
    assert main(["equations", "RMSNorm", "--measure", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["equations"]
    assert entry["branch"] == "linear algebra"
    assert max(one["value"] for one in entry["measured"]) < 1e-12
    assert {row["id"] for row in entry["published"]} == {"mat-candle-rmsnorm", "mat-burn-rmsnorm"}
    assert all(row["holds"] for row in entry["published"])


def test_the_catalogue_in_the_terminal(capsys) -> None:
    assert main(["equations", "--measure", "--stage", "norm"]) == 0
    text = capsys.readouterr().out
    for name in ("RMSNorm", "LayerNorm", "BatchNorm"):
        assert name in text
    assert "off PyTorch by" in text
    assert "✗" not in text


def test_errata_come_with_numbers_that_tell_the_two_apart(capsys) -> None:
    found = {erratum.name: dict(erratum.numbers()) for erratum in errata()}
    assert found["matrix-product-flops"] == {"multiply-adds": "34.4 G", "floating-point operations": "68.7 GFLOP"}
    gelu = list(found["gelu-derivatives"].values())
    assert gelu[0] == gelu[1]
    assert len(set(gelu)) == 3
    assert found["gated-mlp-parameters"]["gated, hidden 8/3 d"] == "8 d²"
    assert list(found["cache-of-a-70b-model"].values()) == ["320 GiB", "40 GiB"]
    assert list(found["nucleus"].values()) == ["1", "2"]
    assert list(found["stacked-layers"].values()) == ["[-3.0, -2.0]", "[-3.0, -2.0]", "[0.0, 0.0]"]
    assert list(found["rounded-terms"].values()) == ["-8.01", "-8.00"]
    assert list(found["scores-of-attention"].values()) == ["80,000", "40,400"]
    assert "[[10.0, 0.0], [5.0, 5.0], [6.2762, 3.7238]]" in found["attention-to-others"].values()
    assert list(found["every-step-descends"].values()) == ["1", "0.64", "1.44"]
    assert all(len(set(numbers.values())) > 1 for numbers in found.values())
    assert main(["equations", "--errata"]) == 0
    assert "68.7 GFLOP" in capsys.readouterr().out


def test_the_errata_of_the_docs_are_those_that_are_computed() -> None:
    text = (Path(__file__).parents[2] / "docs" / "errata.md").read_text(encoding="utf-8")
    for erratum in OURS:
        assert f"| {erratum.name} |" in text
