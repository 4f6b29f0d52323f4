"""A run while it trains, as the page hears of it."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
from starlette.testclient import TestClient
from tests.view.folders import add_steps, made_run

from limpid.lock import hold, release
from limpid.view.folder import Folder
from limpid.view.live import Watched, with_heartbeats
from limpid.view.runs import Runs

Ask = Callable[..., TestClient]


def told(content: bytes) -> list[tuple[str, object, str]]:
    """Kind, data and id of every event."""
    found = []
    for one in content.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in one.splitlines() if not line.startswith(":"))
        if fields:
            found.append((fields["event"], json.loads(fields["data"]), fields.get("id", "")))
    return found


def steps(events: list[tuple[str, object, str]]) -> list[int]:
    return [row["step"] for kind, data, _ in events if kind == "rows" for row in data]  # type: ignore[attr-defined]


def test_a_run_that_ended_is_told_whole_and_ends(tmp_path: Path, ask: Ask) -> None:
    made_run(tmp_path, "001", 3)
    events = told(ask(tmp_path).get("/api/runs/001/events?after=0-0-0").content)
    assert [kind for kind, _, _ in events] == ["rows", "state", "end"]
    assert steps(events) == [1, 2, 3]
    assert events[1][1] == {"state": "stopped", "step": 3, "max_steps": 12}


def test_a_page_that_lost_its_connection_hears_each_line_once(tmp_path: Path, ask: Ask) -> None:
    run = made_run(tmp_path, "001", 1200)
    events = told(ask(tmp_path).get("/api/runs/001/events?after=0-0-0").content)
    rows = [one for one in events if one[0] == "rows"]
    assert [len(data) for _, data, _ in rows] == [500, 500, 200]  # type: ignore[arg-type]
    add_steps(run, 1201, [1.0])
    again = told(ask(tmp_path).get("/api/runs/001/events?after=0-0-0", headers={"Last-Event-ID": rows[1][2]}).content)
    assert steps(again) == list(range(1001, 1202))


def test_lines_are_told_when_they_are_whole(tmp_path: Path) -> None:
    run = made_run(tmp_path, "001", 2)
    watched = Watched.begin(Runs(Folder(tmp_path)), "001", "")
    hold(run.path)
    try:
        events, ended = watched.look()
        assert not ended
        assert told(b"".join(events))[0][:2] == ("state", {"state": "training", "step": 2, "max_steps": 12})
        with run.metrics_file.open("a") as file:
            file.write('{"step": 3, "loss": 1.5')
        assert steps(told(b"".join(watched.look()[0]))) == []
        with run.metrics_file.open("a") as file:
            file.write('}\nnot a line\n{"step": 4, "loss": "nan"}\n')
        assert steps(told(b"".join(watched.look()[0]))) == [3, 4]
        run.metrics_file.write_text('{"step": 1, "loss": 2.0}\n')  # an earlier checkpoint was resumed
        assert [kind for kind, _, _ in told(b"".join(watched.look()[0]))][:2] == ["restart", "rows"]
        (run.path / "samples.jsonl").write_text('{"step": 1, "prompt": "a", "text": "b\\n\\ndata: c"}\n')
        events = watched.look()[0]
        assert ("samples", [{"step": 1, "prompt": "a", "text": "b\n\ndata: c"}]) in [
            one[:2] for one in told(b"".join(events))
        ]
    finally:
        release(run.path)


def test_silence_is_broken_by_a_comment(tmp_path: Path) -> None:
    looks = iter([([], False), ([], False), ([b"x"], True)])

    async def heard() -> list[bytes]:
        return [one async for one in with_heartbeats(lambda: next(looks), poll=0.01, heartbeat=0.0)]

    with ThreadPoolExecutor(1) as own:  # the browser of other tests keeps the main thread's event loop running
        assert own.submit(anyio.run, heard).result() == [b": still here\n\n", b": still here\n\n", b"x"]


def test_a_run_that_is_deleted_ends(tmp_path: Path) -> None:
    run = made_run(tmp_path, "001", 1)
    watched = Watched.begin(Runs(Folder(tmp_path)), "001", "0-0-0")
    run.config_file.unlink()
    assert told(b"".join(watched.look()[0])) == [("end", {}, "")]
