"""The family of policy losses: engine beside mathematics, the start by hand, micro-batches, and every choice."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.objectives.recorded_objective import CONFIG
from tests.objectives.rollouts import rollouts

from limpid import maths
from limpid.data.batches import MicroBatch
from limpid.errors import ConfigError
from limpid.objectives import Policy, from_document, to_document
from limpid.objectives.answers import token_log_probabilities
from limpid.objectives.named import NAMED
from limpid.objectives.policy import OLD
from limpid.training.state import fresh_state
from limpid.training.step import backward, step
from limpid.training.tuning.reference import with_old_log_probabilities

ALONE = {name: named.objective for name, named in NAMED.items() if type(named.objective) is Policy}
"""Without a value function."""
CHOICES = {
    **ALONE,
    "k1": Policy(beta=0.1, kl="k1"),
    "k2 at another temperature": Policy(beta=0.1, kl="k2", temperature=0.7),
    "k3, as in the paper of GRPO": Policy(aggregation="sequence", beta=0.1, kl="k3"),
    "k3 and the ratio of the token": Policy(beta=0.1),
    "k3 and the ratio of the answer": Policy("product", "none", aggregation="fixed_length", beta=0.1),
    "weights and k3 with the ratio": Policy("sequence", "weight", epsilon_high=1.1, beta=0.1),
}


@pytest.mark.parametrize("path", ["fast", "plain"])
@pytest.mark.parametrize("choice", CHOICES)
def test_every_gradient_is_the_mathematics(choice: str, path: str) -> None:
    state, objective = fresh_state(CONFIG), CHOICES[choice]
    micro = rollouts(state, 1)
    weights = {name: parameter.detach().numpy().copy() for name, parameter in state.model.named_parameters()}
    (loss,) = backward(state, [micro], CONFIG, objective, path)
    chain = maths.Chain({**weights, **micro.arrays})
    ours = chain.backward(objective.chain(chain, CONFIG.model))
    assert float(loss.value) == pytest.approx(float(chain.values["loss"]), rel=1e-12)
    assert [link.name for link in chain.links] == [one.name for one in objective.quantities(CONFIG.model)]
    for name, parameter in state.model.named_parameters():
        size = np.abs(ours[name]).max()
        assert size > 0
        np.testing.assert_allclose(parameter.grad.numpy(), ours[name], rtol=0, atol=1e-12 * size, err_msg=name)


@pytest.mark.parametrize("choice", ["grpo", "dapo", "dr_grpo", "weights and k3 with the ratio"])
def test_micro_batches_add_up_to_the_step(choice: str) -> None:
    whole, parts, objective = fresh_state(CONFIG), fresh_state(CONFIG), CHOICES[choice]
    one, other = rollouts(whole, 1, 1), rollouts(whole, 2, 3)
    joined = MicroBatch({name: np.concatenate([one[name], other[name]]) for name in one.arrays})
    first, second = step(whole, [joined], CONFIG, objective), step(parts, [one, other], CONFIG, objective)
    assert first.loss == pytest.approx(second.loss, rel=1e-12)
    assert first.grad_norm == pytest.approx(second.grad_norm, rel=1e-9)
    assert first.metrics == pytest.approx(second.metrics, abs=1e-12)


@pytest.mark.parametrize("name", ALONE)
def test_what_was_just_drawn_has_ratio_1_and_teaches(name: str) -> None:
    state, objective = fresh_state(CONFIG), ALONE[name]
    micro = rollouts(state, 1, drift=0)
    tokens, targets = (torch.as_tensor(micro[one]) for one in ("tokens", "targets"))
    with torch.no_grad():
        now = token_log_probabilities(state.model, tokens, targets).log_probabilities.numpy()
    outcome = step(state, [MicroBatch({**micro.arrays, "old_log_probabilities": now})], CONFIG, objective)
    assert [outcome.metrics[f"ratio/{of}"] for of in ("mean", "min", "max")] == pytest.approx([1, 1, 1], rel=1e-14)
    assert not any(value for name, value in outcome.metrics.items() if "clip" in name)
    assert outcome.metrics["entropy"] > 0
    assert outcome.grad_norm > 1e-3


def test_an_answer_that_the_step_itself_drew_needs_no_old_log_probabilities() -> None:
    objective, batches = Policy(), {}
    micro = rollouts(fresh_state(CONFIG), 1, drift=0)
    alone = MicroBatch({name: array for name, array in micro.arrays.items() if name != OLD})
    batches["given"] = with_old_log_probabilities(alone, lambda: fresh_state(CONFIG).model, objective)
    batches["left out"] = alone
    first, second = (step(fresh_state(CONFIG), [one], CONFIG, objective) for one in batches.values())
    assert OLD in batches["given"].arrays
    assert second.loss == pytest.approx(first.loss, rel=1e-6)  # a batch holds float32
    assert second.grad_norm == pytest.approx(first.grad_norm, rel=1e-6)
    assert [second.metrics[f"ratio/{of}"] for of in ("mean", "min", "max")] == [1, 1, 1]


def test_an_answer_without_tokens_counts_as_an_answer_and_adds_nothing() -> None:
    state = fresh_state(CONFIG)
    micro = rollouts(state, 1)
    cut = micro["mask"].copy()
    cut[1] = 0
    left = {name: np.delete(array, 1, 0) for name, array in micro.arrays.items()}
    objective = Policy("sequence", aggregation="sequence")
    (all_four,) = backward(state, [MicroBatch({**micro.arrays, "mask": cut})], CONFIG, objective)
    (three,) = backward(state, [MicroBatch(left)], CONFIG, objective)
    assert float(all_four.value) == pytest.approx(0.75 * float(three.value), rel=1e-12)


def test_records_name_every_choice() -> None:
    objective = Policy("sequence", "weight", epsilon_high=4.0, beta=0.1, kl="k2", max_completion_length=7)
    assert from_document(to_document(objective)) == objective
    assert "reference_log_probabilities" in objective.fields
    assert "reference_log_probabilities" not in replace(objective, beta=0).fields


@pytest.mark.parametrize(("name", "value"), [("kl", "k4"), ("beta", -1), ("epsilon", -0.1), ("clip", "dual")])
def test_a_choice_that_there_is_not_is_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value!r}"):
        Policy(**{name: value})  # type: ignore[arg-type]
