"""Chapters and exercises as the last line of a cell, in a notebook that is executed."""

import re

import nbformat
import pytest
from nbclient import NotebookClient

from limpid.primer.chapter import CHAPTERS, chapter
from limpid.primer.puzzles import PUZZLES
from limpid.view import shown, widget

CELLS = (
    "from limpid.primer.chapter import chapter\nchapter('vectors')",
    "from limpid.primer.asked import exercise\nexercise('dot', seed=7)",
    "exercise('matrix-vector', of='worked', seed=1)",
    "from limpid.primer.puzzles import PUZZLES\nPUZZLES['derive'](0)",
    "_.judged('g * p').note",
)


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_is_plain_html_without_a_script(name: str) -> None:
    made = chapter(name)._repr_html_()
    assert chapter(name).title.replace("'", "&#x27;") in made
    assert "<math" in made
    assert not re.search(r"<script|<style|\son\w+=|<link", made)
    assert shown.shown(chapter(name)).address == f"#/learn/{name}"


@pytest.mark.parametrize("name", PUZZLES)
def test_a_longer_exercise_is_plain_html_with_its_solution_folded(name: str) -> None:
    made = PUZZLES[name](3)._repr_html_()
    assert f"{name} --seed 3" in made
    assert made.count("<details>") == 2 + bool(PUZZLES[name](3).looks)


def test_in_an_executed_notebook(bundle: None) -> None:
    cells = [nbformat.v4.new_code_cell(one) for one in CELLS]
    client = NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=120)
    with client.setup_kernel():
        for at, one in enumerate(cells):
            client.execute_cell(one, at)
    vectors, dot, own, derive, judged = [one.outputs[-1].data for one in cells]
    assert widget.MIME in vectors
    assert "‖v‖" in vectors["text/html"]
    assert "How much" in dot["text/html"] or "a · b" in dot["text/html"]
    assert "W has the weights of tokens 0 and 1" in own["text/html"]
    assert "in the step: blocks.0.attention.mixed[" in own["text/html"]
    assert "<details><summary>Solution" in derive["text/html"]
    assert judged["text/plain"] == "'no-sum'"
