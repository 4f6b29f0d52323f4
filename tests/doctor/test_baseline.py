"""A loop held against one that worked: what differs first is named, and other seeds differ in nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import limpid
from limpid.errors import ConfigError

WIDTH, WORDS = 32, 50


def trained(baseline: Path | None, seed: int = 0, **change: Any) -> tuple[Any, list[float]]:
    """A loop of 60 steps: `change` replaces what it does at one place."""
    does = {
        "shift": 1,
        "rate": 1e-3,
        "clip": 1.0,
        "of_prompt": 0,
        "held": slice(None),
        "scale": 1.0,
        "std": 1.0,
        "say": False,
        "by_hand": False,
    } | change
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, WORDS))
    with torch.no_grad():
        model[0].weight.mul_(does["std"])
    optimizer = torch.optim.AdamW(list(model.parameters())[does["held"]], lr=does["rate"])
    losses = []
    with limpid.watch(model, optimizer, say=does["say"], baseline=baseline) as doctor:
        for _ in range(60):
            rows = torch.randint(0, WORDS, (8, 17))
            targets = rows[:, does["shift"] : 16 + does["shift"]].clone()
            targets[:, : does["of_prompt"]] = -100
            loss = nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), targets.flatten()) * does["scale"]
            optimizer.zero_grad()
            loss.backward()
            if does["by_hand"]:
                norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
                for p in model.parameters():
                    p.grad.mul_((does["clip"] / norm).clamp(max=1))
            else:
                nn.utils.clip_grad_norm_(model.parameters(), does["clip"])
            optimizer.step()
            doctor.step(loss, rows)
            losses.append(float(loss.detach()))
    return doctor, losses


def unlike(doctor: Any) -> list[Any]:
    return [finding for finding in doctor.findings if finding.rule == "not-as-baseline"]


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loops") / "loop.json"
    doctor, _ = trained(path)
    assert not unlike(doctor)
    return path


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_other_seeds_do_the_same(baseline: Path, seed: int) -> None:
    assert not unlike(trained(baseline, seed)[0])


def test_clipping_by_hand_is_clipping(tmp_path: Path) -> None:
    trained(tmp_path / "loop.json", clip=0.1)
    assert not unlike(trained(tmp_path / "loop.json", 1, clip=0.1, by_hand=True)[0])
    (finding,) = unlike(trained(tmp_path / "loop.json", 1, clip=1e9, by_hand=True)[0])
    assert "is clipped False, then True" in finding.says


@pytest.mark.parametrize(
    ("change", "part", "words"),
    [
        ({"shift": 0}, "labels", "token taught its own, then the next"),
        ({"of_prompt": 8}, "labels", "share of positions with a label 0.5, then 1"),
        ({"scale": 4.0}, "loss", "sum of the labels' weights 4"),
        ({"held": slice(1, None)}, "model", "parameters that are trained 5,362, then 6,962"),
        ({"std": 2.0}, "model", "0.weight: rms at the start 2.0"),
    ],
)
def test_what_differs_first_is_named(baseline: Path, change: dict[str, Any], part: str, words: str) -> None:
    (finding,) = unlike(trained(baseline, 1, **change)[0])
    assert (finding.evidence["part"], finding.severity) == (part, "warning")
    assert words in finding.says


@pytest.mark.parametrize(
    ("change", "part", "words"),
    [
        ({"clip": 0.1}, "gradient", "clipped to 0.1, then 1"),
        ({"rate": 2e-3}, "update", "lr 0.002, then 0.001"),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_given_as_an_argument_is_a_notice(
    baseline: Path, change: dict[str, Any], part: str, words: str, seed: int
) -> None:
    (finding,) = unlike(trained(baseline, seed, **change)[0])
    assert (finding.evidence["part"], finding.severity) == (part, "notice")
    assert words in finding.says


def test_a_notice_is_said_in_one_line_at_the_end(baseline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(baseline, rate=2e-3, say=True)
    lines = [line for line in capsys.readouterr().err.splitlines() if "not-as-baseline" in line]
    assert len(lines) == 1
    assert lines[0].startswith("doctor: notice: not-as-baseline (step 1, all updates): the same gradients make other")
    assert "lr 0.002, then 0.001" in lines[0]


def test_a_file_that_is_not_there_is_said_to_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "loop.json"
    trained(file, say=True)
    said = f"doctor: there is no baseline at {file}: this run writes it, later ones are held against it\n"
    assert capsys.readouterr().err == said
    trained(file, say=True)
    assert capsys.readouterr().err == ""


def test_a_baseline_changes_nothing_of_the_training(baseline: Path) -> None:
    assert trained(baseline, 1)[1] == trained(None, 1)[1]


def test_the_facts_of_a_step_are_printed_by_part() -> None:
    doctor, _ = trained(None, of_prompt=8)
    said = str(doctor.facts)
    assert [line.split()[0] for line in said.splitlines()[1:] if line[2] != " "] == [
        "data", "model", "labels", "loss", "gradient", "update",
    ]  # fmt: skip
    assert "token taught" in said
    assert "the next" in said
    assert max(map(len, said.splitlines())) <= 80


def test_a_file_that_is_no_baseline_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "loop.json"
    with pytest.raises(ConfigError, match="holds no facts of a loop: name another file"):
        trained(tmp_path)
    for content in ("", "[]", '{"steps": {"a": []}}', '{"steps": {"1": [{"name": 3}]}}'):
        file.write_text(content)
        with pytest.raises(ConfigError, match="holds no facts of a loop: name another file"):
            trained(file)
