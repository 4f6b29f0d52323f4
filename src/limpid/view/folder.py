"""The folder of runs that is served: names lead to what lies in it, and nowhere else."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from limpid.errors import CheckpointError
from limpid.run import Run
from limpid.source import KEPT
from limpid.terminal import on_one_line

NAME = re.compile(r"[^/\\\x00-\x1f\x7f\ud800-\udfff.][^/\\\x00-\x1f\x7f\ud800-\udfff]{0,254}")
"""A run's folder: one name, which begins with no dot, and is text: no address holds other bytes."""
READ = frozenset(
    {"metrics.jsonl", "findings.jsonl", "samples.jsonl", "labels.json", "steps", "checkpoints", "variants"}
)
"""What is read of a run beside its configuration."""
SHOWN = 80
"""Letters of a name that an error repeats."""


class NotThere(CheckpointError):
    """What was asked for is not in the folder, or leads out of it."""


@dataclass(frozen=True)
class Folder:
    """A folder of runs. A link in it that leads out of it is not followed."""

    path: Path

    def names(self) -> list[str]:
        """Every run that may be shown."""
        try:
            entries = sorted(entry.name for entry in os.scandir(self.path) if NAME.fullmatch(entry.name))
        except OSError:
            return []
        return [name for name in entries if self._is_run(name)]

    def recordings(self) -> list[str]:
        """Every recording of a step's calls that may be shown."""
        try:
            entries = sorted(entry.name for entry in os.scandir(self.path) if NAME.fullmatch(entry.name))
        except OSError:
            return []
        return [name for name in entries if self._is_inside(name) and (self.path / name / KEPT).is_file()]

    def recording(self, name: str) -> Path:
        """The folder of a recording.

        Raises  NotThere
        """
        if not NAME.fullmatch(name) or not self._is_inside(name) or not (self.path / name / KEPT).is_file():
            raise NotThere(f"there is no recording {on_one_line(name[:SHOWN])!r} in {self.path}")
        self.require_inside(self.path / name / KEPT)
        return self.path / name

    def run(self, name: str) -> Run:
        """A run by its name, once all that lies directly in it was found to lie in the folder.

        Raises  NotThere
        """
        if not NAME.fullmatch(name) or not self._is_run(name):
            raise NotThere(f"there is no run {on_one_line(name[:SHOWN])!r} in {self.path}")
        run = Run(self.path / name)
        with os.scandir(run.path) as entries:
            for entry in entries:
                if entry.is_symlink():
                    self.require_inside(Path(entry.path))
                if entry.name in READ and not (entry.is_file() or entry.is_dir()):
                    raise NotThere(f"{name}/{entry.name} is no file: reading it would wait for somebody to write it")
        return run

    def recorded(self, name: str, step: int) -> Path:
        """The file of a recorded step, there or not.

        Raises  NotThere where it leads out of the folder
        """
        file = self.run(name).recorded_step(step)
        self.require_inside(file, file.with_suffix(".trace.json"), file.with_suffix(".view"))
        return file

    def checkpoint(self, name: str, step: int) -> Path:
        """The folder of a checkpoint, there or not, with everything in it.

        Raises  NotThere where something leads out of the folder
        """
        folder = self.run(name).checkpoint(step)
        self.require_inside(folder, *(folder.iterdir() if folder.is_dir() else ()))
        return folder

    def require_inside(self, *paths: Path) -> None:
        """Raises  NotThere for a path that leads out of the folder."""
        within = self.path.resolve()
        for path in paths:
            if not path.resolve().is_relative_to(within):
                shown = path.relative_to(self.path) if path.is_relative_to(self.path) else path.name
                raise NotThere(f"{shown} is a link that leads out of {self.path}: serve the folder that it lies in")

    def _is_run(self, name: str) -> bool:
        return self._is_inside(name) and (self.path / name / "config.toml").is_file()

    def _is_inside(self, name: str) -> bool:
        place = self.path / name
        return not place.is_symlink() or place.resolve().is_relative_to(self.path.resolve())
