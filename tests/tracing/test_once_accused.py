"""Honest configurations that were accused before their bounds were right."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.honest import accused
from recorded import configuration, record

from limpid.tracing import verify_step

SEEDS = {
    5: "PyTorch's Adam forms β₁ from 1 - β₁",
    129: "squares of a layer norm overflow",
    265: "float16 gradients of three heads that share a key, below its normal numbers",
    429: "dropout enlarges a float16 gradient beyond its format before it drops it",
    514: "squares of gradients below float32, and ε = 0",
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIMPID_CACHE", str(tmp_path))
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("seed", SEEDS, ids=SEEDS.get)
def test_a_draw_is_accused_no_more(seed: int) -> None:
    assert accused(seed) == []


@pytest.mark.parametrize(
    ("precision", "model", "update"),
    [
        ("fp32", {}, {"optimizer": "momentum", "beta1": 0.0}),  # PyTorch keeps no buffer
        ("bf16", {"context_length": 64, "d_model": 48, "init_std": 1.0}, {}),  # its products flush 10⁻³⁸ to 0
        ("fp64", {"rotary_scaling": "yarn", "rotary_factor": 8.0, "rotary_base": 50.0, "context_length": 33}, {}),
    ],
)
def test_a_step_is_accused_no_more(precision: str, model: dict, update: dict, tmp_path: Path) -> None:
    config = configuration("llama", precision)
    config = replace(config, model=replace(config.model, **model), update=replace(config.update, **update))
    assert verify_step(record(tmp_path, config, before=1)).first_disagreement() is None
