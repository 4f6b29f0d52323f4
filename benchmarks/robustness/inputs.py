"""Bad inputs, drawn from a seed: what limpid does with each.

python -m benchmarks.robustness.inputs --count 600 --json FILE [--only NAME] [--resume] [--show]

A case is laid out in a folder of its own and run with 20 s of processor time and 4 GiB; then it is one of

    clear        exit 2 and one line on standard error that names the value, the option or the file
    verdict      exit 1: training broke off, a comparison or a plan failed, and it is said
    accepted     exit 0
and wrong:
    nonsense     accepted, where any user would want a refusal (written down beforehand)
    overcautious refused, where nothing is wrong
    unclear      refused, but not in one line, or not naming anything, or with another exit code
    traceback, hang, crash (by a signal), control (raw control characters reach the terminal)
    destroyed    a user's file changed or gone, or code inside a file was run
"""

import random
import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.robustness.bad import configs, logs, models, nonsense, options, python, runs, stock, terminal, texts
from benchmarks.robustness.bad.case import Case, attempt
from benchmarks.robustness.bad.records import Book, Record, run_all, summary
from benchmarks.robustness.bad.records import options as common
from benchmarks.robustness.bad.sandbox import isolate, warm

KINDS = {  # and how much of the whole each is
    options: 20, nonsense: 17, texts: 13, configs: 10, runs: 15, models: 14, logs: 10, python: 14, terminal: 10,
}  # fmt: skip


def draw(count: int, seed: int) -> list[Case]:
    """The cases of a seed, in a random order, so that any part of them is a fair sample."""
    drawn: list[Case] = []
    for module, weight in KINDS.items():
        rng = random.Random(f"{module.__name__} {seed}")
        found = module.cases(rng).cases
        share = round(count * weight / sum(KINDS.values()))
        drawn += rng.sample(found, min(share, len(found)))
    random.Random(seed).shuffle(drawn)
    return drawn


def main() -> None:
    parser = common("Bad inputs, and what limpid does with them.", 600)
    parser.add_argument("--work", type=Path, help="folder that keeps the valid things for the next time")
    parser.add_argument("--cold", action="store_true", help="every command in a new process instead of a forked one")
    parser.add_argument("--list", action="store_true", help="print the cases and run none")
    parser.add_argument("--show", type=Path, metavar="FOLDER", help="keep each case's files here and print its output")
    given = parser.parse_args()
    began = time.time()
    chosen = [case for case in draw(given.count, given.seed) if (given.only or "") in case.name]
    if given.list:
        for case in chosen:
            print(f"{case.name}  {case.expect}  {case.done}")
        return
    work = given.work or Path(tempfile.mkdtemp(prefix="robustness-"))
    work.mkdir(parents=True, exist_ok=True)
    work = work.resolve()
    isolate(work)
    try:
        stock.make(work / "stock")
        warm()
        book = Book(given.json, given.resume)

        def one(case: Case) -> Record:
            keep = given.show / case.name.replace("/", "-") if given.show else None
            return attempt(case, work / "stock", given.cold, keep)

        run_all(chosen, one, book, given.jobs)
        names = {case.name for case in chosen}
        print(summary([record for record in book.records.values() if record.name in names], began))
    finally:
        if given.work is None:
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
