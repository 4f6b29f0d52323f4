"""What answers are worth: functions of the user's, called with prompts, completions and the records' other fields."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from limpid.config.options import shown
from limpid.errors import ConfigError, DataError
from limpid.files import one_line
from limpid.model import Transformer
from limpid.model.weights import load_model
from limpid.objectives.reward import rewards as scored
from limpid.source import find_model, find_source

Array = np.ndarray
LARGEST = 1e30
"""A reward beyond it is a mistake: advantages are float32."""
SCORED_TOGETHER = 32
"""Answers that go through a reward model at once."""
RewardFunction = Callable[..., Sequence[float | None]]
"""Called as function(prompts=…, completions=…, **columns): one number per completion, None where it has no opinion."""


@dataclass(frozen=True)
class Rewards:
    """Several rewards, and how much each counts."""

    functions: Mapping[str, RewardFunction]
    """By the name that metrics know them by."""
    weights: tuple[float, ...]

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[str],
        ids: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]],
        columns: Mapping[str, Sequence[Any]],
    ) -> Float64[Array, "reward completion"]:
        """What each says about every completion; not a number where it says nothing.

        ids  the tokens of prompts, and of completions with the token that ended each

        Raises  DataError for a function that breaks off, or that returns something else than a number each
        """
        given: dict[str, list[Any]] = {"prompts": list(prompts), "completions": list(completions)}
        given |= {"prompt_ids": list(ids[0]), "completion_ids": list(ids[1])}
        given |= {name: list(values) for name, values in columns.items()}
        said = [called(name, function, given) for name, function in self.functions.items()]
        return np.array(said, np.float64).reshape(len(said), len(completions))

    def total(self, each: Float64[Array, "reward completion"]) -> Float64[Array, " completion"]:
        """Their weighted sum over those that have an opinion; not a number where none has."""
        weighted = np.array(self.weights)[:, None] * each
        return np.where(np.isnan(each).all(0), np.nan, np.nansum(weighted, 0))


def called(name: str, function: RewardFunction, given: Mapping[str, list[Any]]) -> list[float]:
    """What one function says, as numbers."""
    count = len(given["completions"])
    try:
        said = function(**{key: list(values) for key, values in _accepted(function, given).items()})  # its own lists
    except (Exception, SystemExit) as error:
        line = _line_of(error)
        raise DataError(f"reward {name} raised {type(error).__name__}{line}: {one_line(error)}; mend it") from error
    try:
        numbers = list(said)
    except TypeError:
        numbers = []
    if isinstance(said, str) or len(numbers) != count:
        raise DataError(
            f"reward {name} returned {shown(said)} for {count} completions: expected one number, or None, for each"
        )
    return [_number(name, one, place) for place, one in enumerate(numbers)]


def _number(name: str, value: Any, place: int) -> float:
    if value is None:
        return math.nan
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.inf
    if abs(number) > LARGEST:
        raise DataError(
            f"reward {name} gave completion {place} {shown(value)}: expected a number of at most {LARGEST:g}, or None "
            "where it has no opinion"
        )
    return number


def _accepted(function: RewardFunction, given: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Of what there is, what a function takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return dict(given)
    return {one.name: given[one.name] for one in parameters if one.name in given}


def _line_of(error: BaseException) -> str:
    """Where in the user's file it happened."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"


RESERVED = ("prompts", "completions", "prompt_ids", "completion_ids")
"""What every reward is given besides the columns of the records."""


def require_columns(rewards: Rewards, columns: Collection[str]) -> None:
    """Raise for records and rewards that do not go together, before anything is drawn.

    Raises  DataError for a column of a name that rewards know already; ConfigError for a function that asks for more
            than there is
    """
    if taken := next((name for name in RESERVED if name in columns), None):
        raise DataError(f"the records have a column {taken!r}, by which a reward is given something else: rename it")
    there = {*RESERVED, *columns} - {"prompt"}
    for name, function in rewards.functions.items():
        parameters = inspect.signature(function).parameters.values()
        named = [one for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
        lacking = next((one.name for one in named if one.default is one.empty and one.name not in there), None)
        if lacking is not None:
            raise ConfigError(f"reward {name} asks for {lacking!r}: there are {', '.join(sorted(there))}")


def find_rewards(named: Sequence[str], weights: Sequence[float]) -> Rewards:
    """The functions that `module:function` or `file.py:function` name.

    Raises  ConfigError for what cannot be found, and for another number of weights
    """
    if weights and len(weights) != len(named):
        raise ConfigError(
            f"reward_weights are {len(weights)} and rewards {len(named)}: give one weight per reward, in their order"
        )
    functions = {Path(one.rpartition(":")[2]).name: find_reward(one) for one in named}
    if len(functions) < len(named):
        raise ConfigError(f"rewards {', '.join(named)}: two have one name, by which metrics know them; rename one")
    return Rewards(functions, tuple(weights) or (1.0,) * len(named))


class RewardModel:
    """The score of a model that was taught which answers are better: see `limpid tune reward`."""

    def __init__(self, named: str) -> None:
        self.named, self.model = named, load_model(find_model(named))
        if self.model.score is None:
            raise ConfigError(
                f"reward {named} predicts tokens and gives no score: make a reward model with limpid tune reward, or "
                "name a function as module:function"
            )

    def __call__(self, prompt_ids: list[Sequence[int]], completion_ids: list[Sequence[int]]) -> list[float]:
        """Scores, known up to a constant."""
        rows = [[*prompt, *answer] for prompt, answer in zip(prompt_ids, completion_ids, strict=True)]
        if (longest := max(map(len, rows))) > self.model.config.context_length:
            raise ValueError(f"an answer with its prompt has {longest} tokens, its context holds "
                             f"{self.model.config.context_length}")  # fmt: skip
        together = range(0, len(rows), SCORED_TOGETHER)
        return [score for first in together for score in scores_of(self.model, rows[first : first + SCORED_TOGETHER])]


def scores_of(model: Transformer, rows: Sequence[Sequence[int]]) -> list[float]:
    """The scores of some answers with their prompts, by a reward model; known up to a constant."""
    device = model.embed.tokens.weight.device
    tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    for place, row in enumerate(rows):
        tokens[place, : len(row)] = torch.tensor(row)
    last = torch.tensor([len(row) - 1 for row in rows])
    with torch.no_grad():
        found: list[float] = scored(model, tokens.to(device), last.to(device)).tolist()
    return found


def find_reward(named: str) -> RewardFunction:
    """One function of the user's, or a reward model."""
    where, colon, name = named.rpartition(":")
    if not colon and find_source(named) is not None:
        return RewardModel(named)
    if not colon or not name.isidentifier():
        raise ConfigError(f"reward is {shown(named)}: expected module:function, file.py:function, or a reward model")
    module = _module(where, named)
    function = getattr(module, name, None)
    if not callable(function):
        there = ", ".join(one for one in vars(module) if callable(getattr(module, one)) and not one.startswith("_"))
        raise ConfigError(f"reward {named}: {where} has no function {name!r}; it has {there or 'none'}")
    found: RewardFunction = function
    return found


def _module(where: str, named: str) -> Any:
    """A file, or a module that Python finds, the working folder first."""
    try:
        if where.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(where).stem, where)
            if spec is None or spec.loader is None or not Path(where).is_file():
                raise ConfigError(f"reward {named}: there is no file {where}")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        return importlib.import_module(where)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"reward {named}: {where} cannot be imported ({type(error).__name__}: {one_line(error)})"
        ) from error
