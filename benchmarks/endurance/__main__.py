"""Random faults, drawn from a seed over kind × moment × process; after each the training is resumed and compared.

python -m benchmarks.endurance --faults 200 --seed 1 [--subject train,dpo,grpo,two] [--only KIND] [--show]
python -m benchmarks.endurance --subject trainer,lightning          the same of other tools

A trial is whole when the resumed training ended with the weights, metrics, samples and model of the one that nothing
disturbed, to the bit, and every refusal on the way was one line. Else it is

    lost       a step, a checkpoint or a line is gone, or the training cannot be resumed
    different  another number came out, and nothing said so
    unreadable a checkpoint had to be removed by hand
    traceback  Python's own error, where a user wants one line
    unclear    refused, but not in one line
    unnamed    of several processes one failed, and no line says which, at which step, in which phase
    hung       a minute and five times what it takes undisturbed had passed
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.endurance import process
from benchmarks.endurance.faults import FAULTS, FULL, Fault
from benchmarks.endurance.limpid_runs import LimpidRun
from benchmarks.endurance.others import TRAININGS, OtherTool
from benchmarks.endurance.process import Moment
from benchmarks.endurance.subject import Subject
from benchmarks.endurance.trial import Outcome, Prepared, Trial, attempt
from benchmarks.robustness.bad.sandbox import isolate, warm

SUBJECTS: dict[str, tuple[Subject, int]] = {  # and how often each is drawn
    "train": (LimpidRun("train"), 60),
    "dpo": (LimpidRun("dpo"), 12),
    "grpo": (LimpidRun("grpo"), 12),
    "two": (LimpidRun("two", processes=2), 8),
    "stages": (LimpidRun("stages", processes=2), 8),
}
OTHERS: dict[str, tuple[Subject, int]] = {name: (OtherTool(name), 1) for name in TRAININGS}
MOUNTED = "64m"


@contextlib.contextmanager
def workplace() -> Iterator[tuple[Path, bool]]:
    """A folder to work in, on a small file system of its own where mounting is allowed; and whether it is."""
    folder = Path(tempfile.mkdtemp(prefix="limpid-endurance-")).resolve()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={MOUNTED}", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield folder, mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)
        shutil.rmtree(folder, ignore_errors=True)


def prepare(subject: Subject, top: Path) -> Prepared:
    """Train it undisturbed in a folder, count its file events, and stop another one half-way.

    Raises  SystemExit when that one, resumed, is another training: no fault could be judged by it
    """
    laid, whole, half = (top / name for name in ("laid", "whole", "half"))
    laid.mkdir(parents=True)
    os.environ["LIMPID_CACHE"] = str(laid / "cache")
    subject.lay(laid)
    shutil.copytree(laid, whole)
    shutil.copytree(laid, half)
    os.environ["LIMPID_CACHE"] = str(whole / "cache")
    new = _done(process.run(subject.begin(), whole))
    os.environ["LIMPID_CACHE"] = str(half / "cache")
    stop = Moment(new.events[0] // 2)
    process.run(subject.begin(), half, stop, lambda group, pid: os.kill(group, signal.SIGTERM))
    trying = shutil.copytree(half, top / "trying")
    again = subject.again(trying, new)
    assert again is not None
    resumed = _done(process.run(again, trying))
    if found := subject.differences(trying, whole):
        raise SystemExit(f"{subject.name}, stopped and resumed without a fault, is another training: {found}")
    shutil.rmtree(trying)
    return Prepared(
        subject, whole, half, {False: new.events, True: resumed.events}, {False: new.seconds, True: resumed.seconds}
    )


def _done(ended: process.Ended) -> process.Ended:
    if ended.code:
        raise SystemExit(f"what the trials need failed: {ended.said}")
    return ended


def draw(count: int, seed: int, subjects: Sequence[str], only: str, mounted: bool) -> Iterator[tuple[Trial, str]]:
    """Trials of a seed, without their moments, and the name of the subject; every kind comes equally often."""
    rng = random.Random(seed)
    weights = [(SUBJECTS | OTHERS)[name][1] for name in subjects]
    kinds: list[Fault] = []
    for number in range(count):
        name = rng.choices(subjects, weights)[0]
        subject = (SUBJECTS | OTHERS)[name][0]
        fits = [one for one in FAULTS if subject.processes in one.processes and only in one.name]
        fits = [one for one in fits if one is not FULL or mounted]
        if not fits:
            continue
        fresh = [one for one in fits if one not in kinds] or fits
        fault = rng.choice(fresh)
        kinds = [] if len(fresh) == 1 else [*kinds, fault]
        yield Trial(number, fault, subject, Moment(rank=rng.randrange(subject.processes)), rng.random() < 0.5), name


def at_a_moment(trial: Trial, prepared: Prepared, seed: int) -> Trial:
    """The same with its moment drawn: at or shortly after a file event two times of three, else at any time."""
    rng = random.Random(f"{seed} {trial.number}")
    rank = trial.moment.rank
    moment = Moment(None, rng.uniform(0, prepared.seconds[trial.resumed]), rank)
    if rng.random() < 2 / 3:
        count = prepared.events[trial.resumed].get(rank, 0)
        moment = Moment(rng.randrange(1, max(2, count + 1)), rng.choice((0.0, 0.0, rng.uniform(0, 0.01))), rank)
    return Trial(trial.number, trial.fault, trial.subject, moment, trial.resumed)


def trials(
    work: Path,
    mounted: bool,
    count: int,
    seed: int,
    subjects: Sequence[str],
    only: str = "",
    numbers: Sequence[int] = (),
) -> Iterator[Outcome]:
    """Draw, disturb, resume and compare, one after the other."""
    prepared: dict[str, Prepared] = {}
    for drawn, name in draw(count, seed, subjects, only, mounted):
        if not numbers or drawn.number in numbers:
            if name not in prepared:
                prepared[name] = prepare(drawn.subject, work / name)
            yield attempt(at_a_moment(drawn, prepared[name], seed), prepared[name], work)


def main() -> int:
    """All of them, a line each, and a table; returns 1 where one was not whole."""
    parser = argparse.ArgumentParser(description="Random faults, and whether the resumed training is the same.")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--subject", default=",".join(SUBJECTS), help="which trainings, with commas")
    parser.add_argument("--only", default="", help="faults whose name holds this")
    parser.add_argument("--number", type=int, nargs="*", default=[], help="these trials alone")
    parser.add_argument("--show", action="store_true", help="print what was said in trials that are not whole")
    given = parser.parse_args()
    began, outcomes = time.monotonic(), []
    with workplace() as (work, mounted):
        isolate(work)
        warm()
        print("disk full is a tmpfs of", MOUNTED if mounted else "none: nothing can be mounted, RLIMIT_FSIZE stands in")
        subjects = given.subject.split(",")
        for outcome in trials(work, mounted, given.faults, given.seed, subjects, given.only, given.number):
            outcomes.append(outcome)
            print(f"{outcome.trial.name}, at {outcome.at}: {'; '.join(outcome.problems) or 'whole'}", flush=True)
            if given.show and outcome.problems:
                print(*outcome.said, sep="\n")
    print(summary(outcomes, time.monotonic() - began))
    return int(any(outcome.problems for outcome in outcomes))


def summary(outcomes: Sequence[Outcome], seconds: float) -> str:
    """A line per kind of fault: how many, how many whole, and what the others were."""
    lines = []
    for name in dict.fromkeys(fault.name for fault in FAULTS):
        of_it = [outcome for outcome in outcomes if outcome.trial.fault.name == name]
        wrong = Counter(kind for outcome in of_it for kind in sorted(outcome.kinds))
        whole = sum(not outcome.problems for outcome in of_it)
        if of_it:
            said = ", ".join(f"{count} {kind}" for kind, count in wrong.items())
            lines.append(f"{name:24s} {len(of_it):4d} {whole:4d} whole  {said}")
    whole = sum(not outcome.problems for outcome in outcomes)
    retaken = sum(outcome.retaken for outcome in outcomes)
    lines.append(f"{len(outcomes)} faults, {whole} whole, {retaken} steps taken again, {seconds:.0f} s")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
