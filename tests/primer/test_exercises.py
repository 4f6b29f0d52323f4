"""Every exercise: its first numbers, its draws, its slips."""

import math

import numpy as np
import pytest
from benchmarks.primer import typed

from limpid.primer.exercise import Answer, Exercise, numbers_of, separable, shown
from limpid.primer.exercises import EXERCISES
from limpid.primer.grade import PERHAPS, grade

FIRST = {  # worked out by hand
    "add-vectors": [6, 4, 1], "scale-vector": [6, -3, 12],
    "length": [7], "dot": [22], "right-angle": [0], "cosine": [0.96], "matrix-vector": [10, 6],
    "layer-sizes": [768, 512], "matrix-matrix": [4, 9, 3, 12], "transpose": [4, 15, 13],
    "product-shape": [3, 2], "product-order": [], "exponentials": [1, 2.71828, 0.36788],
    "undo-ln": [20.0855], "logs-add": [8], "log-laws": [4], "what-is-left": [0.05], "chain-of-tokens": [-2.00248],
    "conditional": [0.75], "turn-round": [0.155172], "interval": [0.682689],
    "temperature": [0.843795, 0.114195, 0.0420097], "gap": [7.38906],
    "softmax-of-equals": [1 / 3] * 3, "softmax-of-scores": [0.9999092, 4.5396e-5, 4.5396e-5], "surprise": [1.20397],
    "perplexity": [7.38906], "power-rule": [12], "gradient": [7, -5], "chain-of-two": [24], "backward-weight": [6, 12],
    "product-of-slopes": [0.0115292], "standard-deviation": [3],
    "standard-error": [2], "batch-noise": [0.5], "green-count": [3.464102], "cell-step": [2.6], "least-norm": [6, 8],
    "kernel-change": [-1], "gradient-step": [5.1],
    "size-of-a-gradient": [7e9], "query-weights": [589_824], "why-divide": [8], "scores": [80_000],
    "causal-scores": [40_400], "momentum-window": [100], "clip-factor": [1 / 7], "adamw-first-step": [0.595],
    "exponent-bias": [127], "largest-number": [65_504], "bfloat16-gap": [0.5],
    "training-flops": [4.2e22], "training-memory": [112], "cache-of-a-token": [327_680],
    "low-rank-parameters": [65_536], "reward-loss": [0.313262], "group-advantage": [1.5],
    "attend": [14.2479], "layer-norm": [-1.341641, -0.447214, 0.447214, 1.341641], "identity-path": [1.795856],
    "rotate": [0.133975, 2.232051], "same-distance": [9], "online-sum": [1.203003], "window-scores": [955],
}  # fmt: skip
SEEDS = range(1, 11)
EACH = pytest.mark.parametrize("exercise", EXERCISES.values(), ids=list(EXERCISES))


def test_first_numbers_have_the_answers_that_were_worked_out_by_hand() -> None:
    found = {name: list(one.answer(one.first).values) for name, one in EXERCISES.items()}
    assert found.keys() == FIRST.keys()
    for name, values in FIRST.items():
        assert found[name] == pytest.approx(values, rel=5e-5), name


@EACH
def test_the_right_answer_is_accepted_however_it_is_typed(exercise: Exercise) -> None:
    for seed in (0, *SEEDS):
        numbers = numbers_of(exercise, seed)
        right = exercise.answer(numbers)
        for text in (typed(right), str(right), typed(right, 12)):
            assert grade(exercise, numbers, text).outcome == "right", (seed, text)


@EACH
def test_every_slip_of_a_draw_is_named(exercise: Exercise) -> None:
    for seed in SEEDS:
        numbers = numbers_of(exercise, seed)
        assert separable(exercise, numbers)
        for slip, answer in exercise.wrong(numbers):
            judged = grade(exercise, numbers, typed(answer))
            assert (judged.outcome, judged.note) == ("slip", slip.note), (seed, answer)
            assert "{" not in judged.says


@EACH
def test_a_slip_never_tells_the_answer(exercise: Exercise) -> None:
    for seed in SEEDS:
        numbers = numbers_of(exercise, seed)
        right = exercise.answer(numbers)
        if right.form == "number" and abs(right.values[0]) > 12:
            assert all(
                str(right) not in slip.told(exercise.given(numbers), Answer((0.0,))) for slip in exercise.slips
            ), seed


@EACH
def test_wrong_numbers_are_rarely_taken_for_a_slip(exercise: Exercise) -> None:
    rng = np.random.Generator(np.random.PCG64(1))
    named = total = 0
    for seed in SEEDS:
        numbers = numbers_of(exercise, seed)
        right = exercise.answer(numbers)
        for _ in range(20 if right.values and right.form != "shape" else 0):
            values = tuple(x * math.exp(rng.normal()) + rng.normal() * (x == 0) for x in right.values)
            said = [typed(Answer(values, right.form), 4)]
            if all(x.is_integer() for x in right.values) and tuple(map(round, values)) != right.values:
                said.append(typed(Answer(tuple(map(float, map(round, values))), right.form)))
            judged = [grade(exercise, numbers, one) for one in said]
            named += sum(one.outcome == "slip" and not one.says.startswith(PERHAPS) for one in judged)
            total += len(said)
    assert named <= 0.02 * total


@EACH
def test_a_seed_has_the_same_numbers_everywhere(exercise: Exercise) -> None:
    once, again = numbers_of(exercise, 7), numbers_of(exercise, 7)
    assert exercise.question(once) == exercise.question(again)
    assert len({exercise.question(numbers_of(exercise, seed)) for seed in SEEDS}) > 3


@EACH
def test_the_solution_ends_at_the_answer(exercise: Exercise) -> None:
    for seed in (0, *SEEDS):
        numbers = numbers_of(exercise, seed)
        right = exercise.answer(numbers)
        if right.form == "number" and right.values[0] != 0:
            said = exercise.solution(*exercise.given(numbers))
            assert shown(right) in said or f"{right.values[0]:.3g}" in said or "billion" in said, said


def test_two_slips_at_once_are_both_named() -> None:
    exercise = EXERCISES["chain-of-tokens"]
    judged = grade(exercise, exercise.first, "0.667494")
    assert judged.note == "mean+sign"


def test_hints_come_one_by_one_with_wrong_answers() -> None:
    exercise = EXERCISES["length"]
    said = [grade(exercise, exercise.first, "5", tried).says for tried in range(4)]
    assert [hint in line for hint, line in zip((*exercise.hints, exercise.hints[-1]), said, strict=True)] == [True] * 4
