"""Logs for the doctor and tables for `plan fit`: cut, mixed up, endless, not numbers."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path

from benchmarks.robustness.bad.case import Cases, Expect, Step, change, have, put
from benchmarks.robustness.bad.damage import DISK, SLIGHT, STRANGE, damage, field
from benchmarks.robustness.bad.stock import curve

HEAD = "step,loss\n"


def rows(count: int, loss: Callable[[int], object] = lambda s: curve(s)["loss"], head: str = HEAD) -> str:
    return head + "".join(f"{s},{loss(s)}\n" for s in range(1, count + 1))


def lines(count: int, row: Callable[[int], object]) -> str:
    return "".join(json.dumps(row(s)) + "\n" for s in range(1, count + 1))


LOGS: list[tuple[str, str, str, Expect]] = [
    ("a head and no rows", "l.csv", HEAD, "refuse"),
    ("one row", "l.csv", rows(1), "any"),
    ("no head", "l.csv", rows(50, head=""), "any"),
    ("words for losses", "l.csv", rows(50, lambda s: "low"), "refuse"),
    ("a word among losses", "l.csv", rows(50, lambda s: "x" if s == 9 else 2.0), "any"),
    ("empty losses", "l.csv", rows(50, lambda s: ""), "refuse"),
    ("losses in quotes", "l.csv", rows(50, lambda s: '"2.0"'), "any"),
    ("a quote that is never closed", "l.csv", rows(20) + '21,"2.0\n' + rows(20, head=""), "any"),
    ("commas in numbers", "l.csv", rows(50, lambda s: '"2,0"'), "any"),
    ("semicolons", "l.csv", rows(50).replace(",", ";"), "any"),
    ("tabs", "l.csv", rows(50).replace(",", "\t"), "any"),
    ("rows of different lengths", "l.csv", HEAD + "1,2,3\n4\n5,6\n,\n" * 9, "any"),
    ("the same column twice", "l.csv", "step,loss,loss\n" + "".join(f"{s},2.0,3.0\n" for s in range(40)), "any"),
    ("steps that go backwards", "l.csv", HEAD + "".join(f"{50 - s},{curve(s)['loss']}\n" for s in range(50)), "any"),
    ("the same step over and over", "l.csv", HEAD + "7,2.0\n" * 50, "any"),
    ("steps that are fractions", "l.csv", HEAD + "".join(f"{s / 7},2.0\n" for s in range(50)), "any"),
    ("steps that are negative", "l.csv", HEAD + "".join(f"{-s},2.0\n" for s in range(50)), "any"),
    ("steps beyond 64 bits", "l.csv", HEAD + "".join(f"{10**30 + s},2.0\n" for s in range(50)), "any"),
    ("steps that are NaN", "l.csv", HEAD + "nan,2.0\n" * 50, "any"),
    ("losses of 1e308", "l.csv", rows(50, lambda s: 1e308), "any"),
    ("losses of −∞", "l.csv", rows(50, lambda s: -math.inf), "any"),
    ("losses of 5e-324", "l.csv", rows(50, lambda s: 5e-324), "any"),
    ("losses below zero", "l.csv", rows(50, lambda s: -s), "any"),
    ("losses that are all the same", "l.csv", rows(200, lambda s: 2.0), "any"),
    ("losses that are all NaN", "l.csv", rows(50, lambda s: "nan"), "any"),
    ("numbers of a million digits", "l.csv", rows(3, lambda s: "9" * 1_000_000), "any"),
    ("a column name of a megabyte", "l.csv", "step," + "x" * 1_000_000 + "\n1,2\n", "any"),
    (
        "ten thousand columns",
        "l.csv",
        ",".join(f"c{k}" for k in range(10_000)) + "\n" + ",".join("1" * 10_000) + "\n",
        "any",
    ),
    ("no column that it knows", "l.csv", "a,b,c\n1,2,3\n4,5,6\n", "any"),
    ("a table of people", "l.csv", "name,age,city\nAnn,31,Rome\nBob,27,Oslo\n", "refuse"),
    ("lists", "l.jsonl", lines(50, lambda s: [s, 2.0]), "refuse"),
    ("numbers", "l.jsonl", lines(50, lambda s: s), "refuse"),
    ("nulls", "l.jsonl", "null\n" * 50, "refuse"),
    ("objects in objects", "l.jsonl", lines(50, lambda s: {"step": s, "train": {"loss": {"value": 2.0}}}), "any"),
    ("losses that are words", "l.jsonl", lines(50, lambda s: {"step": s, "loss": "2.0"}), "any"),
    ("losses that are lists", "l.jsonl", lines(50, lambda s: {"step": s, "loss": [2.0]}), "any"),
    ("losses that are true", "l.jsonl", lines(50, lambda s: {"step": s, "loss": True}), "any"),
    ("steps that are objects", "l.jsonl", lines(50, lambda s: {"step": {"a": s}, "loss": 2.0}), "any"),
    ("no steps", "l.jsonl", lines(50, lambda s: {"loss": curve(s)["loss"]}), "any"),
    ("a line cut off in the middle", "l.jsonl", lines(20, curve) + '{"loss": 2.\n' + lines(20, curve), "any"),
    ("deep brackets", "l.jsonl", "[" * 100_000, "refuse"),
    ("a loss of 10⁴⁰⁰", "l.jsonl", lines(50, lambda s: {"step": s, "loss": 10**400}), "any"),
    ("a loss of 5000 digits", "l.jsonl", '{"step": 1, "loss": ' + "9" * 5000 + "}\n", "any"),
    ("a learning rate of null", "l.jsonl", lines(50, lambda s: {"step": s, "loss": 2.0, "lr": None}), "any"),
    ("no history", "trainer_state.json", '{"log_history": []}', "any"),
    ("a history that is null", "trainer_state.json", '{"log_history": null}', "refuse"),
    ("a history of words", "trainer_state.json", '{"log_history": ["a", "b"]}', "refuse"),
    ("a state that is a list", "trainer_state.json", "[]", "refuse"),
    ("iterations without losses", "l.log", "iter 1: time 20ms\n" * 30, "any"),
    ("losses of words", "l.log", "iter 1: loss low, time 20ms\n" * 30, "any"),
    ("bytes", "l.log", "\x00\x01\x02" * 3000, "refuse"),
    ("one line of a megabyte", "l.log", "iter 1: loss 2.0 " * 60_000, "any"),
    ("a pattern's worst", "l.log", "iter " + " " * 50_000 + "1" * 50_000 + "\n", "any"),
    ("a W&B table", "wandb-history.jsonl", lines(50, lambda s: {"_step": s, "loss": "NaN"}), "any"),
    ("events of text", "events.out.tfevents.1.host", "not events\n" * 30, "refuse"),
]

GRID = [(n, t, 1.7 + 400 / n**0.34 + 400 / t**0.28) for n in (1e6, 3e6, 1e7, 3e7) for t in (1e8, 3e8, 1e9)]


def fit(
    *columns: str, value: Callable[[float, float, float], tuple[object, ...]] = lambda n, t, loss: (n, t, loss)
) -> str:
    return (
        ",".join(columns or ("params", "tokens", "loss"))
        + "\n"
        + "".join(",".join(map(str, value(*g))) + "\n" for g in GRID)
    )


FITS: list[tuple[str, str, Expect]] = [
    ("nothing", "", "refuse"),
    ("a head and no rows", "params,tokens,loss\n", "refuse"),
    ("no losses", fit("params", "tokens", value=lambda n, t, loss: (n, t)), "refuse"),
    ("no sizes", fit("tokens", "loss", value=lambda n, t, loss: (t, loss)), "refuse"),
    ("negative sizes", fit(value=lambda n, t, loss: (-n, t, loss)), "refuse"),
    ("sizes of zero", fit(value=lambda n, t, loss: (0, t, loss)), "refuse"),
    ("tokens of zero", fit(value=lambda n, t, loss: (n, 0, loss)), "refuse"),
    ("losses of NaN", fit(value=lambda n, t, loss: (n, t, "nan")), "refuse"),
    ("losses of ∞", fit(value=lambda n, t, loss: (n, t, "inf")), "refuse"),
    ("losses below zero", fit(value=lambda n, t, loss: (n, t, -loss)), "refuse"),
    ("words", fit(value=lambda n, t, loss: ("many", t, loss)), "refuse"),
    ("a word in one row", fit() + "x,y,z\n", "refuse"),
    ("a NaN in one row", fit() + "1e6,1e8,nan\n", "any"),
    ("losses that are all the same", fit(value=lambda n, t, loss: (n, t, 2.0)), "any"),
    ("one run many times", "params,tokens,loss\n" + "1e6,1e8,3.0\n" * 12, "refuse"),
    ("one size", fit(value=lambda n, t, loss: (1e6, t, loss)), "any"),
    ("losses that grow with size", fit(value=lambda n, t, loss: (n, t, math.log(n * t))), "any"),
    ("sizes of 1e308", fit(value=lambda n, t, loss: (n * 1e301, t, loss)), "any"),
    ("sizes of 1e-300", fit(value=lambda n, t, loss: (n * 1e-307, t, loss)), "any"),
    ("losses of 1e300", fit(value=lambda n, t, loss: (n, t, loss * 1e300)), "any"),
    ("two runs", "params,tokens,loss\n1e6,1e8,3.0\n2e6,1e8,2.9\n", "refuse"),
    ("the columns in other words", fit("N", "D", "L"), "any"),
    ("suffixes", fit(value=lambda n, t, loss: (f"{n / 1e6}M", f"{t / 1e9}B", loss)), "any"),
    ("compute and tokens at odds", fit("N", "D", "compute", "loss", value=lambda n, t, l: (n, t, 1, l)), "any"),
    ("rows of different lengths", fit() + "1e6\n1e6,1e8,3.0,4,5\n", "any"),
    ("the columns twice", fit("params", "params", "loss"), "refuse"),
    ("ten thousand rows", "params,tokens,loss\n" + fit().partition("\n")[2] * 900, "any"),
]  # fmt: skip


def cases(rng: random.Random) -> Cases:
    found = Cases("logs")
    for what, name, text, expect in LOGS:
        argv = ("doctor", name, *(("--json",) if rng.random() < 0.3 else ()))
        found.add(f"doctor-{name}-{what}", f"a log: {what}", *argv, lay=(put(name, text),), expect=expect)
    for name in ("log.csv", "log.jsonl", "trainer_state.json", "nano.log", "events"):
        found.add(f"doctor-{name}-plain", "as it should be", "doctor", name, lay=(have(name),), expect="any")
        for how in rng.sample([*DISK, *SLIGHT], 9):
            sure = how in set(DISK) - {"half", "cut1", "prose"} or (how == "half" and name.endswith(".json"))
            hurt = change("events/*" if name == "events" else name, damage(how, rng.randrange(99)))
            found.add(f"doctor-{name}-{how}", f"{name}, {how}", "doctor", name, lay=(have(name), hurt),
                      expect="refuse" if sure else "any")  # fmt: skip
    for key in ("log_history", "global_step", "max_steps", "epoch"):
        for strange in rng.sample(sorted(STRANGE), 3):
            hurt = change("trainer_state.json", field(key, value=STRANGE[strange]))
            sure = key == "log_history" and strange not in ("list", "nested", "null")
            found.add(f"doctor-state-{key}={strange}", f"{key} of trainer_state.json is {strange}", "doctor",
                      "trainer_state.json", lay=(have("trainer_state.json"), hurt),
                      expect="refuse" if sure else "any")  # fmt: skip
    for key in ("loss", "step", "learning_rate", "grad_norm"):
        for strange in rng.sample(sorted(STRANGE), 4):
            value = STRANGE[strange]

            def every(path: Path, key: str = key, value: object = value) -> None:
                found_lines = [json.loads(line) | {key: value} for line in path.read_text().splitlines()]
                path.write_text("".join(json.dumps(line) + "\n" for line in found_lines))

            for file in ("log.jsonl", "runs/a/metrics.jsonl"):
                target = "runs/a" if file.startswith("runs") else file
                lay: tuple[Step, ...] = (have(target), change(file, every))
                found.add(f"doctor-{target}-{key}={strange}", f"{key} is {strange} in every line", "doctor", target,
                          lay=lay, expect="any")  # fmt: skip
    for what, text, expect in FITS:
        found.add(
            f"fit-{what}", f"runs to fit: {what}", "plan", "fit", "fit.csv", lay=(put("fit.csv", text),), expect=expect
        )
    for how in rng.sample([*DISK, *SLIGHT], 9):
        sure = how in set(DISK) - {"half", "cut1"}
        hurt = change("fit.csv", damage(how, rng.randrange(99)))
        found.add(f"fit-{how}", f"fit.csv, {how}", "plan", "fit", "fit.csv", lay=(have("fit.csv"), hurt),
                  expect="refuse" if sure else "any", names=("fit.csv", "runs"))  # fmt: skip
    for output in ("fit.csv", "mine"):
        argv = ("plan", "fit", "fit.csv", "--output", output)
        found.add(f"fit-onto-{output}", "an output that is a file of one's own", *argv,
                  lay=(have("fit.csv"), put("mine", "my own")), names=(output,))  # fmt: skip
    for compute in ("0", "-1", "nan", "1e400", "lots"):
        found.add(f"fit-compute={compute}", "no compute", "plan", "fit", "fit.csv", "--compute", compute,
                  lay=(have("fit.csv"),), names=("compute", compute))  # fmt: skip
    return found
