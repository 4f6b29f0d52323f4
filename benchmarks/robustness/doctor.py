"""The doctor on training loops its authors have not seen: honest ones, and ones with a mistake.

Honest loops may bring no finding above "notice", and must come out the same to the bit with the doctor and without:
losses, weights, random numbers, calls of a module that counts. A faulty loop must be accused, and rightly: the words a
right diagnosis needs are given with the fault. That a fault bites is shown by its twin without the mistake.

    python -m benchmarks.robustness.doctor [--from FILES] [--count N] [--seed S] [--jobs J] [--json FILE] [--resume]
                                           [--only NAME]
"""

import argparse
import importlib
import json
import multiprocessing
import os
import re
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from benchmarks.robustness.loops.case import FAULTS, HONEST, Fault, Honest, Run
from benchmarks.robustness.loops.transformer import moved
from torch import Tensor

QUIET = "notice"


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        a, b = a.to_dense(), b.to_dense()
        return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(a.nan_to_num(), b.nan_to_num()))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def words(finding: Any) -> str:
    return " ".join((finding.rule.replace("-", " "), finding.where, finding.says, finding.cause, finding.fix))


def told(finding: Any) -> dict[str, Any]:
    kept = ("rule", "severity", "step", "where", "says", "cause", "fix", "meant", "sure")
    return {k: getattr(finding, k) for k in kept}


def right(finding: Any, case: Fault) -> bool:
    return all(re.search(pattern, words(finding), re.IGNORECASE) for pattern in case.wanted)


def perform(
    loop: Callable[..., None], name: str, seed: int, watched: bool, preflight: bool, *arguments: Any
) -> tuple[Run, dict[str, Any]]:
    run = Run(name, seed, watched, preflight)
    try:
        loop(run, *arguments)
    finally:
        for doctor in run.doctors:
            doctor.close()
    return run, run.state()


def try_honest(case: Honest, seed: int, preflight: bool) -> dict[str, Any]:
    name = case.drawn_by or case.name
    plain, without = perform(case.loop, name, seed, False, preflight)
    watched, with_doctor = perform(case.loop, name, seed, True, preflight)
    findings = watched.findings()
    loud = [f for f in findings if f.severity != QUIET]
    changed = [key for key in without if not same(without[key], with_doctor[key])]
    return {
        "category": "honest",
        "expected": "no finding above notice, nothing changed",
        "got": [told(f) for f in loud],
        "asked": [told(f) for f in findings if f.is_said and f.severity == QUIET],
        "notices": [f"{f.rule}: {f.says}" for f in findings if not f.is_said],
        "changed": changed,
        "steps": len(plain.losses),
        "losses": [plain.losses[0], plain.losses[-1]] if plain.losses else [],
        "calls": without["calls"],
        "accused": bool(loud),
        "failed": bool(loud or changed),
    }


def bite(wrong: Run, twin: Run) -> dict[str, Any]:
    """How far the mistake moved the losses and the weights from its twin's."""
    a, b = np.array(wrong.losses), np.array(twin.losses)
    count = min(len(a), len(b))
    gap = (
        float(np.nanmax(np.abs(a[:count] - b[:count]))) if np.isfinite(a - b if len(a) == len(b) else a).any() else None
    )
    w, t = (torch.cat([moved(m) for m in run.models]) for run in (wrong, twin))
    far = float((w - t).norm() / t.norm()) if w.shape == t.shape else None
    finite = bool(np.isfinite(a).all())
    bites = not finite or len(a) != len(b) or far is None or far > 1e-3 or bool(gap and gap > 1e-3)
    return {
        "bites": bites,
        "largest difference of losses": gap,
        "relative difference of weights": far,
        "finite": finite,
    }


def try_fault(case: Fault, seed: int, preflight: bool, twins: bool) -> dict[str, Any]:
    twin, _ = perform(case.loop, case.name, seed, twins, preflight, False)
    wrong, _ = perform(case.loop, case.name, seed, True, preflight, True)
    findings = wrong.findings()
    loud = [f for f in findings if f.severity != QUIET]
    twin_loud = [f for f in twin.findings() if f.severity != QUIET]
    proof = bite(wrong, twin)
    said = [f for f in findings if f.is_said]  # alarms, and behind them what may be meant
    first = bool(loud) and right(loud[0], case)
    return {
        "category": case.category,
        "expected": " and ".join(case.wanted),
        "got": [told(f) for f in loud],
        "asked": [told(f) for f in said if f.severity == QUIET],
        "notices": [f"{f.rule}: {f.says}" for f in findings if not f.is_said],
        "detected": bool(loud),
        "right first": first,
        "said": bool(said),
        "right first of what is said": bool(said) and right(said[0], case),
        "right anywhere": any(right(f, case) for f in loud),
        "right as a notice": any(right(f, case) for f in findings if f.severity == QUIET),
        "false findings": [f.rule for f in loud if not right(f, case)],
        "twin": [told(f) for f in twin_loud],
        "losses": [wrong.losses[0], wrong.losses[-1], twin.losses[-1]],
        "failed": not (said and right(said[0], case)) or bool(twin_loud) or not proof["bites"],
        **proof,
    }


