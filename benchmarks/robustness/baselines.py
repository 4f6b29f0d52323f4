"""Faults of the blind rounds where a run that worked is at hand: `limpid.watch(…, baseline=FILE)`.

The twin without the mistake writes the file. Then the faulty loop is held against it, from the same seed; and, as a
control, the twin again with the same settings and other random numbers: weights, batches, masks. A fault is found when
`not-as-baseline` speaks; right is the part of a step that the rule names first, and its words hold the cause where they
match the patterns that the fault's author wrote beforehand.

    python -m benchmarks.robustness.baselines [--from FILES] [--only NAME] [--json FILE]
"""

import argparse
import json
import random
import tempfile
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.robustness.doctor import load, right, words  # sets threads before torch is loaded
from benchmarks.robustness.loops.case import FAULTS, Fault, Run
from torch import nn

OTHER = 12345
"""Added to the seeds of the control."""


class HeldAgainst(Run):
    """A run whose doctors have baselines in a folder, numbered as they come."""

    def __init__(self, name: str, folder: Path, other: int = 0) -> None:
        super().__init__(name, 0, watched=True)
        self.folder = folder
        if other:
            torch.manual_seed(other)
            random.seed(other)
            np.random.seed(other)  # noqa: NPY002

    def watch(self, model: nn.Module, optimizer: Any = None, **options: Any) -> Any:
        return super().watch(model, optimizer, **options, baseline=self.folder / f"{len(self.doctors)}.json")

    def unlike(self) -> list[Any]:
        return [finding for finding in self.findings() if finding.rule == "not-as-baseline"]


def perform(case: Fault, folder: Path, wrong: bool, other: int = 0) -> list[Any]:
    run = HeldAgainst(case.name, folder, other)
    try:
        case.loop(run, wrong)
    finally:
        for doctor in run.doctors:
            doctor.close()
    return run.unlike()


def attempt(case: Fault) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        perform(case, Path(folder), False)
        written = len(list(Path(folder).iterdir()))
        control, found = perform(case, Path(folder), False, OTHER), perform(case, Path(folder), True)
    return {
        "name": case.name, "category": case.category, "what": case.what, "baselines": written,
        "found": [{"where": f.where, "step": f.step, "says": f.says, "evidence": f.evidence} for f in found],
        "named": any(right(finding, case) for finding in found) if found else False,
        "words": [words(finding) for finding in found],
        "control": [{"where": f.where, "step": f.step, "says": f.says} for f in control],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="files", default="", help="cases of files whose names begin so")
    parser.add_argument("--only", help="cases whose names hold this")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    load()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    records: list[dict[str, Any]] = []
    for case in FAULTS:
        if not case.file.startswith(options.files) or (options.only is not None and options.only not in case.name):
            continue
        try:
            records.append(attempt(case))
        except Exception:
            records.append({"name": case.name, "category": case.category, "error": traceback.format_exc()})
        one = records[-1]
        said = one.get("error", "").strip().splitlines()[-1:] or [f["says"] for f in one["found"]] or ["nothing"]
        print(f"{case.name}: {said[0]}" + ("; CONTROL" if one.get("control") else ""), flush=True)
        if options.json:
            options.json.write_text(json.dumps(records, indent=1, default=str))
    well = [one for one in records if "error" not in one and one["baselines"]]
    parts = Counter(one["found"][0]["where"] for one in well if one["found"])
    print(
        f"{len(well)} with a baseline; found {sum(bool(one['found']) for one in well)}, in the author's words "
        f"{sum(one['named'] for one in well)}; control unlike {sum(bool(one['control']) for one in well)}; first part "
        + ", ".join(f"{part} {count}" for part, count in parts.most_common())
    )


if __name__ == "__main__":
    main()
