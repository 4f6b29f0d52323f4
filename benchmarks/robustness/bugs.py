"""Blind planted bugs: mistakes of real training code, put into a copy of the engine; does `limpid trace` find them?

Each is an edit of the engine's source, a tiny run in which it bites, and the names that would be a right answer, all
stated beforehand. The same run without the bug must agree. A bug that moves nothing further than rounding would is said
not to bite, and not counted.

    python -m benchmarks.robustness.bugs [--count N] [--seed S] [--jobs 1] [--json FILE] [--only NAME] [--resume]
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.robustness.bugs_attention import ATTENTION_BUGS
from benchmarks.robustness.bugs_data import DATA_BUGS
from benchmarks.robustness.bugs_gradients import GRADIENT_BUGS
from benchmarks.robustness.bugs_model import MODEL_BUGS
from benchmarks.robustness.bugs_patch import Bug, Edit, PatchError, Tree
from benchmarks.robustness.bugs_rules import RULE_BUGS, adamw_by_hand
from benchmarks.robustness.bugs_runs import BEYOND_ROUNDING, Numbers, Opened, RunError, bite, take
from benchmarks.robustness.bugs_settings import NAMELESS, Setting, settings, write_corpora

SOURCE = Path(__file__).parents[2] / "src" / "limpid"
BUGS = (*ATTENTION_BUGS, *MODEL_BUGS, *GRADIENT_BUGS, *RULE_BUGS, *DATA_BUGS)
ONE_ULP = Edit(
    "model/transformer.py",
    "torch.randn(parameter.shape, generator=generator) * parameter.std",
    "torch.randn(parameter.shape, generator=generator) * parameter.std * (1 + torch.finfo(tensor.dtype).eps)",
)
"""Not a bug: initial weights one unit in the last place away, which shows how far rounding alone moves a run."""
HONEST_EDITS = {
    "as it is": (),
    "weights one unit in the last place away": (ONE_ULP,),
}
BY_HAND = "AdamW written out by hand, without a bug"

Record = dict[str, Any]


class Bench:
    """The folder where it all happens, and what honest engines made of each setting."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.settings = folder, settings(seed)
        self._honest: dict[tuple[str, int], tuple[list[Record], list[Numbers]]] = {}
        self._locks: defaultdict[tuple[str, int], threading.Lock] = defaultdict(threading.Lock)
        self._one_at_a_time = threading.Lock()
        write_corpora(folder, seed)

    def honest(self, setting: Setting, step: int) -> tuple[list[Record], list[Numbers]]:
        """What comes of a setting without a bug, twice: as it is, and with weights that differ by rounding."""
        key = (setting.name, step)
        with self._one_at_a_time:
            lock = self._locks[key]
        with lock:
            if key not in self._honest:
                records, numbers = [], []
                for what, edits in HONEST_EDITS.items():
                    record, its_numbers = self.twin(setting, step, what, edits)
                    records.append(record)
                    numbers.append(its_numbers)
                self._honest[key] = records, numbers
            return self._honest[key]

    def honest_alone(self, setting: Setting, what: str, edits: Iterable[Edit]) -> list[Record]:
        """An honest run that no bug stands beside."""
        return [self.twin(setting, setting.step, what, edits)[0]]

    def twin(self, setting: Setting, step: int, what: str, edits: Iterable[Edit]) -> tuple[Record, Numbers]:
        """One honest run, which must agree."""
        began = time.perf_counter()
        record: Record = {
            "name": f"honest: {setting.name}, step {step}, {what}",
            "category": "honest",
            "done": f"the run '{setting.name}' without a bug, {what}",
            "expected": "agreement",
        }
        numbers: Numbers = {}
        try:
            answer, numbers = self._taken(record["name"], setting, step, (*setting.common, *edits))
            record |= said(answer) | {"status": "right" if answer.agrees else "accused"}
        except (PatchError, RunError) as error:
            record |= {"got": str(error), "status": "error"}
        return record | {"seconds": round(time.perf_counter() - began, 1)}, numbers

    def broken(self, bug: Bug) -> list[Record]:
        """One bug and its honest twins, as records."""
        setting = self.settings[bug.setting]
        step = bug.step or setting.step
        twins, (honest, rounding) = self.honest(setting, step)
        began = time.perf_counter()
        record: Record = {
            "name": bug.name,
            "category": bug.kind,
            "done": bug.what,
            "subtle": bug.subtle,
            "setting": setting.name,
            "step": step,
            "expected": list(bug.accept),
        }
        try:
            answer, numbers = self._taken(bug.name, setting, step, (*setting.common, *bug.edits))
            record |= said(answer) | judged(bug, answer)
            if honest and rounding:
                times, where = bite(numbers, honest, rounding)
                record |= {"bites": times > BEYOND_ROUNDING, "moved": f"{where}: {times:.3g} times rounding"}
                if not record["bites"]:
                    record["status"] = "does not bite"
            if twins[0]["status"] != "right":
                record["status"] = "twin accused"
        except (PatchError, RunError) as error:
            record |= {"got": str(error), "status": "error", "found": False, "right": False}
        return [*twins, record | {"seconds": round(time.perf_counter() - began, 1)}]

    def _taken(self, name: str, setting: Setting, step: int, edits: tuple[Edit, ...]) -> tuple[Opened, Numbers]:
        place = self.folder / re.sub(r"\W+", "-", name)
        tree = Tree(place / "engine", edits)
        try:
            return take(tree.make(SOURCE), setting, self.folder / f"{place.name}.run", step)
        finally:
            tree.remove()


def said(answer: Opened) -> Record:
    return {"got": answer.named or "agreement", "said": answer.said, "exits": list(answer.exits)}


