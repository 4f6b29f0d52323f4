"""Every fault of tuning with its twin, and every honest run, with the doctor beside it.

python -m benchmarks.doctor.tuning [--only NAME] [--kind fault|honest] [--cases FILE.py ...] [--json FILE]
                                   [--table docs/doctor.md]
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import re
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error"}

import torch
from benchmarks.doctor.__main__ import write_table
from benchmarks.doctor.tuning.case import FAULTS, HONEST, Bench, Fault, inside, load
from benchmarks.doctor.tuning.models import adder

from limpid.doctor.finding import Finding
from limpid.run import Run

BEGIN, END = "<!-- tuning: python -m benchmarks.doctor.tuning -->", "<!-- end of tuning -->"


def words(finding: Finding) -> str:
    return " ".join((finding.rule.replace("-", " "), finding.where, finding.says, finding.cause, finding.fix))


def is_right(finding: Finding, case: Fault) -> bool:
    return all(re.search(pattern, words(finding), re.IGNORECASE) for pattern in case.wanted)


def said_of(base: Run, do: Callable[[Bench], None]) -> tuple[list[Finding], str]:
    """What the doctor says of a case, and what the case itself ended with."""
    with tempfile.TemporaryDirectory() as name, inside(Path(name)):
        bench, crashed = Bench(Path(name), base), ""
        torch.manual_seed(0)
        try:
            do(bench)
        except Exception:
            crashed = traceback.format_exc()
        return bench.said(), crashed


def perform(base: Run, name: str, kind: str) -> dict[str, Any]:
    began = time.perf_counter()
    gc.collect()
    case: Any = (FAULTS if kind == "fault" else HONEST)[name]
    record: dict[str, Any] = {"name": name, "kind": kind, "does": case.does}
    if kind == "honest":
        said, crashed = said_of(base, case.run)
        record |= {"said": [told(one) for one in said], "failed": bool(said or crashed), "crashed": crashed}
    else:
        said, crashed = said_of(base, lambda bench: case.run(bench, True))
        twin, twin_crashed = said_of(base, lambda bench: case.run(bench, False))
        record |= {
            "said": [told(one) for one in said],
            "twin": [told(one) for one in twin],
            "detected": bool(said),
            "right": bool(said) and is_right(said[0], case),
            "right anywhere": any(is_right(one, case) for one in said),
            "crashed": crashed or twin_crashed,
        }
        record["failed"] = not record["right"] or bool(twin) or bool(record["crashed"])
    return record | {"seconds": round(time.perf_counter() - began, 1)}


def told(finding: Finding) -> dict[str, Any]:
    return {
        key: getattr(finding, key) for key in ("rule", "severity", "step", "where", "says", "cause", "fix", "meant")
    }


def line(record: Mapping[str, Any]) -> str:
    named = rules_of(record["said"])
    twin = f"; twin: {rules_of(record['twin'])}" if record.get("twin") else ""
    crash = f"; {record['crashed'].strip().splitlines()[-1]}" if record["crashed"] else ""
    return f"{'FAILED' if record['failed'] else 'ok':6} {record['kind']:6} {record['name']}: {named}{twin}{crash}"


def rules_of(said: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(one["rule"] for one in said) or "silent"


def markdown(records: Sequence[Mapping[str, Any]]) -> str:
    faults, sound = ([one for one in records if one["kind"] == kind] for kind in ("fault", "honest"))

    def count(key: str) -> str:
        return f"{sum(bool(one[key]) for one in faults)} of {len(faults)}"

    lines = [
        "| | measured |", "|---|---|",
        f"| faults detected | {count('detected')} |",
        f"| right cause named first | {count('right')} |",
        f"| twins accused | {count('twin')} |",
        f"| honest runs accused | {sum(bool(one['said']) for one in sound)} of {len(sound)} |",
        "", "| fault | what is done | named first | its twin |", "|---|---|---|---|",
        *(
            f"| {one['name']} | {one['does']} | {one['said'][0]['rule'] if one['said'] else 'not seen'} | "
            f"{rules_of(one['twin'])} |" for one in faults
        ),
        "", "| honest run | what looks odd | the doctor |", "|---|---|---|",
        *(f"| {one['name']} | {one['does']} | {rules_of(one['said'])} |" for one in sound),
    ]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="cases whose names hold this")
    parser.add_argument("--kind", choices=("fault", "honest"))
    parser.add_argument(
        "--cases", type=Path, nargs="*", default=(), help="further files of cases; with --alone, no others"
    )
    parser.add_argument("--alone", action="store_true", help="only the cases of the files named")
    parser.add_argument("--json", type=Path, help="write everything found here")
    parser.add_argument("--table", type=Path, help="put the table into this document, between its marks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    load()
    known = {*FAULTS, *HONEST}
    load([file.resolve() for file in options.cases])
    chosen = [
        (name, kind)
        for kind, cases in (("fault", FAULTS), ("honest", HONEST))
        for name in cases
        if options.kind in (None, kind) and (options.only or "") in name and not (options.alone and name in known)
    ]
    if not chosen:
        parser.error(f"no case is called {options.only}: choose from {', '.join((*FAULTS, *HONEST))}")
    records = []
    with tempfile.TemporaryDirectory() as folder:
        base = adder(Path(folder))
        for name, kind in chosen:
            records.append(perform(base, name, kind))
            print(line(records[-1]), flush=True)
            if options.json:
                options.json.write_text(json.dumps(records, indent=1, ensure_ascii=False))
    if options.table:
        write_table(options.table, markdown(records), BEGIN, END)
    print(markdown(records).split("\n\n")[0])


if __name__ == "__main__":
    main()
