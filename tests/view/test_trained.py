"""A real run: heard while it trains, and a past step of it recorded when it is asked for."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.view.folders import made_run
from tests.view.test_live import steps, told
from tests.view.test_runs import fits

import limpid
from limpid.run import Run
from limpid.view import worker

Ask = Callable[..., TestClient]


def test_a_page_hears_of_every_step_while_a_run_trains(trained: tuple[Path, bytes]) -> None:
    folder, heard = trained
    events = told(heard)
    assert steps(
        [(kind, [row for row in data if "loss" in row], id) for kind, data, id in events if kind == "rows"]
    ) == [*range(1, 31)]
    lines = [json.loads(line) for line in Run(folder / "001").metrics_file.read_text().splitlines()]
    assert [row for kind, data, _ in events if kind == "rows" for row in data] == lines  # type: ignore[attr-defined]
    states = [data["state"] for kind, data, _ in events if kind == "state"]  # type: ignore[index]
    assert states[0] == "training"
    assert states[-1] == "finished"
    assert events[-1][0] == "end"


def test_a_past_step_is_recorded_as_a_job_and_then_shown(trained: tuple[Path, bytes], ask: Ask) -> None:
    folder, _ = trained
    client = ask(folder)
    overview = client.get("/api/runs/001").json()
    assert (overview["opened_first"], overview["opened_last"]) == (1, 30)
    assert client.get("/api/runs/001/steps/12").json()["missing"] == "record"
    job = client.post("/api/runs/001/steps/12/record", json={}).json()
    fits(job, "JobDocument")
    same = client.post("/api/runs/001/steps/12/record", json={}).json()
    assert same["job"] == job["job"]
    events = told(client.get(f"/api/jobs/{job['job']}/events").content)
    assert events[-1][0] == "end"
    assert events[-1][1]["state"] == "done", events  # type: ignore[index]
    view = client.get("/api/runs/001/steps/12").json()
    fits(view, "StepView")
    assert view["step"]["verdict"]["agrees"]
    assert view["step"]["written"]["checks"]  # it is held against its run too
    assert client.get("/api/jobs/none").status_code == 404
    assert client.post("/api/runs/001/steps/31/record", json={}).status_code == 404


def test_the_worker_says_what_is_wrong_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_run(tmp_path, "001", 1)
    assert worker.main(json.dumps({"work": "record", "run": str(tmp_path / "001"), "step": 1})) == 2
    assert "no complete checkpoint" in json.loads(capsys.readouterr().out.splitlines()[-1])["error"]


def test_a_folder_that_cannot_be_written_to_is_said(two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(two, folder)
    monkeypatch.setattr("limpid.view.kept.write_atomically", _refused)
    question = {"work": "record", "run": str(folder / "001"), "step": 1}
    with pytest.raises(limpid.errors.LimpidError, match="cannot be written"):
        worker.record(question, lambda doing, done, total: None)


def _refused(file: Path, content: bytes) -> None:
    raise PermissionError(13, "Permission denied", str(file))
