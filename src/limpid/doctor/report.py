"""The log of a run, ours or another tool's, examined; findings and rules, printed.

Needs no torch.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limpid.doctor.finding import NOT_EXAMINED, SEVERITIES, Finding, finding_from
from limpid.doctor.finding_log import as_choices, ranked, when
from limpid.doctor.logs import read_record
from limpid.doctor.logs.table import Curves
from limpid.doctor.rule import functions
from limpid.doctor.rules import RULES
from limpid.doctor.rules.loss_curve import LOSS_DIVERGES
from limpid.errors import CheckpointError, ConfigError
from limpid.files import MALFORMED, user_path
from limpid.reporter import Reporter
from limpid.source import Run, find_source
from limpid.terminal import say_json
from limpid.theme import GOOD, HEADING, QUIET, SEVERITY

if TYPE_CHECKING:
    from rich.console import Console

UNSEEN = {
    "data": "labels, padding, ids and repeats need a batch: doctor.preflight(batch), or watch the run",
    "graph": "causality, cut gradients, tied weights and positions need the model",
    "optimisation": "what the optimizer holds, and the order of its calls, need the loop: limpid.watch(model, "
    "optimizer)",
    "loss": "the formula of the loss needs its logits and labels",
    "distributed": "ranks are compared while they train",
}
"""What no log shows."""
WATCHED_TOO = ("loss_curve", "learning_rate", "grad_norm", "eval_loss")
"""What may be missing although the doctor watched the run."""


# a log of any tool


def diagnose(curves: Curves) -> list[Finding]:
    """Every finding that these curves support."""
    by_rule: dict[str, Finding] = {}
    for function in functions("in_log", RULES.values()):
        for finding in function(curves):
            old = by_rule.get(finding.rule)
            if old is None or (old.severity == "notice" and finding.severity != "notice"):
                by_rule[finding.rule] = finding
    return ranked(as_choices(by_rule.values()))


def unchecked(curves: Curves) -> dict[str, str]:
    """What could not be checked, and why."""
    missing = {
        name: "the record has none"
        for name in ("grad_norm", "learning_rate", "eval_loss", "loss_scale")
        if name not in curves.series
    }
    losses = max(len(curves.series.get(name, [])) for name in ("loss", "eval_loss"))
    if losses < LOSS_DIVERGES["steps"]:
        enough = f"{LOSS_DIVERGES['steps']:g} tell one that rises from chance"
        missing = {"loss_curve": f"{losses} losses are too few to judge: {enough}"} | missing
    return missing | UNSEEN


def examine(what: str, *, as_json: bool, console: Console) -> int:
    """Findings of a log, ours or another tool's; exit code 1 when one is a warning or worse."""
    path = _located(what)
    with Reporter(as_json) as reporter:
        reporter.progress(f"reading {path}", 0)
        curves = read_record(path)
        watched = (path / "findings.jsonl").is_file()
        findings = ranked([*(_recorded(path, curves) if watched else ()), *diagnose(curves)])
    skipped = unchecked(curves)
    if watched:
        skipped = {name: why for name, why in skipped.items() if name in WATCHED_TOO} | _not_examined(path)
    if as_json:
        say_json(document(str(path), curves.kind, len(curves.steps), findings, skipped, curves.notes))
        return exit_code(findings)
    losses = curves.steps
    span = f"steps {losses[0]:,} … {losses[-1]:,}" if losses else "no training loss"
    console.print(f"{path}: {curves.kind}, {span}, {', '.join(sorted(curves.series))}", markup=False)
    for note in curves.notes:
        console.print(note, markup=False)
    show(findings, console)
    if skipped:
        console.print("\nnot checked", style=HEADING)
    reasons: dict[str, list[str]] = {}
    for name, why in skipped.items():
        reasons.setdefault(why, []).append(name.replace("_", " "))
    for why, names in reasons.items():
        console.print(f"  {', '.join(names)}: {why}", markup=False)
    return exit_code(findings)


def _located(what: str) -> Path:
    """A run by name, or any file or folder."""
    if what != "last" and user_path(what).exists():
        return user_path(what)
    source = find_source(what)
    if isinstance(source, Run):
        return source.path
    raise CheckpointError(
        f"{what} is no run, file or folder: give a run, a folder of logs, or a file (.json, .jsonl, .csv, .log, "
        "tfevents)"
    )


