"""What the page asks in the body of a question, as typed documents; what has a default may be left out."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, TypeVar

from limpid.config.options import from_dict
from limpid.jsonable import Finite
from limpid.tracing.schema import Question
from limpid.view.answers import Refused

Asked = TypeVar("Asked", bound=Question)


@dataclass(frozen=True)
class ExactQuestion(Question):
    """Which array is to be redone in float64."""

    name: str


@dataclass(frozen=True)
class LabelsQuestion(Question):
    """The tags and the note that a run is to have."""

    tags: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class PlayQuestion(Question):
    """What a model is to go on from: a prompt, or tokens in its place."""

    model: str  # RUN, RUN@STEP, RUN@best or RUN@ema
    prompt: str = ""
    tokens: tuple[int, ...] | None = None
    attention: bool = True


@dataclass(frozen=True)
class PlanQuestion(Question):
    """What is planned: a published model or a run; of nothing named, the best size for a number."""

    what: str | None = None
    options: dict[str, Any] | None = None
    compute: Finite | None = None
    params: Finite | None = None


@dataclass(frozen=True)
class WeightChange:
    """One weight has another value."""

    kind: Literal["weight"]
    entry: str
    value: Finite


@dataclass(frozen=True)
class TokenChange:
    """One token of the batch, or one target, is another."""

    kind: Literal["token", "target"]
    row: int
    position: int
    token: int


@dataclass(frozen=True)
class RateChange:
    """The learning rate is another."""

    kind: Literal["rate"]
    value: Finite


@dataclass(frozen=True)
class VisibleChange:
    """One query sees one key, or does not."""

    kind: Literal["visible"]
    query: int
    key: int
    see: bool


@dataclass(frozen=True)
class PrecisionChange:
    """Every quantity and gradient is rounded to a format."""

    kind: Literal["precision"]
    format: str


@dataclass(frozen=True)
class WhatIfQuestion(Question):
    """A recorded step, and what is to be another of it."""

    run: str
    step: int
    changes: tuple[WeightChange | TokenChange | RateChange | VisibleChange | PrecisionChange, ...]


@dataclass(frozen=True)
class VariantsQuestion(Question):
    """Two variants that are to be compared, RUN@STEP:WORDS."""

    a: str
    b: str


@dataclass(frozen=True)
class FormatsQuestion(Question):
    """Patterns of modules and the formats that they are to be tried in; of none, every module by itself."""

    asked: dict[str, str]


def read(kind: type[Asked], asked: dict[str, Any]) -> Asked:
    """A question from the body that it came in.

    Raises  Refused for what it lacks, ConfigError for what it does not have or of another type
    """
    missing = [one.name for one in fields(kind) if one.default is MISSING and one.name not in asked]  # type: ignore[arg-type]
    if missing:
        raise Refused(f"{missing[0]} is missing: a {kind.__name__} has {', '.join(one.name for one in fields(kind))}")  # type: ignore[arg-type]
    return from_dict(kind, asked)


QUESTIONS = (
    ExactQuestion,
    LabelsQuestion,
    PlayQuestion,
    PlanQuestion,
    WhatIfQuestion,
    VariantsQuestion,
    FormatsQuestion,
)
