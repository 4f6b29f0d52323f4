"""Going on: what is read is what was written, what is not so is named, and a refusal changes nothing."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import limpid
from limpid.data.tokenizer_folder import load_tokenizer
from limpid.errors import CheckpointError, ConfigError
from limpid.lock import hold, released_after
from limpid.manifest import write_manifest
from limpid.model.weights import read_weights
from limpid.reporter import Reporter, Silent
from limpid.run import Run
from limpid.source import Checkpoint, find_model, find_run
from limpid.tracing.record import Record
from limpid.training.loop import loop
from limpid.training.opening import recorded
from limpid.training.replay import replay
from limpid.training.start import resume, start
from small import config, corpus, quiet


def sampler(*_) -> str:
    return ""


def listened() -> tuple[list[str], Reporter]:
    """A reporter, and the lines that it is given."""
    said: list[str] = []
    reporter = Silent()
    reporter.line = said.append
    return said, reporter


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of eight steps that every test gets a copy of."""
    folder = tmp_path_factory.mktemp("original")
    configuration = config(corpus(folder / "corpus"), max_steps=8, save_steps=2, update={"schedule": "constant"})
    with pytest.MonkeyPatch.context() as patch, released_after():
        patch.setenv("LIMPID_CACHE", str(folder / "cache"))
        training = start(configuration, str(folder / "run"), quiet())
        loop(training, quiet(), sampler)
    return training.run.path


@pytest.fixture
def run(original: Path, here: Path) -> Run:
    shutil.copytree(original, here / "runs/run")
    return find_run("run")


def contents(run: Run) -> dict[str, bytes]:
    files = (path for path in run.path.rglob("*") if path.is_file() and path.name != ".limpid-lock")
    return {str(path.relative_to(run.path)): path.read_bytes() for path in files}


def losses(run: Run) -> dict[int, float]:
    entries = map(json.loads, run.metrics_file.read_text().splitlines())
    return {entry["step"]: entry["loss"] for entry in entries if "loss" in entry}


def flip(file: Path) -> None:
    """One bit of the last number in a file."""
    content = bytearray(file.read_bytes())
    content[-1] ^= 0x40
    file.write_bytes(content)


def rewritten(change: dict) -> Callable[[Path], None]:
    """Gives state.json other values, and a manifest that agrees with them."""

    def spoil(folder: Path) -> None:
        state = json.loads((folder / "state.json").read_text()) | change
        (folder / "state.json").write_text(json.dumps(state))
        (folder / "manifest.json").unlink()
        write_manifest(folder)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), r"model\.safetensors is missing"),
        (lambda folder: os.truncate(folder / "model.safetensors", 999), r"it has 999 bytes, and \d\d,\d+ were written"),
        (lambda folder: flip(folder / "model.safetensors"), r"model\.safetensors is damaged: its SHA-256 is \w{12}…,"),
        (lambda folder: flip(folder / "optimizer.safetensors"), r"optimizer\.safetensors is damaged: its SHA-256"),
        (lambda folder: flip(folder / "config.toml"), r"config\.toml is damaged: its SHA-256"),
        (lambda folder: flip(folder / "state.json"), r"state\.json is damaged"),
        (lambda folder: (folder / "manifest.json").unlink(), r"manifest\.json is missing"),
        (lambda folder: (folder / "manifest.json").write_text("{}"), r"manifest\.json is damaged"),
        (rewritten({"version": 9}), r"format version 9; this limpid reads 1 and 2"),
        (rewritten({"step": 4}), r"no record of step 8"),
        (rewritten({"step": "eight"}), r"no record of step 8"),
        (rewritten({"updates": -8}), r"no record of step 8"),
        (rewritten({"data": None}), r"no record of step 8"),
    ],
)  # fmt: skip
def test_a_damaged_checkpoint_is_named_with_one_that_is_whole_and_nothing_is_changed(
    run: Run, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(run.checkpoint(8))
    flip(run.checkpoint(7) / "model.safetensors")
    before = contents(run)
    with pytest.raises(CheckpointError, match=message) as caught:
        resume(run, 20, quiet())
    assert str(caught.value).endswith("; use the newest one that is whole: runs/run@6")
    assert "\n" not in str(caught.value)
    assert contents(run) == before


def test_every_reader_of_weights_notices_damage(run: Run) -> None:
    flip(run.checkpoint(8) / "model.safetensors")
    flip(run.checkpoint(4) / "optimizer.safetensors")
    for read in (
        lambda: limpid.load("run"),
        lambda: start(config(run.path, init_from="run"), None),
    ):
        with pytest.raises(CheckpointError, match=r"damaged.*: runs/run@7"):
            read()
    limpid.load("run@7")


def test_a_step_behind_a_damaged_checkpoint_is_opened_from_the_one_before(run: Run) -> None:
    flip(run.checkpoint(7) / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"damaged.*`limpid trace runs/run@6 --step 8` opens the step from there"):
        recorded("run", 8, None)
    file, now = recorded("run@6", 8, None)
    assert now
    assert recorded("run@6", 8, None) == (file, False)
    from_before = Record(file)
    weights = read_weights(Checkpoint(run, 8), run.read_config().model)
    assert all(np.array_equal(from_before.stored(f"after/{name}"), weight) for name, weight in weights.items())


def test_where_no_checkpoint_is_whole_it_is_said(run: Run) -> None:
    for step in run.checkpoint_steps():
        flip(run.checkpoint(step) / "model.safetensors")
    with pytest.raises(CheckpointError, match="runs/run holds no other checkpoint that is whole"):
        resume(run)


def test_older_checkpoints_without_a_manifest_open(run: Run) -> None:
    expected = replay(run, 8).state.model.state_dict()
    for step in run.checkpoint_steps():
        rewritten({"version": 1})(run.checkpoint(step))
        (run.checkpoint(step) / "manifest.json").unlink()
    found = resume(run).run
    assert found == run
    assert all((expected[name] == value).all() for name, value in replay(run, 8).state.model.state_dict().items())


def test_a_run_goes_on_from_an_earlier_checkpoint_and_what_came_after_is_kept(run: Run) -> None:
    before, whole = contents(run), losses(run)
    flip(run.checkpoint(8) / "model.safetensors")
    run.recorded_step(3).parent.mkdir()
    run.recorded_step(3).touch()
    run.recorded_step(7).touch()
    said, reporter = listened()
    training = resume(run, None, reporter, at=4)
    assert (training.state.step, run.checkpoint_steps()) == (4, [0, 2, 4])
    assert said[0] == "what came after step 4 lies in runs/run/after-000004 now: delete it when you like"
    aside = Run(run.path / "after-000004")
    assert aside.checkpoint_steps() == [6, 7, 8]
    assert aside.metrics_file.read_bytes() == before["metrics.jsonl"]
    assert (run.recorded_step(3).exists(), aside.recorded_step(7).exists()) == (True, True)
    loop(training, quiet(), sampler)
    assert losses(run) == whole
    assert (run.checkpoint(8) / "model.safetensors").read_bytes() == before["checkpoints/000008/model.safetensors"]
    limpid.load(f"{aside.path}@7")
    resume(run, at=4)
    assert Run(run.path / "after-000004-2").checkpoint_steps() == [6, 7, 8]


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda run: (run.checkpoint(8) / "optimizer.safetensors").unlink(), CheckpointError),
        (
            lambda run: run.write_config(config(Path(run.read_config().data.paths[0]), model={"d_model": 36})),
            CheckpointError,
        ),
        (lambda run: None, ConfigError),
    ],
)
def test_a_failed_resume_changes_nothing(run: Run, spoil: Callable[[Run], None], error: type[Exception]) -> None:
    spoil(run)
    before = contents(run)
    with pytest.raises(error):
        resume(run, 5 if error is ConfigError else 20)
    assert contents(run) == before


