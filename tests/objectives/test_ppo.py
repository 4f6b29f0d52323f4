"""PPO with a value function: engine beside mathematics, its start by hand, recorded steps, and slips that are found."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.objectives.recorded_objective import CONFIG, opens, record
from tests.objectives.rollouts import rollouts

from limpid import maths
from limpid.config import TrainConfig
from limpid.data.batches import MicroBatch
from limpid.errors import CheckpointError
from limpid.model.linear import merge
from limpid.objectives import PPO, from_document, policy_terms, to_document
from limpid.objectives.losses import scored
from limpid.quantities import VALUE
from limpid.tracing.verify import verify_step
from limpid.training.state import State, fresh_state
from limpid.training.step import backward, step

VALUED = replace(CONFIG, model=replace(CONFIG.model, head="vocabulary_and_value"))
CHOICES = {
    "as by default": PPO(),
    "narrow": PPO(cliprange_value=0.05, vf_coef=0.5),
    "per answer, with a price": PPO(aggregation="sequence", beta=0.1, kl="k2", temperature=0.7),
    "of whole answers": PPO("product", "weight", epsilon_high=1.1, aggregation="fixed_length"),
}
EVERY = pytest.mark.parametrize("choice", CHOICES)


def rollouts_with_values(state: State, seed: int, count: int = 4) -> MicroBatch:
    """Answers of some time ago, whose values were 0, and what these are to be."""
    micro, rng = rollouts(state, seed, count), np.random.default_rng(seed + 200)
    returns = rng.standard_normal(micro["mask"].shape).astype(np.float32)
    return MicroBatch(micro.arrays | {"old_values": np.zeros_like(returns), "returns": returns}, micro.rows)


def drawn(state: State, seed: int, count: int = 4, drift: float = 0.3, config: TrainConfig = VALUED) -> MicroBatch:
    """Answers of some time ago, whose values have moved since, and what these are to be."""
    assert state.model.value is not None
    with torch.no_grad():
        generator = torch.Generator().manual_seed(5)
        state.model.value.weight.copy_(torch.randn(1, config.model.d_model, generator=generator) / 4)
    micro, rng = rollouts(state, seed, count, drift), np.random.default_rng(seed + 200)
    with torch.no_grad():
        hidden = state.model(torch.as_tensor(micro["tokens"]), form_logits=False)
        now = scored(hidden.stream, hidden.value_matrix).double().numpy()
    given = {
        "old_values": now + drift * rng.standard_normal(now.shape),
        "returns": now + rng.standard_normal(now.shape),
    }
    return MicroBatch(micro.arrays | {name: array.astype(np.float32) for name, array in given.items()}, micro.rows)


@EVERY
@pytest.mark.parametrize("path", ["fast", "plain"])
def test_every_gradient_is_the_mathematics(choice: str, path: Any) -> None:
    state, objective = fresh_state(VALUED), CHOICES[choice]
    micro = drawn(state, 1)
    weights = {name: parameter.detach().numpy().copy() for name, parameter in state.model.named_parameters()}
    (loss,) = backward(state, [micro], VALUED, objective, path)
    chain = maths.Chain({**weights, **micro.arrays})
    ours = chain.backward(objective.chain(chain, VALUED.model))
    assert float(loss.value) == pytest.approx(float(chain.values["loss"]), rel=1e-12)
    assert [link.name for link in chain.links] == [one.name for one in objective.quantities(VALUED.model)]
    assert (chain.values["clipped_values"] != chain.values["values"]).any()
    for name, parameter in state.model.named_parameters():
        size = np.abs(ours[name]).max()
        assert size > 0
        np.testing.assert_allclose(parameter.grad.numpy(), ours[name], rtol=0, atol=1e-12 * size, err_msg=name)


@EVERY
def test_micro_batches_add_up_to_the_step(choice: str) -> None:
    whole, parts, objective = fresh_state(VALUED), fresh_state(VALUED), CHOICES[choice]
    one, other = drawn(whole, 1, 1), drawn(whole, 2, 3)
    drawn(parts, 1)
    joined = MicroBatch({name: np.concatenate([one[name], other[name]]) for name in one.arrays})
    first, second = step(whole, [joined], VALUED, objective), step(parts, [one, other], VALUED, objective)
    assert first.loss == pytest.approx(second.loss, rel=1e-12)
    assert first.grad_norm == pytest.approx(second.grad_norm, rel=1e-9)
    assert first.metrics == pytest.approx(second.metrics, abs=1e-12)


def test_a_value_function_begins_at_0_and_moves_its_head_first() -> None:
    """It expects nothing; what it learns of the first step is no gradient of the policy's."""
    state = fresh_state(VALUED)
    assert not state.model.state_dict()[VALUE].any()
    micro = drawn(state, 1)
    returns, mask = micro["returns"].astype(np.float64), micro["mask"]
    with torch.no_grad():
        state.model.value.weight.zero_()
    given = {"old_values": np.zeros_like(returns), "advantages": np.zeros_like(returns)}
    (loss,) = backward(state, [MicroBatch({**micro.arrays, **given})], VALUED, PPO())
    mean = float((returns**2 * mask).sum() / mask.sum())
    assert float(loss.metrics["loss/value_avg"]) == pytest.approx(mean / 2, rel=1e-12)
    moved = {name for name, one in state.model.named_parameters() if one.grad is not None and one.grad.any()}
    assert moved == {VALUE}


