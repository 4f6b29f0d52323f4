"""What is given to a public function is held against its annotations, whatever it is: a new function by itself."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
from torch import nn

import limpid
from limpid.config.arguments import checked, kinds
from limpid.errors import ConfigError, LimpidError

WRONG = (object(), 1j, b"runs/a", {1: object()}, lambda: 1)


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every function and class of the API."""
    for name in limpid.__all__:
        if callable(found := getattr(limpid, name)):
            yield name, found


def fitting(kind: Any) -> Any:
    """What stands in for an argument that is not looked at."""
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    if int in (kind, *get_args(kind)):
        return 1
    return "x" if str in (kind, *get_args(kind)) else nn.Identity()


def annotated(function: Callable[..., Any]) -> dict[str, Any]:
    made = function.__init__ if inspect.isclass(function) else function
    return {} if made is object.__init__ else kinds(made)


@pytest.mark.parametrize(("name", "function"), list(public()))
def test_every_argument_of_another_type_is_refused_by_name(name: str, function: Callable[..., Any]) -> None:
    required = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    for argument, kind in annotated(function).items():
        if kind is Any:
            continue
        others = {one: fitting(annotated(function)[one]) for one in required if one != argument}
        for value in WRONG:
            if callable(value) and Callable in {getattr(part, "__origin__", None) for part in get_args(kind)}:
                continue
            if isinstance(value, dict) and "Mapping" in str(kind):
                continue
            with pytest.raises(LimpidError) as caught:
                function(**others, **{argument: value})
            said = str(caught.value)
            assert argument in said, (argument, said)
            assert "\n" not in said


def test_the_sections_of_a_configuration_are_among_them() -> None:
    assert {"train", "resume", "load", "trace", "watch", "plan", "ModelConfig", "RunConfig"} <= dict(public()).keys()
    assert all(annotated(limpid.ModelConfig)[field.name] for field in dataclasses.fields(limpid.ModelConfig))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: limpid.trace("runs/a", step="2"), "step is '2': expected a whole number"),
        (lambda: limpid.trace("runs/a", step=0), "step is 0: it must be at least 1"),
        (lambda: limpid.trace("runs/a", text=b"hello"), "text is b'hello': expected text"),
        (lambda: limpid.load("x" * 10**5), "cannot look at x.*…: File name too long; choose a shorter name"),
        (lambda: limpid.load("runs/a\0"), "runs/a␀ can be no path"),
        (lambda: limpid.load("\udfff"), "can be no path"),
        (lambda: limpid.load("~nobodyatall/run"), "a home that does not exist"),
        (lambda: limpid.plan(["gpt2"]), "what is .*: expected text or a path or .*Architecture"),
        (lambda: limpid.train(deadline=3), "deadline is 3: expected Deadline"),
        (lambda: limpid.train(reporter=3), r"reporter is 3: expected Reporter \(limpid\)"),
        (lambda: limpid.watch(nn.Identity(), every="often"), "every is 'often': expected a whole number"),
        (lambda: limpid.watch(nn.Identity(), total_steps=-1), "total_steps is -1: it must be at least 1"),
        (lambda: limpid.watch(nn.Identity(), rules=3), "rules is 3: expected text"),
        (lambda: limpid.watch(nn.Identity(), say=3), "say is 3: expected a function or yes or no"),
        (lambda: limpid.watch(nn.Identity(), scaler=3), r"scaler is 3: expected Scaler \(limpid\)"),
        (lambda: limpid.ModelConfig(norm=np.array([1, 2])), r"norm is array\(\[1, 2\]\): choose one of rms, layer"),
        (lambda: limpid.train({"model": {"d_ff": np.array(["none"])}}), r"config.model.d_ff is array"),
        (lambda: limpid.ModelConfig(d_model=10**5000), "d_model is of type int: it must fit in 64 bits"),
    ],
)
def test_what_it_says(call: Callable[[], object], said: str) -> None:
    with pytest.raises(LimpidError, match=said) as caught:
        call()
    assert len(str(caught.value)) < 400


def test_a_wrong_name_or_number_of_arguments_is_pythons_own_error() -> None:
    with pytest.raises(TypeError, match=r"train: got an unexpected keyword argument 'nmae'"):
        limpid.train(nmae="x")


def test_what_fits_one_of_several_types_is_taken_as_it_is() -> None:
    @checked
    def function(path: str | Path, many: tuple[int, ...] = (), name: str | None = None) -> tuple[Any, ...]:
        return path, many, name

    assert function(Path("a"), [1, 2], "none") == (Path("a"), (1, 2), "none")
    with pytest.raises(ConfigError, match=r"path is 3: expected text or a path"):
        function(3)