def judged(bug: Bug, answer: Opened) -> Record:
    """Whether anything was found, and whether what was named first is a right place."""
    if answer.crashed:
        return {"status": "error", "found": False, "right": False}
    found = not answer.agrees
    right = found and any(accepts(one, answer.named) for one in bug.accept)
    return {"status": "right" if right else "misplaced" if found else "missed", "found": found, "right": right}


def accepts(expected: str, named: str) -> bool:
    """A place with * in it, or a word that the answer holds."""
    if " (" in expected:
        return fnmatchcase(named, expected)
    return re.search(rf"\b{re.escape(expected)}\b", named, re.IGNORECASE) is not None


def check_patches() -> int:
    """Apply every edit to a copy of the engine, without running anything."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        hand = Bug("adamw-by-hand", "honest", BY_HAND, (adamw_by_hand({}),), ())
        ulp = Bug("one-ulp", "honest", "", (ONE_ULP,), ())
        for bug in (*BUGS, hand, ulp):
            try:
                Tree(Path(folder) / "engine", (*settings(0)[bug.setting].common, *bug.edits)).make(SOURCE)
            except (PatchError, SyntaxError) as error:
                failed += 1
                print(f"{bug.name}: {error}")
    print(f"{len(BUGS) - failed} of {len(BUGS)} bugs apply")
    return 1 if failed else 0


def chosen(only: str | None, count: int | None, seed: int) -> list[Bug]:
    """All bugs, those whose name, kind or setting is asked for, or so many drawn by the seed."""
    bugs = [bug for bug in BUGS if only is None or only in (bug.name, bug.kind, bug.setting)]
    if count is not None and count < len(bugs):
        drawn = set(random.Random(seed).sample([bug.name for bug in bugs], count))
        bugs = [bug for bug in bugs if bug.name in drawn]
    return sorted(bugs, key=lambda bug: bug.setting)


def table(records: Sequence[Record]) -> str:
    """One row per kind: how many there are, bite, were found, and were placed."""
    bugs = [record for record in records if record["category"] != "honest"]
    honest = [record for record in records if record["category"] == "honest"]
    rows = [("kind", "bugs", "counted", "found", "placed", "missed", "not judged")]

    def row(name: str, some: Sequence[Record]) -> None:
        judged = [one for one in some if one["status"] in ("right", "misplaced", "missed")]
        found = sum(one["found"] for one in judged)
        right = sum(one["right"] for one in judged)
        counts = (len(some), len(judged), found, right, len(judged) - found, len(some) - len(judged))
        rows.append((name, *map(str, counts)))  # type: ignore[arg-type]

    for kind in dict.fromkeys(one["category"] for one in bugs):
        row(kind, [one for one in bugs if one["category"] == kind])
    row("all subtle", [one for one in bugs if one["subtle"]])
    row("all plain", [one for one in bugs if not one["subtle"]])
    row("all", bugs)
    widths = [max(len(line[column]) for line in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in rows]
    agreed = sum(one["status"] == "right" for one in honest)
    return "\n".join([*lines, f"honest twins that agree: {agreed} of {len(honest)}"])


def run_all(tasks: Sequence[Callable[[], list[Record]]], records: dict[str, Record], jobs: int, file: Path) -> None:
    """Run the tasks, tell of each failure at once, keep every record as it comes."""
    writing = threading.Lock()

    def one(task: Callable[[], list[Record]]) -> None:
        made = task()
        with writing:
            for record in made:
                if record["name"] not in records and record["status"] != "right":
                    print(f"{record['status']:<14} {record['category']}: {record['name']}: got {record['got']}")
                    print(f"               expected {record['expected']}", flush=True)
                records[record["name"]] = record
            file.write_text(json.dumps(list(records.values()), indent=1, ensure_ascii=False), encoding="utf-8")

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, tasks))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Planted bugs of the training engine: does limpid trace find them?")
    parser.add_argument("--count", type=int, help="so many of them, drawn by the seed")
    parser.add_argument("--seed", type=int, default=0, help="of the runs: text, weights, sizes")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, default=Path("bugs.json"), help="where every case's record is written")
    parser.add_argument("--only", help="one bug, all of one kind, or all of one setting")
    parser.add_argument("--resume", action="store_true", help="leave out what the JSON file holds already")
    parser.add_argument("--patches", action="store_true", help="only see whether every edit still applies")
    parser.add_argument("--list", action="store_true", help="only say what there is")
    asked = parser.parse_args(argv)
    if asked.patches:
        return check_patches()
    bugs = chosen(asked.only, asked.count, asked.seed)
    if asked.list:
        print(
            "\n".join(
                f"{bug.kind:<22} {bug.name:<38} {'subtle' if bug.subtle else 'plain'}: {bug.what}" for bug in bugs
            )
        )
        return 0
    records: dict[str, Record] = {}
    if asked.resume and asked.json.is_file():
        records = {record["name"]: record for record in json.loads(asked.json.read_text("utf-8"))}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), asked.seed)
        left = [bug for bug in bugs if bug.name not in records]
        tasks: list[Callable[[], list[Record]]] = [partial(bench.broken, bug) for bug in left]
        for what, name, edits in ((BY_HAND, "base", (adamw_by_hand({}),)), ("as it is", NAMELESS, ())):
            setting = bench.settings[name]
            if asked.only is None and f"honest: {name}, step {setting.step}, {what}" not in records:
                tasks.append(partial(bench.honest_alone, setting, what, edits))
        run_all(tasks, records, asked.jobs, asked.json)
    print(table(list(records.values())))
    return 0 if all(record["status"] in ("right", "does not bite") for record in records.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
