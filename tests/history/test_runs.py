"""`limpid runs`: how runs stand, their differences, labels and deletion."""

import dataclasses
import io
import json
from pathlib import Path

import pytest

from limpid.cli import main
from limpid.config.files import write_config
from limpid.console import Console
from limpid.errors import ConfigError
from limpid.history import Labels, differences, summarise
from limpid.history.terminal import RunTable
from limpid.lock import hold, release
from limpid.run import Run
from small import config


def made(here: Path, name: str, lines: list, **options) -> Run:
    """A run's folder as training leaves it, without its weights."""
    run = Run(here / "runs" / name)
    run.path.mkdir(parents=True)
    chosen = config(here / "text", model={"vocab_size": 257}, **options)
    write_config(run.config_file, chosen, chosen)
    run.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


STEPS = [{"step": i, "loss": 6.0 - i, "num_tokens": 48 * i, "seconds": 0.5, "updated": True} for i in range(1, 4)]


def test_a_run_stands_where_its_metrics_say(here: Path) -> None:
    whole = made(here, "whole", [*STEPS, {"step": 2, "eval_loss": 3.0}, {"step": 3, "eval_loss": 3.5}], max_steps=3)
    one = summarise(whole)
    assert (one.state, one.step, one.loss, one.eval_loss, one.best_eval_loss) == ("finished", 3, 3.0, 3.5, 3.0)
    assert (one.tokens, one.seconds, one.name) == (144, 1.5, "whole")
    assert one.size == sum(file.stat().st_size for file in whole.path.iterdir())
    assert summarise(made(here, "part", STEPS, max_steps=9)).state == "stopped"
    assert summarise(made(here, "fresh", [])).state == "new"
    broken = {"step": 4, "loss": "nan", "updated": False, "non_finite": ["loss"]}
    assert summarise(made(here, "broken", [*STEPS, broken])).state == "diverged"
    lowered = broken | {"loss_scale": 65536.0}
    assert summarise(made(here, "lowered", [*STEPS, lowered])).state == "stopped"  # float16 goes on from there
    hold(whole.path)
    assert summarise(whole).state == "training"
    release(whole.path)
    assert summarise(whole).state == "finished"


