"""Exercises with numbers of a recorded step, held against its trace."""

from pathlib import Path

import numpy as np
import pytest

import limpid
import small
from limpid.cli import main
from limpid.errors import ConfigError
from limpid.primer.exercises import EXERCISES
from limpid.primer.own_step import DRAWN, WITHOUT, own_numbers
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


def entry(trace: Trace, said: str) -> float:
    """An entry as a solution names it: `name[1, 2]`."""
    name, index = said.strip().removesuffix("]").rsplit("[", 1)
    return trace.array(name, tuple(map(int, index.split(", ")))).item()


@pytest.mark.parametrize("seed", range(4))
def test_numbers_of_attention_are_those_of_the_trace(trace: Trace, seed: int) -> None:
    (mixed,), where = answered("attend", trace, seed)
    assert mixed == pytest.approx(entry(trace, where), rel=5e-3, abs=1e-6)
    (ratio,), where = answered("gap", trace, seed)
    first, second = where.split(" / ")
    assert ratio == pytest.approx(entry(trace, first) / entry(trace, second), rel=1e-3)
    (left,), where = answered("what-is-left", trace, seed)
    assert left == pytest.approx(entry(trace, where), abs=1e-5)
    (total,), where = answered("online-sum", trace, seed)
    assert total == pytest.approx(1 / entry(trace, where.removeprefix("1 / ")), rel=1e-3)
    turned, where = answered("rotate", trace, seed)
    first, second = where.split(" and [… ")
    other = f"{first.rsplit(', ', 1)[0]}, {second}"
    assert turned == pytest.approx([entry(trace, first), entry(trace, other)], rel=2e-3, abs=1e-5)
    (logarithm,), where = answered("chain-of-tokens", trace, seed)
    assert logarithm == pytest.approx(sum(entry(trace, one) for one in where.split(" + ")), rel=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_a_first_update_is_that_of_the_trace(trace: Trace, seed: int) -> None:
    with opened() as worked:
        (after,), where = answered("adamw-first-step", worked, seed)
        name, index = where.split(")")
        assert after == pytest.approx(entry(worked, f"{name}){index}"), abs=1e-6)
    with pytest.raises(ConfigError, match="this step is update 4 by adamw"):
        own_numbers("adamw-first-step", trace, seed)


def test_more_sizes_are_those_of_the_trace(trace: Trace, tmp_path: Path) -> None:
    assert answered("product-shape", trace, 0)[0] == trace.array("blocks.0.mlp.up").shape[1:]
    cached = [
        trace.array(f"blocks.{block}.attention.{one}", (0, 0)).size for block in (0, 1) for one in ("key", "value")
    ]
    assert answered("cache-of-a-token", trace, 0)[0] == (2 * sum(cached),)
    assert answered("why-divide", trace, 0)[0] == (pytest.approx(np.sqrt(8)),)
    windowed = small.config(small.corpus(tmp_path / "text"), model={"attention_window": 5}, max_steps=4, eval_steps=0)
    narrow = limpid.trace(limpid.train(windowed, str(tmp_path / "run")))
    assert answered("window-scores", narrow, 0)[0] == (
        np.count_nonzero(narrow.array("blocks.0.attention.weights", (0, 0))),
    )
    with pytest.raises(ConfigError, match="no block of this step has a window"):
        own_numbers("window-scores", trace, 0)


def test_what_no_step_holds_is_told_why(trace: Trace) -> None:
    assert not DRAWN.keys() & WITHOUT.keys()
    assert WITHOUT.keys() <= EXERCISES.keys()
    for name, why in WITHOUT.items():
        with pytest.raises(ConfigError, match=why):
            own_numbers(name, trace, 0)


@pytest.mark.parametrize("name", [name for name in DRAWN if name not in ("rotate", "window-scores", "online-sum")])
def test_the_worked_model_has_every_one_of_them(name: str) -> None:
    with opened() as worked:
        assert np.isfinite(answered(name, worked, 1)[0]).all()


def test_an_exercise_that_no_step_holds_says_which_do(trace: Trace) -> None:
    with pytest.raises(ConfigError, match="choose one of dot, softmax-of-scores"):
        own_numbers("length", trace, 0)


def test_from_the_shell(trace: Trace, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(Path(trace.record.path).parent.parent)
    assert main(["learn", "softmax-of-scores", "--of", run, "--seed", "1", "--solution"]) == 0
    said = capsys.readouterr().out
    assert "in the step: blocks." in said
    assert main(["learn", "softmax-of-scores", "--of", run, "--seed", "1", "--answer", "[1, 1, 1]"]) == 1
    assert main(["learn", "softmax-of-scores", "--step", "1"]) == 2
