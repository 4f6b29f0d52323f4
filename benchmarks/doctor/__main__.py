"""Every fault of the benchmark with the doctor beside it, the proofs that they bite, and every healthy run.

python -m benchmarks.doctor [--only NUM,OPT-03,OK] [--architectures plain,llama] [--seeds 1] [--jobs 2]

Writes a JSON of all that was found, and the table of docs/doctor.md. Everything takes about 20 minutes on two cores.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import multiprocessing
import os
import time
import warnings
from collections.abc import Iterable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.doctor.fault import Fault
from benchmarks.doctor.faults import FAULTS
from benchmarks.doctor.healthy import HEALTHY, Healthy
from benchmarks.doctor.judge import is_said, judge
from benchmarks.doctor.models import ARCHITECTURES
from benchmarks.doctor.settings import DEVICE
from benchmarks.doctor.table import markdown, summary
from rich.console import Console
from rich.progress import Progress

CASES: dict[str, Fault | Healthy] = {case.name: case for case in (*FAULTS, *HEALTHY)}
KINDS = ("faults", "twins", "healthy", "proofs")
BEGIN, END = "<!-- results: python -m benchmarks.doctor -->", "<!-- end of results -->"


@dataclass(frozen=True)
class Task:
    kind: str  # faults, twins, healthy or proofs
    name: str
    architecture: str
    seed: int


def tasks(options: argparse.Namespace) -> list[Task]:
    """Everything there is to do; a twin that several faults share is run once."""
    made, twins = [], set()
    for case in chosen(options.only):
        for architecture in (a for a in options.architectures if a in case.architectures):
            runs = [("faults" if isinstance(case, Fault) else "healthy", seed) for seed in range(options.seeds)]
            if isinstance(case, Fault):
                base = (case.loop(architecture, 0, injected=False).settings, case.ranks, architecture)
                runs += [] if base in twins else [("twins", 0)]
                runs += [("proofs", 0)]
                twins.add(base)
            made += [Task(kind, case.name, architecture, seed) for kind, seed in runs if kind in options.kinds]
    return made


def chosen(only: list[str]) -> Iterable[Fault | Healthy]:
    """Cases by the beginning of their name; a name in full means that one alone."""
    for name, case in CASES.items():
        if not only or name in only or any(name.startswith(o) for o in only if o not in CASES):
            yield case


def perform(task: Task) -> dict[str, Any]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    gc.collect()  # loops and their models are cycles
    case, start = CASES[task.name], time.perf_counter()
    if task.kind == "proofs":
        assert isinstance(case, Fault)
        found = asdict(case.prove(task.architecture))
        return {**asdict(task), **found, "seconds": time.perf_counter() - start}
    record = judge(case, task.architecture, task.seed, injected=task.kind != "twins")
    more = {"does": case.does, "onset": case.onset if isinstance(case, Fault) else 0}
    return {**record.as_dict(), **more}


def fork() -> multiprocessing.context.BaseContext:
    return multiprocessing.get_context("fork")


def apart(task: Task) -> dict[str, Any]:
    """The same in a process of its own: forked here, where nothing has touched a GPU."""
    with ProcessPoolExecutor(1, fork()) as alone:
        return alone.submit(perform, task).result()


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """All tasks, a few at a time, in processes of their own; what the JSON already holds is not run again.

    On a GPU each has a process of its own: one that breaks its device takes no other with it.
    """
    results = earlier(options)
    done = {(kind, case_name(r), r["architecture"], r["seed"]) for kind in KINDS for r in results[kind]}
    todo = [task for task in tasks(options) if (task.kind, task.name, task.architecture, task.seed) not in done]
    shared = options.device == "cpu"
    pool: Executor = ProcessPoolExecutor(options.jobs, fork()) if shared else ThreadPoolExecutor(options.jobs)
    with Progress(console=console, transient=True) as progress, pool:
        bar = progress.add_task("runs", total=len(todo))
        waiting = {pool.submit(perform if shared else apart, task): task for task in todo}
        for finished in as_completed(waiting):
            task = waiting[finished]
            progress.advance(bar)
            if finished.exception() is not None:
                results["errors"].append({**asdict(task), "error": repr(finished.exception())[:2000]})
                console.print(f"{task.kind} {task.name} {task.architecture}: {finished.exception()!r}", highlight=False)
                continue
            found = finished.result()
            results[task.kind].append(found)
            if options.verbose:
                console.print(line(task, found), highlight=False, markup=False)
            if options.json:
                write_json(options.json, results)
    return results


def earlier(options: argparse.Namespace) -> dict[str, Any]:
    """An empty set of results, or that of the JSON when asked to go on from it."""
    results: dict[str, Any] = {"errors": [], **{kind: [] for kind in KINDS}}
    if options.resume and options.json and options.json.exists():
        results |= {key: value for key, value in json.loads(options.json.read_text()).items() if key != "summary"}
    tried = {*options.architectures, *results.get("architectures", ())}
    results["architectures"] = [a for a in ARCHITECTURES if a in tried]
    return results


def case_name(record: dict[str, Any]) -> str:
    return record["name"].removesuffix(" (twin)")


def write_json(path: Path, results: dict[str, Any]) -> None:
    order = list(CASES)
    for kind in KINDS:
        results[kind].sort(key=lambda r: (order.index(case_name(r)), r["architecture"], r["seed"]))
    results["summary"] = summary(results)
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False))


def line(task: Task, found: dict[str, Any]) -> str:
    head = f"{task.kind:8} {task.name:16} {task.architecture:7} {found['seconds']:5.1f} s  "
    if task.kind == "proofs":
        bites = "bites" if found["bites"] else "DOES NOT BITE"
        return f"{head}{bites}: {found['with_fault']:.4g}, {found['without']:.4g} ({found['says']})"
    alarms = [f"{f['rule']}@{f['step']}" for f in found["findings"] if is_said(f)]
    verdict = "" if task.kind != "faults" else f"{'right' if found['right'] else 'WRONG'} +{found['named']}  "
    crash = f"  crashed: {found['crashed']}" if found["crashed"] else ""
    return f"{head}{verdict}{', '.join(alarms) or 'silent'}{crash}"


def write_table(path: Path, table: str, begin: str = BEGIN, end: str = END) -> None:
    """Between the two marks of the document."""
    before, rest = path.read_text().split(begin)
    path.write_text(f"{before}{begin}\n\n{table}\n\n{end}{rest.split(end)[1]}")


def words(given: str) -> list[str]:
    return [word.strip() for word in given.split(",") if word.strip()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=words, default=[], help="names or families, separated by commas")
    parser.add_argument("--architectures", type=words, default=list(ARCHITECTURES))
    parser.add_argument("--seeds", type=int, default=1, help="runs of each case with the doctor")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--kinds", type=words, default=list(KINDS), help="of runs: " + ", ".join(KINDS))
    parser.add_argument("--json", type=Path, help="write everything found here")
    parser.add_argument("--resume", action="store_true", help="keep what the JSON holds, run only what it does not")
    parser.add_argument("--table", type=Path, help="put the table into this document, between its marks")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the runs take place")
    parser.add_argument("--verbose", action="store_true", help="one line per run")
    options = parser.parse_args()
    odd = [kind for kind in options.kinds if kind not in KINDS]
    if odd:
        parser.error(f"no kind of run is called {', '.join(odd)}: choose from {', '.join(KINDS)}")
    unknown = [name for name in options.architectures if name not in ARCHITECTURES]
    if unknown:
        parser.error(f"no architecture {', '.join(unknown)}: choose from {', '.join(ARCHITECTURES)}")
    if not list(chosen(options.only)):
        parser.error(f"nothing is called {', '.join(options.only)}: choose from {', '.join(CASES)}")
    os.environ[DEVICE] = options.device
    console = Console(width=160)
    results = run(options, console)
    if options.json:
        write_json(options.json, results)
    table = markdown(results, FAULTS)
    if options.table:
        write_table(options.table, table)
    print(table)


if __name__ == "__main__":
    main()
