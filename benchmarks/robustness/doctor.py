"""The doctor on training loops its authors have not seen: honest ones, and ones with a mistake.

Honest loops may bring no finding above "notice", and must come out the same to the bit with the doctor and without:
losses, weights, random numbers, calls of a module that counts. A faulty loop must be accused, and rightly: the words a
right diagnosis needs are given with the fault. That a fault bites is shown by its twin without the mistake.

    python -m benchmarks.robustness.doctor [--count N] [--seed S] [--jobs J] [--json FILE] [--resume] [--only NAME]
"""

import argparse
import json
import os
import random
import re
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from benchmarks.robustness.doctor_models import Counting, moved
from torch import Tensor, nn

import limpid

QUIET = "notice"


class Nobody:
    """In the doctor's place when the loop runs unwatched."""

    findings: tuple[Any, ...] = ()

    def step(self, loss: Any = None, batch: Any = None) -> None: ...

    def preflight(self, batch: Any, loss: Any = None, **options: Any) -> None: ...

    def close(self) -> None: ...


class Run:
    """One loop: its seed, its random choices, its losses, and the doctors it asked for."""

    def __init__(self, name: str, seed: int, watched: bool, preflight: bool = False) -> None:
        self.draw = random.Random(f"{seed} {name}")  # settings; the same with the doctor and without
        self.watched, self.examine_first = watched, preflight
        self.losses: list[float] = []
        self.doctors: list[Any] = []
        self.models: list[nn.Module] = []
        start = self.draw.randrange(2**31)
        torch.manual_seed(start)
        random.seed(start)
        np.random.seed(start)  # noqa: NPY002

    def watch(self, model: nn.Module, optimizer: Any = None, **options: Any) -> Any:
        self.models.append(model)
        doctor = limpid.watch(model, optimizer, say=False, **options) if self.watched else Nobody()
        self.doctors.append(doctor)
        return doctor

    def preflight(self, doctor: Any, batch: Any, loss: Any) -> None:
        """Where the list is run with --preflight."""
        if self.examine_first:
            doctor.preflight(batch, loss=loss)

    def note(self, loss: Tensor | float) -> None:
        self.losses.append(float(loss.detach() if isinstance(loss, Tensor) else loss))

    def findings(self) -> list[Any]:
        return [finding for doctor in self.doctors for finding in doctor.findings]

    def state(self) -> dict[str, Any]:
        """What must not depend on whether anybody watched."""
        numpy_state: Any = np.random.get_state()  # noqa: NPY002
        return {
            "losses": np.array(self.losses).tobytes(),
            "weights": [t.detach().clone() for m in self.models for t in m.state_dict().values() if torch.is_tensor(t)],
            "modes": [m.training for model in self.models for m in model.modules()],
            "gradients": [p.grad is None for model in self.models for p in model.parameters()],
            "torch's random numbers": torch.get_rng_state(),
            "Python's random numbers": random.getstate(),
            "NumPy's random numbers": (numpy_state[1].tobytes(), numpy_state[2:]),
            "calls": [m.calls for model in self.models for m in model.modules() if isinstance(m, Counting)],
        }


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(a.nan_to_num(), b.nan_to_num()))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


@dataclass(frozen=True)
class Honest:
    name: str
    what: str
    loop: Callable[[Run], None]


@dataclass(frozen=True)
class Fault:
    """`wanted`: every pattern must be found in a right diagnosis, each in any of its alternatives."""

    name: str
    category: str
    what: str
    wanted: tuple[str, ...]
    loop: Callable[[Run, bool], None]


HONEST: list[Honest] = []
FAULTS: list[Fault] = []


def honest(name: str) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    def keep(loop: Callable[[Run], None]) -> Callable[[Run], None]:
        HONEST.append(Honest(name, (loop.__doc__ or "").strip(), loop))
        return loop

    return keep


def add_fault(name: str, category: str, what: str, wanted: str | tuple[str, ...], loop: Callable[..., None]) -> None:
    FAULTS.append(Fault(name, category, what, (wanted,) if isinstance(wanted, str) else wanted, loop))


def fault(name: str, category: str, wanted: str | tuple[str, ...]) -> Callable[..., Any]:
    def keep(loop: Callable[[Run, bool], None]) -> Callable[[Run, bool], None]:
        add_fault(name, category, (loop.__doc__ or "").strip(), wanted, loop)
        return loop

    return keep


def words(finding: Any) -> str:
    return " ".join((finding.rule.replace("-", " "), finding.where, finding.says, finding.cause, finding.fix))


def told(finding: Any) -> dict[str, Any]:
    return {k: getattr(finding, k) for k in ("rule", "severity", "step", "where", "says", "cause", "fix", "sure")}


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
    plain, without = perform(case.loop, case.name, seed, False, preflight)
    watched, with_doctor = perform(case.loop, case.name, seed, True, preflight)
    found = watched.findings()
    loud = [f for f in found if f.severity != QUIET]
    changed = [key for key in without if not same(without[key], with_doctor[key])]
    return {
        "category": "honest",
        "expected": "no finding above notice, nothing changed",
        "got": [told(f) for f in loud],
        "notices": [f"{f.rule}: {f.says}" for f in found if f.severity == QUIET],
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
    found = wrong.findings()
    loud = [f for f in found if f.severity != QUIET]
    twin_loud = [f for f in twin.findings() if f.severity != QUIET]
    proof = bite(wrong, twin)
    detected = bool(loud)
    first = bool(loud) and right(loud[0], case)
    return {
        "category": case.category,
        "expected": " and ".join(case.wanted),
        "got": [told(f) for f in loud],
        "notices": [f"{f.rule}: {f.says}" for f in found if f.severity == QUIET],
        "detected": detected,
        "right first": first,
        "right anywhere": any(right(f, case) for f in loud),
        "right as a notice": any(right(f, case) for f in found if f.severity == QUIET),
        "false findings": [f.rule for f in loud if not right(f, case)],
        "twin": [told(f) for f in twin_loud],
        "losses": [wrong.losses[0], wrong.losses[-1], twin.losses[-1]],
        "failed": not first or bool(twin_loud) or not proof["bites"],
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


def load() -> None:
    if not HONEST:
        import benchmarks.robustness.doctor_faults
        import benchmarks.robustness.doctor_honest  # noqa: F401


def line(record: dict[str, Any]) -> str:
    name = f"{record['kind']:6} {record['name']}"
    if "error" in record:
        return f"{name}: error: {record['error'].strip().splitlines()[-1]}"
    found = ", ".join(f"{f['rule']} ({f['severity']})" for f in record["got"]) or "nothing"
    if record["kind"] == "honest":
        return f"{name}: found {found}; changed: {', '.join(record['changed']) or 'nothing'}"
    extra = "" if record["bites"] else "; does not bite"
    extra += "; named later" if record["right anywhere"] and not record["right first"] else ""
    extra += f"; the twin is accused of {', '.join(f['rule'] for f in record['twin'])}" if record["twin"] else ""
    return f"{name}: found {found}{extra}; wanted /{record['expected']}/"


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
        f"right first {count(wrong, 'right first')}; changed {sum(bool(r['changed']) for r in sound)}"
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
        with ProcessPoolExecutor(options.jobs, max_tasks_per_child=8) as pool:
            for future in as_completed([pool.submit(attempt, kind, index, *rest) for kind, index in left]):
                keep(future.result())
    print(summary(records))


if __name__ == "__main__":
    from benchmarks.robustness.doctor import main as run_main  # the registry lives in the module, not in __main__

    run_main()
