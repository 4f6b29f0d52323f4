"""Root causes first: what another finding explains comes after it."""

from __future__ import annotations

from limpid.doctor.finding import SEVERITIES, Finding
from limpid.doctor.rules import RULES


def ranked(findings: list[Finding]) -> list[Finding]:
    """Findings that no other one explains, then the rest; each by severity, certainty and time."""
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


def _explained(finding: Finding, findings: list[Finding]) -> bool:
    return any(
        explains(other, finding) and not (explains(finding, other) and (finding.step or 0) < (other.step or 0))
        for other in findings
    )