def test_low_rank_factors_leave_the_head_trained_and_merge_leaves_it_out() -> None:
    state = fresh_state(replace(VALUED, model=replace(VALUED.model, lora_rank=2)))
    trained = {name for name, parameter in state.model.named_parameters() if parameter.requires_grad}
    assert VALUE in trained
    assert all(".lora_" in name for name in trained - {VALUE})
    config, weights = merge(state.model.config, dict(state.model.state_dict()))
    assert config == CONFIG.model
    assert VALUE not in weights


def test_a_model_without_a_value_function_is_refused() -> None:
    state, micro = fresh_state(CONFIG), drawn(fresh_state(VALUED), 1)
    with pytest.raises(CheckpointError, match="no value function: PPO trains a model with head vocabulary_and_value"):
        step(state, [micro], CONFIG, PPO())


def test_records_name_every_choice() -> None:
    objective = PPO("sequence", beta=0.1, vf_coef=0.3, cliprange_value=0.1, gamma=0.99, lam=0.9)
    assert from_document(to_document(objective)) == objective
    assert objective.fields[-3:] == ("reference_log_probabilities", "old_values", "returns")


OPENED = {"as by default": ("bf16", 2), "narrow": ("fp16", 1), "per answer, with a price": ("fp32", 2),
          "of whole answers": ("bf16", 1)}  # fmt: skip


@EVERY
def test_a_recorded_step_opens_and_agrees(choice: str, tmp_path: Path) -> None:
    precision, parts = OPENED[choice]
    report = verify_step(record(tmp_path, CHOICES[choice], drawn, precision, parts, VALUED))
    assert report.first_disagreement() is None
    assert report.agrees


def test_a_recorded_step_of_factors_opens_and_agrees(tmp_path: Path) -> None:
    factors = replace(VALUED, model=replace(VALUED.model, lora_rank=2))
    assert verify_step(record(tmp_path, PPO(), drawn, "bf16", 1, factors)).agrees


def test_everything_that_its_step_computed_is_explained(tmp_path: Path) -> None:
    opens(record(tmp_path, PPO(beta=0.1), drawn, "fp32", 2, VALUED))


Plant = Callable[[Any], Any]
FAULTS: dict[str, tuple[str, Plant, str]] = {
    "the value clipped the other way": (
        "clipped_values", lambda f: lambda v, old, r, c: 2 * v - f(v, old, r, c), "clipped_values"
    ),
    "half the range": ("clipped_values", lambda f: lambda v, old, r, c: f(v, old, r, c / 2), "clipped_values"),
    "returns one token late": ("value_losses", lambda f: lambda v, r: f(v, r.roll(1, -1)), "value_losses"),
    "the half forgotten": ("value_losses", lambda f: lambda v, r: 2 * f(v, r), "value_losses"),
    "a clip that lets the gradient through": (
        "clipped_values", lambda f: lambda v, old, r, c: v + (f(v, old, r, c) - v).detach(), "values"
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_slip_is_found_where_it_is(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    term, plant, blamed = FAULTS[fault]
    monkeypatch.setattr(policy_terms, term, plant(getattr(policy_terms, term)))
    found = verify_step(record(tmp_path, PPO(), drawn, "bf16", 1, VALUED)).first_disagreement()
    assert found is not None
    assert found.name == blamed


def test_a_value_read_one_token_late_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from limpid.objectives import losses

    def late(hidden: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        return scored(hidden, matrix).roll(1, -1)

    monkeypatch.setattr(losses, "scored", late)
    found = verify_step(record(tmp_path, PPO(), drawn, "bf16", 1, VALUED)).first_disagreement()
    assert found is not None
    assert found.name == "values"
