"""A case: what is laid out, what is run, what any user would want; and the judgement of what came of it."""

import fnmatch
import hashlib
import os
import re
import shutil
import signal
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.robustness.bad.calls import call
from benchmarks.robustness.bad.records import Record
from benchmarks.robustness.bad.sandbox import CPU_SECONDS, Outcome, cold, limpid, run

Expect = Literal["refuse", "any", "accept"]
Step = Callable[[Path, Path], None]
"""Lays something out in a case's folder (first) from the stock of valid things (second)."""

CACHES = ("*.trace.json", "*/__pycache__/*", "*.limpid-lock")
"""Files that may change beside what they were made from; a lock says who holds it."""

CONTROL = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\udc80-\udcff]"
)
ESCAPE = re.compile(r"\x1b(?!\[[0-9;?]*[mKAGJhl])")
ERASED = "\x1b[2K"
"""How a terminal is told that a line of progress goes; what follows the last one stays."""
PLANTED = ("config-was-executed", "owned")
"""Files that only code inside an input makes."""
VERDICTS = ("trace", "explain", "compare", "doctor", "plan", "equations", "inspect", "train")


@dataclass(frozen=True)
class Case:
    """One bad input."""

    name: str
    what: str
    argv: tuple[str, ...] = ()
    lay: tuple[Step, ...] = ()
    expect: Expect = "refuse"
    names: tuple[str, ...] = ()  # one of these stands in the message; nothing asks for none
    code: str = ""  # Python instead of a command line
    stdin: bytes | None = None
    closed: tuple[int, ...] = ()  # standard streams that are closed when it starts
    terminal: bool = False
    evil: str = ""  # what must not reach the terminal as it is
    writes: tuple[str, ...] = ()  # files it may change when it succeeds

    @property
    def kind(self) -> str:
        return self.name.partition("/")[0]

    @property
    def done(self) -> str:
        shown = self.code or "limpid " + " ".join(self.argv)
        return f"{self.what}: {shown if len(shown) < 160 else shown[:157] + '...'}".encode("unicode_escape").decode()


@dataclass
class Cases:
    """Collects cases of one kind, and sees that their names differ."""

    kind: str
    cases: list[Case] = field(default_factory=list)
    taken: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, what: str, *argv: str, **rest: object) -> None:
        name = re.sub(r"[^\w.=@:*+-]+", "-", f"{name}").strip("-")[:60]
        number = self.taken.get(name, 0)
        self.taken[name] = number + 1
        full = f"{self.kind}/{name}" + (f"~{number + 1}" if number else "")
        self.cases.append(Case(full, what, tuple(argv), **rest))  # type: ignore[arg-type]


def have(*paths: str) -> Step:
    """Copies of valid things."""

    def step(folder: Path, stock: Path) -> None:
        for path in paths:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            if (stock / path).is_dir():
                shutil.copytree(stock / path, folder / path, dirs_exist_ok=True)
            else:
                shutil.copy(stock / path, folder / path)

    return step


def put(path: str, content: str | bytes) -> Step:
    """A file with this content."""

    def step(folder: Path, stock: Path) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content)

    return step


def change(path: str, how: Callable[[Path], None]) -> Step:
    """Something done to every file that the pattern matches."""

    def step(folder: Path, stock: Path) -> None:
        found = sorted(folder.glob(path))
        if not found:
            raise FileNotFoundError(f"{path} matches nothing: {sorted(map(str, folder.rglob('*')))[:40]}")
        for file in found:
            how(file)

    return step


def plain(text: str) -> str:
    """What of a name is the same however it is shown."""
    return re.sub(r"[^\x20-\x7e]", "", text).lower().replace("_", "-")


def snapshot(folder: Path) -> dict[str, str]:
    """What every path below a folder is and holds."""
    seen = {}
    for where, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(where, name)
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                held = "link to " + os.readlink(path)
            elif stat.S_ISREG(mode):
                held = hashlib.sha256(path.read_bytes()).hexdigest()
            else:
                held = stat.filemode(mode)[0]
            seen[str(path.relative_to(folder))] = held
    return seen


