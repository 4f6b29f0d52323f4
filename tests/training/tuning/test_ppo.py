"""Runs of PPO: what values, returns and advantages of a draw are, and where the value function goes afterwards."""

from collections.abc import Callable

import numpy as np
import pytest
from safetensors.numpy import load_file

import limpid
from limpid.errors import LimpidError
from limpid.model.weights import load_weights
from limpid.quantities import VALUE
from limpid.run import Run
from limpid.source import find_model
from limpid.training.stored_batches import read_batch

FAST = {"learning_rate": 0.02, "warmup_steps": 0, "schedule": "constant"}


def test_a_draw_is_stored_with_what_its_tokens_were_worth(tuned: Callable[..., Run]) -> None:
    """GAE once more, answer by answer; the price of leaving is in the reward of each token."""
    rollouts = {"reward": ["rewards.py:digits"], "num_generations": 1, "num_iterations": 2}
    tune = {"rollouts": rollouts, "options": {"beta": 0.1, "gamma": 0.9, "lam": 0.8}}
    run = tuned("ppo", tune=tune, update=FAST, run={"max_steps": 4, "gradient_accumulation_steps": 2})
    micros = read_batch(run.path / "batches" / "000003.safetensors")
    names = ("mask", "old_log_probabilities", "reference_log_probabilities", "old_values", "returns", "advantages")
    arrays = {name: np.concatenate([micro[name] for micro in micros]).astype(float) for name in names}
    rewards, gae = np.concatenate([micro["rewards"] for micro in micros]), np.zeros(arrays["mask"].shape)
    assert arrays["old_values"].std() > 0
    for row, (mask, log_p, reference, values, returns, _) in enumerate(zip(*arrays.values(), strict=True)):
        places = np.flatnonzero(mask)
        following = advantage = 0.0
        for place in places[::-1]:
            earned = -0.1 * (log_p[place] - reference[place]) + (rewards[row] if place == places[-1] else 0.0)
            advantage = earned + 0.9 * following - values[place] + 0.9 * 0.8 * advantage
            following, gae[row, place] = values[place], advantage
        np.testing.assert_allclose(returns[places], (gae[row] + values)[places], atol=1e-6)
    there = arrays["mask"] > 0
    expected = (gae[there] - gae[there].mean()) / np.sqrt(gae[there].var(ddof=1) + 1e-8)
    np.testing.assert_allclose(arrays["advantages"][there], expected, atol=1e-5)
    assert not arrays["advantages"][~there].any()
    first, second, third, _ = run.read_metrics().steps
    assert [first[name] for name in ("ratio/min", "ratio/max", "val/clipfrac_avg", "values/mean")] == [1, 1, 0, 0]
    assert third["ratio/max"] == 1 < second["ratio/max"]
    returns, values = arrays["returns"][there], arrays["old_values"][there]
    assert third["explained_variance"] == pytest.approx(1 - (returns - values).var() / returns.var(), abs=1e-5)
    assert third["returns/mean"] == pytest.approx(returns.mean(), abs=1e-6)


def test_values_of_the_first_step_on_a_draw_have_not_moved_in_bf16(tuned: Callable[..., Run]) -> None:
    run = tuned("ppo", tune={"options": {"cliprange_value": 0.0}}, update=FAST, run={"precision": "bf16"})
    for line in run.read_metrics().steps:
        assert line["val/clipfrac_avg"] == 0
        assert line["ratio/min"] == line["ratio/max"] == 1


def test_a_value_function_stays_with_its_run(tuned: Callable[..., Run], capsys: pytest.CaptureFixture) -> None:
    """Who answers, exports or tunes to something else has the language model; PPO goes on with the value function."""
    run = tuned("ppo", model={"lora_rank": 2}, update=FAST)
    weights = load_file(run.checkpoint(3) / "model.safetensors")
    assert weights[VALUE].any()
    config, merged = load_weights(find_model(run.path))
    assert config.head == "vocabulary"
    assert VALUE not in merged
    assert not any("value.weight" in name.removeprefix("model.").split("layers")[0]
                   for name in load_file(run.model_folder / "model.safetensors"))  # fmt: skip
    assert limpid.export(run, "adapter", adapter=True).is_dir()
    more = tuned("ppo", "more", base=run)
    assert np.array_equal(load_file(more.checkpoint(0) / "model.safetensors")[VALUE], weights[VALUE])
    other = tuned("grpo", "other", base=run)
    assert other.read_config().model.head == "vocabulary"
    assert limpid.generate(run, "1+2=", max_new_tokens=2)


def test_text_alone_teaches_no_value_function(tuned: Callable[..., Run]) -> None:
    with pytest.raises(LimpidError, match="which this run would not train: it is for limpid tune ppo, or an objective"):
        tuned("sft", model={"head": "vocabulary_and_value"})
