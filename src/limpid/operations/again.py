"""A recorded step of a folder's model taken once more, to try what other formats would do to its loss."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from limpid.errors import ConfigError
from limpid.operations.document import RecordingDocument
from limpid.operations.folder import of_folder
from limpid.operations.kept import Kept
from limpid.operations.step import Step
from limpid.operations.what_if import WhatIf, each_module, what_if
from limpid.operations.what_if_document import FORMATS, AgainDocument, FormatsDocument, document, of_modules
from limpid.reporter import SILENT, Report
from limpid.schedule import TEXT_RATE
from limpid.source import ModelFolder

EPS = {"fp32": 2.0**-23, "bf16": 2.0**-7, "fp64": 2.0**-52}
"""Of a loss, by the format of its step."""
OWN = ("its step was taken by code of its own, which is not run again from a recording: in Python, inside of "
       "limpid.recording(model), that is step.what_if(loss, {'layers.3.*': 'fp8'})")  # fmt: skip


def again_of(kept: Kept) -> AgainDocument:
    """Whether a recorded step can be taken again: of a folder's model that lies where it lay."""
    if kept.again is None:
        return AgainDocument(OWN, "", "", ())
    folder = Path(kept.again.model)
    is_there = (folder / "config.json").is_file()
    why = "" if is_there else f"its model is not in {folder} any more: put it back, or record the step again"
    return AgainDocument(why, folder.name, kept.again.precision, FORMATS)


def try_again(
    kept: Kept, asked: Mapping[str, str], *, by_module: bool = True, report: Report = SILENT.progress
) -> WhatIf:
    """What other formats of some operations would do to a recorded step's loss.

    Raises  ConfigError where it cannot be taken again, or has another loss than it had
    """
    step = _step(kept, report)
    assert step.loss is not None
    found = what_if(step.model, step.loss, torch.get_rng_state(), asked, by_module=by_module, report=report)
    _require_same(kept, found.loss)
    return found


def formats_document(kept: Kept, asked: Mapping[str, str], report: Report) -> FormatsDocument:
    """What was asked for; of nothing, every module by itself.

    Raises  ConfigError
    """
    if asked:
        return document(try_again(kept, asked, by_module=False, report=report))
    step = _step(kept, report)
    assert step.loss is not None
    loss, rows = each_module(step.model, step.loss, torch.get_rng_state(), report)
    _require_same(kept, loss)
    return of_modules(loss, rows)


def _step(kept: Kept, report: Report) -> Step:
    can = again_of(kept)
    if can.why or kept.again is None:
        raise ConfigError(f"{kept.folder}: {can.why}")
    report("opening the model", 0, None)
    return of_folder(ModelFolder(Path(kept.again.model)), kept.again.text, TEXT_RATE, kept.again.precision)


def _require_same(kept: Kept, loss: float) -> None:
    """Raise ConfigError where the loss is off by more than all calls' rounding may have moved both."""
    recorded: RecordingDocument = kept.document
    if recorded.loss is None or kept.again is None:
        return
    eps = EPS[kept.again.precision]
    most = 2 * (sum(abs(call.error) for call in recorded.calls) + eps * max(abs(recorded.loss), 1.0))
    if not abs(loss - recorded.loss) <= most:
        raise ConfigError(f"{kept.again.model} gives a loss of {loss:.6g} and had {recorded.loss:.6g} when it was "
                          "recorded: its weights are others now; record the step again")  # fmt: skip
