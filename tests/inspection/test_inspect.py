"""The whole room on a small run and on a small published model, and what a user can get wrong."""

import io
import json
import math
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from tests.inspection.small_runs import is_blank

from limpid.errors import CheckpointError, ConfigError
from limpid.inspection.inspection import inspect
from limpid.inspection.logit_attribution import LogitPart
from limpid.inspection.model_and_text import open_model_and_text
from limpid.inspection.report import BAR, _attribution
from limpid.reporter import Reporter
from limpid.training.loop import finish, loop
from limpid.training.start import start
from limpid.verbs.inspect import show
from small import config, corpus, quiet

PICTURES = ["attention-00.png", "attention-01.png", "singular-values.png"]
AROUND = ["spectrum.png", "loss-curves.png", "loss-surface.png"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two layers on bytes, finished, with its model for transformers beside it."""
    folder = tmp_path_factory.mktemp("inspected")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIMPID_CACHE", str(folder / "cache"))
        training = start(config(corpus(folder / "text")), str(folder / "run"), quiet())
        loop(training, quiet(), lambda *_: "")
        finish(training)
    return training.run.path


@pytest.fixture(autouse=True)
def beside_the_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIMPID_CACHE", str(run.parent / "cache"))
    monkeypatch.chdir(run.parent)


def inspected(what: Path | str, output: Path, as_json: bool = False, **asked) -> str:
    """What the command prints."""
    console = Console(file=io.StringIO(), width=200)
    show(inspect(what, **asked), str(what), output, Reporter(as_json, console))
    return console.file.getvalue()


def test_a_run_is_inspected_on_its_own_held_out_text(run: Path, tmp_path: Path) -> None:
    told = inspected(run, tmp_path, word=("e",))
    for title in (
        "logit attribution",
        "logit lens",
        "attention",
        "matrices",
        "dead neurons",
        "embedding neighbours",
        "written",
    ):
        assert f"\n{title}  " in told
    assert "16 tokens of held-out text" in told
    found = json.loads((tmp_path / "inspect.json").read_text())
    assert found["pictures"] == PICTURES
    assert found["logit_attribution"]["error"] < 1e-10
    assert found["landscape"] is None
    assert found["neurons"]["positions"] == 16 + 16 * 16
    assert not any(is_blank(tmp_path / name) for name in PICTURES)


def test_the_landscape_of_a_run_is_measured_and_drawn(run: Path, tmp_path: Path) -> None:
    told = inspected(run, tmp_path, landscape=True)
    for title in ("curvature", "loss curves", "gradient noise", "gradient flow"):
        assert f"\n{title}  " in told
    found = json.loads((tmp_path / "inspect.json").read_text())
    around = found["landscape"]
    assert found["pictures"] == PICTURES + AROUND
    assert around["sharpness"]["largest"] > 0 > around["sharpness"]["smallest"]
    assert around["curves"]["along"][0][10] == pytest.approx(around["loss"], rel=1e-6)
    assert around["clipping"]["after"] == pytest.approx(min(1.0, around["clipping"]["before"]))
    assert [len(flow["gains"]) for flow in around["gradient_flow"]] == [2] * 11
    assert not any(is_blank(tmp_path / name) for name in AROUND)


def test_a_published_model_is_inspected_on_a_text(run: Path, tmp_path: Path) -> None:
    text = "the cat sees the old tree and the bird"
    plain = json.loads(
        inspected(run / "model", tmp_path, text=text, token="c", position=3, landscape=True, as_json=True)
    )
    assert plain["logit_attribution"]["spelled"] == "c"
    assert plain["logit_attribution"]["position"] == 3
    assert plain["text"]["spelled"] == list(text[:16])  # the context
    assert plain["landscape"]["noise"]["sequences"] == 9
    assert plain["step"] is None


def test_a_run_whose_text_is_gone_is_still_inspected_on_another(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIMPID_CACHE", str(tmp_path / "empty"))
    (run.parent / "text").rename(tmp_path / "text")
    try:
        subject = open_model_and_text(str(run), "the cat")
        assert subject.validation is None
        assert subject.notes[0].startswith("held-out tokens are left out: ")
    finally:
        (tmp_path / "text").rename(run.parent / "text")


def test_without_matplotlib_the_way_out_is_named(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install 'limpid\[plots\]'"):
        inspected(run, tmp_path)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"position": 99}, "position is 99, but the text has 16 tokens"),
        ({"token": "cat"}, r"--token 'cat' is 3 tokens \('c', 'a', 't'\), expected one"),
        ({"word": ("cat",)}, r"--word 'cat' is 3 tokens"),
        ({"text": ""}, "--text is '', which has no tokens"),
    ],
)
def test_a_mistake_is_named_with_its_value(run: Path, tmp_path: Path, asked: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        inspected(run, tmp_path, **asked)


def test_a_model_needs_a_text_and_a_loss_needs_a_long_one(run: Path) -> None:
    with pytest.raises(ConfigError, match=r'model is a model, which has no text of its own: .* --text "To be'):
        open_model_and_text(str(run / "model"), None)
    with pytest.raises(ConfigError, match="the text has 3 tokens, expected at least 9"):
        open_model_and_text(str(run / "model"), "cat").rows(16)
    with pytest.raises(CheckpointError, match="nowhere is not a run folder"):
        open_model_and_text("nowhere", None)


def test_weights_that_give_no_numbers_are_named(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "model", tmp_path / "broken")
    weights = load_file(tmp_path / "broken/model.safetensors")
    name = min(name for name in weights if "mlp" in name)
    save_file(weights | {name: torch.full_like(weights[name], math.inf)}, tmp_path / "broken/model.safetensors")
    with pytest.raises(CheckpointError, match=r"broken: its logits are not numbers, for its weights diverged"):
        inspected(tmp_path / "broken", tmp_path / "out", text="the cat")


def test_numbers_are_shown_where_pictures_cannot_be_written(run: Path, tmp_path: Path) -> None:
    """As of a run on a read-only disk; a place that was asked for is an error, after the numbers."""
    in_the_way = run / "inspect"
    in_the_way.write_text("no folder")
    try:
        aside, console = Console(file=io.StringIO(), width=500), Console(file=io.StringIO(), width=200)
        show(inspect(run), str(run), None, Reporter(False, console, aside))
        assert "logit lens" in console.file.getvalue()
        assert "written" not in console.file.getvalue()
        assert aside.file.getvalue().count("-o FOLDER") == 1
    finally:
        in_the_way.unlink()
    (tmp_path / "taken").write_text("no folder")
    with pytest.raises(CheckpointError, match="taken"):
        inspected(run, tmp_path / "taken")


def test_a_bar_is_as_long_as_its_number_is_large() -> None:

    fields = {"block": 0, "logit": 0.0}
    parts = [
        LogitPart(name="embed.tokens", above_mean=1.0, **(fields | {"block": None})),
        LogitPart(name="blocks.0.head.0", above_mean=1.5, **fields),
        LogitPart(name="blocks.0.head.1", above_mean=2.5, **fields),
    ]
    attribution = SimpleNamespace(parts=parts, token=0, logit=5.0, error=0.0, mean_logit=0.0)
    sample = SimpleNamespace(text=["a"], tokenizer=SimpleNamespace(token_text=str))
    *_, table = _attribution(SimpleNamespace(attribution=attribution, sample=sample, position=0))
    lengths = [str(row[3]).count("█") for row in table.rows]
    assert lengths == [round(BAR / 4), BAR, 0]
