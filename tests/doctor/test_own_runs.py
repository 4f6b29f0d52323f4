"""The doctor beside runs of ours: what it says while they train, and of their folders afterwards."""

from __future__ import annotations

import errno
import json
import math
import re
from pathlib import Path

import pytest

from doctor.test_logs import falling
from limpid.cli import main
from limpid.diagnose import attend
from limpid.doctor.finding import Finding
from limpid.doctor.finding_log import FindingLog
from limpid.doctor.logs import read_record
from limpid.doctor.report import diagnose
from limpid.reporter import SILENT
from limpid.training.start import start
from limpid.training.step import step as train_step
from small import config, corpus


def test_a_run_of_ours_is_examined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from limpid import train

    monkeypatch.chdir(tmp_path)
    run = train(config(corpus(tmp_path / "text")), "healthy")
    assert (run.path / "findings.jsonl").is_file()
    assert main(["doctor", "healthy", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["kind"] == "limpid run"
    assert all(finding["severity"] == "notice" for finding in said["findings"])
    assert main(["doctor", "healthy", "--preflight", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["kind"].startswith("examination before step")
    assert said["not_checked"] == {}


def test_clipping_by_our_own_kernel_is_seen_with_the_norm_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    training = start(config(corpus(tmp_path / "text"), update={"max_grad_norm": 1e-3}), None)
    doctor = attend(training, False)
    assert doctor is not None
    with doctor:
        outcome = train_step(
            training.state, training.batches.batch(1, training.state), training.config, training.objective
        )
        record = doctor.recorder.record
        assert record.clipped_to == 1e-3
        assert record.norm == pytest.approx(outcome.grad_norm, rel=1e-6)
        assert record.events.index("clip") < record.events.index("update")


def test_a_run_that_goes_on_is_not_told_of_first_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from limpid import train

    monkeypatch.chdir(tmp_path)
    update = {"learning_rate": 0.1, "frozen": ("blocks.0.*",)}
    train(config(corpus(tmp_path / "text"), update=update, max_steps=4, eval_steps=0, doctor=False), "fast")
    found = {}
    for step in (0, 4):
        main(["doctor", f"fast@{step}", "--preflight", "--json"])
        findings = json.loads(capsys.readouterr().out)["findings"]
        found[step] = {finding["rule"]: finding["step"] for finding in findings}
    assert found[0]["learning-rate-too-high"] is None
    assert "learning-rate-too-high" not in found[4]
    assert set(found[4].values()) == {4}


FOUND = Finding(
    rule="loss-spike", severity="warning", step=60, where="the loss", says="it rose", cause="a batch",
    fix="look at it", refuted_by="another seed",
)  # fmt: skip


def test_findings_that_cannot_be_read_are_left_out_and_it_is_said(tmp_path: Path, capsys) -> None:
    entries = [{"step": i, "loss": x} for i, x in enumerate(falling(100))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    unknown = json.dumps(json.loads(FOUND.as_json()) | {"rule": "of another version"})
    lines = [b"\xff\xfe", FOUND.as_json().encode(), unknown.encode(), b"[" * 100_000, FOUND.as_json()[:-9].encode()]
    (tmp_path / "findings.jsonl").write_bytes(b"\n".join(lines))
    assert main(["doctor", str(tmp_path), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert [finding["rule"] for finding in said["findings"]].count("loss-spike") == 1
    assert said["notes"] == 4 * ["a line of findings.jsonl cannot be read, and was left out"]


def test_a_finding_that_cannot_be_written_or_said_breaks_no_training(tmp_path: Path) -> None:
    heard: list[str] = []
    log = FindingLog(tmp_path / "run", heard.append, None)
    (tmp_path / "run").rmdir()
    log.add([FOUND])
    assert not (tmp_path / "run").exists()
    assert re.match(r"doctor: cannot write \S+/run/findings.jsonl: No such file or directory; its folder", heard[0])
    assert "loss-spike" in heard[1]

    def gone(line: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    log.say, log.by_rule = gone, {}
    log.add([FOUND])


@pytest.mark.parametrize(("written", "limit"), [("none", None), (0.5, 0.5)])
def test_a_run_that_never_clips_is_examined_as_one(written: object, limit: float | None, tmp_path: Path) -> None:
    settings = f"[update]\nmax_grad_norm = {json.dumps(written)}\n[run]\nmax_steps = 100\n"
    (tmp_path / "config.toml").write_text(settings)
    entries = [{"step": i, "loss": x, "grad_norm": 30.0} for i, x in enumerate(falling(100))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    curves = read_record(tmp_path)
    assert (curves.max_grad_norm, curves.max_steps) == (limit, 100)
    assert [finding.rule for finding in diagnose(curves)] == (["clipped-every-step"] if limit else [])


def test_training_with_and_without_the_doctor_is_the_same_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from limpid import train

    monkeypatch.chdir(tmp_path)
    data = corpus(tmp_path / "text")
    watched, alone = train(config(data, doctor=True), "watched"), train(config(data, doctor=False), "alone")
    losses = [
        [(e["loss"], e["grad_norm_before_clip"]) for e in map(json.loads, run.metrics_file.open()) if "updated" in e]
        for run in (watched, alone)
    ]
    assert losses[0] == losses[1]
    assert not (alone.path / "findings.jsonl").exists()


def test_a_run_of_ours_that_breaks_names_the_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    import torch

    from limpid.diagnose import attend
    from limpid.training.loop import Diverged, loop

    monkeypatch.chdir(tmp_path)
    training = start(config(corpus(tmp_path / "text")), "broken", SILENT)
    with torch.no_grad():
        training.state.model.blocks[1].mlp.output.weight[0, 0] = math.inf
    doctor = attend(training, False)
    assert doctor is not None
    with pytest.raises(Diverged):
        loop(training, SILENT, lambda *_: "", doctor)
    assert doctor.findings[0].rule == "not-finite"
    assert "blocks.1.mlp.output" in doctor.findings[0].says
