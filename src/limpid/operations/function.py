"""A step of one's own: MODULE:FUNCTION or FILE.py:FUNCTION gives a model, its optimizer and what takes the step."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import torch
from torch import nn

from limpid.config.names import probably_meant
from limpid.errors import ConfigError
from limpid.files import one_line
from limpid.operations.step import Step

NAME = re.compile(r"(?P<place>.+\.py|[A-Za-z_]\w*(?:\.\w+)*):(?P<function>[A-Za-z_]\w*(?:\.\w+)*)")
WANTED = (
    "(model, optimizer, step): a torch.nn.Module, a torch.optim.Optimizer or None, and a function that takes the step"
)
OWN = os.path.dirname(__file__)
"""Frames below are limpid's, not the user's."""


class OwnCodeError(ConfigError):
    """The user's own code raised an error; `said` is its traceback, from its own first line on."""

    def __init__(self, message: str, said: str) -> None:
        super().__init__(message)
        self.said = said


def is_function(what: str) -> bool:
    """Whether this names a function in a module or file."""
    return NAME.fullmatch(what) is not None and not Path(what).exists()


def of_function(what: str) -> Step:
    """The step that a function gives: (model, optimizer, step), where step() does forward, backward and update.

    Raises  ConfigError for what is no such function; OwnCodeError where it raises
    """
    found = NAME.fullmatch(what)
    if found is None:
        raise ConfigError(f"{what} names no function: expected MODULE:FUNCTION or FILE.py:FUNCTION")
    module = _module(found["place"])
    function: Any = module
    for part in found["function"].split("."):
        if not hasattr(function, part):
            raise ConfigError(f"{found['place']} has no {found['function']}{_near(part, function)}")
        function = getattr(function, part)
    if not callable(function):
        raise ConfigError(f"{what} is {_a(function)}, expected a function that returns {WANTED}")
    with _own_code(what):
        made = function()
    return _checked(what, made)


def _checked(what: str, made: Any) -> Step:
    """What a function gave, where it is a step."""
    if not isinstance(made, tuple | list) or len(made) != 3:
        got = f"{len(made)} values" if isinstance(made, tuple | list) else _a(made)
        raise ConfigError(f"{what} returned {got}, expected {WANTED}")
    model, optimizer, step = made
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{what} returned {_a(model)} as its model, expected {WANTED}")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(f"{what} returned {_a(optimizer)} as its optimizer, expected {WANTED}")
    if not callable(step):
        raise ConfigError(f"{what} returned {_a(step)} as its step, expected {WANTED}")

    def take() -> Any:
        with _own_code(f"the step of {what}"):
            return step()

    return Step(model, optimizer, take, f"{what}: {type(model).__name__}", ["what its own step gives it"])


def _module(place: str) -> ModuleType:
    if place.endswith(".py"):
        return _file(Path(place).expanduser())
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with _own_code(f"importing {place}"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
                raise ConfigError(f"there is no module {error.name} here: expected MODULE:FUNCTION of a module that "
                                  f"Python imports in this folder, or FILE.py:FUNCTION") from error  # fmt: skip
            raise


def _file(file: Path) -> ModuleType:
    """A file as Python runs it, its folder first on the path."""
    if not file.is_file():
        raise ConfigError(f"there is no file {file}: expected FILE.py:FUNCTION")
    name = (
        file.stem if file.stem.isidentifier() and file.stem not in sys.modules else f"own_{abs(hash(file.absolute()))}"
    )
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} is no Python file")
    folder = str(file.absolute().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _own_code(f"reading {file}"):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _own_code(what: str) -> Iterator[None]:
    """Run the user's own code: it prints beside the report, and what it raises is said with its own traceback."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        kind = type(error).__name__
        said = f"{kind}: {one_line(error)}" if one_line(error) else kind
        raise OwnCodeError(f"{what} raised {said[:400]}", _traceback(error)) from error


def _traceback(error: BaseException) -> str:
    """From the user's own first line on."""
    at: TracebackType | None = error.__traceback__
    while at is not None and _is_passed(at.tb_frame.f_code.co_filename):
        at = at.tb_next
    return "".join(traceback.format_exception(type(error), error, at)).rstrip()


def _is_passed(file: str) -> bool:
    return file.startswith((OWN, "<frozen")) or file in (contextlib.__file__, importlib.__file__)


def _near(name: str, place: Any) -> str:
    functions = [one for one, value in vars(place).items() if callable(value) and not one.startswith("_")]
    close = probably_meant(name, functions)
    if close:
        return f": did you mean {close}?"
    own = [one for one in functions if getattr(vars(place)[one], "__module__", None) == getattr(place, "__name__", "")]
    return f"; it has {', '.join(own[:8])}" if own else ""


def _a(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
