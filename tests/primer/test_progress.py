"""What was answered is kept, whatever happens to its file, and asked again when it is due."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from limpid.cli import main
from limpid.errors import CheckpointError, LimpidError
from limpid.files import write_atomically
from limpid.primer import listed, progress
from limpid.primer.progress import Sitting, record, sittings
from limpid.primer.review import due, reviews

DAY = timedelta(days=1)
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LIMPID_LEARN", str(tmp_path / "data" / "learn.json"))
    return tmp_path / "data" / "learn.json"


def sitting(*tries: str, at: datetime = NOW, exercise: str = "length", **more: Any) -> Sitting:
    return Sitting(exercise, f"{exercise} --seed 3", at.isoformat(), tries, **more)


def reviewed(*its: Sitting, now: datetime = NOW + 1 * DAY) -> timedelta:
    """How long after now the exercise is due."""
    return reviews(its, now)["length"].due - now


def test_what_was_kept_is_read_back_in_its_order(path: Path) -> None:
    kept = [sitting("no-root", "right"), sitting("right", exercise="dot"), sitting(gave_up=True, hints=2)]
    for one in kept:
        record(one)
    assert list(sittings()) == kept
    assert len(path.read_text().splitlines()) == 2 + len(kept)


def test_where_the_file_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LIMPID_LEARN", "~/elsewhere.json")
    assert progress.file() == tmp_path / "elsewhere.json"
    monkeypatch.delenv("LIMPID_LEARN")
    for said, expected in {str(tmp_path / "x"): "x", "": ".local/share", "relative": ".local/share"}.items():
        monkeypatch.setenv("XDG_DATA_HOME", said)
        assert progress.file() == tmp_path / expected / "limpid/learn.json"


def test_behind_a_link_its_file_is_written_and_the_link_stays(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    path.symlink_to(tmp_path / "kept.json")
    record(sitting("right"))
    assert path.is_symlink()
    assert len(json.loads((tmp_path / "kept.json").read_text())["sittings"]) == 1


WHOLE = json.dumps({"limpid": "learn", "format": 1, "sittings": [sitting("right").__dict__ | {"tries": ["right"]}]})
UNUSABLE = {
    "torn": WHOLE[:-20], "empty": "", "binary": "\x00\x01", "a list": "[1, 2]", "foreign": '{"name": "x"}',
    "a number": "7", "later": WHOLE.replace('"format": 1', '"format": 2'),
    "no sittings": '{"limpid":"learn","format":1}',
    "a word missing": WHOLE.replace('"right"', "3"), "no time": WHOLE.replace(NOW.isoformat(), "yesterday"),
    "no zone": WHOLE.replace("+00:00", ""), "a key more": WHOLE.replace('"hints": 0', '"hints": 0, "x": 1'),
    "hints": WHOLE.replace('"hints": 0', '"hints": "many"'), "nested": "[" * 100_000,
    "tries": WHOLE.replace('["right"]', '"right"'),
}  # fmt: skip


@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_damaged_or_foreign_file_is_refused_and_left_as_it_is(
    kind: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path.parent.mkdir()
    path.write_text(UNUSABLE[kind])
    for call in (sittings, lambda: record(sitting("right"))):
        with pytest.raises(CheckpointError, match=r"learn\.json (is|has) .*: move it away to begin anew") as caught:
            call()
        assert "\n" not in str(caught.value)
    assert path.read_text() == UNUSABLE[kind]
    assert main(["learn", "--due"]) == 2
    assert main(["learn"]) == 0  # the list needs no progress
    assert main(["learn", "length", "--seed", "0", "--answer", "7"]) == 0
    assert capsys.readouterr().err.count("\n") == 3
    assert path.read_text() == UNUSABLE[kind]


@pytest.mark.parametrize("what", ["folder", "pipe", "device", "a file in the way", "a link to itself"])
def test_what_can_hold_no_progress_is_refused(what: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.parent.mkdir()
    match what:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "device":
            monkeypatch.setenv("LIMPID_LEARN", "/dev/zero")
        case "a file in the way":
            path.write_text("")
            monkeypatch.setenv("LIMPID_LEARN", str(path / "learn.json"))
        case "a link to itself":
            path.symlink_to(path)
    with pytest.raises(LimpidError) as caught:
        record(sitting("right"))
    assert "\n" not in str(caught.value)


def test_in_a_home_that_cannot_be_written_one_learns_unrecorded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LIMPID_LEARN", "/proc/learn/learn.json")  # where not even root may make a folder
    assert main(["learn", "length", "--seed", "0", "--answer", "7"]) == 0
    assert "not recorded: cannot write" in capsys.readouterr().err


@pytest.mark.parametrize("refused", ["touch", "write_bytes", "replace", "mkdir"])
def test_a_full_disk_takes_nothing_away(
    refused: str, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record(sitting("right"))
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, refused, full)
        assert main(["learn", "length", "--seed", "0", "--answer", "7"]) == 0
    assert "not recorded: cannot write" in capsys.readouterr().err
    assert path.read_bytes() == before
    record(sitting("right"))
    assert len(sittings()) == 2


def test_two_processes_that_write_at_once_both_keep_everything(path: Path) -> None:
    code = """
