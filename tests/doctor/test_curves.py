"""What a log says by itself: a loss that never falls, one that overfits, one that breaks, and nothing wrong."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from doctor.test_logs import alarms, curves_of, falling
from limpid.cli import main
from limpid.doctor.logs import read_record
from limpid.doctor.report import diagnose
from limpid.doctor.rules.learning_rate import LEARNING_RATE_TOO_HIGH


def level(value: float, count: int, scatter: float = 0.01) -> list[float]:
    noise = random.Random(1)
    return [value + noise.gauss(0, scatter) for _ in range(count)]


@pytest.mark.parametrize(("vocab", "severity"), [(50257, "fault"), (None, "warning")])
def test_a_loss_that_never_falls_is_found(vocab: int | None, severity: str) -> None:
    curves = curves_of(level(math.log(50257), 1000), grad_norm=[0.5] * 1000, learning_rate=[3e-4] * 1000)
    curves.vocab = vocab
    (finding,) = diagnose(curves)
    assert (finding.rule, finding.severity) == ("loss-never-falls", severity)
    assert "50,2" in finding.says  # the words that it guesses among
    assert "gradients are there (norm 0.5)" in finding.says


def test_a_rate_of_nothing_explains_a_loss_that_never_falls() -> None:
    curves = curves_of(level(5.0, 200), learning_rate=[0.0] * 200)
    assert alarms(curves) == ["learning-rate-zero", "loss-never-falls"]


def test_a_loss_that_falls_slowly_or_begins_late_is_left_alone() -> None:
    slow = [x - 0.1 * i / 1000 for i, x in enumerate(level(2.3, 1000, 0.1))]
    assert alarms(curves_of(slow)) == []
    late = curves_of([])
    for i, loss in enumerate(level(2.3, 500, 0.1)):
        late.add(400_000 + i, [("loss", loss)])
    assert alarms(late) == []


def test_an_infinite_norm_before_the_loss_breaks_is_what_broke_it() -> None:
    losses, norms = falling(500) + [math.nan] * 5, [1.0] * 499 + [math.inf] + [math.nan] * 5
    first = diagnose(curves_of(losses, grad_norm=norms))[0]
    assert (first.rule, first.step) == ("not-finite", 500)
    assert "gradient norm was inf at step 499 already" in first.says
    announced = diagnose(curves_of([*falling(500), math.nan], grad_norm=[1.0] * 500))[0].says
    assert announced.endswith(
        "nothing in loss or gradient norm announced it: one batch, or one overflow, not a slow drift."
    )


def test_overfitting_is_called_by_its_name() -> None:
    curves = curves_of(falling(400))
    best = 20
    curves.series["eval_loss"] = [(10 * i, 3.0 + 0.02 * abs(i - best)) for i in range(40)]
    (finding,) = diagnose(curves)
    assert (finding.rule, finding.severity, finding.step) == ("overfitting", "notice", 200)
    assert "overfitting" in finding.says
    assert finding.is_said
    curves.series["eval_loss"] = [(10 * i, max(3.0, 4 - 0.1 * i) + x) for i, x in enumerate(level(0, 40, 0.02))]
    assert diagnose(curves) == []


def test_one_number_under_two_names_is_no_matter(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    entries: list[dict[str, Any]] = [{"step": i, "loss": x, "train/loss": x} for i, x in enumerate(falling(50))]
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert read_record(file).notes == []
    entries[7]["loss"] = 9.0
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert read_record(file).notes == ["loss is read from train/loss, not from loss"]


def test_bytes_that_are_no_text_are_read_around(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    log = "".join(f"iter {i}: loss {x:.4f} caf\xe9\n" for i, x in enumerate(falling(60)))
    (tmp_path / "out.log").write_bytes(log.encode("latin-1"))
    assert len(read_record(tmp_path / "out.log").values("loss")) == 60
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": i, "loss": x}) + "\n" for i, x in enumerate(falling(60)))
    )
    (tmp_path / "findings.jsonl").write_bytes(b'{"rule": "caf\xe9\n\xff\xfe\n')
    assert main(["doctor", str(tmp_path)]) == 0
    assert "left out" in capsys.readouterr().out


def test_a_number_of_three_hundred_digits_is_not_written_out() -> None:
    says = LEARNING_RATE_TOO_HIGH.finding(severity="fault", where="a", says=f"{5.0352e301:.1f} times {1e300:,.0f}").says
    assert says == "5.04e+301 times 1e+300"


def test_with_everything_checked_no_heading_stands_over_nothing(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    entries = [
        {"step": i, "loss": x, "eval_loss": x, "grad_norm": 1.0, "learning_rate": 1e-3}
        for i, x in enumerate(falling(60))
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    (tmp_path / "findings.jsonl").touch()
    assert main(["doctor", str(tmp_path)]) == 0
    assert "not checked" not in capsys.readouterr().out


@pytest.mark.parametrize("diverges", [False, True])
def test_losses_of_single_rows_that_scatter_by_orders_of_magnitude(diverges: bool) -> None:
    """Whether one of the first five was small says nothing of those to come."""
    first = [3.2, 0.03, 0.007, 5.9, 0.005]
    least = 6.0 if diverges else 0.1
    curves = curves_of([*first, *(least + 0.09 * ((7 * step) % 11) for step in range(60))])
    assert ("loss-diverges" in alarms(curves)) == diverges
