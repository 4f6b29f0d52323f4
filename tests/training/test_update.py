"""Update rules as the engine runs them: PyTorch's without its compiler, Muon in batches, two as one, runs resume."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from limpid.config import ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.data.batches import MicroBatch
from limpid.run import Run
from limpid.training import checkpoint, optimizers
from limpid.training.muon import Muon
from limpid.training.state import fresh_state
from limpid.training.step import step
from limpid.training.update import clip, update

SHAPES = [(12, 12)] * 3 + [(30, 12)] * 2 + [(12, 30), (7, 5), (1, 9)]


def moved(kind: type[torch.optim.Optimizer], steps: int = 3, **options: object) -> list[nn.Parameter]:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    optimizer = kind(parameters, lr=0.03, weight_decay=0.2, **options)
    for _ in range(steps):
        for parameter in parameters[:-1]:  # the last one never has a gradient
            parameter.grad = torch.randn(parameter.shape)
        optimizer.step()
    return parameters


@pytest.mark.parametrize(("name", "options"), [("AdamW", {"fused": True}), ("Adam", {"fused": True}), ("SGD", {})])
def test_without_the_compiler_an_optimizer_moves_as_pytorchs(name: str, options: dict[str, bool]) -> None:
    ours, theirs = (moved(getattr(module, name), **options) for module in (optimizers, torch.optim))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert not any(parameter.grad_fn for parameter in ours)


def test_a_run_that_compiles_nothing_never_loads_the_compiler(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sees the dog and the dog sees the cat\n" * 200)
    run = f"""
import sys
from limpid.cli import main
sys.argv = ["limpid", "train", {str(text)!r}, "--name", {str(tmp_path / "run")!r}, "--tokenizer", "bytes",
    "--d-model", "16", "--num-layers", "1", "--num-heads", "2", "--context-length", "16", "--max-steps", "4"]
main()
assert (loaded := "torch._dynamo" in sys.modules) is False, loaded
parts = ("fsdp", "tensor", "checkpoint")  # one process pays for no other
assert not [part for part in parts if f"torch.distributed.{{part}}" in sys.modules]
"""
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "findings.jsonl").is_file()  # the doctor watched


def test_muon_in_batches_is_pytorchs_but_for_rounding() -> None:
    alike = {"adjust_lr_fn": "match_rms_adamw"}
    for ours, theirs in zip(moved(Muon, **alike), moved(torch.optim.Muon, **alike), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-3)


CONFIG = TrainConfig(
    ModelConfig(vocab_size=23, d_model=16, num_layers=2, num_heads=2, context_length=12, qk_norm=True, tied=False),
    update=UpdateConfig(optimizer="muon", warmup_steps=1, weight_decay=0.3),
    run=RunConfig(precision="fp32", max_steps=6, batch_size=2),
)


def batch(number: int) -> list[MicroBatch]:
    tokens = torch.randint(0, 23, (2, 13), generator=torch.Generator().manual_seed(number)).numpy()
    return [MicroBatch({"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}, (0, 1))]


def test_muon_leaves_tables_gains_and_the_output_matrix_to_adamw() -> None:
    state = fresh_state(CONFIG)
    step(state, batch(1), CONFIG)
    kinds = {name: set(state.optimizer.state[p]) for name, p in state.model.named_parameters()}
    assert kinds["blocks.1.mlp.up.weight"] == {"momentum_buffer"}
    for name in ("embed.tokens.weight", "logits.weight", "blocks.0.norm1.weight", "blocks.0.attention.key_norm.weight"):
        assert kinds[name] == {"step", "exp_avg", "exp_avg_sq"}


def test_two_rules_follow_one_learning_rate() -> None:
    state = fresh_state(CONFIG)
    for number in (1, 2, 3):
        outcome = step(state, batch(number), CONFIG)
        assert {group["lr"] for group in state.optimizer.param_groups} == {outcome.learning_rate}
        assert {group["lr"] for part in state.optimizer.parts for group in part.param_groups} == {outcome.learning_rate}


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "momentum"])
def test_a_run_goes_on_from_its_checkpoint_bit_for_bit(optimizer: str, tmp_path: Path) -> None:
    config = TrainConfig(CONFIG.model, update=UpdateConfig(optimizer=optimizer, warmup_steps=1), run=CONFIG.run)
    run, state = Run(tmp_path), fresh_state(config)
    for number in (1, 2, 3):
        step(state, batch(number), config)
    checkpoint.save(run, state, config, "data")
    resumed = fresh_state(config)
    checkpoint.load(run, 3, resumed, config)
    for number in (4, 5):
        assert step(state, batch(number), config) == step(resumed, batch(number), config)
    for ours, theirs in zip(state.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_an_infinite_norm_of_finite_gradients_moves_nothing_in_float16() -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    model.weight.grad = torch.full((1, 2), 3e38)  # the sum of their squares overflows float32
    scaler.scale(torch.ones(()))
    norm = clip(model, optimizer, scaler, 1.0)
    before = model.weight.detach().clone()
    assert norm == math.inf
    assert not update(optimizer, scaler, 0.1, finite=math.isfinite(norm))
    assert torch.equal(model.weight, before)
    assert not optimizer.state


@pytest.mark.parametrize("kind", [optimizers.AdamW, optimizers.Adam])
def test_whether_gradients_are_finite_may_lie_on_the_device(kind: type[torch.optim.Optimizer]) -> None:
    """The kernel asks a tensor, so that nobody waits for it: it moves what a number would, and nothing if it is not."""
    pairs = []
    for on_device in (True, False):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(5, 3))
        optimizer = kind([weight], lr=0.1, fused=True)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        for finite in (True, False, True):
            weight.grad = torch.randn(5, 3) * (1.0 if finite else math.nan)
            assert update(optimizer, scaler, 0.1, finite=torch.tensor(finite) if on_device else finite) is finite
        pairs.append((weight, *(optimizer.state[weight][name] for name in ("exp_avg", "exp_avg_sq", "step"))))
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)  # the tail of an array may be rounded otherwise
