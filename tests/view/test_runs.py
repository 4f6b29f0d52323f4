"""Runs in the page: the list, one run, its metrics in few points."""

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.tracing.test_trace import assert_fits
from tests.view.folders import add_steps, line, made_run

from limpid.history import Labels, summarise
from limpid.tracing.schema import to_json
from limpid.view.folder import Folder
from limpid.view.runs import Runs
from limpid.view.schema import FILE, view_schema, written
from limpid.view.series import Series, extremes

Ask = Callable[..., TestClient]


def fits(document: object, name: str) -> None:
    definitions = view_schema()["$defs"]
    assert_fits(document, definitions[name], definitions)


def test_the_schema_file_is_current() -> None:
    assert FILE.read_text(encoding="utf-8") == written()


def test_the_list_says_how_runs_stand(tmp_path: Path, ask: Ask) -> None:
    made_run(tmp_path, "001", 12)
    made_run(tmp_path, "002", 3)
    made_run(tmp_path, "003")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.toml").write_text("model = 3\n")
    (tmp_path / "no run").mkdir()
    found = ask(tmp_path).get("/api/runs").json()
    fits(found, "RunList")
    rows = {row["name"]: row for row in found["runs"]}
    assert {name: row["state"] for name, row in rows.items()} == {
        "001": "finished", "002": "stopped", "003": "new", "broken": "unreadable",
    }  # fmt: skip
    assert rows["001"]["loss"] == 5.0 / 2.2
    assert rows["001"]["curve"]["x"] == list(range(1, 13))
    assert "model" in rows["broken"]["why"]


def test_the_page_of_a_run_says_why_its_configuration_cannot_be_read(tmp_path: Path, ask: Ask) -> None:
    run = made_run(tmp_path, "001")
    run.metrics_file.write_text(line(1, 5.0, max_steps=8))
    run.config_file.write_text("[model\n")
    row = ask(tmp_path).get("/api/runs/001").json()["row"]
    assert row["state"] == "unreadable"
    assert "config.toml is not valid toml" in row["why"]


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 1.0])
def test_the_list_and_the_terminal_agree_of_a_configuration_cut_short(share: float, tmp_path: Path, ask: Ask) -> None:
    run = made_run(tmp_path, "001")
    run.metrics_file.write_text(line(1, 5.0, max_steps=8))
    content = run.config_file.read_bytes()
    run.config_file.write_bytes(content[: int(share * len(content))])
    (row,) = ask(tmp_path).get("/api/runs").json()["runs"]
    assert row["state"] == summarise(run).state
    assert (row["state"] == "unreadable") == (share < 1)


def test_a_folder_whose_name_is_no_text_hides_no_other(tmp_path: Path, ask: Ask) -> None:
    run = made_run(tmp_path, "001", 1)
    (run.path / "labels.json").write_text('{"tags": ["\\udc80"], "note": ""}')
    os.rename(made_run(tmp_path, "002", 1).path, os.fsencode(tmp_path) + b"/\xff")
    found = ask(tmp_path).get("/api/runs").json()
    assert [row["name"] for row in found["runs"]] == ["001"]


def test_a_list_of_long_runs_reads_their_ends_alone(tmp_path: Path) -> None:
    """64 kB and 60 samples of each, however long it is. The files share their bytes."""
    first = made_run(tmp_path, "000")
    lines = "".join(line(step, 5.0 / step) for step in range(1, 1001))
    first.metrics_file.write_text(lines * 5)
    for number in range(1, 200):
        run = made_run(tmp_path, f"{number:03d}")
        run.metrics_file.unlink(missing_ok=True)
        run.metrics_file.hardlink_to(first.metrics_file)
    runs = Runs(Folder(tmp_path))
    assert len(runs.list().runs) == 200
    began = time.perf_counter()
    assert runs.list().runs[0].step == 1000
    assert time.perf_counter() - began < 2.0  # nothing is read again; 0.05 s on a quiet machine


def test_one_run_and_its_metrics(tmp_path: Path, ask: Ask) -> None:
    run = made_run(tmp_path, "001", 10)
    with run.metrics_file.open("a") as file:
        file.write('{"step": 10, "eval_loss": 2.5}\n{"step": 11, "lo')
    client = ask(tmp_path)
    found = client.get("/api/runs/001").json()
    fits(found, "RunOverview")
    assert found["best_eval_loss"] == 2.5
    assert {"loss", "eval_loss", "mean_loss", "learning_rate"} <= set(found["columns"])
    assert not any("/" in name for name in found["columns"])
    metrics = client.get("/api/runs/001/metrics?columns=loss,eval_loss,mean_loss,nothing&along=tokens").json()
    fits(metrics, "MetricsDocument")
    assert list(metrics["columns"]) == ["loss", "eval_loss", "mean_loss"]
    assert metrics["columns"]["loss"]["x"] == [48.0 * step for step in range(1, 11)]
    assert metrics["columns"]["eval_loss"]["x"] == [480.0]
    whole = run.metrics_file.read_bytes().rindex(b"\n") + 1
    assert metrics["after"] == f"{whole}-0-0"
    zoomed = client.get("/api/runs/001/metrics?columns=loss&first=3&last=5").json()
    assert zoomed["columns"]["loss"]["step"] == [3, 4, 5]