def _recorded(path: Path, curves: Curves) -> list[Finding]:
    """What the doctor said while the run trained; the last word on each rule."""
    said: dict[str, Finding] = {}
    for line in (path / "findings.jsonl").read_bytes().splitlines():
        try:
            finding = finding_from(json.loads(line))
            if finding.rule not in RULES or finding.severity not in SEVERITIES:
                raise ValueError(finding)
        except MALFORMED:  # the last line of a killed run may be cut short
            curves.notes.append("a line of findings.jsonl cannot be read, and was left out")
            continue
        said[finding.rule] = finding
    return list(said.values())


def _not_examined(path: Path) -> dict[str, str]:
    """What the doctor could not examine while the run trained, and why."""
    file = path / NOT_EXAMINED
    found: dict[str, str] = {}
    for line in file.read_bytes().splitlines() if file.is_file() else ():
        with contextlib.suppress(*MALFORMED):  # the last line of a killed run may be cut short
            entry = json.loads(line)
            found[str(entry["what"])] = str(entry["why"])
    return found


# printed


def show(findings: Sequence[Finding], console: Console) -> None:
    """Findings, root causes first."""
    from rich.text import Text

    if not findings:
        console.print("nothing found", style=GOOD)
    for finding in findings:
        head = (finding.severity, f"bold {SEVERITY[finding.severity]}"), " ", (finding.rule, HEADING)
        console.print(Text.assemble("\n", *head, f"  {when(finding)}, {finding.where}"))
        for name, text in (
            ("", finding.says),
            ("cause   ", finding.cause),
            ("fix     ", finding.fix),
            *((("meant   ", finding.meant),) if finding.meant else ()),
            ("refuted ", f"by {finding.refuted_by}"),
            ("sure    ", f"{finding.sure:.0%}"),
        ):
            console.print(f"  {name}{text}", markup=False)


def document(
    source: str,
    kind: str,
    entries: int,
    findings: Sequence[Finding],
    skipped: dict[str, str],
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    return {
        "source": source,
        "kind": kind,
        "entries": entries,
        "findings": [json.loads(finding.as_json()) for finding in findings],
        "not_checked": skipped,
        "notes": list(notes),
    }


def exit_code(findings: Iterable[Finding]) -> int:
    return int(any(finding.severity != "notice" for finding in findings))


def explain(slug: str, *, as_json: bool, console: Console) -> int:
    """One rule in full, or all of them in a table when the word is `all`."""
    if slug != "all" and slug not in RULES:
        from difflib import get_close_matches

        near = get_close_matches(slug, RULES, 3, 0.4)
        hint = f"did you mean {', '.join(near)}?" if near else "`limpid doctor --explain all` lists them"
        raise ConfigError(f"there is no rule {slug!r}: {hint}")
    if as_json:
        cards = [rule.card() for rule in RULES.values()] if slug == "all" else RULES[slug].card()
        say_json(cards)
        return 0
    from rich.table import Table

    if slug == "all":
        table = Table(box=None, pad_edge=False, header_style=HEADING)
        for column in ("rule", "family", "detects"):
            table.add_column(column, no_wrap=column != "detects")
        for rule in RULES.values():
            table.add_row(rule.slug, rule.family.replace("_", " "), rule.detects)
        console.print(table)
        return 0
    console.print(slug, style=HEADING)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2))
    table.add_column(style=QUIET, no_wrap=True)
    table.add_column()
    for name, text in _card(slug):
        table.add_row(name, text)
    console.print(table)
    return 0


def _card(slug: str) -> list[tuple[str, str]]:
    """A rule's card, line by line."""
    from limpid.latex import readable

    card, plain = RULES[slug].card(), RULES[slug].equation
    return [
        ("detects", card["detects"]),
        ("equation", readable(plain) if "\\" in plain or "$" in plain else plain),
        ("source", card["source"]),
        ("threshold", card["threshold"]),
        ("cost", card["cost"]),
        ("needs", ", ".join(card["needs"])),
        ("looks", ", ".join(card["looks"])),
        *((name.replace("_", " "), card[name]) for name in ("cause", "fix", "meant", "refuted_by") if card[name]),
        ("explains", ", ".join(card["explains"]) or "nothing else"),
    ]
