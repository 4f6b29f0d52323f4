"""Parameters that are not trained: no gradient, no moments, and no step moves them; models that stand beside."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from limpid import maths
from limpid.config import ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.data.batches import MicroBatch
from limpid.errors import ConfigError
from limpid.quantities import parameters, trained_parameters
from limpid.run import Run
from limpid.tracing.verify import verify_step
from limpid.training import checkpoint
from limpid.training.record import record_step
from limpid.training.state import fresh_state
from limpid.training.step import step
from limpid.training.update import read_moments

FROZEN = ("embed.*", "blocks.0.*")
MODEL = ModelConfig(vocab_size=23, d_model=16, num_layers=2, num_heads=2, context_length=12)


def configured(optimizer: str = "adamw", precision: str = "fp64") -> TrainConfig:
    return TrainConfig(
        MODEL,
        update=UpdateConfig(optimizer=optimizer, warmup_steps=1, frozen=FROZEN),
        run=RunConfig(precision=precision, max_steps=6, batch_size=2),
    )


def batch(number: int) -> list[MicroBatch]:
    tokens = torch.randint(0, 23, (2, 13), generator=torch.Generator().manual_seed(number)).numpy()
    return [MicroBatch({"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}, (0, 1))]


def weights(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: tensor.detach().double().numpy().copy() for name, tensor in model.named_parameters()}


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "momentum", "sgd"])
def test_only_what_is_trained_moves_and_as_in_the_mathematics(optimizer: str) -> None:
    config = configured(optimizer)
    state = fresh_state(config)
    before = weights(state.model)
    moments = {name: tensor.double().numpy() for name, tensor in
               read_moments(state.model, state.optimizer, config.update).items()}  # fmt: skip
    (micro,) = batch(1)
    ours = maths.step(before, moments, micro.arrays, config, 1)
    outcome = step(state, [micro], config)
    trained = {one.name for one in trained_parameters(config)}
    assert outcome.grad_norm == pytest.approx(ours.grad_norm, rel=1e-9)
    for name, after in weights(state.model).items():
        assert np.array_equal(after, before[name]) == (name not in trained), name
        # Muon's five products run in bfloat16 in the engine
        np.testing.assert_allclose(ours.parameters[name], after, atol=2e-3 if optimizer == "muon" else 1e-12)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_with_frozen_parameters_resumes_bit_for_bit(optimizer: str, tmp_path: Path) -> None:
    config = configured(optimizer, "fp32")
    run, state = Run(tmp_path), fresh_state(config)
    for number in (1, 2):
        step(state, batch(number), config)
    checkpoint.save(run, state, config, "data")
    resumed = fresh_state(config)
    checkpoint.load(run, 2, resumed, config)
    assert step(state, batch(3), config) == step(resumed, batch(3), config)
    for one, other in zip(state.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_with_frozen_parameters_opens(precision: str, tmp_path: Path) -> None:
    config = configured(precision=precision)
    state = fresh_state(config)
    record_step(tmp_path / "step.safetensors", state, batch(1), config, run="frozen", token_text=str)
    report = verify_step(tmp_path / "step.safetensors")
    assert report.first_disagreement() is None
    assert set(report.update.rules) == {one.name for one in trained_parameters(config)}


def test_a_reference_beside_the_model_is_saved_and_read_back(tmp_path: Path) -> None:
    config = configured(precision="fp32")
    run, state = Run(tmp_path), fresh_state(config)
    state.models["reference"] = copy.deepcopy(state.model)
    with torch.no_grad():
        state.models["reference"].output_matrix.add_(1)
    step(state, batch(1), config)
    checkpoint.save(run, state, config, "data")
    resumed = fresh_state(replace(config, run=replace(config.run, seed=7)))
    resumed.models["reference"] = copy.deepcopy(resumed.model)
    checkpoint.load(run, 1, resumed, config)
    for role in ("policy", "reference"):
        for one, other in zip(state.models[role].parameters(), resumed.models[role].parameters(), strict=True):
            assert torch.equal(one, other)
    assert not torch.equal(state.models["reference"].output_matrix, state.model.output_matrix)


def test_a_pattern_that_fits_nothing_and_one_that_fits_all_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"frozen names 'blocks\.9\.\*', which no parameter is called"):
        parameters(MODEL, ("blocks.9.*",))
    with pytest.raises(ConfigError, match="leaves no parameter to train"):
        parameters(MODEL, ("*",))
