"""Whatever is given to the mathematics that is no number, or has other axes, is one line; the names are its own."""

import inspect
from typing import Any

import numpy as np
import pytest

import limpid
from limpid import maths
from limpid.errors import DomainError, LimpidError, ShapeError

WRONG: list[Any] = ["x", {}, object(), b"x", 1j, [1, "a"], [[1], [2, 3]], np.array(["a"])]
PLAIN = [
    maths.layer_norm,
    maths.rms_norm,
    maths.batch_norm,
    maths.perplexity,
    maths.clip,
    maths.step,
    maths.transformer,
]


def called(one: Any, value: Any) -> None:
    """Everything that it cannot do without is this value."""
    function = one.forward if isinstance(one, maths.Operation) else getattr(one, "function", one)
    needed = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    by_name = {p.name: value for p in needed if p.kind is p.KEYWORD_ONLY}
    one(*[value] * (len(needed) - len(by_name)), **by_name)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
def test_what_is_no_number_is_refused_in_one_line(wrong: Any) -> None:
    operations = [getattr(maths, name) for name in ("gelu", "swish", "relu", "swiglu", "tanh", "sigmoid")]
    for one in (*maths.catalogue(maths.Formula), *operations, *PLAIN):
        with pytest.raises(LimpidError) as caught:
            called(one, wrong)
        assert "\n" not in str(caught.value), one


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
def test_so_is_a_hyperparameter(wrong: Any) -> None:
    for kind in (*maths.catalogue(maths.Operation), *maths.catalogue(maths.UpdateRule)):
        for name in inspect.signature(kind).parameters:
            if name not in ("activation", "links"):
                with pytest.raises((LimpidError, TypeError), match=f"{name}|required positional"):
                    kind(**{name: wrong})


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: maths.softmax(None), "softmax: z is None: expected numbers"),
        (lambda: maths.softmax([1, 2], temperature="warm"), "temperature is 'warm': expected a number"),
        (lambda: maths.softmax([1, 2], 1.0, 2.5), "axis is 2.5: expected a whole number"),
        (lambda: maths.dpo(1.0, None, -2.0, -1.5), "dpo: policy_rejected is None"),
        (lambda: maths.dpo.backward("a", -1.0, -2.0, -1.5, -1.5), "dpo: y_bar is 'a'"),
        (lambda: maths.token_log_probabilities([[0.0]], [0.5]), r"targets is \[0.5\]: expected whole numbers"),
        (lambda: maths.RMSNorm(eps=-1), "RMSNorm: eps is -1.0: it must not be negative"),
    ],
)
def test_what_it_says(call: Any, said: str) -> None:
    with pytest.raises(DomainError, match=said):
        call()


def test_axes_of_one_name_have_one_size() -> None:
    with pytest.raises(ShapeError, match=r"policy_rejected \(1,\).*expected policy_chosen \(\*pair\)"):
        maths.dpo([1.0, 2.0], [1.0], [1.0, 2.0], [1.0, 2.0])


def test_lists_fractions_and_other_formats_will_do() -> None:
    assert maths.softmax([1, 1]).tolist() == [0.5, 0.5]
    assert maths.softmax(np.ones(2, np.float32)).dtype == np.float64
    assert maths.gelu([0]) == 0


def test_no_name_of_the_language_is_among_those_of_the_mathematics() -> None:
    strangers = [name for name, value in vars(limpid.maths).items()
                 if inspect.isroutine(value) and not value.__module__.startswith("limpid")]  # fmt: skip
    assert strangers == []
