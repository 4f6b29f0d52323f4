"""What answers are worth: functions of the user's, and what becomes of a run when they fail."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import limpid
from limpid.errors import ConfigError, DataError, LimpidError
from limpid.run import Run
from limpid.training.tuning.rewards import find_rewards

SOURCE = """
def right(completions, answer):
    return [float(c == a) for c, a in zip(completions, answer)]

def raises(completions):
    raise KeyError("score")

def short(completions):
    return [1.0]

def words(completions):
    return ["good" for _ in completions]

def endless(completions):
    return [float("inf") for _ in completions]

def everything(prompts, completions, **columns):
    return [len(columns) for _ in completions]

number = 3
"""


@pytest.fixture
def written(here: Path) -> Path:
    file = here / "judge.py"
    file.write_text(SOURCE)
    return file


def given(name: str, *weights: float) -> np.ndarray:
    rewards = find_rewards([f"judge.py:{one}" for one in name.split()], weights)
    return rewards(["p", "q"], ["1", "2"], ([(1,), (2,)], [(3,), (4,)]), {"answer": ["1", "3"]})


def test_several_rewards_are_added_up_by_their_weights(written: Path) -> None:
    rewards = find_rewards(["judge.py:right", "judge.py:everything"], [2.0, 0.5])
    each = rewards(["p", "q"], ["1", "2"], ([], []), {"answer": ["1", "3"]})
    assert each.tolist() == [[1, 0], [3, 3]]  # answer, and the tokens of both
    assert rewards.total(each).tolist() == [3.5, 1.5]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", r"reward raises raised KeyError at judge.py:6: .*mend it"),
        ("short", r"reward short returned \[1.0\] for 2 completions: expected one number, or None, for each"),
        ("words", "reward words gave completion 0 'good': expected a number of at most 1e.30, or None"),
        ("endless", "reward endless gave completion 0 inf: expected a number of at most 1e.30, or None"),
    ],
)
def test_what_is_no_reward_is_named(written: Path, name: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        given(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("judge.py:wrong", "has no function 'wrong'; it has right, raises"),
        ("judge.py:number", "has no function 'number'"),
        ("nowhere.py:right", "there is no file nowhere.py"),
        ("no_such_module:right", "cannot be imported .ModuleNotFoundError"),
        ("judge", "expected module:function, file.py:function, or a reward model"),
    ],
)
def test_what_cannot_be_found_is_named(written: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        find_rewards([name], [])
    assert "\n" not in str(caught.value)


def test_a_run_that_dies_in_a_reward_goes_on_where_it_was(tuned: Callable[..., Run], here: Path) -> None:
    rollouts = {"rollouts": {"reward": ["fickle.py:judge"], "num_generations": 2}}
    healthy = "def judge(completions):\n    return [float(len(one)) for one in completions]\n"
    broken = healthy.replace(
        "    return", "    import os\n    if os.path.exists('broken'): raise ValueError('no')\n    return"
    )
    (here / "fickle.py").write_text(broken)

    class Breaks(limpid.Callback):
        def on_step(self, run: Run, outcome: object) -> None:
            if outcome.number == 2:
                (here / "broken").touch()

    base, records = here / "runs" / "base", here / "prompts.jsonl"
    options = {"max_completion_length": 4}
    asked = {"tune": {**rollouts, "options": options},
             "run": {"max_steps": 4, "batch_size": 4, "save_steps": 0, "eval_steps": 0, "doctor": False,
                     "threads": 1, "precision": "fp32"}}  # fmt: skip
    tuned("grpo", "whole", tune={**rollouts, "options": options}, run={"max_steps": 4})
    with pytest.raises(DataError, match="reward judge raised ValueError"):
        limpid.tune("grpo", base, records, asked, "dies", callbacks=[Breaks()])
    died = Run(here / "runs" / "dies")
    assert died.latest_checkpoint() == 2
    (here / "broken").unlink()
    limpid.resume(died)
    losses = [[line["loss"] for line in Run(here / "runs" / name).read_metrics().steps] for name in ("whole", "dies")]
    assert losses[0] == losses[1]


def test_a_policy_without_a_reward_is_refused_before_anything_is_made(tuned: Callable[..., Run], here: Path) -> None:
    (here / "asks.py").write_text("def judge(completions, gold): return [0.0] * len(completions)\n")
    with pytest.raises(LimpidError, match="reward judge asks for 'gold': there are answer, completion_ids"):
        tuned("grpo", "none", tune={"rollouts": {"reward": ["asks.py:judge"]}})
    for asked in ("reference", "teacher"):
        tune = {asked: "nosuch"} if asked == "reference" else {"rollouts": {asked: "nosuch"}}
        with pytest.raises(LimpidError, match=f"--{asked} nosuch: "):
            tuned("dpo" if asked == "reference" else "distill", "none", tune=tune)
    with pytest.raises(LimpidError, match="max_steps and epochs both say how long"):
        tuned("sft", "none", tune={"epochs": 1.0})
    with pytest.raises(LimpidError, match="grpo learns from a reward: name one with --reward"):
        tuned("grpo", "none", tune={"rollouts": {"num_generations": 3}})
    assert not (here / "runs" / "none").exists()
    with pytest.raises(LimpidError, match="distill imitates a teacher"):
        tuned("distill", "none", tune={"rollouts": {}})
    with pytest.raises(LimpidError, match="num_generations is 1: rloo compares the answers"):
        tuned("rloo", "none", tune={"rollouts": {"reward": ["rewards.py:digits"], "num_generations": 1}})
    assert not (here / "runs" / "none").exists()


def test_the_mean_reward_is_that_of_answers_that_have_one(tuned: Callable[..., Run]) -> None:
    """In training and on held-out prompts alike."""
    run = tuned("grpo", tune={"rollouts": {"reward": ["rewards.py:undecided"], "num_generations": 3}})
    assert {line["reward"] for line in run.read_metrics().steps} == {1.0}
    assert run.read_metrics().evaluations[-1]["eval_reward"] == 1


@pytest.mark.parametrize("objective", ["grpo", "rloo", "reinforce_plus_plus", "ppo"])
def test_answers_without_any_reward_move_nothing(tuned: Callable[..., Run], here: Path, objective: str) -> None:
    """Neither a step nor an evaluation has a number that is none."""
    (here / "none.py").write_text("def never(completions):\n    return [None for _ in completions]\n")
    run = tuned(objective, tune={"rollouts": {"reward": ["none.py:never"], "num_generations": 3}})
    assert all(math.isfinite(value) for line in run.read_metrics().steps for value in line.values())
    assert {line["grad_norm_before_clip"] for line in run.read_metrics().steps} == {0.0}
    assert not run.read_metrics().evaluations


def test_one_answer_to_a_prompt_is_enough_where_no_group_is_compared(tuned: Callable[..., Run]) -> None:
    rollouts = {"reward": ["rewards.py:digits"], "num_generations": 1}
    assert limpid.trace(tuned("reinforce_plus_plus", tune={"rollouts": rollouts})).step.verdict.agrees


@pytest.mark.parametrize(
    ("objective", "tune", "said"),
    [
        ("sft", {"reference": "base"}, "reference is base, but sft holds the model near to none"),
        ("dpo", {"rollouts": {"num_generations": 4}}, "rollouts are for objectives that learn from the model's own"),
        ("grpo", {"rollouts": {"teacher": "base", "reward": ["rewards.py:digits"]}}, "grpo imitates none: use distill"),
        ("dpo", {"options": {"bet": 0.1}}, "unknown option tune.options.bet: did you mean beta"),
        ("dpo", {"options": {"beta": -1}}, "tune.options.beta is -1: it must be above 0|beta is -1"),
    ],
)
def test_options_of_another_objective_are_refused(
    tuned: Callable[..., Run], here: Path, objective: str, tune: dict, said: str
) -> None:
    with pytest.raises(LimpidError, match=said):
        tuned(objective, "none", tune=tune)
    assert not (here / "runs" / "none").exists()
