"""What other formats would do to a recording's loss, as the page asks: tried by a job, kept beside it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limpid.errors import CheckpointError
from limpid.files import MALFORMED, parse_json, write_atomically
from limpid.operations.what_if_document import AgainDocument
from limpid.reporter import Report
from limpid.tracing.schema import to_json
from limpid.view.answers import Refused
from limpid.view.documents.job import JobDocument
from limpid.view.folder import Folder
from limpid.view.jobs import Jobs

if TYPE_CHECKING:
    from limpid.operations.kept import Kept

MOST, LONGEST = 100, 300
"""Patterns that are asked for at once, and letters of each."""
FEW = 64
"""Answers that a recording keeps, the newest."""


@dataclass(frozen=True)
class KeptFormats:
    """What was tried of the recordings of a folder."""

    folder: Folder
    jobs: Jobs

    def again(self, name: str) -> AgainDocument:
        """Whether a recording's step can be taken again."""
        from limpid.operations.again import again_of

        return again_of(self._kept(name))

    def document(self, name: str, asked: Mapping[str, str]) -> dict[str, Any]:
        """What came of trying these formats; of none, every module by itself. As JSON.

        Raises  Refused where it has to be tried first, or cannot be
        """
        file = self._file(name, asked)
        try:
            found: dict[str, Any] = parse_json(file.read_bytes())
            return found
        except FileNotFoundError:
            raise Refused("these formats were not tried yet", 404, "document") from None
        except (OSError, *MALFORMED) as error:
            raise CheckpointError(f"{file} cannot be read: delete it, and ask again") from error

    def make(self, name: str, asked: Mapping[str, str]) -> JobDocument:
        """Try them: a job."""
        file = self._file(name, asked)
        question = {"work": "formats", "recording": str(self.folder.recording(name)), "asked": dict(asked),
                    "file": str(file)}  # fmt: skip
        return self.jobs.start(f"other formats in {name}", question)

    def _file(self, name: str, asked: Mapping[str, str]) -> Path:
        """Where the answer is kept: another place once the model's files are others.

        Raises  Refused for a question that is too long, or of a step that cannot be taken again
        """
        words = [*asked, *asked.values()]
        if len(asked) > MOST or not all(isinstance(one, str) and len(one) <= LONGEST for one in words):
            raise Refused(f"expected at most {MOST} patterns, each with a format, of {LONGEST} letters at most")
        kept = self._kept(name)
        can = self.again(name)
        if kept.again is None or can.why:
            raise Refused(can.why)
        model = sorted((one.name, one.stat().st_size, one.stat().st_mtime_ns)
                       for one in Path(kept.again.model).iterdir() if one.is_file())  # fmt: skip
        key = json.dumps([dict(asked), asdict(kept.again), model])
        file = kept.folder / "formats" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
        self.folder.require_inside(file)
        return file

    def _kept(self, name: str) -> Kept:
        from limpid.operations.kept import read

        return read(self.folder.recording(name))


def make(asked: Mapping[str, Any], report: Report) -> None:
    """Try formats, and keep what came of it.

    Raises  CheckpointError where the folder cannot be written to
    """
    from limpid.operations.again import formats_document
    from limpid.operations.kept import read
    from limpid.training.allocator import keep_freed_memory

    keep_freed_memory()
    file = Path(asked["file"])
    found = formats_document(read(Path(asked["recording"])), asked["asked"], report)
    try:
        file.parent.mkdir(exist_ok=True)
        write_atomically(file, json.dumps(to_json(found)).encode())
        for old in sorted(file.parent.glob("*.json"), key=lambda one: one.stat().st_mtime_ns)[:-FEW]:
            old.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"{file.parent} cannot be written to: {error.strerror or error}") from error
