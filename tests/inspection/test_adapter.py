"""What low-rank factors have learned, on changes whose answer is known."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from limpid.cli import main
from limpid.config import ModelConfig
from limpid.inspection.adapter import inspect_adapter, measured
from limpid.model import Transformer, initialise
from limpid.model.export import save_folder
from limpid.model.peft_files import save_adapter

SIZES = ModelConfig(vocab_size=23, d_model=16, num_layers=2, num_heads=4, context_length=12)


def orthogonal(rng: np.random.Generator, rows: int) -> np.ndarray:
    return np.linalg.qr(rng.normal(size=(rows, rows)))[0]


def test_a_change_along_the_base_lies_in_its_leading_directions(rng: np.random.Generator) -> None:
    left, right, values = orthogonal(rng, 6), orthogonal(rng, 5), np.array([5.0, 3.0, 2.0, 1.0, 0.5])
    base = left[:, :5] * values @ right.T
    along = measured("w", torch.tensor(base), torch.tensor(0.1 * left[:, :2] * values[:2] @ right[:, :2].T), 2)
    assert along.in_leading == pytest.approx(1)
    assert along.amplification == pytest.approx(0.1)
    assert along.spectrum.values == pytest.approx([0.5, 0.3])
    assert along.relative == pytest.approx(np.sqrt(0.25 + 0.09) / np.linalg.norm(values))
    away = measured("w", torch.tensor(base), torch.tensor(3.0 * left[:, 3:4] @ right[:, 3:4].T), 1)
    assert away.in_leading == pytest.approx(0, abs=1e-20)
    assert away.amplification == pytest.approx(3.0)
    none = measured("w", torch.tensor(base), torch.zeros(6, 5), 2)
    assert (none.relative, none.amplification, none.in_leading, none.spectrum.effective_rank) == (0, 0, 0, 0)


def test_a_change_without_relation_lies_there_by_chance(rng: np.random.Generator) -> None:
    shares = []
    for _ in range(60):
        base, change = rng.normal(size=(20, 12)), rng.normal(size=(20, 4)) @ rng.normal(size=(4, 12))
        found = measured("w", torch.tensor(base), torch.tensor(change), 4)
        shares.append(found.in_leading)
    assert abs(np.mean(shares) - found.by_chance) < 4 * np.std(shares) / np.sqrt(len(shares))


def test_an_adapter_is_shown_and_a_model_without_one_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    config = replace(SIZES, lora_rank=2, lora_targets=("attention.query", "mlp.up"))
    model = initialise(Transformer(config), 0)
    with torch.no_grad():
        model.get_parameter("blocks.1.mlp.up.lora_b.weight").fill_(0.5)
    base = {name: one for name, one in model.state_dict().items() if ".lora_" not in name}
    save_folder(Path("base"), SIZES, base, tokenizer_json=None, end_of_text=None)
    save_adapter(Path("adapter"), config, model.state_dict(), "base")
    assert main(["inspect", "base+adapter", "--adapter"]) == 0
    shown = capsys.readouterr().out
    assert "factors of rank 2, s = 8" in shown
    assert len([line for line in shown.splitlines() if line.startswith("  blocks.")]) == 4
    assert main(["inspect", "adapter", "--adapter", "--json"]) == 0
    maps = {one["name"]: one for one in json.loads(capsys.readouterr().out)["maps"]}
    up = model.blocks[1].mlp.up
    change = 8 * up.lora_b.weight.detach().double() @ up.lora_a.weight.detach().double()
    assert maps["blocks.1.mlp.up.weight"]["norm"] == pytest.approx(float(change.norm()), rel=1e-6)
    assert maps["blocks.0.mlp.up.weight"]["norm"] == 0
    assert "<table" in inspect_adapter("base+adapter")._repr_html_()
    for words, said in (
        (["base", "--adapter"], "base has no low-rank factors"),
        (["adapter", "--adapter", "--text", "a"], "--adapter looks at weights alone: leave out --text"),
    ):
        assert main(["inspect", *words]) == 2
        assert said in capsys.readouterr().err
