"""Whether the faults of a round bite, its innocent changes do no harm, and its honest loops learn: nothing is watched,
each measure is the loop's own.

    python -m benchmarks.robustness.prove FILE [--only NAME …] [--seeds 3] [--json PROOFS]

FILE is the beginning of the names of files in loops/. A fault runs with its mistake and without, on the same seeds; it
bites where the mean of the differences is more than three of their standard errors (pairs: one seed is one task, one
start, one order of data) and every difference has that sign, or where with the mistake alone the measure is not finite
on every seed. An innocent change does no harm where every measure is the same within 1 %, or where the mean of the
differences is within three of their standard errors. An honest loop must end better than it began.
"""

import argparse
import importlib
import json
import math
import time
import warnings
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from benchmarks.robustness.loops.case import FAULTS, HONEST, INNOCENT, Run


def outcome(loop: Any, name: str, seed: int, *wrong: bool) -> tuple[float | None, float, float, bool]:
    """The measure before and after, seconds of this processor, and whether every loss was finite."""
    started = time.process_time()
    run = Run(name, seed, watched=False, proves=True)
    loop(run, *wrong)
    seconds = time.process_time() - started
    kept = vars(run)
    return kept.get("before"), kept["outcome"](), seconds, all(map(math.isfinite, run.losses))


def errors_apart(with_it: list[float], without: list[float]) -> dict[str, float]:
    """The difference of the means, and how many standard errors it is, of pairs and of two samples."""
    apart = [a - b for a, b in zip(with_it, without, strict=True)]
    n = len(apart)
    paired = stdev(apart) / math.sqrt(n)
    unpaired = math.sqrt((stdev(with_it) ** 2 + stdev(without) ** 2) / n)
    return {
        "difference": fmean(apart),
        "paired": fmean(apart) / max(paired, 1e-12),
        "unpaired": fmean(apart) / max(unpaired, 1e-12),
    }


def fault_proof(case: Any, seeds: int) -> dict[str, Any]:
    with_it, without = ([outcome(case.loop, case.name, s, wrong) for s in range(seeds)] for wrong in (True, False))
    a, b = [r[1] for r in with_it], [r[1] for r in without]
    out: dict[str, Any] = {
        "with": [round(v, 5) if math.isfinite(v) else str(v) for v in a],
        "without": [round(v, 5) if math.isfinite(v) else str(v) for v in b],
        "seeds": list(range(seeds)),
        "seconds": round(max(r[2] for r in with_it + without), 2),
        "twin's losses finite": all(r[3] for r in without),
    }
    if all(r[0] is not None for r in without):
        out["twin better than its start"] = all(r[1] < r[0] for r in without)  # type: ignore[operator]
    if all(map(math.isfinite, a + b)):
        out |= {k: round(v, 4) for k, v in errors_apart(a, b).items()}
        out["bites"] = out["paired"] > 3 and all(x > y for x, y in zip(a, b, strict=True))
    else:
        out["bites"] = all(map(math.isfinite, b)) and not any(map(math.isfinite, a))
    return out


def honest_proof(case: Any, seeds: int) -> dict[str, Any]:
    runs = [outcome(case.loop, case.name, s) for s in range(seeds)]
    return {
        "before": [round(r[0], 5) for r in runs],  # type: ignore[arg-type]
        "after": [round(r[1], 5) for r in runs],
        "seconds": round(max(r[2] for r in runs), 2),
        "learns": all(r[1] < r[0] for r in runs),  # type: ignore[operator]
    }


def innocent_proof(case: Any, seeds: int) -> dict[str, Any]:
    changed, before = ([outcome(case.loop, case.name, s, new) for s in range(seeds)] for new in (True, False))
    a, b = [r[1] for r in changed], [r[1] for r in before]
    out: dict[str, Any] = {
        "changed": [round(v, 5) for v in a],
        "before": [round(v, 5) for v in b],
        "seconds": round(max(r[2] for r in changed + before), 2),
        "learns": all(r[1] < r[0] for r in changed + before),  # type: ignore[operator]
    }
    out |= {k: round(v, 4) for k, v in errors_apart(a, b).items()}
    out["largest relative difference"] = round(max(abs(x - y) / abs(y) for x, y in zip(a, b, strict=True)), 6)
    out["harmless"] = out["learns"] and (out["largest relative difference"] < 0.01 or abs(out["paired"]) < 3)
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--only", nargs="*", default=[""], help="cases whose names hold one of these")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for file in sorted((Path(__file__).parent / "loops").glob(f"{options.file}*.py")):
        importlib.import_module(f"benchmarks.robustness.loops.{file.stem}")
    proofs = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    kinds = [(FAULTS, fault_proof), (INNOCENT, innocent_proof), (HONEST, honest_proof)]
    for case, prove in [(case, prove) for cases, prove in kinds for case in cases]:  # type: ignore[attr-defined]
        if not any(part in case.name for part in options.only) or not case.file.startswith(options.file):
            continue
        try:
            proof = prove(case, options.seeds)
        except Exception as error:  # a case that breaks off is shown, and the others go on
            proof = {"broke off": f"{type(error).__name__}: {error}"}
        fine = proof.get("bites", proof.get("harmless", proof.get("learns", False)))
        print("ok  " if fine else "DROP", case.name, json.dumps(proof), flush=True)
        proofs[case.name] = proof
        if options.json:
            options.json.write_text(json.dumps(dict(sorted(proofs.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
