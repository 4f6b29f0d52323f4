"""What a user names: runs, checkpoints, model folders and recorded steps, told apart; everything else refused."""

import os
from pathlib import Path

import pytest

from limpid.config import TrainConfig
from limpid.config.files import write_config
from limpid.errors import CheckpointError
from limpid.run import AVERAGE, Run
from limpid.run_folder import new_run
from limpid.source import Checkpoint, ModelFolder, RecordedStep, find_model, find_run, find_source, open_source


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def a_run(name: str, *checkpoints: int) -> Run:
    run = new_run(name)
    for step in checkpoints:
        run.checkpoint(step).mkdir(parents=True)
    write_config(run.config_file, TrainConfig())
    return run


def a_model(name: str) -> Path:
    Path(name).mkdir()
    Path(name, "config.json").write_text("{}")
    return Path(name)


def test_a_run_is_found_by_name_by_path_and_as_the_last() -> None:
    first, second = a_run("first"), a_run("second")
    os.utime(first.config_file, (2e9, 2e9))
    assert find_run("second") == second
    assert find_run(first.path) == first
    assert open_source("last") == first


def test_the_last_run_is_the_one_written_to_most_recently() -> None:
    first, second = a_run("first"), a_run("second")
    first.metrics_file.touch()
    os.utime(second.config_file, (2e9, 2e9))
    os.utime(first.metrics_file, (2.1e9, 2.1e9))  # resumed after the second was started
    assert open_source("last") == first


@pytest.mark.parametrize("name", ["mine@400", "last@400", "runs/mine@400", "runs/mine/checkpoints/000400"])
def test_a_checkpoint_is_named_by_its_step(name: str) -> None:
    a_run("mine", 0, 400)
    found = open_source(name)
    assert isinstance(found, Checkpoint)
    assert (found.run.path.name, found.step) == ("mine", 400)


def test_a_run_stands_for_its_newest_weights() -> None:
    run = a_run("mine", 0, 300, 20)
    assert find_model("mine") == Checkpoint(run, 300)
    assert find_model("mine@20") == Checkpoint(run, 20)
    assert find_model(a_model("theirs")) == ModelFolder(Path("theirs"))


def test_a_name_with_an_at_is_a_name_first() -> None:
    assert open_source(a_model("model@2")) == ModelFolder(Path("model@2"))


def test_a_folder_that_is_both_is_a_run() -> None:
    run = a_run("mine")
    (run.path / "config.json").write_text("{}")
    assert open_source(run.path) == run


def test_a_folder_that_is_nothing_does_not_hide_a_run() -> None:
    run = a_run("mine")
    Path("mine").mkdir()
    assert open_source("mine") == run


def test_a_recorded_step_is_a_file() -> None:
    Path("step.safetensors").touch()
    assert open_source("step.safetensors") == RecordedStep(Path("step.safetensors"))


def test_the_nearest_checkpoints_are_named_in_order() -> None:
    a_run("long", *range(0, 100, 10))
    with pytest.raises(CheckpointError, match=r"after step 42: the nearest of 10 are those after 20, 30, 40, 50, 60$"):
        open_source("long@42")


def test_nothing_is_found_without_an_error_where_other_names_are_possible() -> None:
    run = a_run("mine")
    assert find_source("gpt2") is None
    assert find_source("mine") == run


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("shakespear", "did you mean shakespeare"),
        ("nowhere", "no config.toml in it or in runs/nowhere.*runs here: shakespeare"),
        ("shakespeare@401", "no checkpoint after step 401: there are those after 0, 400"),
        ("shakespeare@finest", "runs/shakespeare@finest names no step: expected a number, best or ema"),
        ("runs", "a folder of runs, expected one of them: runs/shakespeare"),
        ("adapter", r"adapter_config.json names no base model: give it, as in MODEL\+adapter"),
        (
            "meta/llama",
            "no run or folder here, not in the Hugging Face cache, and the hub does not give it: HF_HUB_OFF",
        ),
        ("meta/llama@v2", "the hub does not give it"),
        ("empty/llama", "is not a run folder"),
        ("runs/llama", "is not a run folder"),
        ("kept", "it holds kept/a.safetensors"),
        ("kept/b.safetensors", "no such file; did you mean kept/a.safetensors"),
        ("notes.txt", "no recorded step, which ends in .safetensors"),
        ("empty", "no config.toml in it.*no config.json"),
        ("shakespeare+kept", r"shakespeare is a model, but kept is no adapter: no adapter_config.json in it"),
        ("shakespeare+lost", r"but lost is no adapter: there is no such folder"),
        (
            "shakespear+adapter",
            r"adapter is an adapter, but of the model: shakespear is not .*did you mean shakespeare",
        ),
    ],
)
def test_what_is_nothing_is_refused_with_the_way_out(name: str, said: str) -> None:
    a_run("shakespeare", 0, 400)
    for folder in ("adapter", "kept", "empty"):
        Path(folder).mkdir()
    Path("adapter/adapter_config.json").touch()
    Path("kept/a.safetensors").touch()
    Path("notes.txt").touch()
    with pytest.raises(CheckpointError, match=said) as refused:
        open_source(name)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["nowhere", "last"])
def test_no_run_says_what_there_is(name: str) -> None:
    with pytest.raises(CheckpointError, match="limpid train"):
        find_run(name)


def test_another_kind_than_was_asked_for_is_named() -> None:
    a_run("mine", 400)
    a_model("theirs")
    Path("step.safetensors").touch()
    with pytest.raises(CheckpointError, match="theirs is a Hugging Face folder, expected a run"):
        find_run("theirs")
    with pytest.raises(CheckpointError, match="leave out @400"):
        find_run("mine@400")
    a_model("mine")
    with pytest.raises(CheckpointError, match="the run of this name is runs/mine"):
        find_run("mine")
    with pytest.raises(CheckpointError, match="is a recorded step, expected a run or a Hugging Face folder"):
        find_model("step.safetensors")


def test_the_average_of_the_weights_has_a_name_after_every_checkpoint() -> None:
    run = a_run("averaged", 0, 400)
    (run.checkpoint(400) / AVERAGE).touch()
    assert [str(open_source(name)) for name in ("averaged@ema", "runs/averaged@400@ema")] == [f"{run.path}@400@ema"] * 2
    assert open_source("averaged@ema").title == "averaged after step 400, averaged"
    with pytest.raises(CheckpointError, match="averaged@0 holds no average of the weights"):
        open_source("averaged@0@ema")
