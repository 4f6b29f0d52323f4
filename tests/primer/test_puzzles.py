"""The longer exercises: one answer is right and stands out, each wrong one is told why it is none."""

import io
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from limpid.cli import main
from limpid.doctor import RULES
from limpid.equations.catalogue import chosen
from limpid.planning.cluster import Layout
from limpid.primer.answer import Unreadable
from limpid.primer.exercises import EXERCISES
from limpid.primer.puzzles import PUZZLES
from limpid.primer.puzzles import broken_step as broken
from limpid.primer.puzzles import which_code as code
from limpid.primer.puzzles import which_layout as layouts
from limpid.primer.sizes import device_bytes

SEEDS = range(60)
CHOSEN = {name: one for name, one in PUZZLES.items() if one(0).choices}
EACH = pytest.mark.parametrize("name", PUZZLES)
EACH_CHOICE = pytest.mark.parametrize("name", CHOSEN)


@EACH_CHOICE
def test_the_right_choice_is_right_by_number_and_by_words_and_no_other_is(name: str) -> None:
    for seed in SEEDS:
        puzzle = PUZZLES[name](seed)
        assert puzzle.said == f"{name} --seed {seed}"
        assert len({one.label for one in puzzle.choices}) == len(puzzle.choices)
        for place, one in enumerate(puzzle.choices):
            for text in (str(place + 1), f" {place + 1}. ", " ".join(one.label.split())):
                if len(one.label.split("\n")) == 1 or text.strip(" .").isdigit():
                    judged = puzzle.judged(text)
                    assert (judged.outcome == "right") == (place == puzzle.right)
                    assert judged.note == ("right" if place == puzzle.right else one.note)


@EACH
def test_the_same_seed_asks_the_same_and_others_do_not(name: str) -> None:
    assert PUZZLES[name](7) == PUZZLES[name](7)
    assert len({PUZZLES[name](seed).question for seed in SEEDS}) > len(SEEDS) / 2
    assert len({PUZZLES[name](seed).answer for seed in SEEDS}) > 2
    assert name not in EXERCISES


@EACH_CHOICE
@pytest.mark.parametrize("text", ["0", "99", "-1", "cat", "", "1e0", "²", "1" * 999])
def test_what_is_no_choice_is_refused_and_costs_nothing(name: str, text: str) -> None:
    with pytest.raises(Unreadable, match="type a number, 1 to") as caught:
        PUZZLES[name](1).judged(text)
    assert "\n" not in str(caught.value)


@EACH
def test_it_is_printed_within_a_terminal(name: str) -> None:
    for seed in SEEDS:
        assert " nan" not in PUZZLES[name](seed).question
        if name == "which-code":
            assert max(map(len, PUZZLES[name](seed).question.splitlines()[3:])) <= 95


def test_faults_are_the_doctors_and_stand_in_the_step() -> None:
    assert {fault.rule for fault in broken.FAULTS} <= set(RULES)
    assert {fault.stage for fault in broken.FAULTS} <= {stage.name for stage in broken.STAGES}


@pytest.mark.parametrize("fault", broken.FAULTS, ids=lambda fault: fault.rule)
def test_of_a_broken_step_one_quantity_alone_does_not_follow_from_those_above(fault: broken.Fault) -> None:
    rng = np.random.Generator(np.random.PCG64(3))
    given = broken._drawn(rng)
    values = broken._computed(given, fault)
    for stage in broken.STAGES:
        follows = np.allclose(values[stage.name], stage.of(values))
        assert follows == (stage.name != fault.stage)
    right = broken._computed(given, None)
    assert all(np.allclose(right[stage.name], stage.of(right)) for stage in broken.STAGES)


def _comes_to(written: str) -> tuple[float, float]:
    """What the printed numbers of an entry come to, and what was recorded."""
    _, numbers, recorded = (line.split("= ")[-1].split("recorded: ")[-1] for line in written.split("\n"))
    plain = re.sub(r": .*|,", "", numbers).replace("−", "-").replace("·", "*")
    plain = re.sub(r"ln ([\d.e-]+)", r"math.log(\1)", plain)
    return eval(plain, {"math": math}), float(recorded.replace("−", "-").replace(",", ""))


@pytest.mark.parametrize("seed", range(40))
def test_what_the_trace_writes_out_comes_to_what_is_recorded_but_at_the_fault(seed: int) -> None:
    puzzle = broken.puzzle(seed)
    off = {name for name, written in puzzle.looks.items() if abs(np.subtract(*_comes_to(written))) > 1e-4}
    assert {name.split("[")[0] for name in off} == {broken.STAGES[puzzle.right].name}
    assert len(puzzle.looks) == 61