def test_what_is_not_finite_stays_in_the_curve(tmp_path: Path, ask: Ask) -> None:
    losses = [1.0] * 20_000
    losses[7_777] = 1e30
    run = made_run(tmp_path, "001", losses=losses)
    with run.metrics_file.open("a") as file:
        file.write(line(20_001, 0.0).replace('"loss": 0.0', '"loss": "nan"'))
    add_steps(run, 20_002, [1.0])
    column = ask(tmp_path).get("/api/runs/001/metrics?columns=loss&points=100").json()["columns"]["loss"]
    assert column["count"] == 20_002
    assert len(column["y"]) <= 100
    assert column["y"][column["step"].index(7_778)] == 1e30
    assert column["y"][column["step"].index(20_001)] == "nan"
    assert (column["step"][0], column["step"][-1]) == (1, 20_002)


@pytest.mark.parametrize("count", [0, 1, 5, 100, 101, 12_345])
def test_extremes_keep_what_lies_outside(count: int, rng: np.random.Generator) -> None:
    y = rng.standard_normal(count)
    chosen = extremes(y, 100)
    assert len(chosen) <= 100
    assert (np.diff(chosen) > 0).all()
    if count:
        assert {y.min(), y.max(), y[0], y[-1]} <= set(y[chosen])


def test_columns_are_read_on_and_anew_when_steps_are_taken_back(tmp_path: Path) -> None:
    run = made_run(tmp_path, "001", 4)
    series = Series(run.metrics_file)
    before = series.read_on()
    with run.metrics_file.open("a") as file:
        file.write('{"step": 5, "loss": 9.0')
    assert series.read_on() == before  # half a line is none
    with run.metrics_file.open("a") as file:
        file.write("}\n")
    series.read_on()
    assert list(series.columns["loss"].steps) == [1, 2, 3, 4, 5]
    kept = run.metrics_file.read_bytes().splitlines(keepends=True)[:2]
    run.metrics_file.unlink()
    run.metrics_file.write_bytes(b"".join(kept))
    series.read_on()
    assert list(series.columns["loss"].steps) == [1, 2]


def test_text_of_the_training_data_stays_text(tmp_path: Path, ask: Ask) -> None:
    run = made_run(tmp_path, "001", 1)
    hostile = "</script><script>alert(1)</script>\x1b[31m\u202e\u2028\x00"
    run.samples_file.write_text(json.dumps({"step": 1, "prompt": hostile, "text": hostile}) + "\n")
    answer = ask(tmp_path).get("/api/runs/001")
    assert answer.json()["samples"] == [{"step": 1, "prompt": hostile, "text": hostile}]
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_findings_are_counted_and_told(tmp_path: Path, ask: Ask) -> None:
    run = made_run(tmp_path, "001", 1)
    finding = {
        "rule": "r", "severity": "fault", "step": 1, "where": "w", "says": "s", "cause": "c", "fix": "f",
        "refuted_by": "n", "evidence": {"largest": "nan"},
    }  # fmt: skip
    (run.path / "findings.jsonl").write_text(json.dumps(finding) + "\nnot json\n" + json.dumps({"rule": 1}) + "\n")
    client = ask(tmp_path)
    assert client.get("/api/runs").json()["runs"][0]["findings"] == 1
    assert client.get("/api/runs/001").json()["findings"] == [finding | {"meant": "", "sure": 1.0}]


def test_tags_and_note_are_kept_beside_the_run(tmp_path: Path, ask: Ask) -> None:
    run = made_run(tmp_path, "001", 1)
    client = ask(tmp_path)
    told = client.post("/api/runs/001/labels", json={"tags": ["base", "muon", "base"], "note": "<b>the</b> one"}).json()
    fits(told, "RunRow")
    assert (told["tags"], told["note"]) == (["base", "muon"], "<b>the</b> one")
    assert Labels.of(run) == Labels(("base", "muon"), "<b>the</b> one")
    assert client.get("/api/runs").json()["runs"][0]["tags"] == ["base", "muon"]
    for wrong in ({"tags": [""]}, {"tags": ["x" * 61]}, {"tags": ["a"] * 3, "note": "x" * 2001}, {"tags": 3},
                  {"tags": [f"{at}" for at in range(33)]}, {"other": 1}):  # fmt: skip
        assert client.post("/api/runs/001/labels", json=wrong).status_code == 400, wrong
    evil = {"Origin": "http://evil.example"}
    assert client.post("/api/runs/001/labels", json={"note": "theirs"}, headers=evil).status_code == 403
    assert client.post("/api/runs/001/labels", content="note=theirs").status_code == 415
    assert client.post("/api/runs/../labels", json={"note": "theirs"}).status_code in (404, 405)
    assert Labels.of(run).note == "<b>the</b> one"


def test_numbers_that_are_none_are_words(tmp_path: Path) -> None:
    run = made_run(tmp_path, "001")
    run.metrics_file.write_text(line(1, 0.0).replace('"loss": 0.0', '"loss": "nan"'))
    row = to_json(Runs(Folder(tmp_path)).row("001"))
    assert row["loss"] == "nan"
    assert math.isnan(float(row["curve"]["y"][0]))
