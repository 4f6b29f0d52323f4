"""Two faults in one run: are both named?

python -m benchmarks.doctor.pairs [--count 24] [--seed 0] [--json FILE] [--resume] [--table docs/doctor.md]

Pairs are drawn, not chosen: a seed orders all pairs of faults of different families that share a model, ask for no
different settings and have no accepted rule in common. The first `count` are kept in which each fault bites in the
other's company, by its own proof, against the run that has the other one alone. With --resume, what the JSON holds is
not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import logging
import random
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from benchmarks.doctor.__main__ import write_table
from benchmarks.doctor.fault import Fault
from benchmarks.doctor.faults import FAULTS
from benchmarks.doctor.judge import is_said, judge
from benchmarks.doctor.loop import Loop
from benchmarks.doctor.ranks import on_ranks
from benchmarks.doctor.settings import Settings

BEGIN, END = "<!-- pairs: python -m benchmarks.doctor.pairs -->", "<!-- end of pairs -->"
Pair = tuple[Fault, Fault]


def fits(a: Fault, b: Fault) -> bool:
    """Whether the two can be planted into one run and told apart."""
    agree = all(a.settings.get(key, value) == value for key, value in b.settings.items())
    shared = {*a.architectures} & {*b.architectures}
    return bool(a.family != b.family and agree and shared and not {*a.accepted} & {*b.accepted})


def drawn(seed: int) -> Iterator[tuple[Pair, str]]:
    """All pairs that fit in the seed's order, each with one model that has both."""
    draw = random.Random(seed)
    pairs = [pair for pair in itertools.combinations(FAULTS, 2) if fits(*pair)]
    for a, b in draw.sample(pairs, len(pairs)):
        yield (a, b), draw.choice([name for name in a.architectures if name in b.architectures])


def together(a: Fault, b: Fault, *, planted: Iterable[Fault]) -> Fault:
    """The run that the two share, with those faults planted."""

    def inject(loop: Loop) -> None:
        for fault in planted:
            fault.inject(loop)

    return replace(
        a, name=f"{a.name} & {b.name}", does=f"{a.does}; {b.does}", inject=inject, accepted=(), onset=0,
        settings={**a.settings, **b.settings}, ranks=max(a.ranks, b.ranks),
    )  # fmt: skip


def bites(fault: Fault, pair: Pair, architecture: str) -> bool:
    """Whether a fault begins before the run ends, and its own proof holds in the other one's company."""
    both = together(*pair, planted=pair)
    if fault.onset >= replace(Settings(), **both.settings).steps:
        return False
    without = together(*pair, planted=[one for one in pair if one is not fault])

    def prove() -> bool:
        return fault.proof.prove(lambda injected, seed: (both if injected else without).loop(architecture, seed)).bites

    with contextlib.suppress(Exception):  # a run that the other fault ends proves nothing of this one
        return bool(prove() if both.ranks == 1 else on_ranks(prove, both.ranks)[0])
    return False


def perform(pair: Pair, architecture: str) -> dict[str, Any]:
    """Whether both bite, and where they do, what the doctor says of the run that has both."""
    both = together(*pair, planted=pair)
    made: dict[str, Any] = {"name": both.name, "architecture": architecture, "does": [one.does for one in pair]}
    made["bites"] = all(bites(one, pair, architecture) for one in pair)
    if not made["bites"]:
        return made
    record = judge(both, architecture, 0)
    alarms = [found["rule"] for found in record.findings if is_said(found)]
    named = [next((rule for rule in alarms if rule in one.accepted), "") for one in pair]
    others = [rule for rule in alarms if rule not in {*pair[0].accepted, *pair[1].accepted}]
    return made | {
        "named": named, "both": all(named), "first": bool(alarms and alarms[0] in named), "others": others,
        "findings": record.findings, "skipped": record.skipped, "crashed": record.crashed,
        "seconds": round(record.seconds, 1),
    }  # fmt: skip


def markdown(records: list[dict[str, Any]]) -> str:
    kept = [record for record in records if record["bites"]]
    both, one = (sum(count(record) for record in kept) for count in (lambda r: r["both"], lambda r: any(r["named"])))
    lines = [
        f"Of {len(records)} pairs drawn both faults bite in {len(kept)}: both named in {both}, one or both in {one}; "
        f"the first alarm is one of the two causes in {sum(record['first'] for record in kept)}.",
        "",
        "| pair | what is done | model | named | other alarms |",
        "|---|---|---|---|---|",
    ]
    for record in kept:
        named = ", ".join(rule or "not named" for rule in record["named"])
        cells = (record["name"], "; ".join(record["does"]), record["architecture"], named, ", ".join(record["others"]))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true", help="keep what the JSON holds, run only what it does not")
    parser.add_argument("--table", type=Path, help="put the table into this document, between its marks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    kept = options.resume and options.json is not None and options.json.exists()
    records: list[dict[str, Any]] = json.loads(options.json.read_text()) if kept else []
    for pair, architecture in itertools.islice(drawn(options.seed), len(records), None):
        if sum(record["bites"] for record in records) >= options.count:
            break
        records.append(perform(pair, architecture))
        if options.json:
            options.json.write_text(json.dumps(records, indent=1))
        one = records[-1]
        said = f"named {one['named']}, others {one['others']}" if one["bites"] else "one of them does not bite"
        print(f"{one['name']:34} {architecture:7} {said}", flush=True)
    table = markdown(records)
    if options.table:
        write_table(options.table, table, BEGIN, END)
    print(table)


if __name__ == "__main__":
    main()
