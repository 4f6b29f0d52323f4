"""From the same seed a change is named where it is: the first tensor that differs though all before it is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import limpid
from doctor.baseline.small_gpt import Decoder, adamw, cross_entropy, trained, unlike


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return 2 * gradients[0]


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return Twice.apply(nn.functional.gelu(x))


def swap(place: str, module: nn.Module) -> Any:
    def change(model: nn.Module) -> None:
        owner, _, name = place.rpartition(".")
        setattr(model.get_submodule(owner), name, module)

    return change


def scaled(name: str, by: float, at: int = 0) -> Any:
    def change(model: nn.Module, step: int = 0) -> None:
        if step == at:
            with torch.no_grad():
                model.get_parameter(name).mul_(by)

    return change


def frozen(model: nn.Module) -> None:
    model.get_parameter("pos.weight").requires_grad_(False)


def only_vectors(model: nn.Module) -> torch.optim.Optimizer:
    groups = [{"params": [p for p in model.parameters() if (p.ndim > 1) == two]} for two in (True, False)]
    groups[1]["lr"] = 5e-4  # type: ignore[assignment]
    return torch.optim.AdamW(groups, lr=1e-3)


CHANGES: list[tuple[dict[str, Any], str, str, str]] = [
    ({"before": scaled("blocks.1.attn.qkv.weight", 2.0)}, "model", "blocks.1.attn.qkv.weight", "2 times what it was"),
    ({"before": swap("blocks.1.mlp.1", nn.ReLU())}, "model", "blocks.1.mlp.1", "its output differs"),
    ({"before": swap("blocks.1.ln2", nn.Identity())}, "model", "blocks.1.ln2", "its output differs"),
    ({"make": lambda: Decoder(drop=0.1)}, "model", "blocks.0.attn", "drop 0.1, then 0.0"),
    ({"shift": 0}, "labels", "target of cross_entropy", "though ids and the weights are as they were"),
    ({"shift": 0, "batch": "named"}, "labels", "target of cross_entropy", "the batch differs"),
    ({"loss": lambda z, y: 2 * cross_entropy(z, y)}, "loss", "the loss", "outputs and labels have another loss"),
    ({"loss": lambda z, y: cross_entropy(z / 2, y)}, "loss", "cross_entropy", "0.5 times what it was"),
    (
        {"loss": lambda z, y: cross_entropy(z, y) + (z.detach() - z).mean()},
        "loss", "the loss", "the same loss has another gradient at the model's output",
    ),
    ({"before": swap("blocks.0.mlp.1", Doubled())}, "gradient", "blocks.0.mlp.1", "output of blocks.0.mlp.0 differs"),
    ({"before": frozen}, "model", "pos.weight", "requires no gradient, then it did"),
    ({"optimizer": only_vectors}, "update", "blocks.0.ln1.weight", "0.5 times what they were"),
    ({"after": scaled("head.weight", 0.5, at=4)}, "model", "model", "the weights are others than the update before"),
]  # fmt: skip


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loops") / "loop.json"
    trained(path)
    return path


@pytest.mark.parametrize(("change", "part", "where", "words"), CHANGES)
def test_a_change_is_named_where_it_is(
    baseline: Path, change: dict[str, Any], part: str, where: str, words: str
) -> None:
    (finding,) = unlike(trained(baseline, **change)[0])
    assert finding.severity == "warning"
    assert (finding.evidence["part"], finding.where) == (part, where)
    assert words in finding.says


def test_what_changes_at_a_later_step_is_told_there(baseline: Path) -> None:
    (finding,) = unlike(trained(baseline, after=scaled("head.weight", 0.5, at=4))[0])
    assert finding.step == 5


class Parts(nn.ModuleDict):
    """A model that is never called as a whole."""


def in_parts(baseline: Path | None, clip_apart: bool = True, bias: float = 0.0) -> Any:
    torch.manual_seed(0)
    model = Parts({"actor": nn.Linear(6, 5), "critic": nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with limpid.watch(model, optimizer, say=False, baseline=baseline) as doctor:
        for _ in range(8):
            states = torch.randn(16, 6)
            loss = model["actor"](states).logsumexp(-1).mean() + (model["critic"](states) - 20 - bias).square().mean()
            optimizer.zero_grad()
            loss.backward()
            for part in model.values() if clip_apart else (model,):
                nn.utils.clip_grad_norm_(part.parameters(), 0.1)
            optimizer.step()
            doctor.step(loss)
    return doctor


def test_parts_of_a_model_may_be_called_alone(tmp_path: Path) -> None:
    path = tmp_path / "loop.json"
    in_parts(path)
    assert not unlike(in_parts(path))
    assert in_parts(path).watched.baseline.is_alike
    (finding,) = unlike(in_parts(path, clip_apart=False))
    assert (finding.step, finding.evidence["part"]) == (1, "gradient")
    (finding,) = unlike(in_parts(path, bias=1.0))
    assert (finding.step, finding.evidence["part"]) == (1, "loss")


def test_calls_of_modules_are_as_they_were_when_the_loop_is_done(baseline: Path) -> None:
    before = nn.Module.__call__
    trained(baseline)
    trained(baseline, steps=1)
    assert nn.Module.__call__ is before


def test_a_rate_that_is_given_is_a_notice(baseline: Path) -> None:
    twice = {"optimizer": lambda model: torch.optim.AdamW(model.parameters(), lr=2e-3)}
    (finding,) = unlike(trained(baseline, **twice)[0])
    assert finding.severity == "notice"
    assert "2 times what they were" in finding.says
    assert "lr 0.002, then 0.001" in finding.says
    assert adamw(Decoder()).defaults["lr"] == 1e-3


def test_of_several_runs_one_that_is_the_same_is_enough(baseline: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    trained([baseline, other], seed=1)
    assert other.exists()
    for seed in (0, 1):
        doctor, _ = trained([baseline, other], seed=seed)
        assert doctor.watched.baseline.is_alike
        assert not unlike(doctor)


def test_the_file_is_small(baseline: Path) -> None:
    assert baseline.stat().st_size < 200_000
