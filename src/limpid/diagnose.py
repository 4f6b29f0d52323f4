"""`limpid doctor`: a record examined, ours or a stranger's; a rule explained; a run's next step examined."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limpid.doctor.curves import diagnose, unchecked
from limpid.doctor.finding import Finding, finding_from
from limpid.doctor.logs import read_record
from limpid.doctor.logs.table import Curves
from limpid.doctor.ranking import ranked
from limpid.doctor.rules import RULES
from limpid.errors import CheckpointError, ConfigError
from limpid.source import Run, find_run, find_source

if TYPE_CHECKING:
    from rich.console import Console

    from limpid.doctor.doctor import Doctor
    from limpid.doctor.rule import Rule
    from limpid.training.start import Training

COLOURS = {"fault": "red", "warning": "yellow", "notice": "dim"}


def examine(what: str, *, as_json: bool, console: Console) -> int:
    """Findings of a record, ours or another tool's; exit code 1 when one is a warning or worse."""
    path = located(what)
    curves = read_record(path)
    found = ranked([*_recorded(path, curves), *diagnose(curves)])
    skipped = unchecked(curves)
    if _watched(path):
        skipped = {name: why for name, why in skipped.items() if name in ("learning_rate", "grad_norm", "eval_loss")}
    if as_json:
        print(json.dumps(_document(str(path), curves.kind, len(curves.steps), found, skipped, curves.notes)))
    else:
        losses = curves.steps
        span = f"steps {losses[0]:,} … {losses[-1]:,}" if losses else "no training loss"
        console.print(f"{path}: {curves.kind}, {span}, {', '.join(sorted(curves.series))}", markup=False)
        for note in curves.notes:
            console.print(note, markup=False)
        show(found, console)
        console.print("\nnot checked", style="bold")
        for name, why in skipped.items():
            console.print(f"  {name.replace('_', ' '):<14}{why}", markup=False)
    return _code(found)


def attend(training: Training, say: Callable[[str], None] | bool) -> Doctor | None:
    """The doctor beside one of our own runs; None where the configuration does without."""
    if not training.config.run.doctor:
        return None
    from limpid.doctor.doctor import Doctor

    state = training.state
    file = training.run.path / "findings.jsonl"
    if file.is_file() and not state.step:
        file.unlink()
    file.touch()  # an empty one says: watched, and nothing found
    return Doctor(
        state.model,
        state.optimizer,
        scaler=state.scaler if state.scaler.is_enabled() else None,
        output=training.run.path,
        total_steps=training.config.run.max_steps,
        say=say,
        first_step=state.step + 1,
    )


def preflight(what: str, *, as_json: bool, console: Console) -> int:
    """The examination of a run's model, optimizer and next batch, where its newest checkpoint stands."""
    import torch

    from limpid.doctor.doctor import Doctor
    from limpid.objectives.losses import log_probabilities, next_token_loss
    from limpid.training.replay import replay

    run = find_run(what)
    number = min(run.latest_checkpoint() + 1, run.read_config().run.max_steps)
    training = replay(run, number)
    state = training.state
    batch = training.batches.batch(number, state)
    targets = [torch.as_tensor(micro["targets"]) for micro in batch]
    labels = max(1, sum(int((target >= 0).sum()) for target in targets))

    def loss(model: Any, _: Any) -> Any:
        device = next(model.parameters()).device
        return sum(
            next_token_loss(
                log_probabilities(model(torch.as_tensor(micro["tokens"]).to(device))), target.to(device), labels
            )
            for micro, target in zip(batch, targets, strict=True)
        )

    with Doctor(state.model, state.optimizer, say=False) as doctor:
        found = doctor.preflight(list(batch), loss=loss, total_steps=training.config.run.max_steps)
        skipped = dict(doctor.skipped)
    if as_json:
        print(json.dumps(_document(str(run.path), f"examination before step {number}", number, found, skipped)))
    else:
        console.print(f"{run.path}: examined before step {number}", markup=False)
        show(found, console)
        for name, why in skipped.items():
            console.print(f"not checked: {name}: {why}", markup=False)
    return _code(found)


def explain(slug: str, *, as_json: bool, console: Console) -> int:
    """One rule in full, or all of them in a table when the word is `all`."""
    if slug == "all":
        if as_json:
            print(json.dumps([_plain(rule) for rule in RULES.values()], ensure_ascii=False))
            return 0
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("rule", "family", "detects"):
            table.add_column(column, no_wrap=column != "detects")
        for rule in RULES.values():
            table.add_row(rule.slug, rule.family, rule.detects)
        console.print(table)
        return 0
    if slug not in RULES:
        from difflib import get_close_matches

        near = get_close_matches(slug, RULES, 3, 0.4)
        hint = f"did you mean {', '.join(near)}?" if near else "`limpid doctor --explain all` lists them"
        raise ConfigError(f"there is no rule {slug!r}: {hint}")
    rule = RULES[slug]
    if as_json:
        print(json.dumps(_plain(rule), ensure_ascii=False))
        return 0
    console.print(rule.slug, style="bold")
    rows = (
        ("detects", rule.detects),
        ("equation", readable(rule.equation)),
        ("source", rule.source),
        ("threshold", rule.threshold),
        ("cost", rule.cost),
        ("needs", ", ".join(rule.needs)),
        ("explains", ", ".join(rule.explains) or "nothing else"),
    )
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, text in rows:
        table.add_row(name, text)
    console.print(table)
    return 0


def readable(equation: str) -> str:
    """LaTeX as text for a terminal."""
    if "\\" not in equation and "$" not in equation:
        return equation
    from pylatexenc.latex2text import LatexNodes2Text

    return " ".join(LatexNodes2Text(math_mode="text").latex_to_text(equation).split())


def show(found: list[Finding], console: Console) -> None:
    """Findings, root causes first."""
    if not found:
        console.print("nothing found", style="green")
        return
    for finding in found:
        when = "before the first step" if finding.step is None else f"step {finding.step}"
        console.print(f"\n[{COLOURS[finding.severity]}]{finding.severity}[/] [bold]{finding.rule}[/]  {when}, ", end="")
        console.print(finding.where, markup=False)
        for name, text in (
            ("", finding.says),
            ("cause   ", finding.cause),
            ("fix     ", finding.fix),
            ("refuted ", f"by {finding.refuted_by}"),
            ("sure    ", f"{finding.sure:.0%}"),
        ):
            console.print(f"  {name}{text}", markup=False)


def located(what: str) -> Path:
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
    file = path / "findings.jsonl"
    if not file.is_file():
        return []
    said: dict[str, Finding] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            finding = finding_from(json.loads(line))
        except (ValueError, TypeError):  # the last line of a killed run may be cut short
            curves.notes.append("a line of findings.jsonl was cut short and left out")
            continue
        said[finding.rule] = finding
    return list(said.values())


def _watched(path: Path) -> bool:
    return (path / "findings.jsonl").is_file()


def _document(
    source: str, kind: str, entries: int, found: list[Finding], skipped: dict[str, str], notes: Sequence[str] = ()
) -> dict[str, Any]:
    return {
        "source": source,
        "kind": kind,
        "entries": entries,
        "findings": [json.loads(f.as_json()) for f in found],
        "not_checked": skipped,
        "notes": list(notes),
    }


def _plain(rule: Rule) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(rule)


def _code(found: list[Finding]) -> int:
    return int(any(finding.severity != "notice" for finding in found))
