"""Bugs as edits of a copied source tree: the engine as somebody would have broken it, the judge left as it is."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

ENGINE = ("model", "training", "objectives", "data", "config", "schedule.py", "kernel_limits.py")
"""Where a bug may be, below the package: a text that has moved is looked for in all of it."""


class PatchError(Exception):
    """An edit whose text is not in the engine exactly once."""


@dataclass(frozen=True)
class Edit:
    """One text of one file, and what stands there instead."""

    file: str
    before: str
    after: str


@dataclass(frozen=True)
class Bug:
    """One mistake, the run in which it bites, and what a right answer names first."""

    name: str
    kind: str
    what: str
    edits: tuple[Edit, ...]
    accept: tuple[str, ...]
    """Right places, as stated beforehand: NAME (forward), NAME (backward), NAME (update) with *, or single words."""
    setting: str = "base"
    subtle: bool = True
    step: int | None = None
    """The step that is opened; none is the setting's."""


@dataclass(frozen=True)
class Tree:
    """A copy of the package, which Python finds under `path`."""

    path: Path
    edits: tuple[Edit, ...] = field(default=())

    def make(self, source: Path) -> Tree:
        """Copy the package `source` (src/limpid) with all edits applied.

        Raises  PatchError when one no longer applies
        """
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.copytree(source, self.path / source.name)  # with what Python compiled: times of change are kept
        for edit in self.edits:
            apply(self.path / source.name, edit)
        return self

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def apply(package: Path, edit: Edit) -> None:
    """Replace the text, which must occur once in its file, or, where that has lost it, once in the engine."""
    named = package / edit.file
    found = [named] if named.is_file() and edit.before in named.read_text("utf-8") else holders(package, edit.before)
    count = sum(file.read_text("utf-8").count(edit.before) for file in found)
    if count != 1:
        first = edit.before.strip().splitlines()[0]
        raise PatchError(f"patch no longer applies: {edit.file}: {first!r} found {count} times, expected once")
    text = found[0].read_text("utf-8").replace(edit.before, edit.after)
    compile(text, str(found[0]), "exec")
    found[0].write_text(text, "utf-8")


def holders(package: Path, text: str) -> list[Path]:
    """Files of the engine that hold a text."""
    places = [package / name for name in ENGINE]
    files = [file for place in places for file in (sorted(place.rglob("*.py")) if place.is_dir() else [place])]
    return [file for file in files if file.is_file() and text in file.read_text("utf-8")]
