"""One recorded step as an object: its document, slices of its arrays, and any entry explained."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from limpid.errors import ConfigError
from limpid.maths.account import Account
from limpid.maths.operation import Array
from limpid.maths.step import rule
from limpid.maths.update import UpdateInput
from limpid.notebook import mimebundle
from limpid.quantities import parameters
from limpid.reporter import SILENT, Report
from limpid.source import RecordedStep, find_step
from limpid.tracing import cache
from limpid.tracing.describe import document
from limpid.tracing.document import ArrayDocument, EntryDocument, StepDocument, UpdateEntryDocument
from limpid.tracing.explain import explain
from limpid.tracing.mask import visible
from limpid.tracing.names import AROUND, bare, our_name
from limpid.tracing.record import Record
from limpid.tracing.recorded import Recorded
from limpid.tracing.rounding import account
from limpid.tracing.schema import from_json, to_json
from limpid.tracing.summary import statistics
from limpid.tracing.tensor_file import WORDS
from limpid.tracing.verify import verify_record

if TYPE_CHECKING:
    from limpid.data.lineage import StepRows

CORNER = (6, 8)
"""Rows and columns of an array that are shown."""
Index = tuple[int | slice, ...]


class Trace:
    """A recorded step, opened; nothing is computed before it is asked for, and nothing twice.

    trace = Trace.open("runs/001/steps/000500.safetensors")
    trace.step.verdict; trace.array("blocks.0.attention.scores", (0, 1)); trace.explain("logits", (0, 3, 7))
    """

    def __init__(
        self, record: Record, *, on_disk: bool = True, report: Report = SILENT.progress, just_written: bool = False
    ) -> None:
        self.record, self.on_disk, self.report, self.just_written = record, on_disk, report, just_written

    @classmethod
    def open(
        cls,
        record: str | Path | Record,
        *,
        on_disk: bool = True,
        report: Report = SILENT.progress,
        just_written: bool = False,
    ) -> Trace:
        """Open a recorded step.

        on_disk  what comes of it is kept beside it
        report   hears how far redoing it is
        just_written  by this process, with its hash, which is then not formed a second time
        Raises  CheckpointError when the file is not a whole recorded step
        """
        found = record if isinstance(record, Record) else Record(Path(record))
        return cls(found, on_disk=on_disk, report=report, just_written=just_written)

    def __repr__(self) -> str:
        meta = self.record.meta
        return f"Trace(step {meta['step']} of {meta['run']}, {self.record.path})"

    def _repr_html_(self) -> str:
        return self.step._repr_html_()

    _repr_mimebundle_ = mimebundle

    def document(self) -> dict[str, Any]:
        """The whole step, redone and compared, as plain values: what `limpid trace --json` prints."""
        plain: dict[str, Any] = to_json(self.step)
        return plain

    @cached_property
    def step(self) -> StepDocument:
        """The whole step, redone and compared."""
        run = RecordedStep(self.record.path).run
        if run is None:
            return self._redone()
        from limpid.tracing.written import with_run  # brings the tokenizer

        return with_run(self._redone(), self.record, run)

    def _redone(self) -> StepDocument:
        """What the record alone says, kept beside it."""
        kept = cache.read(self.record.path) if self.on_disk else None
        if kept is not None:
            found: StepDocument = from_json(StepDocument, kept)
            return found
        with ThreadPoolExecutor(1) as beside:
            checked = None if self.just_written else beside.submit(self.record.require_whole)
            try:
                made = document(verify_record(self.record, self.report))
            finally:
                if checked is not None:
                    checked.result()  # before all that a damaged file leads to
        if self.on_disk:
            cache.write(self.record.path, to_json(made))
        return made

    def error_of_loss(self) -> Account:
        """Who made the rounding error of the loss: Σ ⟨ḡ, δ⟩ over its operations, beside the loss in float64."""
        return account(self.step)

    def rows(self) -> StepRows:
        """Which documents made each row of the step's batch.

        Raises  CheckpointError where the record lies in no run's folder
        """
        from limpid.data.lineage import rows_of_step

        return rows_of_step(*find_step(self.record.path))

    @cached_property
    def entries(self) -> Recorded:
        """What `explain` walks through."""
        return Recorded(self.record)

    def names(self) -> list[str]:
        """Every quantity and parameter, in the order of the step, and every array of the batch."""
        return list(self._names)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        model = self.record.config.model
        quantities = self.record.objective.quantities(model)
        formed = [q.name for q in quantities] + [p.name for p in parameters(model)]
        given = sorted(name.removeprefix("batch/") for name in self.record.names if name.startswith("batch/"))
        return *formed, *(name for name in given if name not in formed)

    def tensor(self, asked: str) -> tuple[str, str]:
        """Our name of what was asked for, and the name of its tensor in the record.

        Raises  ConfigError with the nearest names
        """
        name = our_name(asked, self._names)
        around = AROUND.fullmatch(name)
        if around is None:
            return name, self.record.place(name)
        kind, inner = around.groups()
        if kind == "grad":
            return name, self.record.gradient_place(inner) or f"fast/grad({inner})"
        return name, f"after/{inner}" if kind == "update" else f"after/{kind}/{inner}"

    def array(self, asked: str, index: Index = ()) -> Array:
        """A quantity, parameter, gradient or moment, or a part of it, as float64 (ids as integers).

        Only what the index selects is read. Raises  ConfigError for an unknown name or an index that lies outside
        """
        name, tensor = self.tensor(asked)
        if tensor not in self.record.names:
            raise ConfigError(f"{name}: this update rule keeps no such array, or nothing here depends on it")
        try:
            part = np.asarray(self.record.mapped(tensor)[index])
        except IndexError as error:
            shape = self.record.shape(tensor)
            raise ConfigError(f"{name} has shape {shape}: {list(index)} lies outside; indices start at 0") from error
        return part.astype(np.int64 if part.dtype.kind in "iu" else np.float64)

    def explain(self, asked: str, index: tuple[int, ...] | None = None) -> EntryDocument:
        """One entry written out: how it was made, its gradient, its update; without an index the largest.

        Raises  ConfigError for an unknown name, or an index that lies outside
        """
        return explain(self.entries, asked if index is None else f"{asked}[{', '.join(map(str, index))}]")

    def look(self, asked: str) -> ArrayDocument | None:
        """One array in short; None where the step has none of this name."""
        name, tensor = self.tensor(asked)
        if tensor not in self.record.names:
            return None
        with np.errstate(all="ignore"):
            array = self.array(asked)
            rows = np.atleast_2d(array[(0,) * (array.ndim - 2)] if array.ndim > 2 else array)
            corner = rows[: CORNER[0], : CORNER[1]].astype(np.float64)
            seen = visible(self.record, re.sub(r"^grad\((.+)\)$", r"\1", name), array.shape)
            hidden = None if seen is None else ~seen[: CORNER[0], : CORNER[1]]
            return ArrayDocument(
                name,
                tensor,
                array.shape,
                WORDS.get(self.record.format(tensor), "int64"),
                statistics(array),
                float(np.linalg.norm(array)),
                tuple(tuple(float(x) for x in row) for row in corner),
                None if hidden is None else tuple(tuple(bool(x) for x in row) for row in hidden),
                self._update(bare(name)),
            )

    def _update(self, name: str) -> UpdateEntryDocument | None:
        """The update of the entry with the largest gradient."""
        record = self.record
        parameter = next((one for one in parameters(record.config.model) if one.name == name), None)
        if parameter is None:
            return None
        gradient = record.exact(f"fast/grad({name})")
        sizes = np.nan_to_num(np.abs(gradient), nan=np.inf, posinf=np.inf)
        at = tuple(int(i) for i in np.unravel_index(int(np.argmax(sizes)), gradient.shape))
        how, update = rule(record.config.update, parameter), self.step.update
        moments = {kind: record.exact(f"before/{kind}/{name}") for kind in how.moments}
        given = UpdateInput(
            record.exact(f"before/{name}"), gradient * update.clip_scale, moments, update.learning_rate,
            update.number, parameter.decayed,
        )  # fmt: skip
        lines = how.derivation(given, at)
        return UpdateEntryDocument(at, float(gradient[at]), tuple(lines), float(record.exact(f"after/{name}")[at]))
