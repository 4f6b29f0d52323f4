"""Findings on their way to the reader: ranked, logged, printed, and a log of any tool examined.

Needs no torch.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limpid.doctor.finding import SEVERITIES, Finding, finding_from
from limpid.doctor.logs import read_record
from limpid.doctor.logs.table import Curves
from limpid.doctor.rule import functions
from limpid.doctor.rules import RULES
from limpid.errors import CheckpointError, ConfigError
from limpid.files import LineFile, explained
from limpid.source import Run, find_source
from limpid.terminal import say, say_json

if TYPE_CHECKING:
    from rich.console import Console

COLOURS = {"fault": "red", "warning": "yellow", "notice": "dim"}
UNSEEN = {
    "data": "labels, padding, ids and repeats need a batch: doctor.preflight(batch), or watch the run",
    "graph": "causality, cut gradients, tied weights and positions need the model",
    "optimisation": "what the optimizer holds, and the order of its calls, need the loop: limpid.watch(model, "
    "optimizer)",
    "loss": "the formula of the loss needs its logits and labels",
    "distributed": "ranks are compared while they train",
}
"""What no log shows."""


# ranked


def ranked(findings: Sequence[Finding]) -> list[Finding]:
    """Root causes first: findings that no other one explains, then the rest; each by severity, certainty and time."""
    explained = {id(finding) for finding in findings if _explained(finding, findings)}
    return sorted(
        findings,
        key=lambda f: (
            f.severity == "notice",
            id(f) in explained,
            -SEVERITIES.index(f.severity),
            -len(RULES[f.rule].explains) if f.rule in RULES else 0,
            -f.sure,
            f.step or 0,
        ),
    )


def explains(first: Finding, second: Finding) -> bool:
    """Whether `second` is a consequence of `first`: its rule is one, and it did not come earlier."""
    if first is second or first.severity == "notice" or first.rule not in RULES:
        return False
    return second.rule in RULES[first.rule].explains and (first.step or 0) <= (second.step or 0) + 30


def _explained(finding: Finding, findings: Sequence[Finding]) -> bool:
    return any(
        explains(other, finding) and not (explains(finding, other) and (finding.step or 0) < (other.step or 0))
        for other in findings
    )


# logged while a run trains


class FindingLog:
    """Everything found so far; each rule speaks once, and again when it becomes more severe.

    What is found goes to the console, to findings.jsonl, to TensorBoard or W&B.
    """

    def __init__(self, output: Path | None, say: Callable[[str], None] | bool, writer: Any) -> None:
        self.output, self.say, self.writer = output, say, writer
        self.first = True  # whether this process speaks for all of them
        self.found: dict[str, Finding] = {}
        if output is not None:
            with self._never_breaking():
                output.mkdir(parents=True, exist_ok=True)  # once: a run whose folder is deleted gets no other

    def add(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            old = self.found.get(finding.rule)
            if old is None or SEVERITIES.index(old.severity) < SEVERITIES.index(finding.severity):
                self.found[finding.rule] = finding
                if self.first:
                    self._report(finding)

    def findings(self, without: Iterable[str] = ()) -> list[Finding]:
        """Root causes first; without those of some rules."""
        return ranked([finding for rule, finding in self.found.items() if rule not in without])

    def skipped(self, what: str, why: str) -> None:
        """Say what could not be done."""
        if self.first:
            self._say(f"doctor: not checked: {what}: {why}")

    def _report(self, finding: Finding) -> None:
        if self.output is not None:
            with self._never_breaking(), contextlib.closing(LineFile(self.output / "findings.jsonl")) as file:
                file.write(finding.as_json())
        if hasattr(self.writer, "add_text"):  # TensorBoard
            self.writer.add_text(f"doctor/{finding.rule}", finding.says, finding.step or 0)
        elif hasattr(self.writer, "log"):  # W&B
            self.writer.log({f"doctor/{finding.rule}": SEVERITIES.index(finding.severity) + 1})
        if finding.severity != "notice":
            self._say(
                f"doctor: {finding.severity}: {finding.rule} ({_when(finding)}, {finding.where}): {finding.says}\n"
                f"        cause: {finding.cause}\n        fix:   {finding.fix}"
            )

    @contextlib.contextmanager
    def _never_breaking(self) -> Iterator[None]:
        """A finding that cannot be written is said, and breaks no training."""
        try:
            with explained(f"cannot write to {self.output}"):
                yield
        except CheckpointError as error:
            self._say(f"doctor: {error}")

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # a console that is gone breaks no training either
            if callable(self.say):
                self.say(line)
            elif self.say:
                say(line, file=sys.stderr)


def _when(finding: Finding) -> str:
    return "before the first step" if finding.step is None else f"step {finding.step}"


# a log of any tool


def diagnose(curves: Curves) -> list[Finding]:
    """Every finding that these curves support."""
    found: dict[str, Finding] = {}
    for function in functions("in_log", RULES.values()):
        for finding in function(curves):
            old = found.get(finding.rule)
            if old is None or (old.severity == "notice" and finding.severity != "notice"):
                found[finding.rule] = finding
    return ranked(list(found.values()))


def unchecked(curves: Curves) -> dict[str, str]:
    """What could not be checked, and why."""
    missing = {
        name: f"no {name.replace('_', ' ')} in the record"
        for name in ("grad_norm", "learning_rate", "eval_loss", "loss_scale")
        if name not in curves.series
    }
    return missing | UNSEEN


def examine(what: str, *, as_json: bool, console: Console) -> int:
    """Findings of a log, ours or another tool's; exit code 1 when one is a warning or worse."""
    path = _located(what)
    curves = read_record(path)
    watched = (path / "findings.jsonl").is_file()
    findings = ranked([*(_recorded(path, curves) if watched else ()), *diagnose(curves)])
    skipped = unchecked(curves)
    if watched:
        skipped = {name: why for name, why in skipped.items() if name in ("learning_rate", "grad_norm", "eval_loss")}
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
        console.print("\nnot checked", style="bold")
    for name, why in skipped.items():
        console.print(f"  {name.replace('_', ' '):<14}{why}", markup=False)
    return exit_code(findings)


def _located(what: str) -> Path:
    """A run by name, or any file or folder."""
    if what != "last" and Path(what).exists():
        return Path(what)
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
        except (ValueError, TypeError, RecursionError):  # the last line of a killed run may be cut short
            curves.notes.append("a line of findings.jsonl cannot be read, and was left out")
            continue
        said[finding.rule] = finding
    return list(said.values())


# printed


def show(findings: Sequence[Finding], console: Console) -> None:
    """Findings, root causes first."""
    if not findings:
        console.print("nothing found", style="green")
    for finding in findings:
        console.print(f"\n[{COLOURS[finding.severity]}]{finding.severity}[/] [bold]{finding.rule}[/]  ", end="")
        console.print(f"{_when(finding)}, {finding.where}", markup=False)
        for name, text in (
            ("", finding.says),
            ("cause   ", finding.cause),
            ("fix     ", finding.fix),
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
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("rule", "family", "detects"):
            table.add_column(column, no_wrap=column != "detects")
        for rule in RULES.values():
            table.add_row(rule.slug, rule.family.replace("_", " "), rule.detects)
        console.print(table)
        return 0
    console.print(slug, style="bold")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
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
        *((name.replace("_", " "), card[name]) for name in ("cause", "fix", "refuted_by") if card[name]),
        ("explains", ", ".join(card["explains"]) or "nothing else"),
    ]
