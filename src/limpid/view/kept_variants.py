"""Variants of checkpoints beside each other, as the page asks for them: compared by a job, kept in the first run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from limpid.errors import CheckpointError
from limpid.files import MALFORMED, file_written_atomically
from limpid.maths.operation import Array
from limpid.reporter import Report
from limpid.tracing.schema import to_json
from limpid.view.answers import Refused
from limpid.view.documents.job import JobDocument
from limpid.view.folder import Folder
from limpid.view.jobs import Jobs
from limpid.view.kept import Kept
from limpid.view.pairs import VectorPair

if TYPE_CHECKING:
    from limpid.view.variants import Beside

NAMED = re.compile(r"(?P<run>[^/@:]+)@(?P<step>\d{1,18})(?::(?P<words>[a-z0-9]{1,20}(?:,[a-z0-9]{1,20}){0,3}))?")
"""RUN@STEP:WORDS; no word names a file, or a number of processes."""
FEW = 4
"""Comparisons that a run keeps, the newest."""


@dataclass(frozen=True)
class KeptVariants:
    """What was compared of the checkpoints of a folder of runs."""

    folder: Folder
    jobs: Jobs

    def document(self, a: str, b: str) -> dict[str, Any]:
        """A comparison as JSON.

        Raises  Refused where it has to be made first
        """
        with _opened(self._made(a, b)) as found:
            document: dict[str, Any] = json.loads(found.metadata()["document"])
            return document

    def pair(self, a: str, b: str, name: str) -> VectorPair:
        """One array of both.

        Raises  Refused for what was not compared
        """
        file = self._made(a, b)
        return _pair(file, file.stat().st_mtime_ns, name)

    def make(self, a: str, b: str) -> JobDocument:
        """Compare them: a job."""
        (one, first), (other, second) = self._variant(a), self._variant(b)
        question = {
            "work": "variants",
            "a": one,
            "b": other,
            "names": [a, b],
            "file": str(self._file(a, b, first, second)),
        }
        return self.jobs.start(f"{a} against {b}", question)

    def _made(self, a: str, b: str) -> Path:
        file = self._file(a, b, self._variant(a)[1], self._variant(b)[1])
        if not file.is_file():
            raise Refused(f"{a} and {b} were not compared yet", 404, "document")
        return file

    def _file(self, a: str, b: str, first: Path, second: Path) -> Path:
        """Where it is kept: another place once a checkpoint or the program is another."""
        key = f"{a} {b} {Kept(first).key()} {Kept(second).key()} {_program()}"
        run = first.parent.parent.parent
        file = run / "variants" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.safetensors"
        self.folder.require_inside(file)
        return file

    def _variant(self, text: str) -> tuple[str, Path]:
        """How `limpid compare` names it, and the file of its weights.

        Raises  Refused for what names no checkpoint, NotThere for one that is not there
        """
        found = NAMED.fullmatch(text)
        if found is None:
            raise Refused(f"{text[:80]!r} is no variant: write RUN@STEP:WORDS, as in 001@400:transformers")
        run, step = self.folder.run(found["run"]), int(found["step"])
        if step not in run.checkpoint_steps():
            raise Refused(f"{found['run']} holds no checkpoint after step {step}", 404)
        words = f":{found['words']}" if found["words"] else ""
        weights = self.folder.checkpoint(found["run"], step) / "model.safetensors"
        return f"{run.path}@{step}{words}", weights


def make(asked: Mapping[str, Any], report: Report) -> None:
    """Compare two variants and keep what came of it."""
    from limpid.comparison.compare import compare
    from limpid.view.variants import beside

    report("running both variants, and what rounding may do to them", 0, None)
    write(Path(asked["file"]), beside(compare(asked["a"], asked["b"]), *asked["names"]))


def write(file: Path, found: Beside) -> None:
    """Keep a comparison, and of others in its folder the newest.

    Raises  CheckpointError where the folder cannot be written to
    """
    tensors = {}
    for name, pair in found.pairs.items():
        for side, array in (("a", pair.a), ("b", pair.b), ("limit", pair.limit)):
            tensors[f"{side}/{name}"] = _narrow(np.asarray(array[...]))
    try:
        file.parent.mkdir(exist_ok=True)
        with file_written_atomically(file) as temporary:
            save_file(tensors, temporary, {"document": json.dumps(to_json(found.document))})
        for old in sorted(file.parent.glob("*.safetensors"), key=lambda one: one.stat().st_mtime_ns)[:-FEW]:
            old.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"{file.parent} cannot be written to: {error.strerror or error}") from error


@lru_cache(maxsize=32)
def _pair(file: Path, stamp: int, name: str) -> VectorPair:
    """One array of both, which is read once; the stamp says of which file."""
    with _opened(file) as found:
        if f"a/{name}" not in found.keys():  # noqa: SIM118  it is no dictionary
            raise Refused(f"{name[:80]!r} was not compared", 404)
        a, b, limit = (found.get_tensor(f"{side}/{name}") for side in ("a", "b", "limit"))
        return VectorPair(name, a, b, limit=limit)


def _opened(file: Path) -> Any:
    try:
        return safe_open(file, "numpy")
    except (OSError, SafetensorError, *MALFORMED) as error:
        raise CheckpointError(f"{file} cannot be read: {' '.join(str(error).split())}") from error


def _narrow(array: Array) -> Array:
    """As float32 where that loses nothing: what an engine computes in float32 is."""
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    return np.asarray(narrow if np.array_equal(narrow, array, equal_nan=True) else array, order="C")


@lru_cache(maxsize=1)
def _program() -> str:
    """Changes with every line of limpid."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
