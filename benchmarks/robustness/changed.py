"""Loops that somebody rewrote, held against the loop as it worked: `limpid.watch(…, baseline=FILE)`.

The loop as it worked writes the file, the changed one is held against it; seeds are the authors' own, alike on both
sides or not. A fault is found when `not-as-baseline` speaks; its part is right where the part of a step that is named
first is its author's category (inputs and labels are both the batch), and it is named where the words match the
patterns that the author wrote. A rewrite without harm is accused where the rule warns, and told something where it
gives notice.

    python -m benchmarks.robustness.changed [--from round9] [--only NAME] [--kind fault|innocent] [--json FILE]
"""

import argparse
import json
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.baselines import perform, told
from benchmarks.robustness.doctor import load, right
from benchmarks.robustness.loops.case import FAULTS, INNOCENT, Fault, Innocent

BATCH = {"labels": "data"}


def attempt(case: Fault | Innocent) -> dict[str, Any]:
    record: dict[str, Any] = {"name": case.name, "what": case.what, "kind": type(case).__name__.lower()}
    try:
        with tempfile.TemporaryDirectory() as folder:
            perform(case, Path(folder), False)
            found = perform(case, Path(folder), True)
    except Exception:
        return record | {"found": [], "error": traceback.format_exc()}
    record["found"] = [told(one) for one in found]
    record["warned"] = any(one.severity != "notice" for one in found)
    if isinstance(case, Fault):
        part, wanted = (record["found"][0]["part"] if found else ""), case.category
        record["placed"] = BATCH.get(part, part) == BATCH.get(wanted, wanted)
        record["named"] = any(right(one, case) for one in found)
    return record


def line(one: dict[str, Any]) -> str:
    said = [f"{f['severity']} [{f['part']}] {f['says']}" for f in one["found"]]
    return f"{one['kind']} {one['name']}: {(one.get('error', '').strip().splitlines()[-1:] or said or ['nothing'])[0]}"


def summary(records: list[dict[str, Any]]) -> str:
    def count(kind: str, key: str) -> int:
        return sum(bool(one.get(key)) for one in records if one["kind"] == kind)

    faults = (
        f"{count('fault', 'name')} faults: found {count('fault', 'found')}, by a warning {count('fault', 'warned')}; "
        f"part right first {count('fault', 'placed')}, in the author's words {count('fault', 'named')}"
    )
    innocent = (
        f"{count('innocent', 'name')} innocent changes: accused {count('innocent', 'warned')}, "
        f"told something {count('innocent', 'found')}"
    )
    return f"{faults}\n{innocent}\nerrors {sum('error' in one for one in records)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="files", default="round9", help="rounds of changed loops: round8, round9")
    parser.add_argument("--only", default="", help="cases whose names hold this")
    parser.add_argument("--kind", choices=("fault", "innocent"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    load()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    cases = [one for one in (*FAULTS, *INNOCENT) if one.file.startswith(options.files) and options.only in one.name]
    records: list[dict[str, Any]] = []
    for case in cases:
        if options.kind and type(case).__name__.lower() != options.kind:
            continue
        records.append(attempt(case))
        one = records[-1]
        said = one.get("error", "").strip().splitlines()[-1:] or [
            f"{f['severity']} [{f['part']}] {f['says']}" for f in one["found"]
        ]
        print(f"{one['kind']} {case.name}: {said[0] if said else 'nothing'}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(records, indent=1, default=str))
    print(summary(records))


if __name__ == "__main__":
    main()
