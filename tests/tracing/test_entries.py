"""Every entry of every operation, written out, is the entry that the operation computes; and so is its gradient."""

import re

import numpy as np
import pytest

from limpid.equations.examples import Example, examples
from limpid.maths import alignment
from limpid.tracing.entries import GRADIENT, Reader, derive_entry, derive_gradient
from limpid.tracing.entries.entry import SHOWN, strongest
from limpid.tracing.entries.plain import plain_entry, plain_gradient

EXAMPLES = [example for example in examples() if "extremes" not in example.name]


def reader(example: Example, y_bar: np.ndarray) -> Reader:
    def array(place: int) -> np.ndarray:
        if place == GRADIENT:
            return y_bar
        return np.asarray(example.inputs[place]) if place < len(example.inputs) else np.empty(())

    return Reader(lambda place, key: array(place)[key].astype(np.float64), lambda place: array(place).shape)


def some(shape: tuple[int, ...], rng: np.random.Generator) -> list[tuple[int, ...]]:
    return [tuple(int(rng.integers(size)) for size in shape) for _ in range(12)]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_entries_and_gradients_are_those_of_the_operation(example: Example) -> None:
    rng = np.random.default_rng(0)
    y, saved = example.operation.forward(*example.inputs)
    y_bar = rng.standard_normal(np.shape(y))
    read = reader(example, y_bar)
    for index in some(np.shape(y), rng):
        derivation = derive_entry(example.operation, index, read)
        assert derivation.value == pytest.approx(float(y[index]), rel=1e-12, abs=1e-13)
        assert all(0 <= place < len(example.inputs) for place in (source.place for source in derivation.sources))
    for place, bar in enumerate(example.operation.backward(y_bar, saved)):
        if bar is None:
            continue
        for index in some(bar.shape, rng):
            derivation = derive_gradient(example.operation, place, index, read)
            assert derivation.value == pytest.approx(float(bar[index]), rel=1e-11, abs=1e-13)
            for source in derivation.sources:
                assert source.place == GRADIENT
                assert np.shape(y_bar[source.index]) == ()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_operation_without_a_derivation_says_what_went_in_and_what_came_out(example: Example) -> None:
    if len(example.inputs) < len(example.operation.adjoint):
        return  # an input was left out: its operation has a derivation of its own, which knows that
    rng = np.random.default_rng(0)
    y, saved = example.operation.forward(*example.inputs)
    y_bar = rng.standard_normal(np.shape(y))
    read = reader(example, y_bar)
    for index in some(np.shape(y), rng)[:2]:
        derivation = plain_entry(example.operation, index, read)
        assert derivation.value == pytest.approx(float(y[index]), rel=1e-12, abs=1e-13)
        for source in derivation.sources:
            assert source.index in np.ndindex(np.shape(example.inputs[source.place]))
    for place, bar in enumerate(example.operation.backward(y_bar, saved)):
        if bar is not None:
            index = some(bar.shape, rng)[0]
            derivation = plain_gradient(example.operation, place, index, read)
            assert derivation.value == pytest.approx(float(bar[index]), rel=1e-11, abs=1e-13)


def test_a_formula_in_a_chain_writes_out_its_entries() -> None:
    """The loss of a pair falls with the chosen answer's log-probability, and its gradient is that of its own loss."""
    inputs = tuple(np.array(x) for x in ([-3.0, -4.0], [-5.0, -2.0], [-3.5, -3.5], [-4.0, -3.0]))
    operation = alignment.dpo.operation(beta=0.5)
    example = Example("dpo", operation, inputs, None)
    y, _ = operation.forward(*inputs)
    derivation = derive_entry(operation, (1,), reader(example, np.ones(2)))
    assert derivation.value == pytest.approx(y[1], rel=1e-14)
    assert {source.index for source in derivation.sources} == {(1,)}
    assert "dpo" in derivation.symbols
    y_bar = np.array([0.25, 0.75])
    gradient = derive_gradient(operation, 0, (1,), reader(example, y_bar))
    assert [(source.place, source.index) for source in gradient.sources if source.share] == [(GRADIENT, (1,))]
    assert gradient.value == pytest.approx(gradient.sources[0].share)


def test_operations_of_the_step_have_derivations_of_their_own() -> None:
    for operation in {type(example.operation) for example in EXAMPLES}:
        assert derive_entry.dispatch(operation) is not derive_entry.dispatch(object)
        if any(operation.adjoint):
            assert derive_gradient.dispatch(operation) is not derive_gradient.dispatch(object)


@pytest.mark.parametrize(
    "name", ["linear with bias", "scores", "mix, shared values", "rotary", "add", "swiglu", "row length", "magnitude"]
)
def test_what_is_written_adds_up_to_the_value(name: str) -> None:
    """The line of numbers is arithmetic: typed into Python it gives the value, to the digits shown."""
    example = next(example for example in EXAMPLES if example.name == name)
    y, _ = example.operation.forward(*example.inputs)
    read = reader(example, np.ones(np.shape(y)))
    for index in some(np.shape(y), np.random.default_rng(1)):
        derivation = derive_entry(example.operation, index, read)
        line = derivation.numbers.replace("·", "*").replace("√", "np.sqrt")
        line = re.sub(r"\[\d[\d,]* more: ([^\]]+)\]", r"(\1)", line)
        line = re.sub(r"\[[^=\]]*= ([^\]]+)\]", r"(\1)", line)
        assert eval(line) == pytest.approx(derivation.value, abs=2e-5 * (1 + abs(derivation.value)))


def test_the_strongest_terms_are_the_first_of_all_in_order() -> None:
    rng = np.random.default_rng(0)
    for size in (0, 1, SHOWN, SHOWN + 1, 1000):
        terms = rng.integers(-3, 4, size).astype(float)  # many are equal
        terms[5::97] = np.nan
        in_order = sorted(range(size), key=lambda i: (-np.inf if np.isnan(terms[i]) else -abs(terms[i]), i))
        assert list(strongest(terms)) == in_order[:SHOWN]