def test_the_trace_is_looked_into_while_answering(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("LIMPID_LEARN", str(tmp_path / "learn.json"))
    monkeypatch.setattr(
        "sys.stdin", io.StringIO("look scores 1 0\nscores[1, 0]\nlook cat\nscores[9, 9]\nlook b after\n1\n")
    )
    assert main(["learn", "broken-step", "--seed", "0"]) == 0
    said = capsys.readouterr().out
    assert said.count(broken.puzzle(0).looks["scores[1, 0]"]) == 2
    assert "the trace has no “cat”: look at one of scores," in said
    assert "the trace has no “scores[9, 9]”" in said
    assert said.count("b after[") == 3
    assert '"tries": ["right"]' in (tmp_path / "learn.json").read_text()


def test_an_entry_of_the_trace_from_the_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", "broken-step", "--seed", "0", "--look", "loss"]) == 0
    assert capsys.readouterr().out.startswith("loss = −(ln probabilities[0, ")
    for wrong in (
        ["dot", "--seed", "0"],
        ["broken-step"],
        ["broken-step", "--seed", "0", "--answer", "1"],
        ["vectors"],
    ):
        assert main(["learn", *wrong, "--look", "loss"]) == 2
        assert "look is loss" in capsys.readouterr().err


def test_every_fault_is_drawn_and_its_solution_names_it() -> None:
    said = " ".join(broken.puzzle(seed).solution for seed in range(200))
    assert all(f"--explain {fault.rule}" in said for fault in broken.FAULTS)


def test_the_gradient_of_the_step_is_that_of_its_loss() -> None:
    given = broken._drawn(np.random.Generator(np.random.PCG64(5)))
    values = broken._computed(given, None)
    for column in range(3):
        moved = [dict(given, b=given["b"] + sign * 1e-6 * np.eye(3)[column]) for sign in (1, -1)]
        up, down = (broken._computed(one, None)["loss"] for one in moved)
        assert (up - down) / 2e-6 == pytest.approx(values["gradient"].sum(0)[column], abs=1e-7)


def test_the_code_of_an_equation_is_where_the_catalogue_says() -> None:
    every = code.codes()
    assert len(every) >= 25
    for one in every:
        (entry,) = chosen((one.name,))
        assert (entry.equation, f"{entry.file}:{entry.line}") == (one.equation, one.where)
    assert len({one.lines for one in every}) == len(every)


def test_the_layout_that_fits_does_and_the_others_do_not() -> None:
    for seed in SEEDS:
        puzzle = layouts.puzzle(seed)
        memory = int(puzzle.asked.split(" devices of ")[1].split(" GB")[0])
        for place, one in enumerate(puzzle.choices):
            assert (float(one.says.split(" = ")[1].split(" GB")[0]) < memory) == (place == puzzle.right)


def test_its_bytes_are_those_of_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    puzzle = layouts.puzzle(0)
    words = puzzle.solution.split("limpid plan ")[1].split()
    assert main(["plan", *words, "--json"]) == 0
    assert str(round(_total(json.loads(capsys.readouterr().out)) / 1e9, 1)) in puzzle.solution
    one = device_bytes("llama-2-7b", Layout(8, zero=3, context=2048))
    assert one["weights"] == pytest.approx(6_738_415_616 * 2 / 8)


def _total(document: object) -> float:
    """The figure memory.total, wherever it stands."""
    if isinstance(document, dict):
        if document.get("name") == "memory.total":
            return float(document["value"])
        return max(map(_total, document.values()), default=0.0)
    return max(map(_total, document), default=0.0) if isinstance(document, list) else 0.0


def test_from_the_shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["learn", "broken-step", "--seed", "0", "--answer", "1"]) == 0
    assert main(["learn", "broken-step", "--seed", "0", "--answer", "loss"]) == 1
    assert "was wrong already" in capsys.readouterr().out
    assert main(["learn", "which-code", "--seed", "3", "--solution", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["answer"] == code.puzzle(3).answer
    typed = iter(["cat", "hint", "s"])
    monkeypatch.setattr("builtins.input", lambda _: next(typed))
    assert main(["learn", "which-layout", "--seed", "0"]) == 1
    assert "limpid plan llama-2-7b" in capsys.readouterr().out
    assert main(["learn", "which-layout", "--of", "worked"]) == 2
    assert main(["learn", "which-layout", "--numbers", "v = 3"]) == 2
    assert main(["learn"]) == 0
    assert "longer ones" in capsys.readouterr().out


def test_no_puzzle_loads_torch() -> None:
    script = "import sys; from limpid.cli import main; main(['learn', 'which-layout', '--seed', '0', '--solution']);"
    done = subprocess.run([sys.executable, "-c", f"{script} assert 'torch' not in sys.modules"], capture_output=True)
    assert done.returncode == 0, done.stderr