def destroyed(before: dict[str, str], after: dict[str, str], allowed: tuple[str, ...]) -> list[str]:
    """Files that were there and are not, or hold something else."""
    return [
        path
        for path, held in before.items()
        if after.get(path) != held and not any(fnmatch.fnmatch(path, pattern) for pattern in allowed)
    ]


def judge(case: Case, outcome: Outcome, lost: list[str]) -> tuple[str, str]:
    """The category of what came, and a line about it."""
    seen = outcome.stderr.rpartition(ERASED)[2] if case.terminal else outcome.stderr
    said = [line for line in seen.splitlines() if line.strip()]
    line = (said[-1] if said else outcome.stdout.strip().rpartition("\n")[2]).strip()
    got = f"exit {outcome.code}: {line[:300]!a}"
    if lost:
        return "destroyed", f"{', '.join(lost[:4])} changed or gone; {got}"
    if outcome.hung:
        return "hang", f"hung ({outcome.hung}); {got}"
    if outcome.code < 0:
        return "crash", f"{signal.Signals(-outcome.code).name}; {got}"
    if outcome.code == 70 or "Traceback (most recent call last)" in outcome.stderr + outcome.stdout:
        return "traceback", got
    seen = outcome.stderr + (outcome.stdout if case.terminal else "")
    rough = CONTROL.search(seen) or ESCAPE.search(seen)
    if (case.evil and case.evil in seen) or rough:
        at = seen.find(case.evil) if case.evil and case.evil in seen else rough.start() if rough else 0
        return "control", f"raw {seen[max(0, at - 30) : at + 30]!a}; {got}"
    if outcome.code == 2:
        if len(said) != 1:
            return "unclear", f"{len(said)} lines on stderr; {got}"
        if case.names and not any(plain(name) in plain(line) for name in case.names):
            return "unclear", f"names none of {', '.join(case.names)!a}; {got}"
        return ("overcautious" if case.expect == "accept" else "clear"), got
    if outcome.code == 1:
        spoken = (outcome.stdout + outcome.stderr).strip()
        verdict = spoken and (not case.argv or case.argv[0] in VERDICTS)
        return ("verdict" if verdict else "unclear"), got
    if outcome.code:
        return "unclear", got
    return ("nonsense" if case.expect == "refuse" else "accepted"), got


def attempt(case: Case, stock: Path, in_new_process: bool = False, keep: Path | None = None) -> Record:
    """Lay a case out in a new folder, run it, judge it, clear it away."""
    folder = Path(tempfile.mkdtemp(prefix="case-", dir=stock.parent))
    try:
        for step in case.lay:
            step(folder, stock)
        before = snapshot(folder)
        command, seconds = limpid(case.argv), CPU_SECONDS
        if case.code:
            command = call(case.code)
        elif case.closed or in_new_process:
            command, seconds = cold(case.argv, case.closed), CPU_SECONDS + 10  # which imports take
        outcome = run(command, folder, case.stdin, case.terminal, seconds)
        allowed = CACHES + (case.writes if outcome.code in (0, 1) else ())
        after = snapshot(folder)
        lost = destroyed(before, after, allowed)
        lost += [f"{path}: code in a file was run, and this" for path in after if Path(path).name in PLANTED]
        category, got = judge(case, outcome, lost)
        if keep is not None:
            shutil.copytree(folder, keep, symlinks=True, dirs_exist_ok=True)
            print(outcome.stdout, outcome.stderr, sep="\n--- stderr ---\n")
        return Record(case.name, case.kind, case.done, case.expect, got, round(outcome.seconds, 2), category)
    finally:
        for where, folders, _ in os.walk(folder):
            for name in folders:
                path = Path(where, name)
                if not path.is_symlink():
                    path.chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)
