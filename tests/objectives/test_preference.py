"""Preference objectives through the whole seam: engine beside mathematics, the start by hand, recorded steps."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from planted import FAULTS, Result, disagreements, pinned, planted
from tests.objectives.recorded_objective import CONFIG, answers, log_probabilities, moved, opens, record

from limpid import maths
from limpid.data.batches import MicroBatch
from limpid.errors import ConfigError
from limpid.model.kernels.token_log_probabilities import TokenLogProbabilities
from limpid.objectives import DPO, KTO, NEXT_TOKEN, Objective, from_document, to_document
from limpid.quantities import NO_LABEL
from limpid.tracing.verify import verify_step
from limpid.training.state import State, fresh_state
from limpid.training.step import backward, step

DPOS = {
    "sigmoid": DPO(beta=0.3),
    "smoothed": DPO(beta=0.3, label_smoothing=0.1),
    "reference-free": DPO(reference_free=True),
    "sigmoid_norm": DPO(loss_type="sigmoid_norm", beta=2.0),
    "sigmoid_norm, reference-free": DPO(loss_type="sigmoid_norm", beta=2.0, reference_free=True),
    "hinge": DPO(loss_type="hinge"),
    "ipo": DPO(loss_type="ipo"),
    "ipo_sum": DPO(loss_type="ipo_sum", beta=0.3),
    "robust": DPO(loss_type="robust", label_smoothing=0.2),
    "forward_kl": DPO(f_divergence_type="forward_kl"),
    "js_divergence": DPO(f_divergence_type="js_divergence", loss_type="ipo"),
    "alpha_divergence": DPO(f_divergence_type="alpha_divergence", f_alpha_divergence_coef=0.3),
    "reverse_kl by its α": DPO(f_divergence_type="alpha_divergence", f_alpha_divergence_coef=1.0),
}
KTOS = {"kto": KTO(beta=0.3, desirable_weight=1.3, undesirable_weight=0.7)}
OBJECTIVES: dict[str, Objective] = {**DPOS, **KTOS}
EVERY = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)


def drawn(state: State, seed: int, count: int = 2) -> MicroBatch:
    """Chosen, rejected, chosen, …, for every objective on preferences; the reference is the model as it stands."""
    arrays, rng = answers(seed, 2 * count), np.random.default_rng(seed)
    reference = log_probabilities(state, arrays)
    arrays |= {
        "reference_chosen": reference[0::2], "reference_rejected": reference[1::2], "reference": reference,
        "desirable": rng.permutation(np.arange(2 * count) % 2), "baseline": np.full(2 * count, 0.4),
    }  # fmt: skip
    return MicroBatch(arrays, tuple(range(2 * count)))


def test_a_policy_that_is_its_reference_has_the_loss_ln_2_and_learns() -> None:
    state = fresh_state(CONFIG)
    micro = drawn(state, 1)
    first, second = (step(state, [micro], CONFIG, DPOS["sigmoid"]) for _ in range(2))
    assert first.loss == pytest.approx(math.log(2), rel=1e-12)
    assert first.metrics["rewards/margins"] == pytest.approx(0, abs=1e-12)
    assert first.metrics["logps/chosen"] == pytest.approx(micro["reference_chosen"].mean(), rel=1e-12)
    assert second.loss < first.loss
    assert second.metrics["rewards/margins"] > 0


AT_THE_START = {
    "sigmoid": math.log(2), "smoothed": math.log(2), "sigmoid_norm": math.log(2), "hinge": 1.0, "ipo": 25.0,
    "ipo_sum": 1 / (4 * 0.3**2), "robust": math.log(2), "forward_kl": math.log(2), "js_divergence": 25.0,
    "alpha_divergence": math.log(2), "kto": 0.5 * (1.3 + 0.7) / 2,
}  # fmt: skip


@pytest.mark.parametrize("name", AT_THE_START)
def test_the_loss_of_a_policy_that_is_its_reference_is_known(name: str) -> None:
    state = fresh_state(CONFIG)
    micro = drawn(state, 3)
    micro.arrays["baseline"][:] = 0
    (loss,) = backward(state, [micro], CONFIG, OBJECTIVES[name])
    assert float(loss.value) == pytest.approx(AT_THE_START[name], rel=1e-12)


def test_the_pull_at_the_start_is_half_of_beta() -> None:
    state, seen = fresh_state(CONFIG), {}

    def observe(name: str, value: torch.Tensor) -> torch.Tensor:
        if name.endswith("en_log_probabilities"):
            value.register_hook(lambda bar: seen.update({name: bar}))
        return value

    backward(state, [drawn(state, 1)], CONFIG, DPOS["sigmoid"], observe=observe)
    torch.testing.assert_close(2 * seen["chosen_log_probabilities"], torch.full((2,), -0.3 / 2, dtype=torch.float64))


@EVERY
@pytest.mark.parametrize("path", ["fast", "plain"])
def test_every_gradient_is_the_mathematics(objective: Objective, path: str) -> None:
    state = fresh_state(CONFIG)
    micro = drawn(state, 1)
    weights = moved(state)
    (loss,) = backward(state, [micro], CONFIG, objective, path)
    chain = maths.Chain({**weights, **micro.arrays})
    ours = chain.backward(objective.chain(chain, CONFIG.model))
    assert [link.name for link in chain.links] == [one.name for one in objective.quantities(CONFIG.model)]
    assert float(loss.value) == pytest.approx(float(chain.values["loss"]), rel=1e-12)
    for name, parameter in state.model.named_parameters():
        found, size = parameter.grad.numpy(), np.abs(ours[name]).max()
        np.testing.assert_allclose(found, ours[name], rtol=0, atol=1e-12 * size, err_msg=name)


@EVERY
def test_micro_batches_add_up_to_the_step(objective: Objective) -> None:
    whole, parts = fresh_state(CONFIG), fresh_state(CONFIG)
    other_state = fresh_state(replace(CONFIG, run=replace(CONFIG.run, seed=5)))
    one, other = drawn(other_state, 1, 1), drawn(other_state, 2, 3)
    joined = MicroBatch({name: np.concatenate([one[name], other[name]]) for name in objective.fields})
    first, second = step(whole, [joined], CONFIG, objective), step(parts, [one, other], CONFIG, objective)
    assert first.loss == pytest.approx(second.loss, rel=1e-12)
    assert first.grad_norm == pytest.approx(second.grad_norm, rel=1e-9)
    for name, value in first.metrics.items():
        assert second.metrics[name] == pytest.approx(value, abs=1e-12)


@EVERY
def test_records_name_the_objective(objective: Objective) -> None:
    assert from_document(to_document(objective)) == objective
    assert from_document({"name": "next_token"}) == NEXT_TOKEN


def test_a_metric_of_good_answers_is_left_out_where_there_is_none() -> None:
    state = fresh_state(CONFIG)
    micro = drawn(state, 1)
    micro.arrays["desirable"][:] = 0
    metrics = step(state, [micro], CONFIG, KTOS["kto"]).metrics
    assert set(metrics) == {"rewards/rejected", "logps/rejected", "kl", "entropy"}
    assert metrics["kl"] == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 0}, "beta is 0"),
        ({"loss_type": "simpo"}, "loss_type is 'simpo'"),
        ({"loss_type": "hinge", "label_smoothing": 0.1}, "knows of no wrong labels: choose one of sigmoid"),
        ({"loss_type": "robust", "label_smoothing": 0.5}, "takes less than 0.5"),
        ({"reference_free": True, "f_divergence_type": "forward_kl"}, "nothing to diverge from"),
    ],
)
def test_options_that_do_not_go_together_are_named(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DPO(**options)


@EVERY
def test_a_recorded_step_opens_and_agrees(objective: Objective, tmp_path: Path) -> None:
    precision = "bf16" if objective in (DPOS["sigmoid"], *KTOS.values()) else "fp32"
    assert verify_step(record(tmp_path, objective, drawn, precision)).first_disagreement() is None


@pytest.mark.parametrize("name", ["sigmoid", "ipo", "kto"])
def test_everything_that_its_step_computed_is_explained(name: str, tmp_path: Path) -> None:
    opens(record(tmp_path, OBJECTIVES[name], drawn, "fp32"))


@pytest.mark.parametrize(("precision", "parts"), [("fp32", 1), ("bf16", 2), ("fp16", 1)])
def test_a_recorded_step_agrees_in_every_precision(precision: str, parts: int, tmp_path: Path) -> None:
    assert verify_step(record(tmp_path, DPOS["sigmoid"], drawn, precision, parts)).first_disagreement() is None
    assert verify_step(record(tmp_path, KTOS["kto"], drawn, precision, parts)).first_disagreement() is None


@pytest.mark.parametrize("name", ["ipo", "kto"])
def test_a_micro_batch_of_answers_without_tokens_opens_too(name: str, tmp_path: Path) -> None:
    def sometimes_empty(state: State, seed: int) -> MicroBatch:
        arrays = dict(drawn(state, seed).arrays)
        if seed == 0:
            arrays |= {"mask": 0 * arrays["mask"], "targets": np.full_like(arrays["targets"], NO_LABEL)}
        return MicroBatch(arrays, (0, 1, 2, 3))

    assert verify_step(record(tmp_path, OBJECTIVES[name], sometimes_empty, "bf16", 2)).first_disagreement() is None


KERNEL = {
    "forward": Result(TokenLogProbabilities, "forward", 0, "", ("token_log_probabilities forward",)),
    "hidden": Result(TokenLogProbabilities, "backward", 0, "", ("final_norm backward",)),
    "matrix": Result(TokenLogProbabilities, "backward", 1, "", ("embed.tokens.weight backward",)),
}


@pytest.mark.parametrize(
    ("result", "fault"),
    [(name, fault) for name in KERNEL for fault in ("halved", "one entry 1% too large", "one row dropped")],
)
def test_a_fault_of_the_kernel_is_found_and_pinned(result: str, fault: str, tmp_path: Path) -> None:
    with planted(KERNEL[result], FAULTS[fault]):
        found = disagreements(record(tmp_path, DPOS["sigmoid"], drawn, "bf16"))
    assert pinned(KERNEL[result], found), found


@pytest.mark.parametrize("name", ["sigmoid", "hinge", "ipo", "robust", "kto"])
def test_the_loss_of_another_objective_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that goes on with β a tenth larger than the record says."""
    objective = OBJECTIVES[name]
    original = type(objective).loss

    def larger(self, *arguments):
        return original(replace(self, beta=1.1 * self.beta), *arguments)

    monkeypatch.setattr(type(objective), "loss", larger)
    check = verify_step(record(tmp_path, objective, drawn, "fp32")).first_disagreement()
    assert check is not None
    assert check.name in ("pair_losses", "answer_losses")
