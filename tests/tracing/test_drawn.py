"""Advantages of drawn answers, derived a second time from the rewards that are stored with them."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from limpid.config import TuneConfig
from limpid.config.tuning import KINDS
from limpid.objectives.tuned import TUNED, objective_of
from limpid.tracing.drawn import check_drawn, drawn_links
from limpid.tracing.entries import Reader, derive_entry
from limpid.training.tuning import advantages as engine

COUNT, ANSWERS, LENGTH = 4, 12, 9
OWN = [name for name, kind in KINDS.items() if kind == "prompts"]


def drawn(objective: str, rng: np.random.Generator, beta: float = 0.2) -> SimpleNamespace:
    """The batch of a recorded step, with what the engine made of its rewards."""
    method = TUNED[objective].policy
    priced = {"beta": beta} if method is not None and method.kl_in_reward else {}
    tune = TuneConfig(objective=objective, rollouts={"num_generations": COUNT}, options=priced)
    begins, ends = rng.integers(0, 4, ANSWERS), rng.integers(4, LENGTH + 1, ANSWERS)
    mask = np.array([(np.arange(LENGTH) >= a) & (np.arange(LENGTH) < b) for a, b in zip(begins, ends, strict=True)])
    mask[5] = False  # without a reward
    rewards = rng.integers(0, 4, ANSWERS).astype(np.float32) / np.float32(3)
    rewards[:COUNT] = rewards[0]  # alike
    old, reference = (-rng.exponential(2, mask.shape).astype(np.float32) for _ in range(2))
    arrays = {
        "rewards": rewards, "mask": mask.astype(np.float32), "old_log_probabilities": old,
        "reference_log_probabilities": reference, "old_values": rng.normal(size=mask.shape).astype(np.float32),
    }  # fmt: skip
    given = engine.Drawn(
        rewards.astype(np.float64).reshape(-1, COUNT), arrays["mask"], old, reference, arrays["old_values"]
    )
    made = engine.advantages(given, method, priced.get("beta", 0.0), objective_of(tune))
    arrays |= {name: array.astype(np.float32) for name, array in made.items()}
    return recorded(tune, arrays)


def recorded(tune: TuneConfig, arrays: dict[str, np.ndarray]) -> Any:
    return SimpleNamespace(
        config=SimpleNamespace(tune=tune),
        objective=objective_of(tune),
        names={f"batch/{name}" for name in arrays},
        stored=lambda name: arrays[name.removeprefix("batch/")],
        exact=lambda name: arrays[name.removeprefix("batch/")].astype(np.float64),
        arrays=arrays,
    )


@pytest.mark.parametrize("objective", OWN)
def test_both_derivations_agree(objective: str, rng: np.random.Generator) -> None:
    for _ in range(5):
        checks = list(check_drawn(drawn(objective, rng)))
        assert [check.name for check in checks] == ["advantages", *(["returns"] if objective == "ppo" else [])]
        assert all(check.holds for check in checks), checks


@pytest.mark.parametrize("objective", OWN)
@pytest.mark.parametrize("entry", ["smallest", "largest"])
def test_a_number_that_was_made_otherwise_is_found(objective: str, entry: str, rng: np.random.Generator) -> None:
    record = drawn(objective, rng)
    found = record.arrays["advantages"]
    there = np.argwhere(found != 0)
    order = np.argsort(np.abs(found[found != 0]))
    at = tuple(there[order[0 if entry == "smallest" else -1]])
    found[at] += 1e-4
    (check,) = (check for check in check_drawn(record) if not check.holds)
    assert check.index == at


@pytest.mark.parametrize(
    ("objective", "slip"),
    [
        ("grpo", {"EPS": 1e-3}), ("grpo", {"group_advantages": "biased"}), ("dr_grpo", {"group_advantages": "whole"}),
        ("rloo", {"leave_one_out_advantages": "with itself"}), ("ppo", {"whitened": "not at all"}),
    ],
    ids=["eps", "the deviation divided by n", "the mean of the batch", "the mean with itself", "not whitened"],
)  # fmt: skip
def test_a_slip_of_the_engine_is_found(
    objective: str, slip: dict[str, Any], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {
        "biased": lambda r, **_: (r - r.mean(-1, keepdims=True)) / (r.std(-1, keepdims=True) + 1e-4),
        "whole": lambda r, **_: r - r.mean(),
        "with itself": lambda r: r - r.mean(-1, keepdims=True),
        "not at all": lambda x, mask: x,
    }
    for name, wrong in slip.items():
        monkeypatch.setattr(engine, name, SimpleNamespace(function=others[wrong]) if wrong in others else wrong)
    assert not all(check.holds for check in check_drawn(drawn(objective, rng)))


@pytest.mark.parametrize("objective", OWN)
def test_every_entry_is_written_out_with_its_rewards(objective: str, rng: np.random.Generator) -> None:
    record = drawn(objective, rng, beta=0.0)
    method = TUNED[objective].policy
    learned = [tuple(int(i) for i in one) for one in np.argwhere(record.arrays["mask"] > 0)]
    for link in drawn_links(record):
        inputs = [record.exact(f"batch/{name}") for name in link.inputs]
        reader = Reader(partial(_part, inputs), partial(_shape, inputs), len(inputs))
        for at in [(5, 5), *learned[::7]]:
            entry = derive_entry(link.operation, at, reader)
            assert entry.value == pytest.approx(record.arrays[link.name][at], abs=1e-5)
            if method is None or at == (5, 5):
                continue
            assert link.inputs[entry.sources[0].place] == "rewards"
            assert entry.sources[0].index == at[:1]
            if method.advantage in ("group", "group_mean", "leave_one_out"):
                assert [one.index[0] // COUNT for one in entry.sources] == [at[0] // COUNT] * COUNT
                assert sum(one.share for one in entry.sources) == pytest.approx(entry.value, abs=1e-5)


def _part(inputs: list[np.ndarray], place: int, key: tuple[Any, ...]) -> np.ndarray:
    return inputs[place][key]


def _shape(inputs: list[np.ndarray], place: int) -> tuple[int, ...]:
    return inputs[place].shape