def test_every_validation_set_is_shown_and_what_averaged_weights_come_to(
    here: Path, capsys: pytest.CaptureFixture
) -> None:
    judged = [
        {"step": i, "eval_loss": 4.0 - i, "eval_a_loss": 4.0 - i, "eval_ema_loss": 5.0 - i, "eval_a_ema_loss": 5.0 - i,
         "eval_b_loss": 6.0 + i, "eval_b_ema_loss": 7.0 + i}
        for i in (1, 2)
    ]  # fmt: skip
    run = made(here, "judged", [*STEPS, *judged])
    (here / "text").mkdir()
    chosen = run.read_config()
    sets = dataclasses.replace(chosen, data=dataclasses.replace(chosen.data, validation=("a=text", "b=text")))
    write_config(run.config_file, sets, sets)
    assert main(["runs", "judged"]) == 0
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "validation loss 2.0000 nats per token, in the last evaluation; best 2.0000" in shown
    assert "validation loss, averaged weights 3.0000; best 3.0000" in shown
    assert "validation loss of b 8.0000; best 7.0000" in shown
    assert "validation loss of b, averaged weights 9.0000; best 8.0000" in shown
    assert not any("of a" in line for line in shown)
    made(here, "alone", STEPS)
    assert main(["runs", "judged", "alone"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["validation", "loss", "of", "b", "8.0000", "none"] in rows


def test_a_list_holds_what_cannot_be_read_too(here: Path, capsys: pytest.CaptureFixture) -> None:
    made(here, "a", STEPS)
    (made(here, "b", STEPS).path / "config.toml").write_text("[model]\nd_model = 'wide'\n")
    assert main(["runs"]) == 0
    shown = capsys.readouterr().out
    assert "unreadable" in shown
    assert "3 of 12" in shown
    assert main(["runs", "b", "--json"]) == 0
    assert "d_model is 'wide'" in json.loads(capsys.readouterr().out)["runs"][0]["problem"]


def test_differences_are_options_that_are_not_the_same(here: Path, capsys: pytest.CaptureFixture) -> None:
    first, second = made(here, "a", STEPS), made(here, "b", STEPS, update={"learning_rate": 0.5}, batch_size=7)
    assert differences([first, second]) == {"update.learning_rate": (0.002, 0.5), "run.batch_size": (3, 7)}
    assert main(["runs", "a", "b"]) == 0
    shown = capsys.readouterr().out
    assert "update.learning_rate" in shown
    assert "d_model" not in shown
    assert main(["runs", "a", "a/../a", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 1


def test_labels_are_kept_and_listed(here: Path, capsys: pytest.CaptureFixture) -> None:
    run, _ = made(here, "a", STEPS), made(here, "b", STEPS)
    assert main(["runs", "a", "--tag", "base", "--tag", "x", "--note", "warm-up\x1b[31m"]) == 0
    assert main(["runs", "a", "--untag", "x"]) == 0
    assert Labels.of(run) == Labels(("base",), "warm-up\x1b[31m")
    capsys.readouterr()
    assert main(["runs", "--tag", "base", "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == ["a"]
    assert main(["runs"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert main(["runs", "a", "--tag", ""]) == 2
    assert "tag is '': give a word" in capsys.readouterr().err
    assert main(["runs", "a", "--untag", "y"]) == 2
    assert "no tag 'y' to take away: there are base" in capsys.readouterr().err
    (run.path / "labels.json").write_text("{")
    assert Labels.of(run) == Labels()


def test_tags_and_notes_stand_below_where_a_screen_is_too_narrow(here: Path) -> None:
    run = made(here, "a", STEPS)
    Labels(("baseline", "narrow"), "warm-up twice as long").write(run)
    said = "baseline, narrow; warm-up twice as long"
    for width, place in ((70, -1), (200, 1)):
        out = io.StringIO()
        Console(file=out, width=width, force_terminal=True, color_system=None).print(RunTable([summarise(run)]))
        assert said in out.getvalue().splitlines()[place]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_run_is_deleted_after_a_question(
    here: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made(here, "a", STEPS)
    assert main(["runs", "a", "--delete"]) == 2
    assert "give --yes" in capsys.readouterr().err
    for answer, kept in (("\n", True), ("n\n", True), ("y\n", False)):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        assert main(["runs", "a", "--delete"]) == int(kept)
        assert run.path.exists() is kept
    assert "delete runs/a (3 steps, " in capsys.readouterr().err


def test_a_run_that_cannot_be_written_to_is_drawn_in_letters(
    here: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(here, "a", STEPS)

    def refused(drawing: object, file: Path) -> None:
        raise ConfigError(f"cannot write {file}: Permission denied")

    monkeypatch.setattr("limpid.history.picture.save", refused)
    assert main(["plot", "a"]) == 0
    shown = capsys.readouterr()
    assert "(step)" in shown.out
    assert "runs/a/curves.png: Permission denied; with -o FILE they go elsewhere\n" in shown.err
    assert main(["plot", "a", "-o", "b.png"]) == 2
    assert capsys.readouterr().err == "limpid: error: cannot write b.png: Permission denied\n"


def test_what_was_deleted_is_a_document(here: Path, capsys: pytest.CaptureFixture) -> None:
    made(here, "a", STEPS)
    assert main(["runs", "a", "--delete", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"deleted": ["runs/a"], "kept": []}


def test_what_no_run_wrote_or_a_process_writes_is_not_deleted(here: Path, capsys: pytest.CaptureFixture) -> None:
    run = made(here, "a", STEPS)
    for name in ("thesis.txt", "figure.png", "after-thoughts.md", "draft.writing"):
        (run.path / name).write_text("mine")
        assert main(["runs", "a", "--delete", "--yes"]) == 2
        assert f"holds {name}, which no run writes" in capsys.readouterr().err
        (run.path / name).unlink()
    for name in ("curves.png", "metrics.jsonl.unreadable", ".tokenizer.json.writing", "after-000003-2"):
        (run.path / name).write_text("its own")
    assert main(["runs", "a", "--delete", "--yes"]) == 0
    assert not run.path.exists()


def test_nothing_to_list_says_so(here: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["runs"]) == 0
    assert "there is no run under runs/; start one with limpid train" in capsys.readouterr().out
    assert main(["runs", "--delete"]) == 2
    assert "--delete needs a run" in capsys.readouterr().err
