"""One name is one option: in every verb it has the same type and the same short form; and help fits a terminal."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import get_args, get_origin

import pytest

import limpid.verbs
from limpid.cli import HELP, VERBS
from limpid.config.flags import Option, make_parser, options_of
from limpid.config.options import required

FILES = tuple(file.stem for file in Path(limpid.verbs.__file__).parent.glob("[a-z]*.py"))
APART = {
    "weights": "of train: how often each path is read; of what decodes: in which format matrices are",
    "precision": "plan knows formats of weights and gradients that limpid does not train in",
}
"""Names that mean something else somewhere, and why."""


def kinds() -> Iterator[tuple[str, type]]:
    """Every verb's options."""
    for name in FILES:
        module = import_module(f"limpid.verbs.{name}")
        own = [kind for kind in vars(module).values() if dataclasses.is_dataclass(kind)]
        yield from ((name, kind) for kind in own if kind.__module__ == module.__name__)  # type: ignore[misc]


def shape(option: Option) -> tuple[object, ...]:
    """What an option takes, bounds and `none` left aside, and its short form."""
    kind = required(option.kind)
    if get_origin(kind) is tuple:
        kind = (tuple, required(get_args(kind)[0]))
    return kind, option.field.metadata.get("short")


def test_one_name_is_one_option() -> None:
    found: dict[str, dict[tuple[object, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
    for verb, kind in kinds():
        for option in options_of(kind):
            if option.field.name not in APART and "positional" not in option.field.metadata:
                found[option.field.name][shape(option)].append(verb)
    assert len(found) > 80
    assert {name: dict(shapes) for name, shapes in found.items() if len(shapes) > 1} == {}


@pytest.mark.parametrize(("verb", "kind"), list(kinds()), ids=lambda one: one if isinstance(one, str) else "")
def test_help_fits_80_columns(verb: str, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = make_parser(verb.replace("_", " "), kind).format_help().splitlines()
    assert [line for line in lines if len(line) > 80] == []


def test_the_list_of_verbs_fits_and_names_each() -> None:
    assert max(map(len, HELP.splitlines())) <= 80
    assert all(any(line.startswith(f"  {verb} ") for line in HELP.splitlines()) for verb in VERBS)
