"""Exercises with numbers of a recorded step, held against its trace."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.primer import typed
from tests.objectives import test_preference, test_reward
from tests.objectives.recorded_objective import record

import limpid
import small
from limpid.cli import main
from limpid.errors import ConfigError
from limpid.objectives import Reward
from limpid.primer.asked import exercise
from limpid.primer.exercise import apart
from limpid.primer.exercises import EXERCISES
from limpid.primer.grade import Key, grade
from limpid.primer.own.draw import Own
from limpid.primer.own.step import DRAWN, WITHOUT, agrees, own_numbers
from limpid.tracing import Trace
from limpid.tracing.worked import opened

OTHER = {"norm": "layer", "positions": "learned", "mlp": "plain", "activation": "relu2", "norm_placement": "post",
         "num_kv_heads": 1}  # fmt: skip
WIDE = {"num_heads": 1, "d_model": 32, "qk_norm": True, "attention_window": 5, "num_layers": 1, "tied": True}
RUNS = {
    "rotary": {},
    "other": {"model": OTHER, "update": {"optimizer": "sgd"}, "precision": "bf16", "batch_size": 4},
    "wide": {"model": WIDE},
    "dropped": {"model": {"dropout": 0.1, "tied": True}},
    "low rank": {"model": {"lora_rank": 2}},
    "learned": {"max_steps": 40, "update": {"learning_rate": 0.02}},
}
TUNED = {"reward": (Reward(), test_reward), "dpo": (test_preference.DPOS["sigmoid"], test_preference)}
STEPS = [*RUNS, "worked", *TUNED]
SEEDS = range(5)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Trace]]:
    """Steps of several configurations, early and late, of several objectives."""
    place, made = tmp_path_factory.mktemp("own"), {}
    for name, given in RUNS.items():
        config = small.config(small.corpus(place / "text"), **({"max_steps": 4, "eval_steps": 0} | given))
        made[name] = limpid.trace(limpid.train(config, str(place / name)))
    for name, (objective, of) in TUNED.items():
        (place / name).mkdir()
        given = replace(test_reward.RATING) if name == "reward" else test_reward.CONFIG
        made[name] = Trace.open(record(place / name, objective, of.drawn, "fp32", config=given))
    with ExitStack() as stack:
        yield made | {"worked": stack.enter_context(opened())}


REFUSED = {
    "window-scores": {*STEPS} - {"wide"},
    "rotate": {"other", "worked"}, "same-distance": {"other", "worked"},
    "reward-loss": {*STEPS} - {"reward", "dpo"}, "group-advantage": {*STEPS} - {"reward"},
    "adamw-first-step": {*STEPS} - {"worked"}, "batch-noise": {"other", "worked"},
    "largest-number": {"worked"}, "conditional": {"worked", "reward"}, "online-sum": {"worked"}, "attend": {"dropped"},
    "right-angle": {"reward"}, "turn-round": {*STEPS} - {"learned", "other"},
}  # fmt: skip
"""What a step cannot have: a window, all its weights, rotary positions, rewards, a first update, more tokens."""
OF_TEXT = {
    "surprise", "undo-ln", "logs-add", "log-laws", "chain-of-tokens", "perplexity", "standard-deviation",
    "standard-error", "conditional", "turn-round", "kernel-change",
}  # fmt: skip
"""What asks for probabilities of tokens."""


def refused(name: str, step: str) -> bool:
    return step in REFUSED.get(name, ()) or (step == "reward" and name in OF_TEXT)


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("step", STEPS)
def test_the_answer_is_what_the_step_has(traces: dict[str, Trace], step: str, name: str) -> None:
    trace, exercise = traces[step], EXERCISES[name]
    for seed in SEEDS:
        if refused(name, step):
            with pytest.raises(ConfigError):
                own_numbers(name, trace, seed)
            continue
        own = own_numbers(name, trace, seed)
        assert own.held or exercise.answer(own.numbers).form == "undefined"
        assert agrees(name, own, 2.0**-8 if step == "other" else 0.0)
        assert own.of.endswith(".")
        if own.entry is not None:
            array, index = own.entry.partition("[")[::2]
            assert trace.array(array, tuple(map(int, index.rstrip("]").split(", "))) if index else ()).size
        assert exercise.question(own.numbers)
        assert exercise.solved(own.numbers)
        assert grade(exercise, own.numbers, typed(exercise.answer(own.numbers))).outcome == "right"


def test_every_exercise_has_numbers_of_a_step_or_a_reason_why_none_has() -> None:
    assert DRAWN.keys() | WITHOUT.keys() == EXERCISES.keys()
    assert not DRAWN.keys() & WITHOUT.keys()


@pytest.mark.parametrize("name", WITHOUT)
def test_what_no_step_holds_is_told_why(traces: dict[str, Trace], name: str) -> None:
    with pytest.raises(ConfigError, match=WITHOUT[name]):
        own_numbers(name, traces["rotary"], 0)


def test_another_seed_is_another_place(traces: dict[str, Trace]) -> None:
    found = {own_numbers("softmax-of-scores", traces["rotary"], seed).where for seed in SEEDS}
    assert len(found) > len(SEEDS) / 2
    assert own_numbers("dot", traces["rotary"], 3).where == own_numbers("dot", traces["rotary"], 3).where


def entry(trace: Trace, said: str) -> float:
    """An entry as a solution names it: `name[1, 2]`."""
    name, index = said.strip().removesuffix("]").rsplit("[", 1)
    return trace.array(name, tuple(map(int, index.split(", ")))).item()


def answered(name: str, trace: Trace, seed: int) -> tuple[tuple[float, ...], Own]:
    own = own_numbers(name, trace, seed)
    return EXERCISES[name].answer(own.numbers).values, own


@pytest.mark.parametrize("seed", range(4))
def test_the_named_entry_is_the_one_that_has_the_answer(traces: dict[str, Trace], seed: int) -> None:
    trace = traces["rotary"]
    (mixed,), own = answered("attend", trace, seed)
    assert mixed == pytest.approx(entry(trace, own.where), rel=5e-3, abs=1e-6)
    (ratio,), own = answered("gap", trace, seed)
    first, second = own.where.split(" / ")
    assert ratio == pytest.approx(entry(trace, first) / entry(trace, second), rel=1e-3)
    (left,), own = answered("what-is-left", trace, seed)
    assert left == pytest.approx(entry(trace, own.where), abs=1e-5)
    (total,), own = answered("online-sum", trace, seed)
    assert total == pytest.approx(1 / entry(trace, own.where.removeprefix("1 / ")), rel=1e-3)
    turned, own = answered("rotate", trace, seed)
    first, second = own.where.split(" and [… ")
    other = f"{first.rsplit(', ', 1)[0]}, {second}"
    assert turned == pytest.approx([entry(trace, first), entry(trace, other)], rel=2e-3, abs=1e-5)
    (logarithm,), own = answered("chain-of-tokens", trace, seed)
    assert logarithm == pytest.approx(sum(entry(trace, one) for one in own.where.split(" + ")), rel=1e-4)
    (loss,), own = answered("surprise", trace, seed)
    assert loss == pytest.approx(-entry(trace, own.where.removesuffix(", times −1")), rel=1e-3)
    (score,), own = answered("dot", trace, seed)
    assert score / np.sqrt(8) == pytest.approx(entry(trace, own.where.removesuffix(" · √8")), rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_a_first_update_is_that_of_the_trace(traces: dict[str, Trace], seed: int) -> None:
    worked = traces["worked"]
    (after,), own = answered("adamw-first-step", worked, seed)
    name, index = own.where.split(")")
    assert after == pytest.approx(entry(worked, f"{name}){index}"), abs=1e-6)
    with pytest.raises(ConfigError, match="this step is update 4 by adamw"):
        own_numbers("adamw-first-step", traces["rotary"], seed)


@pytest.mark.parametrize("step", STEPS)
def test_every_slip_that_shows_itself_in_a_step_is_named(traces: dict[str, Trace], step: str) -> None:
    named = 0
    for name in DRAWN:
        if refused(name, step):
            continue
        exercise, own = EXERCISES[name], own_numbers(name, traces[step], 1)
        key = Key(exercise, own.numbers)
        for way in key.ways:
            others = [key.right, *(one.made for one in key.ways if one is not way)]
            if all(apart(exercise, way.made, other) for other in others):
                assert key.grade(typed(way.made)).note == way.note, (name, way.made)
                named += 1
    assert named > 50


def test_by_one_call_in_a_notebook(traces: dict[str, Trace]) -> None:
    trace = traces["rotary"]
    asked = exercise("dot", seed=5, of=trace)
    assert asked.question.startswith("a is the query of token 2, b the key of token 1, head")
    assert asked.judged(asked.answer).outcome == "right"
    assert asked.said == f"dot --of {trace.record.path} --seed 5"
    assert exercise("dot", seed=5).said == "dot --seed 5"
    assert exercise("derive", seed=5).said == "derive --seed 5"
    for of, name, why in (
        ("last", "dot", "of is 'last'"),
        (trace, "derive", "of is given"),
        (None, "dott", "mean dot"),
    ):
        with pytest.raises(ConfigError, match=why):
            exercise(name, seed=5, of=of)


def test_from_the_shell(traces: dict[str, Trace], capsys: pytest.CaptureFixture[str]) -> None:
    run = str(Path(traces["rotary"].record.path).parent.parent)
    assert main(["learn", "softmax-of-scores", "--of", run, "--seed", "1", "--solution"]) == 0
    said = capsys.readouterr().out
    assert "Scores of token 2 with tokens 0 to 2, head" in said
    assert "in the step: blocks." in said
    again = said.splitlines()[0].split()
    assert main(["learn", *again, "--solution"]) == 0
    assert capsys.readouterr().out == said
    assert main(["learn", "softmax-of-scores", "--of", run, "--seed", "1", "--answer", "[1, 1, 1]"]) == 1
    assert main(["learn", "softmax-of-scores", "--step", "1"]) == 2
