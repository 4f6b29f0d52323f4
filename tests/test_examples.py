"""Every example runs as it stands, in an empty folder."""

import itertools
import runpy
import shutil
import warnings
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from limpid.cli import main
from limpid.config import ModelConfig
from limpid.generation import Decoder
from limpid.model import Transformer, initialise

EXAMPLES = Path(__file__).parents[1] / "examples"
SAYS = {
    "compare_two_models": "95% interval",
    "plan_a_cluster": "512 × h100",
    "read_an_equation": "θ = 0.49995 - 0.0009999995",
    "rounding_or_bug": "the configurations differ: rotary_base 10000.0 and 500000.0",
    "train_and_open_a_step": "162 of 162 comparisons lie within computed rounding bounds",
    "watch_your_own_loop": "the first names not-causal",
}
SMALLER = {
    "--learning-rate": "1e-4", "--epochs": "0.5", "--batch-size": "4", "--max-steps": "2",
    "--max-completion-length": "4",
}  # fmt: skip
FEWER = {
    "train": [
        "records.py",
        "--warmup-steps",
        "1",
        "--d-model",
        "16",
        "--num-layers",
        "1",
        "--num-heads",
        "2",
        "--context-length",
        "64",
    ],
    "tune": ["--batch-size", "4"],
}
SHOWS = {"one_step": "nearest to its bound", "runs_and_plans": "is better by"}


def test_all_of_them_are_tried_and_short() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} == {*SAYS}
    assert {file.stem for file in EXAMPLES.glob("*.ipynb")} == {*SHOWS}
    for file in EXAMPLES.glob("*.py"):
        assert len(file.read_text(encoding="utf-8").splitlines()) <= 60


@pytest.mark.parametrize("name", SAYS)
def test_a_script_says_what_it_promises(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert SAYS[name] in capsys.readouterr().out


@pytest.mark.parametrize("name", SHOWS)
def test_a_notebook_runs_and_shows_its_results(name: str, tmp_path: Path) -> None:
    sizes = ModelConfig(vocab_size=9, d_model=8, num_heads=2, num_layers=1)
    Decoder(initialise(Transformer(sizes), 0), "fp32")  # compiled now, so that no cell says that it waits for another
    book = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    NotebookClient(book, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "stream" and output.name == "stderr"], outputs
    shown = [output["data"] for output in outputs if "data" in output]
    assert any("image/png" in data for data in shown)
    assert any(SHOWS[name] in data.get("text/html", "") + data.get("text/plain", "") for data in shown)


def test_every_command_of_the_recipe_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two steps, a small model and few records in the place of its own."""
    shutil.copytree(EXAMPLES / "functions", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = [line.split() for line in Path("README.md").read_text(encoding="utf-8").split("```")[1].splitlines()[1:]]
    for program, *rest in words:
        if program == "python":
            runpy.run_path(rest[0], run_name="__main__")
            lines = Path("functions.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
            Path("functions.jsonl").write_text("".join(lines[:60]), encoding="utf-8")
            continue
        verb, rest = rest[0], ["--max-steps" if word == "--minutes" else word for word in rest]
        rest = [SMALLER.get(before, word) for before, word in itertools.pairwise(["", *rest])]
        assert main([*rest, *FEWER.get(verb, [])]) == 0, rest
