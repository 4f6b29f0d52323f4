"""Where else a run reports: what each tracker is told, going on, and going on without one."""

import json
import struct
import sys
import types
from functools import partial
from pathlib import Path

import pytest

import limpid
import small
from limpid.config import RunConfig
from limpid.config.files import read_config
from limpid.config.flags import parse_value
from limpid.config.options import hints
from limpid.errors import ConfigError
from limpid.run import Run
from limpid.training.trackers import Trackers, tracker
from limpid.training.trackers.tracker import identity

config = partial(small.config, doctor=False)


class Recorded:
    """A tracker that keeps what it is told, and fails when it is asked to."""

    where = "here"

    def __init__(self, fails: str = "") -> None:
        self.told: list[tuple] = []
        self.fails = fails

    def __getattr__(self, name: str):
        def tell(*about, **options) -> None:
            if name == self.fails:
                raise ConnectionError("no network\nat all")
            self.told.append((name, *about))

        return tell


@pytest.fixture(autouse=True)
def quick_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples by no model: what is drawn is tested elsewhere."""
    monkeypatch.setattr("limpid.generation.continue_text", lambda model, tokenizer, prompt, seed: f"{prompt}again")


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """In the place of TensorBoard."""
    made = Recorded()
    monkeypatch.setattr("limpid.training.trackers.tensorboard.start", lambda run, config, identity: made)
    return made


def test_a_tracker_hears_of_steps_evaluations_and_samples_by_the_fields_names(data: Path, recorded: Recorded) -> None:
    chosen = config(data, max_steps=4, eval_steps=4, sample_steps=2, report_to=("tensorboard",))
    run = limpid.train(chosen, "reported")
    assert [entry[0] for entry in recorded.told] == [*["log"] * 2, "sample", *["log"] * 3, "sample", "finish"]
    steps = [entry for entry in recorded.told if entry[0] == "log"]
    assert [number for _, number, _ in steps] == [1, 2, 3, 4, 4]
    first, judged = steps[0][2], steps[-1][2]
    lines = run.read_metrics()
    assert first["train/loss"] == lines.steps[0]["loss"]
    assert {"train/grad_norm", "train/learning_rate", "train/tokens_per_second"} < first.keys()
    assert "loss" not in first
    assert judged.keys() == {"val/loss", "val/bpb", "val/perplexity"}
    assert [entry[1] for entry in recorded.told if entry[0] == "sample"] == list(run.read_samples())


@pytest.mark.parametrize("fails", ["log", "sample", "finish"])
def test_a_tracker_that_fails_is_left_out_and_training_goes_on(
    data: Path, recorded: Recorded, fails: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded.fails = fails
    chosen = config(data, max_steps=4, sample_steps=2, report_to=("tensorboard",))
    assert limpid.train(chosen, "left").latest_checkpoint() == 4
    assert len([entry for entry in recorded.told if entry[0] == "log"]) == {"log": 0, "sample": 2, "finish": 5}[fails]


def test_one_that_does_not_start_and_one_that_does_not_end_are_said_in_a_line(
    data: Path, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = limpid.train(config(data, max_steps=3), "run")
    said: list[str] = []

    def refuse(run, config, identity):
        raise OSError("not logged in")

    monkeypatch.setattr("limpid.training.trackers.wandb.start", refuse)
    monkeypatch.setattr(tracker, "FINISH_SECONDS", 0.01)
    slow = types.SimpleNamespace(where="the folder", finish=lambda: __import__("time").sleep(0.5))
    monkeypatch.setattr("limpid.training.trackers.tensorboard.start", lambda *about: slow)
    Trackers(run, config(data, report_to=("wandb", "tensorboard")), said.append).finish()
    assert said[0].startswith("Weights & Biases failed (not logged in); training goes on without it")
    assert said[1:] == [
        "reporting to TensorBoard: the folder",
        "TensorBoard has not taken everything within 0 s; what is left lies in the folder",
    ]


def test_a_package_that_is_missing_is_named_before_anything_is_made(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"report_to trackio needs an extra: pip install 'limpid\[trackio\]'"):
        limpid.train(config(data, report_to=("trackio",)), "missing")
    assert not Path("runs/missing").exists()


def test_a_folder_that_a_tracker_left_is_not_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trackio").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ConfigError, match="needs an extra"):
        tracker.require_installed(["trackio"])


def test_the_option_takes_one_several_and_what_older_runs_say(tmp_path: Path) -> None:
    assert parse_value(hints(RunConfig)["report_to"], "wandb,trackio", "--report-to") == ["wandb", "trackio"]
    assert RunConfig(report_to=["wandb", "wandb"]).report_to == ("wandb",)
    assert RunConfig(report_to=["none"]).report_to == ()
    with pytest.raises(ConfigError, match="wandb,none: name trackers, or none alone"):
        RunConfig(report_to=["wandb", "none"])
    with pytest.raises(ConfigError, match="did you mean wandb"):
        RunConfig(report_to="wand")
    file = tmp_path / "old.toml"
    for said, read in (("none", ()), ("tensorboard", ("tensorboard",))):
        file.write_text(f'[run]\nreport_to = "{said}"\nsample_prompt = "def "\n')
        assert read_config(file).run.report_to == read
        assert read_config(file).run.sample_prompt == ("def ",)


def test_a_runs_identity_stays_and_is_no_other_runs(tmp_path: Path) -> None:
    one, other = Run(tmp_path / "one"), Run(tmp_path / "other")
    for run in (one, other):
        run.path.mkdir()
    assert identity(one) == identity(one) != identity(other)


def test_tensorboard_keeps_scalars_and_samples_and_forgets_steps_taken_again(data: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    chosen = config(data, max_steps=4, sample_steps=4, report_to=("tensorboard",))
    run = limpid.train(chosen, "board")
    limpid.resume(run.path, 6)
    events = EventAccumulator(str(run.path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3, 4, 5, 6]
    assert [event.step for event in events.Tensors("sample/text_summary")] == [4, 6]


def test_weights_and_biases_goes_on_with_the_same_run_off_line(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    chosen = config(data, max_steps=3, eval_steps=3, sample_steps=3, sample_prompt="the ", report_to=("wandb",))
    run = limpid.train(chosen, "waved")
    limpid.resume(run.path, 5)
    files = sorted(run.path.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2
    names, ids, logged = set(), set(), []
    for file in files:
        for record in wandb_records(file):
            if record.HasField("run"):
                names.add(record.run.display_name)
                ids.add(record.run.run_id)
            if record.HasField("history"):
                logged.append(
                    {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                )
    assert (names, ids) == ({"waved"}, {identity(run)})
    lines = run.read_metrics()
    assert {line["step"]: line["train/loss"] for line in logged if "train/loss" in line} == {
        line["step"]: line["loss"] for line in lines.steps
    }
    assert [(line["step"], line["val/loss"]) for line in logged if "val/loss" in line] == [
        (line["step"], line["eval_loss"]) for line in lines.evaluations
    ]
    tables = [
        json.loads(file.read_text())["data"] for file in run.path.glob("wandb/offline-run-*/files/media/table/*.json")
    ]
    kept = [[[sample.step, sample.prompt, sample.text]] for sample in run.read_samples()]
    assert sorted(tables) == sorted(kept)
    assert len(kept) == 2


def wandb_records(file: Path):
    """Records of W&B's own file, LevelDB's log format: blocks of 32 KiB, parts with checksum, length and kind."""
    from wandb.proto import wandb_internal_pb2

    content, place, whole = file.read_bytes(), 7, b""
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


def test_trackio_is_told_by_a_name_that_is_the_runs_own(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[dict] = []
    told = Recorded()

    def init(**options):
        opened.append(options)
        print("* instructions that nobody needs")
        return told

    module = types.ModuleType("trackio")
    module.__spec__ = types.SimpleNamespace(origin="trackio.py")
    module.init, module.Markdown = init, lambda text: text
    monkeypatch.setitem(sys.modules, "trackio", module)
    chosen = config(data, max_steps=3, sample_steps=3, report_to=("trackio",))
    run = limpid.train(chosen, "tracked")
    limpid.resume(run.path, 4)
    assert {options["name"] for options in opened} == {f"tracked-{identity(run)}"}
    assert {options["resume"] for options in opened} == {"allow"}
    first, second = [*["log"] * 4, "log", "finish"], [*["log"] * 2, "log", "finish"]  # a sample is a log, too
    assert [entry[0] for entry in told.told] == first + second
