"""Whether a reader sees a mistake in what the doctor says that a loop does.

Each case with a written intent is run both ways, as it worked and as it was changed, and what `doctor.description`
prints is put under the intent. The texts lie in two folders by chance, one way of each case in each, under numbers; a
reader gets one folder, sees neither the loop nor its other way, and writes answers.json: for every number whether
something contradicts the intent, which part of the step, and what. `--judge` counts; the answers of the ninth round's
readers are kept in benchmarks/robustness/read/round9.

    python -m benchmarks.robustness.described FOLDER --from FILES [--seed N] [--only NAME]
    python -m benchmarks.robustness.described FOLDER --judge
"""

import argparse
import gc
import json
import random
import re
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.robustness.changed import BATCH
from benchmarks.robustness.doctor import load, perform
from benchmarks.robustness.loops.case import FAULTS, INNOCENT, Fault, Innocent

WAYS = ("one", "two")
"""Folders that hold one way of each case."""
OF_A_ROUND = re.compile(r"\bround\w+\.py")
"""Files of loops, whose names say that mistakes are planted in them."""
Answers = dict[str, dict[str, Any]]
"""By the number of a page: whether something contradicts, which part of the step, and what."""


def intents() -> dict[str, str]:
    """What each author says that a loop is meant to do."""
    files = sorted((Path(__file__).parent / "loops").glob("*_intents.json"))
    return {name: text for file in files for name, text in json.loads(file.read_text(encoding="utf-8")).items()}


def text_of(case: Fault | Innocent, changed: bool, intent: str) -> str:
    gc.collect()  # no model of an earlier case is held by this one
    run, _ = perform(case.loop, case.name, 0, True, False, changed)
    pages = [doctor.description for doctor in run.doctors if doctor.description is not None]
    first, *others = pages or [None]
    asked = f"{intent}\n\nNothing of it was read.\n" if first is None else first.question(intent)
    return OF_A_ROUND.sub("loop.py", "\n\n".join([asked, *map(str, others)]))


def write(cases: list[Fault | Innocent], folder: Path, seed: int) -> None:
    draw, meant = random.Random(seed), intents()
    cases = [case for case in cases if case.name in meant]
    draw.shuffle(cases)
    key: dict[str, Any] = {}
    for number, case in enumerate(cases):
        first = draw.random() < 0.5
        for reader, changed in (("one", first), ("two", not first)):
            place = folder / reader / f"{number:02}.txt"
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                place.write_text(text_of(case, changed, meant[case.name]), encoding="utf-8")
            except Exception as error:
                print(f"{case.name}: {type(error).__name__}: {error}")
                continue
            part = case.category if isinstance(case, Fault) else ""
            key[f"{reader}/{number:02}"] = {
                "name": case.name, "what": case.what, "wrong": changed and isinstance(case, Fault), "part": part,
                "innocent": isinstance(case, Innocent), "changed": changed,
            }  # fmt: skip
        print(case.name, flush=True)
    (folder / "key.json").write_text(json.dumps(key, indent=1), encoding="utf-8")


def together(first: Answers, second: Answers, third: Answers) -> Answers:
    """What two readers say and, where one or both see a contradiction, a third who has read both.

    Where the two agree it stands, and the third only says what it is; where they do not, he decides.
    """
    said: Answers = {}
    for number, one in first.items():
        sees = [answer for answer in (one, second[number]) if answer["contradicts"]]
        agrees = bool(sees) and bool(third[number]["contradicts"])
        named = third[number] if agrees else [*sees, one][0]
        said[number] = {**named, "contradicts": len(sees) == 2 or agrees}
    return said


def judge(folder: Path) -> None:
    """Count the answers of both folders, on cases that are there still; of a round that was read twice, of each."""
    key = json.loads((folder / "key.json").read_text(encoding="utf-8"))
    files = {
        way: [
            json.loads((folder / way / name).read_text(encoding="utf-8"))
            for name in ("answers.json", "second.json", "third.json")
            if (folder / way / name).exists()
        ]
        for way in WAYS
    }
    if all(len(answers) == 1 for answers in files.values()):
        print(_counted(key, {way: answers[0] for way, answers in files.items()}, shown=True))
        return
    for index, name in enumerate(("first reader", "second reader")):
        print(name, _counted(key, {way: answers[index] for way, answers in files.items()}, shown=False))
    print("together", _counted(key, {way: together(*answers) for way, answers in files.items()}, shown=True))


def _counted(key: dict[str, Any], answers: dict[str, Answers], shown: bool) -> dict[str, int]:
    faults, innocents = {one.name: one for one in FAULTS}, {one.name for one in INNOCENT}
    counts: Counter[str] = Counter()
    for place, answer in ((f"{way}/{number}", one) for way in WAYS for number, one in sorted(answers[way].items())):
        case = key[place]
        seen, part = bool(answer["contradicts"]), answer.get("part", "")
        if case["name"] not in faults.keys() | innocents:
            continue
        kind = "fault" if case["wrong"] else "innocent change" if case["innocent"] and case["changed"] else "sound"
        counts[kind] += 1
        counts[f"{kind}, seen"] += seen
        if kind == "fault" and seen:
            said = f"{answer['what']} {part}"
            counts["part right"] += BATCH.get(part, part) == BATCH.get(case["part"], case["part"])
            counts["cause right"] += all(re.search(one, said, re.I) for one in faults[case["name"]].wanted)
        if shown:
            print(
                f"{kind} {case['name']} [{case['part']}] {'seen' if seen else '-'} [{part}]: {answer.get('what', '')}"
            )
    return dict(counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--from", dest="files", default="", help="prefixes of files, with commas")
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--judge", action="store_true")
    given = parser.parse_args()
    twice = any((given.folder / way / "second.json").exists() for way in WAYS)
    names = ("answers.json", "second.json", "third.json") if twice else ("answers.json",)
    needed = [given.folder / "key.json", *(given.folder / way / name for way in WAYS for name in names)]
    if given.judge and (lacking := [str(one) for one in needed if not one.exists()]):
        who = "two readers of each page and a third" if twice else "two readers"
        parser.error(f"there is no {lacking[0]}: --judge counts the answers of {who}, in their folders")
    load()
    if given.judge:
        return judge(given.folder)
    warnings.simplefilter("ignore")
    prefixes = tuple(given.files.split(","))
    chosen = [one for one in (*FAULTS, *INNOCENT) if one.file.startswith(prefixes) and given.only in one.name]
    return write(chosen, given.folder, given.seed)


if __name__ == "__main__":
    main()
