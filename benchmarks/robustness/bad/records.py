"""What came of every case: kept in a JSON file, and summed up in a table."""

import argparse
import json
import os
import selectors
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

WRONG = ("destroyed", "crash", "hang", "traceback", "control", "unclear", "nonsense", "overcautious", "different")
"""Categories that count against limpid; all others are fine."""


@dataclass
class Record:
    """One case, and what came of it."""

    name: str
    kind: str
    done: str
    expected: str
    got: str
    seconds: float
    category: str

    @property
    def wrong(self) -> bool:
        return self.category in WRONG


class Book:
    """Records by name, written to the file after each one."""

    def __init__(self, path: Path | None, resume: bool) -> None:
        self.path = path
        self.records: dict[str, Record] = {}
        if resume and path is not None and path.exists():
            self.records = {entry["name"]: Record(**entry) for entry in json.loads(path.read_text())["records"]}

    def add(self, record: Record) -> None:
        self.records[record.name] = record
        if record.wrong:
            print(f"{record.category:12} {record.name}: {record.done} | expected {record.expected} | {record.got}")
        if self.path is not None:
            written = self.path.with_name(self.path.name + ".new")
            written.write_text(json.dumps({"records": [asdict(r) for r in self.records.values()]}, indent=1))
            written.replace(self.path)


def options(about: str, count: int) -> argparse.ArgumentParser:
    """The options that every kind of cases takes."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--count", type=int, default=count, help="how many cases [%(default)s]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="cases at once")
    parser.add_argument("--json", type=Path, help="file of all records")
    parser.add_argument("--only", help="only cases whose name contains this")
    parser.add_argument("--resume", action="store_true", help="skip the cases that the file of records holds")
    return parser


def run_all(cases: Sequence[Any], one: Callable[[Any], Record], book: Book, jobs: int) -> None:
    """Run the cases that the book does not hold yet, in this process or in several that are forked from it."""
    left = [case for case in cases if case.name not in book.records]
    if jobs <= 1:
        for case in left:
            book.add(one(case))
        return
    workers, selector = [], selectors.DefaultSelector()
    for k in range(jobs):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            with os.fdopen(writing, "w") as out:
                for case in left[k::jobs]:
                    print(json.dumps(asdict(one(case))), file=out, flush=True)
            os._exit(0)
        os.close(writing)
        workers.append(pid)
        selector.register(reading, selectors.EVENT_READ, bytearray())
    while selector.get_map():
        for key, _ in selector.select():
            got = os.read(key.fd, 1 << 16)
            key.data.extend(got)
            while b"\n" in key.data:
                line, _, rest = bytes(key.data).partition(b"\n")
                key.data[:] = rest
                book.add(Record(**json.loads(line)))
            if not got:
                selector.unregister(key.fd)
                os.close(key.fd)
    for pid in workers:
        os.waitpid(pid, 0)


def summary(records: Iterable[Record], began: float) -> str:
    """A table: a line per kind, a column per category."""
    records = list(records)
    kinds = sorted({record.kind for record in records})
    categories = sorted({record.category for record in records}, key=lambda c: (c in WRONG, c))
    width = max([len(kind) for kind in kinds] + [5])
    lines = ["  ".join([" " * width, "cases", *[c.rjust(max(len(c), 5)) for c in categories]])]
    for kind in [*kinds, "all"]:
        of_kind = [record for record in records if kind in (record.kind, "all")]
        counts = [sum(r.category == c for r in of_kind) for c in categories]
        cells = [str(n or "·").rjust(max(len(c), 5)) for n, c in zip(counts, categories, strict=True)]
        lines.append("  ".join([kind.ljust(width), str(len(of_kind)).rjust(5), *cells]))
    wrong = sum(record.wrong for record in records)
    lines.append(f"{len(records) - wrong} of {len(records)} fine, {wrong} wrong; {time.time() - began:.0f} s")
    return "\n".join(lines)
