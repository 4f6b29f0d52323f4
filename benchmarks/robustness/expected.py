"""Loops held against what their authors say that they are meant to do: `limpid.watch(…, expected=TABLE)`.

Authors write an intent for each loop, in words, without having seen what can be expected. Somebody who sees the words
alone, no loop, writes the tables (read/ROUND/expected.json, by name). Each loop runs as it worked and as it was
changed, with the table in both. A fault is detected when the doctor raises an alarm, by its laws or by the table; the
first alarm is right where it matches the patterns that the author wrote. Alarms about sound loops are false.

    python -m benchmarks.robustness.expected TABLES.json --from round9 [--only NAME] [--json FILE]
"""

import argparse
import json
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.doctor import QUIET, load, right, told
from benchmarks.robustness.loops.case import FAULTS, INNOCENT, Fault, Innocent, Run
from torch import nn

RULE = "not-as-expected"


class Meant(Run):
    """A run whose doctors are told what is meant."""

    def __init__(self, name: str, table: dict[str, Any]) -> None:
        super().__init__(name, 0, watched=True)
        self.table = table

    def watch(self, model: nn.Module, optimizer: Any = None, **options: Any) -> Any:
        return super().watch(model, optimizer, **options, expected=self.table)


def alarms(case: Fault | Innocent, table: dict[str, Any], changed: bool) -> list[Any]:
    """What is worse than a notice, root causes first."""
    run = Meant(case.name, table)
    try:
        case.loop(run, changed)
    finally:
        for doctor in run.doctors:
            doctor.close()
    return [one for one in run.findings() if one.severity != QUIET]


def attempt(case: Fault | Innocent, table: dict[str, Any]) -> dict[str, Any]:
    record: dict[str, Any] = {"name": case.name, "kind": type(case).__name__.lower(), "said": table}
    for side, changed in (("as it was", False), ("changed", True)):
        try:
            found = alarms(case, table, changed)
        except Exception:
            record["error"] = traceback.format_exc()
            continue
        record[side] = [told(one) | {"key": one.evidence.get("key", "")} for one in found]
        if isinstance(case, Fault):
            record[f"right, {side}"] = [right(one, case) for one in found]
    return record


def summary(records: list[dict[str, Any]]) -> str:
    def by(one: dict[str, Any], side: str, ways: tuple[bool, ...]) -> list[bool]:
        """Whether each alarm of these ways is right."""
        found = one.get(side, [])
        rights = one.get(f"right, {side}", [False] * len(found))
        return [yes for yes, f in zip(rights, found, strict=True) if (f["rule"] == RULE) in ways]

    lines = []
    for name, ways in (("laws", (False,)), ("what is meant", (True,)), ("both", (False, True))):
        faults = [by(one, "changed", ways) for one in records if one["kind"] == "fault"]
        sound = [by(one, "as it was", ways) for one in records]
        sound += [by(one, "changed", ways) for one in records if one["kind"] == "innocent"]
        loops = sum(
            bool(by(one, "as it was", ways) or (one["kind"] == "innocent" and by(one, "changed", ways)))
            for one in records
        )
        lines.append(
            f"{name}: of {len(faults)} faults detected {sum(map(bool, faults))}, right first "
            f"{sum(one[:1] == [True] for one in faults)}, right among them {sum(any(one) for one in faults)}; of "
            f"{len(sound)} sound runs accused {sum(map(bool, sound))}, of {len(records)} sound kinds {loops}"
        )
    return "\n".join([*lines, f"errors {sum('error' in one for one in records)}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path, help="JSON: what is meant, by the names of the loops")
    parser.add_argument("--from", dest="files", required=True, help="loops of files whose names begin so")
    parser.add_argument("--only", default="", help="cases whose names hold this")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    load()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    tables = json.loads(options.tables.read_text(encoding="utf-8"))
    records: list[dict[str, Any]] = []
    for case in (*FAULTS, *INNOCENT):
        if not case.file.startswith(options.files) or options.only not in case.name or case.name not in tables:
            continue
        records.append(attempt(case, tables[case.name]))
        for side in ("as it was", "changed"):
            for one in records[-1].get(side, []):
                says = f"{one['key'] or one['rule']}: {one['says'][:110]}"
                print(f"{records[-1]['kind']} {case.name} {side}: {says}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(records, indent=1, default=str))
    print(summary(records))


if __name__ == "__main__":
    main()