def test_lines_that_cannot_be_read_are_said_and_set_aside(run: Run) -> None:
    lines = run.metrics_file.read_bytes().splitlines(keepends=True)
    spoiled = b"\xff\xfe" + lines[1]
    run.metrics_file.write_bytes(b"".join([lines[0], spoiled, *lines[2:], b'{"step": 9, "lo']))
    run.micro_batches_file.unlink()
    said, reporter = listened()
    loop(resume(run, 10, reporter), quiet(), sampler)
    assert said[:3] == [
        "runs/run/metrics.jsonl: 2 of its lines cannot be read, and are set aside in metrics.jsonl.unreadable",
        "runs/run/metrics.jsonl has no line for 1 of the 8 steps before; training needs none",
        "runs/run/micro_batches.jsonl has no line for 8 of the 8 steps before; training needs none",
    ]
    assert Path("runs/run/metrics.jsonl.unreadable").read_bytes() == spoiled + b'{"step": 9, "lo\n'
    assert sorted(losses(run)) == [1, 3, 4, 5, 6, 7, 8, 9, 10]


def test_of_two_resumes_one_is_refused_and_names_the_other(run: Run) -> None:
    hold(run.path)
    before = contents(run)
    child = os.fork()
    if child == 0:
        try:
            limpid.resume("run", 20)
        except CheckpointError as error:
            Path("said").write_text(str(error))
        os._exit(0)
    os.waitpid(child, 0)
    assert re.match(rf"runs/run is being written by process {os.getpid()} on \S+ since ", Path("said").read_text())
    assert contents(run) == before


def test_what_killed_processes_left_is_removed_and_nothing_else(run: Run) -> None:
    names = (".000009.writing", ".000005.retired", ".mine", "notes")
    for name in names:
        (run.path / "checkpoints" / name).mkdir()
    resume(run)
    left = {name for name in names if (run.path / "checkpoints" / name).exists()}
    assert left == {".mine", "notes"}


def test_what_a_run_was_trained_on_is_known_while_any_checkpoint_is_whole(run: Run) -> None:
    known = run.fingerprint()
    for step in run.checkpoint_steps():
        assert run.fingerprint() == known
        flip(run.checkpoint(step) / "state.json")
    with pytest.raises(CheckpointError, match=r"state\.json is damaged"):
        run.fingerprint()


def test_a_checkpoint_is_named_wherever_a_run_is(run: Run) -> None:
    assert limpid.resume("run@8").path == run.path
    assert str(find_model("run@4")) == "runs/run@4"


def test_a_tokenizer_that_is_damaged_is_written_again(run: Run) -> None:
    before = run.tokenizer_file.read_bytes()
    flip(run.tokenizer_file)
    with pytest.raises(CheckpointError, match=r"tokenizer.json is damaged"):
        load_tokenizer(Checkpoint(run, 7))
    resume(run)
    assert run.tokenizer_file.read_bytes() == before
    assert load_tokenizer(Checkpoint(run, 7))


def test_the_first_checkpoint_too_has_the_configuration(run: Run) -> None:
    for step in run.checkpoint_steps()[1:]:
        shutil.rmtree(run.checkpoint(step))
    whole = run.config_file.read_bytes()
    flip(run.config_file)
    copy = run.checkpoint(0) / "config.toml"
    assert copy.read_bytes() == whole
    with pytest.raises((ConfigError, CheckpointError), match=re.escape(f"`cp {copy} {run.config_file}`")):
        resume(run)
