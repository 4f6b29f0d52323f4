"""Malformed inputs for all that limpid reads: each must be read, or refused in one line.

python -m benchmarks.fuzz TARGET|all --inputs 100000 [--seed S] [--keep FOLDER] [--plain]

Valid inputs are changed where their format has joints, or anywhere in their bytes. With atheris (pip install
'limpid[fuzz]') what reaches new code is changed further, as libFuzzer does; without it, or --plain, each is a change of
a valid one. Seals and checksums are put right, so that what lies behind them is reached. A finding is an error that is
none of limpid's, a message of several lines, 5 seconds, a gibibyte, or the end of the process.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

try:
    import atheris
except ImportError:
    atheris = None

plain = atheris is None or "--plain" in sys.argv
ELSEWHERE = [] if {"config", "architecture", "all"} & set(sys.argv) else ["limpid.config"]
"""What every target reads first, unchanged, is not followed: that is three quarters of the time."""
followed = {"include": ["limpid"], "exclude": ELSEWHERE, "enable_loader_override": False}
with contextlib.nullcontext() if plain else atheris.instrument_imports(**followed):
    from benchmarks.fuzz.inputs import SECONDS, Board, Finding, limit_memory, outcome
    from benchmarks.fuzz.mutate import mutated
    from benchmarks.fuzz.seeds import isolated, make
    from benchmarks.fuzz.targets import TARGETS
    from benchmarks.fuzz.targets.target import Target

LONGEST = 1 << 18
"""Bytes of an input."""
RESTARTS = 50
"""Processes that may die on the way."""


def fuzz(target: Target, stock: Path, count: int, seed: int, with_coverage: bool) -> tuple[Board, list[Finding]]:
    """Give a target so many inputs, in forked processes: one that dies is a finding, and the next goes on."""
    board, findings = Board(), dict[tuple[str, str], Finding]()
    for restart in range(RESTARTS):
        done = board.counts[0]
        if done >= count:
            break
        with tempfile.TemporaryDirectory(dir=_memory()) as folder:
            found = Path(folder) / "found"
            child = os.fork()
            if child == 0:
                _work(target, stock, Path(folder), board, count - done, seed + 1000 * restart, with_coverage)
            died = _wait(child, board)
            for line in found.read_text().splitlines() if found.is_file() else ():
                what, where, data = json.loads(line)
                _add(findings, Finding(what, where, bytes.fromhex(data)))
        if died:
            _add(findings, Finding(died, "", board.data))
    return board, [*findings.values()]


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _add(findings: dict[tuple[str, str], Finding], one: Finding) -> None:
    known = findings.get(one.kind)
    if known is None or len(one.data) < len(known.data):
        findings[one.kind] = one


def _wait(child: int, board: Board) -> str:
    """How a process died; nothing where it ended. One that stays at an input for too long is killed."""
    at, since = -1, time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return "" if code == 0 else f"died: {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"
        if board.counts[0] != at:
            at, since = board.counts[0], time.monotonic()
        elif at > 0 and time.monotonic() - since > 4 * SECONDS:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"hung: {4 * SECONDS:.0f} s"
        time.sleep(0.05)


def _work(target: Target, stock: Path, folder: Path, board: Board, count: int, seed: int, with_coverage: bool) -> None:
    """In the forked process: never returns."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(quiet, number)
    try:
        place = folder / "place"
        place.mkdir()
        valid, read = target.make(stock, place)
        seen = dict[tuple[str, str], int]()
        for data in valid:  # what is compiled at first is no slowness of an input
            read(data)
        limit_memory()

        def one(data: bytes) -> None:
            data = data[:LONGEST]
            board.begin(data)
            came = outcome(read, data)
            if came is True:
                board.refused()
            if isinstance(came, Finding) and len(data) < seen.get(came.kind, LONGEST + 1):
                seen[came.kind] = len(data)
                with (folder / "found").open("a") as stream:
                    stream.write(json.dumps([came.what, came.where, data.hex()]) + "\n")

        if with_coverage:
            _guided(target, valid, one, folder, count, seed)
        rng = random.Random(seed)
        for _ in range(count):
            one(mutated(rng.choice(valid), target.form, rng))
    except BaseException as error:
        with (folder / "found").open("a") as stream:
            stream.write(json.dumps([f"harness: {error!r}", "", ""]) + "\n")
        os._exit(1)
    os._exit(0)


def _guided(
    target: Target, valid: list[bytes], one: Callable[[bytes], None], folder: Path, count: int, seed: int
) -> None:
    """The same by libFuzzer, which ends the process."""
    corpus = folder / "corpus"
    corpus.mkdir()
    for data in valid:
        (corpus / hashlib.sha256(data).hexdigest()).write_bytes(data)

    def mutate(data: bytes, longest: int, its_seed: int) -> bytes:
        rng = random.Random(its_seed)
        if rng.random() < 0.3:
            return atheris.Mutate(data, longest)
        return mutated(data or rng.choice(valid), target.form, rng)[:longest]

    flags = [f"-runs={count}", f"-seed={seed + 1}", f"-max_len={LONGEST}", "-rss_limit_mb=0", "-timeout=1000"]
    flags += ["-len_control=0", "-print_final_stats=0", f"-artifact_prefix={folder}/"]
    atheris.Setup(["fuzz", *flags, str(corpus)], one, custom_mutator=mutate)
    atheris.Fuzz()


def main() -> int:
    """Fuzz the targets that are named; returns 1 where anything was found."""
    parser = argparse.ArgumentParser(description="Malformed inputs for all that limpid reads.")
    parser.add_argument("target", choices=[*TARGETS, "all"])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="write the smallest input of each finding here")
    parser.add_argument("--plain", action="store_true", help="without coverage")
    given = parser.parse_args()
    with_coverage, found = atheris is not None and not given.plain, 0
    print("guided by coverage (atheris)" if with_coverage else "not guided by coverage")
    with tempfile.TemporaryDirectory() as folder:
        isolated(Path(folder))
        stock = make(Path(folder))
        for name in TARGETS if given.target == "all" else [given.target]:
            began = time.monotonic()
            board, findings = fuzz(TARGETS[name], stock, given.inputs, given.seed, with_coverage)
            count, refused = board.counts
            seconds = time.monotonic() - began
            print(
                f"{name:14s} {count:8,d} inputs, {refused:8,d} refused, {len(findings):3d} findings, {seconds:6.0f} s, "
                f"{count / seconds:6,.0f} a second",
                flush=True,
            )
            for number, one in enumerate(findings):
                print(f"    {one.where}  {one.what}", flush=True)
                if given.keep:
                    given.keep.mkdir(parents=True, exist_ok=True)
                    (given.keep / f"{name}-{number}").write_bytes(one.data)
            found += len(findings)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
