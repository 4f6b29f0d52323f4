"""What faults are done to: a training that a user begins, and goes on with as its documentation says."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.endurance.process import Disturbance, Ended

Work = Callable[[Disturbance], object]


@dataclass(frozen=True)
class Difference:
    """What of a run that was disturbed is not as in the one that was not."""

    what: str
    """missing, different or unreadable."""
    where: str


class Subject(Protocol):
    """One training, in a folder whose `runs/run` it writes."""

    name: str
    processes: int
    one_line_errors: bool
    """Whether a refusal is promised to be one line, and no traceback."""

    def lay(self, folder: Path) -> None:
        """What it reads."""

    def begin(self) -> Work:
        """Start it."""

    def again(self, folder: Path, ended: Ended) -> Work | None:
        """What a user does next after it ended; None where nothing that was said helps."""

    def checkpoint(self, folder: Path) -> list[Path]:
        """Files of its newest checkpoint."""

    def logs(self, folder: Path) -> dict[Path, int]:
        """Files that grow by lines, and how many bytes were there when the newest checkpoint was written."""

    def steps(self, folder: Path) -> tuple[int, int]:
        """Steps taken, and the step from which it would go on."""

    def differences(self, folder: Path, whole: Path) -> list[Difference]:
        """Where it ended otherwise than the one that was not disturbed."""


def lines_before(path: Path, step: int, step_of: Callable[[bytes], int | None]) -> int:
    """Bytes of the lines of a file that come before the first one of a later step."""
    size = 0
    for line in path.read_bytes().splitlines(keepends=True):
        at = step_of(line)
        if at is None or at > step:
            break
        size += len(line)
    return size
