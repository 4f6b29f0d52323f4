"""Faults of the blind rounds where a run that worked is at hand: `limpid.watch(…, baseline=FILE)`.

The twin without the mistake writes the file. Held against it are, with the same seed, the faulty loop and the twin once
more; and with other random numbers, weights, batches and masks, both again. A fault is found when `not-as-baseline`
speaks, as a warning or as a notice; its place is right where the part of the step that it names first is one of those
that `places` reads from the author's key, and named where its words match the patterns that the author wrote. What the
rule says of the twin is false.

    python -m benchmarks.robustness.baselines [--from FILES] [--only NAME] [--mode same|other] [--json FILE]
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
from benchmarks.robustness.places import parts_of
from torch import nn

OTHER = 12345
"""Added to the seeds of another run."""


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


def told(finding: Any) -> dict[str, Any]:
    return {
        "severity": finding.severity, "part": finding.evidence.get("part", finding.where), "where": finding.where,
        "step": finding.step, "says": finding.says, "words": words(finding),
    }  # fmt: skip


def attempt(case: Fault, modes: tuple[str, ...]) -> dict[str, Any]:
    record: dict[str, Any] = {"name": case.name, "category": case.category, "what": case.what}
    record["places"] = sorted(parts_of(case.name, case.category))
    with tempfile.TemporaryDirectory() as folder:
        perform(case, Path(folder), False)
        record["baselines"] = len(list(Path(folder).iterdir()))
        for mode in modes:
            other = OTHER if mode == "other" else 0
            found = perform(case, Path(folder), True, other)
            record[mode] = {
                "found": [told(f) for f in found],
                "named": any(right(f, case) for f in found),
                "placed": bool(found) and told(found[0])["part"] in record["places"],
                "twin": [told(f) for f in perform(case, Path(folder), False, other)],
            }
    return record


def line(record: dict[str, Any], modes: tuple[str, ...]) -> str:
    if "error" in record:
        return f"{record['name']}: {record['error'].strip().splitlines()[-1]}"
    text = record["name"]
    for mode in modes:
        one = record[mode]
        first = one["found"][0] if one["found"] else None
        said = f"{first['severity']} {first['step']} [{first['part']}] {first['says']}" if first else "nothing"
        where = "" if first is None or one["placed"] else f" (wanted {'/'.join(record['places'])})"
        text += f"\n  {mode}: {said}{where}" + "".join(
            f"\n  {mode} TWIN: {f['severity']} {f['says']}" for f in one["twin"]
        )
    return text


def summary(records: list[dict[str, Any]], mode: str) -> str:
    well = [one[mode] | {"name": one["name"]} for one in records if "error" not in one and one["baselines"]]
    found = [one for one in well if one["found"]]
    loud = [one for one in found if one["found"][0]["severity"] != "notice"]
    parts = Counter(one["found"][0]["part"] for one in found)
    return (
        f"{mode} seed: {len(well)} with a baseline; found {len(found)}, by a warning {len(loud)}; the place right "
        f"first {sum(one['placed'] for one in found)}, in the author's words {sum(one['named'] for one in found)}; "
        f"twin unlike {sum(any(f['severity'] != 'notice' for f in one['twin']) for one in well)}, as a notice "
        f"{sum(any(f['severity'] == 'notice' for f in one['twin']) for one in well)}; first part "
        + ", ".join(f"{part} {count}" for part, count in parts.most_common())
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="files", default="", help="cases of files whose names begin so")
    parser.add_argument("--only", help="cases whose names hold this")
    parser.add_argument("--mode", choices=("same", "other"), help="one of the two alone")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    load()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    modes = ("same", "other") if options.mode is None else (options.mode,)
    records: list[dict[str, Any]] = []
    for case in FAULTS:
        if not case.file.startswith(options.files) or (options.only is not None and options.only not in case.name):
            continue
        try:
            records.append(attempt(case, modes))
        except Exception:
            records.append({"name": case.name, "category": case.category, "error": traceback.format_exc()})
        print(line(records[-1], modes), flush=True)
        if options.json:
            options.json.write_text(json.dumps(records, indent=1, default=str))
    for mode in modes:
        print(summary(records, mode))


if __name__ == "__main__":
    main()
