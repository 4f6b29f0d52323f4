"""Two of anything: recorded steps array by array, checkpoints weight by weight, runs option by option."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from limpid.config.options import to_dict
from limpid.errors import CheckpointError
from limpid.history.differences import flat
from limpid.quantities import parameters
from limpid.run import Run
from limpid.tracing.names import bare
from limpid.tracing.stations import block, station
from limpid.view.answers import Refused
from limpid.view.arrays import StepArrays
from limpid.view.bounds import MOST_FLOPS, Bounded, Kind, both, compared, known
from limpid.view.differences import difference
from limpid.view.documents.compare import Bounds, ComparedDocument, ComparedRow, Losses, OptionDifference
from limpid.view.documents.job import JobDocument
from limpid.view.jobs import Jobs
from limpid.view.kept import Kept
from limpid.view.pairs import Pair
from limpid.view.steps import Steps

NAMED = re.compile(r"(?P<run>[^/@]+)(?:/(?P<step>\d{1,18})|@(?P<saved>\d{1,18}))?")
HELD = 8


@dataclass
class Compare:
    """Comparisons of what lies in a folder of runs; the last ones are held."""

    steps: Steps
    jobs: Jobs
    _held: dict[str, ComparedDocument] = field(default_factory=dict)

    def of(self, a: str, b: str) -> ComparedDocument:
        """RUN/STEP, RUN@STEP or RUN, twice the same kind.

        Raises  Refused for what cannot be held against each other
        """
        one, other = NAMED.fullmatch(a), NAMED.fullmatch(b)
        kinds = [None if found is None else _kind(found) for found in (one, other)]
        if one is None or other is None or kinds[0] != kinds[1]:
            raise Refused("a and b are two recorded steps, RUN/STEP, two checkpoints, RUN@STEP, or two runs")
        runs = [self.steps.runs.folder.run(found["run"]) for found in (one, other)]
        if kinds[0] == "runs":
            return ComparedDocument(a, b, "runs", _options(*runs), None, None, (), "none", ())
        if kinds[0] == "checkpoints":
            return self._checkpoints(a, b, runs, (int(one["saved"]), int(other["saved"])))
        files = [self.steps.file(found["run"], int(found["step"])) for found in (one, other)]
        limits = known(*files)
        key = f"{limits is None} " + " ".join(f"{file} {Kept(file).stamp}" for file in files)
        if key not in self._held:
            mine, theirs = (self.steps.arrays(found["run"], int(found["step"])) for found in (one, other))
            self._held[key] = _steps(a, b, runs, mine, theirs, limits)
            for old in list(self._held)[:-HELD]:
                del self._held[old]
        return self._held[key]

    def bound(self, a: str, b: str) -> JobDocument:
        """Work out what rounding allows of the differences of two recorded steps: a job.

        Raises  Refused for what are no two recorded steps
        """
        found = [NAMED.fullmatch(one) for one in (a, b)]
        files = [self.steps.file(one["run"], int(one["step"])) for one in found if one is not None and one["step"]]
        if len(files) < 2:
            raise Refused("what rounding allows is known of two recorded steps, RUN/STEP")
        question = {"work": "bounds", "a": str(files[0]), "b": str(files[1])}
        return self.jobs.start(f"what rounding allows between {a} and {b}", question)

    def pair(self, a: str, b: str, name: str, side: str) -> Pair:
        """One array of both: of two recorded steps, or of two checkpoints.

        Raises  Refused for what one of them lacks, or has in another shape
        """
        one, other = NAMED.fullmatch(a), NAMED.fullmatch(b)
        if one is None or other is None or _kind(one) != _kind(other) or _kind(one) == "runs":
            raise Refused("arrays are those of two recorded steps, RUN/STEP, or of two checkpoints, RUN@STEP")
        if _kind(one) == "checkpoints":
            return self._weights(one, other, name)
        mine, theirs = (self.steps.arrays(found["run"], int(found["step"])) for found in (one, other))
        known_name, _ = mine.trace.tensor(name)
        pair = both(mine, theirs, known_name)
        if pair is None:
            raise Refused(f"{name[:80]}: one of both lacks it, or has it in another shape", 404)
        limit = mine.limit(known_name) if side == "share" else None
        return Pair(known_name, *pair, limit)

    def _weights(self, one: re.Match[str], other: re.Match[str], name: str) -> Pair:
        found = []
        for place in (one, other):
            file = self._saved(self.steps.runs.folder.run(place["run"]), int(place["saved"]))
            try:
                with safe_open(file, "numpy") as weights:
                    if name not in weights.keys():  # noqa: SIM118  it is no dictionary
                        raise Refused(f"{place[0]} has no {name[:80]!r}", 404)
                    found.append(weights.get_tensor(name))
            except (OSError, SafetensorError, TypeError) as error:  # TypeError: a format that NumPy lacks
                raise CheckpointError(f"a checkpoint cannot be read: {' '.join(str(error).split())}") from error
        if found[0].shape != found[1].shape:
            raise Refused(f"{name[:80]}: {list(found[0].shape)} against {list(found[1].shape)}", 404)
        return Pair(name, *found)

    def _saved(self, run: Run, step: int) -> Path:
        if step not in run.checkpoint_steps():
            raise Refused(f"{run.path.name} holds no checkpoint after step {step}", 404)
        return self.steps.runs.folder.checkpoint(run.path.name, step) / "model.safetensors"

    def _checkpoints(self, a: str, b: str, runs: list[Run], saved: tuple[int, int]) -> ComparedDocument:
        axes = {one.name: one.axes for one in parameters(runs[0].read_config().model)}
        files = [self._saved(run, step) for run, step in zip(runs, saved, strict=True)]
        try:
            with safe_open(files[0], "numpy") as mine, safe_open(files[1], "numpy") as theirs:
                names, others = list(mine.keys()), set(theirs.keys())
                alone, rows = sorted(others.symmetric_difference(names)), []
                for name in (one for one in names if one in others):
                    if mine.get_slice(name).get_shape() != theirs.get_slice(name).get_shape():
                        alone.append(name)
                    else:
                        rows.append(
                            row_of(name, "weight", axes.get(name, ()), mine.get_tensor(name), theirs.get_tensor(name))
                        )
        except (OSError, SafetensorError, TypeError) as error:  # TypeError: a format that NumPy lacks
            raise CheckpointError(f"a checkpoint cannot be read: {' '.join(str(error).split())}") from error
        return ComparedDocument(a, b, "checkpoints", _options(*runs), None, None, tuple(rows), "none", tuple(alone))


def _kind(found: re.Match[str]) -> str:
    return "steps" if found["step"] else "checkpoints" if found["saved"] else "runs"


def _options(a: Run, b: Run) -> tuple[OptionDifference, ...]:
    one, other = (dict(flat(to_dict(run.read_config()))) for run in (a, b))
    names = dict.fromkeys((*one, *other))
    return tuple(
        OptionDifference(name, one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)
    )


def _steps(
    a: str,
    b: str,
    runs: list[Run],
    mine: StepArrays,
    theirs: StepArrays,
    limits: Mapping[str, Bounded] | None,
) -> ComparedDocument:
    """Every array that both have, in the order of the step."""
    records = mine.trace.record, theirs.trace.record
    rows, alone = [], sorted(set(mine.places()) ^ set(theirs.places()))
    for name, kind in compared(mine).items():
        pair = both(mine, theirs, name)
        if pair is not None:
            rows.append(row_of(name, kind, records[0].axes(bare(name)), *pair, (limits or {}).get(name)))
        elif all(arrays.trace.tensor(name)[1] in arrays.trace.record.names for arrays in (mine, theirs)):
            alone.append(name)
    tokens = [record.batch() for record in records]
    same = tokens[0].keys() == tokens[1].keys() and all(np.array_equal(tokens[0][k], tokens[1][k]) for k in tokens[0])
    losses = Losses(*(float(record.exact("fast/loss")) for record in records))
    bounds: Bounds = "here" if limits is not None else "to come" if mine.flops() < MOST_FLOPS else "none"
    return ComparedDocument(a, b, "steps", _options(*runs), same, losses, tuple(rows), bounds, tuple(alone))


def row_of(name: str, kind: Kind, axes: tuple[str, ...], a: Any, b: Any, limit: Bounded | None = None) -> ComparedRow:
    found, about = difference(a, b), bare(name)
    bound, share = (None, None) if limit is None else (limit.bound, limit.share)
    return ComparedRow(
        name, station(about), block(about), kind, tuple(a.shape), axes, found.relative, found.largest, found.index,
        found.a, found.b, bound, share, found.not_finite,
    )  # fmt: skip
