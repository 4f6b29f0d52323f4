"""Files of one room import each other in one direction: every file can be read before those that use it."""

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

import limpid

ROOMS = sorted(folder.parent.name for folder in Path(limpid.__file__).parent.glob("*/__init__.py"))


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """Who imports whom when it runs; imports for the sake of types alone do not count."""
    graph = grimp.build_graph("limpid", exclude_type_checking_imports=True)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def cycle(imports: dict[str, set[str]]) -> list[str]:
    """One circle of imports, if there is any."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("room", ROOMS)
def test_no_two_files_of_a_room_need_each_other(room: str, imports: dict[str, set[str]]) -> None:
    files = {name for name in imports if name.split(".")[1:2] == [room]}
    assert files
    assert cycle({name: imports[name] & files for name in files}) == []


def test_no_two_rooms_need_each_other(imports: dict[str, set[str]]) -> None:
    between: dict[str, set[str]] = {}
    for name, needed in imports.items():
        here, *there = (".".join(module.split(".")[:2]) for module in (name, *needed))
        between.setdefault(here, set()).update(set(there) - {here, "limpid"})
    assert cycle(between) == []


def test_a_circle_of_imports_is_seen() -> None:
    assert set(cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
