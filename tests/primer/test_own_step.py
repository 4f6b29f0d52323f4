"""Exercises with numbers of a recorded step, held against its trace."""

from pathlib import Path

import numpy as np
import pytest

import limpid
import small
from limpid.cli import main
from limpid.errors import ConfigError
from limpid.primer.exercises import EXERCISES
from limpid.primer.own_step import DRAWN, own_numbers
from limpid.tracing import Trace
from limpid.tracing.worked import opened


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    place = tmp_path_factory.mktemp("own")
    run = limpid.train(small.config(small.corpus(place / "text"), max_steps=4, eval_steps=0), str(place / "run"))
    return limpid.trace(run)


def answered(name: str, trace: Trace, seed: int) -> tuple[tuple[float, ...], str]:
    own = own_numbers(name, trace, seed)
    return EXERCISES[name].answer(own.numbers).values, own.where


@pytest.mark.parametrize("seed", range(3))
def test_shares_of_attention_are_those_of_the_trace(trace: Trace, seed: int) -> None:
    values, where = answered("softmax-of-scores", trace, seed)
    name, index = where.removesuffix("]").split("[")
    row, head, position, _ = index.split(", ")
    assert values == pytest.approx(trace.array(name, (int(row), int(head), int(position), slice(0, 3))), abs=5e-5)


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_of_a_token_is_that_of_the_trace(trace: Trace, seed: int) -> None:
    values, where = answered("surprise", trace, seed)
    index = tuple(map(int, where.split("[")[1].split("]")[0].split(", ")))
    assert values[0] == pytest.approx(-trace.array("log_probabilities", index).item(), rel=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_a_score_of_the_trace_is_the_dot_product_divided(trace: Trace, seed: int) -> None:
    values, where = answered("dot", trace, seed)
    row, head = map(int, where.split("[")[1].split(", ")[:2])
    score = trace.array(where.split("[")[0], (row, head, 2, 1)).item()
    assert values[0] / np.sqrt(8) == pytest.approx(score, rel=1e-3, abs=1e-5)


def test_sizes_are_those_of_the_trace(trace: Trace) -> None:
    every_query = trace.record.shape("before/blocks.0.attention.query.weight")
    assert answered("query-weights", trace, 0)[0] == (float(np.prod(every_query)),)
    _, heads, queries, keys = trace.array("blocks.0.attention.scores").shape
    assert answered("scores", trace, 0)[0] == (heads * queries * keys,)
    assert answered("causal-scores", trace, 0)[0] == (heads * queries * (keys + 1) // 2,)
    assert answered("perplexity", trace, 0)[0][0] == pytest.approx(np.exp(trace.array("loss").item()), rel=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_a_weight_of_the_trace_lies_between_numbers_so_far_apart(trace: Trace, seed: int) -> None:
    (gap,), where = answered("bfloat16-gap", trace, seed)
    row, column = map(int, where.split("[")[1].split("]")[0].split(", "))
    weight = abs(trace.array(where.split("[")[0], (row, column)).item())
    assert 2**7 <= weight / gap < 2**8
    (learned,), where = answered("low-rank-parameters", trace, seed)
    rows, columns = trace.array(where.partition(",")[0]).shape
    assert learned in (2 * (rows + columns), 4 * (rows + columns))
    assert answered("momentum-window", trace, seed)[0] == (pytest.approx(20),)


@pytest.mark.parametrize("name", DRAWN)
def test_the_worked_model_has_every_one_of_them(name: str) -> None:
    with opened() as worked:
        assert np.isfinite(answered(name, worked, 1)[0]).all()


def test_an_exercise_that_no_step_holds_says_which_do(trace: Trace) -> None:
    with pytest.raises(ConfigError, match="choose one of dot, layer-sizes"):
        own_numbers("length", trace, 0)


def test_from_the_shell(trace: Trace, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(Path(trace.record.path).parent.parent)
    assert main(["learn", "softmax-of-scores", "--of", run, "--seed", "1", "--solution"]) == 0
    said = capsys.readouterr().out
    assert "in the step: blocks." in said
    assert main(["learn", "softmax-of-scores", "--of", run, "--seed", "1", "--answer", "[1, 1, 1]"]) == 1
    assert main(["learn", "softmax-of-scores", "--step", "1"]) == 2
