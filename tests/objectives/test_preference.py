"""DPO through the whole seam: engine beside mathematics, the start by hand, micro-batches, a recorded step."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from planted import FAULTS, Result, disagreements, pinned, planted

from limpid import maths
from limpid.data.batches import MicroBatch
from limpid.model.kernels.token_log_probabilities import TokenLogProbabilities
from limpid.objectives import DPO, NEXT_TOKEN, from_document, to_document
from limpid.tracing.verify import verify_step
from limpid.training.state import State, fresh_state
from limpid.training.step import backward, step
from objectives.recorded_objective import CONFIG, answers, log_probabilities, record

OBJECTIVE = DPO(beta=0.3)


def pairs(state: State, seed: int, count: int = 2) -> MicroBatch:
    """Chosen, rejected, chosen, …; the reference is the model as it stands."""
    arrays = answers(seed, 2 * count)
    reference = log_probabilities(state, arrays)
    arrays |= {"reference_chosen": reference[0::2], "reference_rejected": reference[1::2]}
    return MicroBatch(arrays, tuple(range(2 * count)))


def test_a_policy_that_is_its_reference_has_the_loss_ln_2_and_learns() -> None:
    state = fresh_state(CONFIG)
    micro = pairs(state, 1)
    first, second = (step(state, [micro], CONFIG, OBJECTIVE) for _ in range(2))
    assert first.loss == pytest.approx(math.log(2), rel=1e-12)
    assert first.metrics["rewards/margins"] == pytest.approx(0, abs=1e-12)
    assert second.loss < first.loss
    assert second.metrics["rewards/margins"] > 0


@pytest.mark.parametrize("path", ["fast", "plain"])
def test_every_gradient_is_the_mathematics(path: str) -> None:
    state = fresh_state(CONFIG)
    micro, generator = pairs(state, 1), torch.Generator().manual_seed(2)
    with torch.no_grad():  # away from the reference
        for parameter in state.model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    weights = {name: parameter.detach().numpy().copy() for name, parameter in state.model.named_parameters()}
    (loss,) = backward(state, [micro], CONFIG, OBJECTIVE, path)
    chain = maths.Chain({**weights, **micro.arrays})
    ours = chain.backward(OBJECTIVE.chain(chain, CONFIG.model))
    assert float(loss.value) == pytest.approx(float(chain.values["loss"]), rel=1e-12)
    for name, parameter in state.model.named_parameters():
        np.testing.assert_allclose(parameter.grad.numpy(), ours[name], rtol=1e-9, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("objective", [NEXT_TOKEN, OBJECTIVE], ids=lambda objective: objective.name)
def test_the_chain_forms_what_the_objective_says(objective) -> None:
    state = fresh_state(CONFIG)
    weights = {name: parameter.detach().numpy() for name, parameter in state.model.named_parameters()}
    chain = maths.Chain({**weights, **pairs(state, 1).arrays})
    objective.chain(chain, CONFIG.model)
    assert [link.name for link in chain.links] == [one.name for one in objective.quantities(CONFIG.model)]


def test_micro_batches_add_up_to_the_step() -> None:
    whole, parts = fresh_state(CONFIG), fresh_state(CONFIG)
    one, other = pairs(fresh_state(replace(CONFIG, run=replace(CONFIG.run, seed=5))), 1, 1), pairs(whole, 2, 3)
    joined = MicroBatch({name: np.concatenate([one[name], other[name]]) for name in OBJECTIVE.fields})
    first, second = step(whole, [joined], CONFIG, OBJECTIVE), step(parts, [one, other], CONFIG, OBJECTIVE)
    assert first.loss == pytest.approx(second.loss, rel=1e-12)
    assert first.grad_norm == pytest.approx(second.grad_norm, rel=1e-9)
    for name, value in first.metrics.items():
        assert second.metrics[name] == pytest.approx(value, abs=1e-12)


def test_records_name_the_objective() -> None:
    assert from_document(to_document(OBJECTIVE)) == OBJECTIVE
    assert from_document({"name": "next_token"}) == NEXT_TOKEN


@pytest.mark.parametrize(("precision", "parts"), [("fp32", 1), ("bf16", 2), ("fp16", 1)])
def test_a_recorded_step_opens_and_agrees(precision: str, parts: int, tmp_path: Path) -> None:
    assert verify_step(record(tmp_path, OBJECTIVE, pairs, precision, parts)).first_disagreement() is None


KERNEL = {
    "forward": Result(TokenLogProbabilities, "forward", 0, "", ("token_log_probabilities forward",)),
    "hidden": Result(TokenLogProbabilities, "backward", 0, "", ("final_norm backward",)),
    "matrix": Result(TokenLogProbabilities, "backward", 1, "", ("embed.tokens.weight backward",)),
}


@pytest.mark.parametrize(("result", "fault"), [(name, fault) for name in KERNEL for fault in FAULTS])
def test_a_fault_of_the_kernel_is_found_and_pinned(result: str, fault: str, tmp_path: Path) -> None:
    with planted(KERNEL[result], FAULTS[fault]):
        found = disagreements(record(tmp_path, OBJECTIVE, pairs, "bf16"))
    assert pinned(KERNEL[result], found), found