import sys
from limpid.primer.progress import Sitting, record
for number in range(25):
    record(Sitting(sys.argv[1], str(number), "2026-03-01T00:00:00+00:00", ("right",)))
"""
    both = [subprocess.Popen([sys.executable, "-c", code, name]) for name in ("length", "dot")]
    assert [one.wait(120) for one in both] == [0, 0]
    for name in ("length", "dot"):
        assert [one.how for one in sittings() if one.exercise == name] == list(map(str, range(25)))


def test_a_process_that_holds_the_file_for_long_is_not_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from filelock import FileLock

    path.parent.mkdir()
    monkeypatch.setattr(progress, "WAIT", 0.05)
    with FileLock(path.with_name(".learn.json.lock")), pytest.raises(CheckpointError, match="another process"):
        record(sitting("right"))


def test_a_crash_while_writing_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(sitting("right"))

    def half(file: Path, content: bytes) -> None:
        write_atomically(file.with_name(f".{file.name}.writing"), content[:10])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(progress, "write_atomically", half)
        with pytest.raises(KeyboardInterrupt):
            record(sitting("right"))
    record(sitting("right"))
    assert len(sittings()) == 2


def test_the_better_it_went_the_later_it_is_due() -> None:
    solved, hinted = sitting(gave_up=True), sitting("wrong", "right")
    assert timedelta(0) <= reviewed(solved) <= reviewed(hinted) <= reviewed(sitting("right"))
    twice = reviewed(sitting("right"), sitting("right", at=NOW + 3 * DAY), now=NOW + 3 * DAY)
    assert twice > 2 * reviewed(sitting("right"), now=NOW)
    assert reviewed(sitting("right", "right", hints=1)) == reviewed(hinted)


def test_fsrs_own_intervals_are_those_of_its_published_parameters() -> None:
    """First stabilities 0.212, 1.2931 and 2.3065 days for again, hard and good; 90 % are recalled after as many."""
    first = [reviewed(one, now=NOW) for one in (sitting(gave_up=True), sitting("wrong", "right"), sitting("right"))]
    assert first == [1 * DAY, 1 * DAY, 2 * DAY]


def test_a_clock_that_was_ahead_keeps_nothing_back() -> None:
    ahead = sitting("right", at=NOW + 30_000 * DAY)
    assert reviewed(ahead, now=NOW) <= timedelta(0)
    assert reviewed(sitting("right", at=NOW), ahead, now=NOW) < 30 * DAY
    again = reviewed(ahead, sitting("right", at=NOW), now=NOW)
    assert timedelta(0) < again < 30_000 * DAY


def test_a_clock_set_back_counts_no_day_twice() -> None:
    back = sitting("right", at=NOW - 400 * DAY)
    assert reviewed(sitting("right"), back, now=NOW) == reviewed(sitting("right"), sitting("right"), now=NOW)
    assert reviewed(sitting("right"), now=datetime(1971, 1, 1, tzinfo=UTC)) <= timedelta(0)


def test_the_longest_due_comes_first_and_what_is_no_more_is_passed_over() -> None:
    its = [sitting("right", at=NOW - 9 * DAY), sitting("right", at=NOW - 20 * DAY, exercise="dot"),
           sitting("right", exercise="gone", at=NOW - 30 * DAY), sitting("right", exercise="cosine")]  # fmt: skip
    every = reviews(its, NOW)
    assert due(every, NOW) == ["gone", "dot", "length"]
    for one in its:
        record(one)
    assert listed.next_due({"length", "dot"})[0] == ["dot", "length"]


def answers(monkeypatch: pytest.MonkeyPatch, *typed: str) -> None:
    said = iter(typed)

    def read(_: str) -> str:
        try:
            return next(said)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)


def test_an_answer_in_the_terminal_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, "49", "cat", "hint", "7")
    assert main(["learn", "length", "--seed", "0"]) == 0
    (kept,) = sittings()
    assert (kept.exercise, kept.how, kept.tries) == ("length", "length --seed 0", ("no-root", "right"))
    assert (kept.hints, kept.gave_up) == (1, False)
    assert abs(kept.when - datetime.now(UTC)) < timedelta(minutes=1)


def test_nothing_answered_is_nothing_kept(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    answers(monkeypatch, "hint")
    assert main(["learn", "length", "--seed", "0"]) == 1
    assert main(["learn", "length", "--seed", "0", "--solution"]) == 0
    assert not path.exists()


def test_what_is_due_is_asked_with_fresh_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["learn", "--due"]) == 0
    assert "Nothing has been answered yet" in capsys.readouterr().out
    for name in ("length", "dot"):
        record(sitting("right", at=NOW - 9 * DAY, exercise=name))
    assert main(["learn"]) == 0
    listing = capsys.readouterr().out
    assert "1 of 3 right, 1 due  add-vectors, scale-vector, length" in listing
    assert "2 exercises due: limpid learn --due" in listing
    assert main(["learn", "--due", "--json", "vectors"]) == 0
    assert json.loads(capsys.readouterr().out) == {"due": ["length"]}
    answers(monkeypatch, "s", "s")
    assert main(["learn", "--due"]) == 1
    asked = capsys.readouterr().out
    assert "2 exercises due: length, dot" in asked
    assert "length --seed 3\n" not in asked
    assert [one.gave_up for one in sittings()] == [False, False, True, True]
    assert main(["learn", "--due"]) == 0
    assert "Nothing is due. Next: " in capsys.readouterr().out
    assert main(["learn", "--due", "--seed", "3"]) == 2
    assert "--seed is 3, and what is due has fresh numbers" in capsys.readouterr().err


def test_the_list_as_json_has_what_was_answered(capsys: pytest.CaptureFixture[str]) -> None:
    record(sitting("no-root", "form-list", "right"))
    assert main(["learn", "--json"]) == 0
    found = {one["exercise"]: one for part in json.loads(capsys.readouterr().out) for one in part["exercises"]}
    assert (found["length"]["right"], found["length"]["wrong"], found["length"]["slips"]) == (1, 2, {"no-root": 1})
    assert found["length"]["due"] > NOW.isoformat()
    assert "due" not in found["dot"]


@pytest.mark.parametrize("words", [["--help"], ["learn", "dot", "--seed", "0", "--answer", "22"], ["learn", "vectors"]])
def test_only_who_asks_what_is_due_loads_the_scheduler(words: list[str]) -> None:
    code = f"import sys; from limpid.cli import main; main({words}); assert not {{'fsrs', 'torch'}} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
