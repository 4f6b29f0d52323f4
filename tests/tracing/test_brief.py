"""A step on one screen."""

import io
import itertools
import re
from dataclasses import replace

import pytest
from recorded import configuration, record

from limpid.console import Console
from limpid.tracing import Trace
from limpid.tracing.document import StepDocument
from limpid.tracing.terminal_brief import show
from limpid.tracing.verdict import Beyond


def shown(step: StepDocument, width: int = 80) -> list[str]:
    out = io.StringIO()
    show(step, Console(file=out, force_terminal=True, width=width, color_system=None), ["last"])
    return out.getvalue().splitlines()


def rows(lines: list[str]) -> list[list[str]]:
    """The words of the table's lines."""
    first = next(number for number, line in enumerate(lines) if line.startswith("station"))
    return [line.split() for line in itertools.takewhile(lambda line: re.match(r"\w+ +\d", line), lines[first + 1 :])]


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> StepDocument:
    return Trace.open(record(tmp_path_factory.mktemp("brief"), configuration("llama", "bf16"))).step


def test_a_step_stands_on_one_screen(step: StepDocument) -> None:
    lines = shown(step)
    assert len(lines) < 24, "with the prompt below"
    assert all(len(line) <= 80 for line in lines)
    text = "\n".join(lines)
    stations = ["embedding", "norm", "attention", "MLP", "logits", "loss", "backward", "clip", "update"]
    assert [words[0] for words in rows(lines)] == stations
    assert f"{step.loss.value:.6f}" in text
    assert f"{step.loss.exact:.6f} redone in float64" in text
    assert "limpid trace last" in text


def test_every_comparison_of_the_step_stands_in_one_line(step: StepDocument) -> None:
    assert sum(int(words[1].replace(",", "")) for words in rows(shown(step))) == sum(
        count.checks for count in step.verdict.counts
    )


def test_what_is_wrong_is_said_first_and_is_what_to_open_next(step: StepDocument) -> None:
    quantity = step.quantities[7]
    wrong = replace(quantity.forward, verdict=Beyond((0, 1, 2), 2.0, 1.0, 0.01, 100.0), worst=100.0, index=(0, 1, 2))
    quantities = tuple(replace(one, forward=wrong) if one is quantity else one for one in step.quantities)
    verdict = replace(step.verdict, agrees=False, verdict="beyond", first_disagreement=wrong, worst=wrong)
    text = "\n".join(shown(replace(step, quantities=quantities, verdict=verdict), 200))
    assert f"DISAGREES  first at {quantity.name}" in text
    assert "✗ 100" in text
    assert f"limpid explain last '{quantity.name}[0, 1, 2]'" in text
