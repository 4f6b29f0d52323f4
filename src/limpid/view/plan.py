"""The planner as a form: what may be asked of it, and its figures with what each follows from."""

from __future__ import annotations

import types
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from limpid.api.plans import plan
from limpid.config.flags import Option, options_of
from limpid.planning.figure import Figure, readable, shown
from limpid.planning.hardware import DEVICES
from limpid.planning.laws.scaling import LAWS, Law
from limpid.planning.number_formats import TRAINING_BYTES, WEIGHT_BYTES
from limpid.planning.options import Options
from limpid.planning.published import known, suggestion, table
from limpid.planning.report import Plan
from limpid.run import Run
from limpid.view.answers import Refused
from limpid.view.documents.plan import (
    PlanDocument,
    PlanFigure,
    PlanForm,
    PlanLaw,
    PlanLayout,
    PlanLayouts,
    PlanOption,
    PlanSection,
)
from limpid.view.folder import Folder, NotThere
from limpid.view.questions import PlanQuestion, read

CHOICES = {"precision": tuple(sorted({*TRAINING_BYTES, *WEIGHT_BYTES})), "device": tuple(DEVICES)}
"""Words of options that are words."""


@cache
def form() -> PlanForm:
    """Every model, device and option that the planner knows."""
    options = tuple(
        PlanOption(one.field.name, _kind(one), one.field.default, _choices(one), one.help)
        for one in options_of(Options)
    )
    laws = tuple(PlanLaw(law.name, law.source, **law.constants) for law in LAWS if isinstance(law, Law))
    return PlanForm(tuple(table()), tuple(DEVICES), options, laws)


def planned(folder: Folder, asked: dict[str, Any]) -> PlanDocument:
    """Figures of a published model or of a run of the folder; of nothing named, the best size for a number.

    Raises  Refused, ConfigError for what cannot be planned
    """
    return document(_plan(folder, asked))


def layouts(folder: Folder, asked: dict[str, Any]) -> PlanLayouts:
    """Every way to divide the step among the devices: those that fit first, the fastest of them first.

    Raises  Refused, ConfigError for what cannot be planned
    """
    found = _plan(folder, asked)
    rows = [
        PlanLayout(
            way.options.zero, way.options.tensor, way.options.pipeline, way.options.recompute,
            way.options.gradient_accumulation_steps, way.replicas, way.memory,
            None if found.limit is None else way.memory <= found.limit,
            None if way.divided is None else way.divided.step, None if way.divided is None else way.divided.per_row,
        )
        for way in found.ways()
    ]  # fmt: skip
    return PlanLayouts(tuple(sorted(rows, key=lambda row: row.fits is False)))


def _plan(folder: Folder, asked: dict[str, Any]) -> Plan:
    question = read(PlanQuestion, asked)
    what, options = question.what, question.options or {}
    if options.get("device") == "here":
        raise Refused("device `here` measures this machine for minutes: `limpid plan --device here` does it")
    subject: str | Run | None = what
    if what is not None and known(what) is None:
        try:
            subject = folder.run(what)
        except NotThere as error:
            raise NotThere(f"{error}, nor a published model of this name: {suggestion(what)}") from error
    given = {"compute": question.compute, "params": question.params}
    numbers = {name: value for name, value in given.items() if value is not None}
    return plan(subject, **numbers, **options)


def document(found: Plan) -> PlanDocument:
    """A plan as the page is sent it."""
    sections = tuple(
        PlanSection(title, tuple(_figure(one) for one in section)) for title, section in found.sections.items()
    )
    return PlanDocument(found.name, sections, found.fits, tuple(found.advice), tuple(found.notes), found.limited)


def _figure(one: Figure) -> PlanFigure:
    numbers = {name: float(number) for name, number in one.put_in.items()}
    return PlanFigure(
        one.name, float(one.value), one.unit, shown(one.value, one.unit), one.equation, readable(one.equation), numbers,
        one.source, one.note, tuple(one.why()),
    )  # fmt: skip


def _plain(kind: Any) -> Any:
    """A type without its interval, and without None."""
    if get_origin(kind) is Annotated:
        return _plain(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        return _plain(next(one for one in get_args(kind) if one is not type(None)))
    return kind


def _choices(option: Option) -> tuple[str, ...]:
    plain = _plain(option.kind)
    return get_args(plain) if get_origin(plain) is Literal else CHOICES.get(option.field.name, ())


def _kind(option: Option) -> Literal["number", "whole", "word", "choice"]:
    if _choices(option):
        return "choice"
    plain = _plain(option.kind)
    return "whole" if plain is int else "number" if plain is float else "word"
