"""What may be meant is a notice that is said; in a run that suffers it is an alarm."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from limpid.doctor.finding import Finding
from limpid.doctor.finding_log import FindingLog, as_choices, ranked
from limpid.doctor.rules import RULES

CHOICE = Finding(
    rule="data-sorted", severity="warning", step=4, where="rows", says="rows come in the order of their source",
    cause="no shuffling", fix="shuffle", refuted_by="a shuffled order that looks the same", meant="a curriculum",
)  # fmt: skip
COMPLAINT = dataclasses.replace(CHOICE, rule="loss-diverges", severity="fault", step=9, meant="", says="it rises")


def test_a_choice_is_told_and_nobody_is_accused(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    log = FindingLog(None, lines.append, None)
    log.add([CHOICE])
    (found,) = log.findings()
    assert (found.severity, found.is_said) == ("notice", True)
    (line,) = lines
    assert line.startswith("doctor: notice: data-sorted (step 4, rows)")
    assert "meant: a curriculum" in line
    assert "else:  shuffle" in line


@pytest.mark.parametrize("complaint_first", [False, True])
def test_a_run_that_suffers_is_told_of_its_choices_as_causes(complaint_first: bool, tmp_path: Path) -> None:
    log = FindingLog(tmp_path, False, None)
    log.add([COMPLAINT, CHOICE] if complaint_first else [CHOICE, COMPLAINT])
    assert {(found.rule, found.severity) for found in log.findings()} == {
        ("data-sorted", "warning"),
        ("loss-diverges", "fault"),
    }
    written = (tmp_path / "findings.jsonl").read_text()
    assert ('"severity": "notice"' in written) == (not complaint_first)


@pytest.mark.parametrize("alarm_first", [False, True])
@pytest.mark.parametrize("explains", [False, True])
def test_a_choice_that_explains_an_alarm_is_its_cause(explains: bool, alarm_first: bool) -> None:
    equal = dataclasses.replace(CHOICE, rule="initialisation-degenerate" if explains else "data-sorted", step=None)
    alarm = dataclasses.replace(COMPLAINT, rule="epsilon-dominates", step=None)
    both = [alarm, equal] if alarm_first else [equal, alarm]
    log = FindingLog(None, False, None)
    log.add(both)
    for found in (log.findings(), ranked(as_choices(both))):
        assert [(one.rule, one.severity) for one in found] == (
            [(equal.rule, "warning"), (alarm.rule, "fault")]
            if explains
            else [(alarm.rule, "fault"), (equal.rule, "notice")]
        )


def test_a_symptom_that_is_a_notice_itself_accuses_nobody() -> None:
    log = FindingLog(None, False, None)
    log.add([CHOICE, dataclasses.replace(COMPLAINT, severity="notice")])
    assert [found.severity for found in log.findings()] == ["notice", "notice"]


def test_findings_of_a_log_are_judged_together() -> None:
    assert [found.severity for found in as_choices([CHOICE])] == ["notice"]
    assert [found.severity for found in as_choices([CHOICE, COMPLAINT])] == ["warning", "fault"]


def test_who_may_mean_it_is_the_rules_own_word_unless_a_finding_knows_better() -> None:
    rule = dataclasses.replace(RULES["data-sorted"], meant="a curriculum")

    def said(severity: str, meant: str | None = "") -> str:
        return rule.finding(severity=severity, where="rows", says="sorted", meant=meant).meant  # type: ignore[arg-type]

    assert said("warning") == "a curriculum"
    assert said("warning", "lengths that grow") == "lengths that grow"
    assert said("warning", None) == said("notice") == ""
