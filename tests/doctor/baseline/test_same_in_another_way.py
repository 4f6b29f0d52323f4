"""What is equal to rounding is equal: other ways to write or to compute the same loop bring no finding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from doctor.baseline.small_gpt import Decoder, OwnNorm, Renamed, Wrapped, one_by_one, redrawn, split, trained, unlike

WAYS: dict[str, dict[str, Any]] = {
    "the same": {},
    "two threads": {"threads": 2},
    "attention by hand": {"make": lambda: Decoder(by_hand=True)},
    "another norm's code": {"make": lambda: Decoder(norm=OwnNorm)},
    "checkpointing": {"make": lambda: Decoder(again=True)},
    "a wrapper": {"wrap": Wrapped},
    "other names": {"wrap": Renamed},
    "three maps for one": {"wrap": split},
    "one by one": {"optimizer": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)},
    "fused": {"optimizer": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)},
    "a loss by hand": {"loss": lambda z, y: -z.log_softmax(-1).gather(-1, y[..., None]).mean()},
    "a sum that is divided": {
        "loss": lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten(), reduction="sum") / y.numel()
    },
    "random numbers that nothing uses": {"drawn": 5},
    "evaluations": {"evaluate": 2},
    "ids in 32 bits": {"ids": torch.int32},
    "a pair reported": {"batch": "pair"},
    "names reported": {"batch": "named"},
    "a group for each": {"optimizer": one_by_one},
    "gradients of zero": {"to_none": False},
}
ROUNDED_OTHERWISE = [
    "the same", "attention by hand", "another norm's code", "checkpointing", "three maps for one", "one by one",
    "fused", "a loss by hand",
]  # fmt: skip
"""What is looked at in bfloat16 too: the others compute the same numbers."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("loops")
    files = {"float32": folder / "float32.json", "bfloat16": folder / "bfloat16.json", "parts": folder / "parts.json"}
    trained(files["float32"])
    trained(files["bfloat16"], half=True)
    trained(files["parts"], micros=4)
    return files


@pytest.mark.parametrize(
    ("way", "form"), [*((way, "float32") for way in WAYS), *((way, "bfloat16") for way in ROUNDED_OTHERWISE)]
)
def test_no_finding(kept: dict[str, Path], way: str, form: str) -> None:
    doctor, _ = trained(kept[form], half=form == "bfloat16", **WAYS[way])
    assert doctor.watched.baseline.is_alike
    assert not unlike(doctor)


def test_micro_batches_in_another_order(kept: dict[str, Path]) -> None:
    doctor, _ = trained(kept["parts"], micros=4, order=-1)
    assert doctor.watched.baseline.is_alike
    assert not unlike(doctor)


def test_another_number_of_micro_batches_is_a_setting(kept: dict[str, Path]) -> None:
    doctor, _ = trained(kept["float32"], micros=4)
    assert doctor.watched.baseline.is_alike
    (finding,) = unlike(doctor)
    assert finding.severity == "notice"
    assert "forward passes of an update 4, then 1" in finding.says


def test_a_loss_that_is_scaled_and_gradients_that_are_scaled_back_are_a_notice(kept: dict[str, Path]) -> None:
    doctor, _ = trained(kept["float32"], scale=1024.0)
    assert doctor.watched.baseline.is_alike
    (finding,) = unlike(doctor)
    assert finding.severity == "notice"
    assert "Nothing that is learned differs." in finding.says


def test_weights_that_are_drawn_otherwise_are_another_run(kept: dict[str, Path]) -> None:
    doctor, _ = trained(kept["float32"], wrap=redrawn)
    assert not doctor.watched.baseline.is_alike
    assert not unlike(doctor)


def test_another_seed_is_another_run(kept: dict[str, Path]) -> None:
    for seed in (1, 2, 3):
        doctor, _ = trained(kept["float32"], seed=seed)
        assert not doctor.watched.baseline.is_alike
        assert not unlike(doctor)


def test_another_seed_is_another_run_where_random_numbers_are_seeded_anew(kept: dict[str, Path]) -> None:
    again: dict[str, Any] = {"seed": 1, "before": lambda model: torch.manual_seed(0)}
    trained(kept["float32"].with_name("again.json"), before=again["before"])
    assert not unlike(trained(kept["float32"].with_name("again.json"), **again)[0])


def test_masks_that_are_drawn_elsewhere_are_told_as_that(tmp_path: Path) -> None:
    loop: dict[str, Any] = {"make": lambda: Decoder(drop=0.1)}
    trained(tmp_path / "loop.json", **loop)
    assert not unlike(trained(tmp_path / "loop.json", **loop)[0])
    (finding,) = unlike(trained(tmp_path / "loop.json", drawn=3, **loop)[0])
    assert finding.severity == "notice"
    assert "random numbers were used elsewhere" in finding.says


def test_nothing_of_the_training_changes(kept: dict[str, Path], tmp_path: Path) -> None:
    def state(losses: list[float]) -> tuple[list[float], Tensor]:
        return losses, torch.get_rng_state()

    plain = state(trained(None)[1])
    for held in (state(trained(tmp_path / "new.json")[1]), state(trained(kept["float32"])[1])):
        assert plain[0] == held[0]
        assert torch.equal(plain[1], held[1])
