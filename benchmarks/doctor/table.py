"""Results as a table to read, and in numbers."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from benchmarks.doctor.fault import Fault
from benchmarks.doctor.models import ARCHITECTURES

Records = list[dict[str, Any]]


def summary(results: dict[str, Any]) -> dict[str, Any]:
    """The numbers that the goals are stated in."""
    faults, healthy = results["faults"], results["healthy"] + results["twins"]
    named = [r["named"] for r in faults if r["named"] is not None]
    alarms = [r for r in healthy if r["alarm"]] + [r for r in faults if r["early"]]
    return {
        "faulty runs": len(faults),
        "detected": sum(r["detected"] for r in faults),
        "by an alarm": sum(r["alarm"] for r in faults),
        "right cause first": sum(r["right"] for r in faults),
        "named before the first step": sum(n == 0 for n in named),
        "median steps until named": statistics.median(named) if named else None,
        "slowest decile, steps": sorted(named)[int(0.9 * (len(named) - 1))] if named else None,
        "healthy runs": len(healthy),
        "healthy runs with an alarm": len(alarms),
        "healthy runs told what may be meant": sum(r["detected"] and not r["alarm"] for r in healthy),
        "proofs": len(results["proofs"]),
        "injections that bite": sum(p["bites"] for p in results["proofs"]),
    }


def markdown(results: dict[str, Any], faults: Iterable[Fault]) -> str:
    architectures = [a for a in ARCHITECTURES if a in results["architectures"]]
    lines = [*said(summary(results)), ""]
    lines += ["| fault | what is done | proof: with the fault, without | " + " | ".join(architectures) + " |"]
    lines += ["|---|---|---|" + "---|" * len(architectures)]
    for fault in faults:
        cells = [cell(fault, a, results) for a in architectures]
        if any(cells):
            lines.append(f"| {fault.name} | {fault.does} | {proof(fault, results)} | " + " | ".join(cells) + " |")
    lines += ["", "| healthy run | what looks odd | " + " | ".join(architectures) + " |"]
    lines += ["|---|---|" + "---|" * len(architectures)]
    for name, does in dict.fromkeys((r["name"], r["does"]) for r in results["healthy"]):
        runs = [r for r in results["healthy"] if r["name"] == name]
        cells = [quiet([r for r in runs if r["architecture"] == a]) for a in architectures]
        lines.append(f"| {name} | {does} | " + " | ".join(cells) + " |")
    twins = [quiet([r for r in results["twins"] if r["architecture"] == a], count=True) for a in architectures]
    if any(twins):
        lines.append("| twins | the faults' base runs without the fault | " + " | ".join(twins) + " |")
    return "\n".join(lines)


def said(numbers: dict[str, Any]) -> list[str]:
    runs, healthy = numbers["faulty runs"], numbers["healthy runs"]
    lines = ["| | measured |", "|---|---|"]
    if runs:
        lines += [
            f"| faulty runs detected | {share(numbers['detected'], runs)}, by an alarm {numbers['by an alarm']} |",
            f"| right cause named first | {share(numbers['right cause first'], runs)} |",
            f"| named before the first step | {share(numbers['named before the first step'], runs)} |",
            f"| steps from onset until named, median (nine in ten) | {numbers['median steps until named']:g} "
            f"({numbers['slowest decile, steps']}) |" if numbers["median steps until named"] is not None else "",
        ]  # fmt: skip
    lines.append(
        f"| false alarms on healthy runs | {numbers['healthy runs with an alarm']} of {healthy}; "
        f"{numbers['healthy runs told what may be meant']} more were told something that may be meant |"
    )
    if numbers["proofs"]:
        lines.append(f"| injections proven to bite | {share(numbers['injections that bite'], numbers['proofs'])} |")
    return [line for line in lines if line]


def share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.0%})"


def proof(fault: Fault, results: dict[str, Any]) -> str:
    """Of the first architecture that has one."""
    for found in results["proofs"]:
        if found["name"] == fault.name:
            bites = "" if found["bites"] else " **does not bite**"
            return f"{found['says']}: {number(found['with_fault'])}, {number(found['without'])}{bites}"
    return ""


def cell(fault: Fault, architecture: str, results: dict[str, Any]) -> str:
    """When the right cause was named; or what was said instead."""
    if architecture not in fault.architectures:
        return "n/a"
    runs = [r for r in results["faults"] if (r["name"], r["architecture"]) == (fault.name, architecture)]
    return "; ".join(verdict(run) for run in runs)


def verdict(run: dict[str, Any]) -> str:
    if not run["detected"]:
        return "missed"
    if not run["right"]:
        return f"said {run['first']}"
    return "at once" if run["named"] == 0 and run["onset"] == 0 else f"+{run['named']}"


def quiet(runs: Records, *, count: bool = False) -> str:
    loud = [r for r in runs if r["detected"]]
    if loud:
        return ", ".join(f"{r['first']} ({r['name']})" if count else r["first"] for r in loud)
    return (f"{len(runs)} silent" if count else "silent") if runs else ""


def number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1e4 else f"{value:.1e}".replace("e+0", "e").replace("e+", "e")