def attempt(kind: str, index: int, seed: int, preflight: bool, twins: bool) -> dict[str, Any]:
    load()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    case: Any = (HONEST if kind == "honest" else FAULTS)[index]
    record: dict[str, Any] = {"name": case.name, "kind": kind, "done": case.what, "seed": seed}
    start = time.perf_counter()
    try:
        if kind == "honest":
            record |= try_honest(case, seed, preflight)
        else:
            record |= try_fault(case, seed, preflight, twins)
    except Exception:
        record |= {"category": getattr(case, "category", kind), "error": traceback.format_exc(), "failed": True}
    record["seconds"] = round(time.perf_counter() - start, 2)
    return record


def attempted(arguments: tuple[str, int, int, bool, bool]) -> dict[str, Any]:
    return attempt(*arguments)


def load() -> None:
    """The files of cases: each adds its own when it is imported."""
    for file in sorted((Path(__file__).parent / "loops").glob("*_*.py")):
        importlib.import_module(f"benchmarks.robustness.loops.{file.stem}")


def line(record: dict[str, Any]) -> str:
    name = f"{record['kind']:6} {record['name']}"
    if "error" in record:
        return f"{name}: error: {record['error'].strip().splitlines()[-1]}"
    named = ", ".join(f"{f['rule']} ({f['severity']})" for f in record["got"] + record["asked"]) or "nothing"
    if record["kind"] == "honest":
        return f"{name}: found {named}; changed: {', '.join(record['changed']) or 'nothing'}"
    extra = "" if record["bites"] else "; does not bite"
    extra += "; named later" if record["right anywhere"] and not record["right first"] else ""
    extra += f"; the twin is accused of {', '.join(f['rule'] for f in record['twin'])}" if record["twin"] else ""
    return f"{name}: found {named}{extra}; wanted /{record['expected']}/"


def summary(records: list[dict[str, Any]]) -> str:
    well = [r for r in records if "error" not in r]
    sound = [r for r in well if r["kind"] == "honest"]
    wrong = [r for r in well if r["kind"] == "fault"]

    def count(rows: list[dict[str, Any]], key: str) -> str:
        return f"{sum(bool(r[key]) for r in rows)}/{len(rows)}"

    lines = [f"{'category':14} {'cases':>6} {'detected':>9} {'first':>7} {'anywhere':>9} {'false':>6}"]
    for category in sorted({r["category"] for r in wrong}):
        rows = [r for r in wrong if r["category"] == category]
        seen, first, anywhere = (sum(r[k] for r in rows) for k in ("detected", "right first", "right anywhere"))
        false = sum(len(r["false findings"]) for r in rows)
        lines.append(f"{category:14} {len(rows):6} {seen:9} {first:7} {anywhere:9} {false:6}")
    lines.append(
        f"honest accused {count(sound, 'accused')}; detected {count(wrong, 'detected')}; "
        f"right first {count(wrong, 'right first')}; changed {sum(bool(r['changed']) for r in sound)}\n"
        f"with what may be meant: honest asked {count(sound, 'asked')}; said {count(wrong, 'said')}; "
        f"right first of it {count(wrong, 'right first of what is said')}"
    )
    lines.append(
        f"right anywhere {count(wrong, 'right anywhere')}; twins accused {count(wrong, 'twin')}; "
        f"bite {count(wrong, 'bites')}; false findings {sum(len(r['false findings']) for r in wrong)}; "
        f"errors {len(records) - len(well)}"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, help="the first N of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true", help="skip what the JSON holds")
    parser.add_argument("--only", help="cases whose names hold this")
    parser.add_argument("--from", dest="files", default="", help="cases of files whose names begin so")
    parser.add_argument("--kind", choices=("honest", "fault"))
    parser.add_argument("--preflight", action="store_true", help="let the doctor examine the first batch, where it can")
    parser.add_argument("--no-twins", action="store_true", help="do not watch the faults' honest twins")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    load()
    wanted = [
        (kind, index)
        for kind, cases in (("honest", HONEST), ("fault", FAULTS))
        for index, case in enumerate(cases)
        if options.kind in (None, kind)
        and (options.only is None or options.only in case.name)  # type: ignore[attr-defined]
        and case.file.startswith(options.files)  # type: ignore[attr-defined]
        and (options.count is None or index < options.count)
    ]
    if options.list:
        for kind, index in wanted:
            case: Any = (HONEST if kind == "honest" else FAULTS)[index]
            print(f"{kind:6} {case.name:34} {case.what}")
        return
    records: list[dict[str, Any]] = []
    if options.resume and options.json and options.json.exists():
        records = json.loads(options.json.read_text())
    done = {(r["kind"], r["name"]) for r in records}
    left = [(k, i) for k, i in wanted if (k, (HONEST if k == "honest" else FAULTS)[i].name) not in done]

    def keep(record: dict[str, Any]) -> None:
        records.append(record)
        if record["failed"]:
            print(line(record), flush=True)
        if options.json:
            options.json.write_text(json.dumps(records, indent=1, default=str))

    rest = (options.seed, options.preflight, not options.no_twins)
    if options.jobs == 1:
        for kind, index in left:
            keep(attempt(kind, index, *rest))
    else:
        with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=8) as pool:
            for record in pool.imap_unordered(attempted, [(kind, index, *rest) for kind, index in left]):
                keep(record)
    print(summary(records))


if __name__ == "__main__":
    main()
