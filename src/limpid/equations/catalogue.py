"""Every equation there is, read off the operations, formulas and update rules themselves."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from limpid.errors import ConfigError
from limpid.maths.catalogue import catalogue
from limpid.maths.formula import Formula
from limpid.maths.operation import FACTS, Branch, Operation
from limpid.maths.update import UpdateRule

STAGES = {
    "embedding": ("embedding",),
    "norm": ("norm",),
    "attention": ("attention", "attention_variants", "attention_linear", "attention_tiled", "recurrent"),
    "mlp": ("mlp", "activation", "linear", "dora", "dropout", "perceptron"),
    "logits": ("linear",),
    "loss": ("loss", "losses", "information", "alignment"),
    "backward": ("calculus", "curvature"),
    "update": ("update", "muon", "average", "optimisation", "schedule", "tangent"),
    "decoding": ("sampling", "watermark"),
    "foundations": ("vectors", "axioms", "matrices", "probability", "normal", "joint", "information", "calculus"),
}
"""Stages of the step, and the files and folders of the mathematics that serve them."""


@dataclass(frozen=True)
class Entry:
    """One equation and what belongs to it."""

    name: str
    kind: str  # operation, formula, update rule
    purpose: str  # first sentence of its docstring
    equation: str  # LaTeX
    adjoint: tuple[str, ...]  # LaTeX, one per input; empty where there is none
    source: str
    branch: Branch
    file: str  # inside the package
    line: int
    text: str  # the whole docstring
    signature: str

    @property
    def stages(self) -> tuple[str, ...]:
        """Where in the step it is used."""
        parts = set(self.file.removesuffix(".py").split("/"))
        return tuple(stage for stage, places in STAGES.items() if parts.intersection(places))


def entries() -> tuple[Entry, ...]:
    """All of them, in the order of the files and of the lines in them."""
    return tuple(sorted(_entries(), key=lambda entry: (list(STAGES).index(entry.stages[0]), entry.file, entry.line)))


def _entries() -> Iterator[Entry]:
    for operation in catalogue(Operation):
        call = inspect.signature(operation.forward)
        yield _entry(operation, "operation", operation.equation, operation.adjoint, call, operation.branch)
    for formula in catalogue(Formula):
        call = inspect.signature(formula.function)
        yield _entry(formula.function, "formula", formula.equation, formula.adjoint, call, formula.branch, formula)
    for rule in catalogue(UpdateRule):
        equation = r", \quad ".join(rule.equations)
        yield _entry(rule, "update rule", equation, (), inspect.signature(rule.apply), Branch.OPTIMISATION)


def _entry(
    thing: Any, kind: str, equation: str, adjoint: tuple[str, ...], call: Any, branch: Branch, formula: Any = None
) -> Entry:
    text = (inspect.getdoc(thing) or "").split(f"\n\n{FACTS}")[0]
    names = [name for name in call.parameters if name != "self"]
    return Entry(
        name=thing.__name__,
        kind=kind,
        purpose=" ".join(text.split("\n\n")[0].split()),
        equation=equation,
        adjoint=adjoint,
        source=(thing if formula is None else formula).source,
        branch=branch,
        file=thing.__module__.removeprefix("limpid.").replace(".", "/") + ".py",
        line=_line(thing),
        text=text,
        signature=f"{thing.__name__}({', '.join(names)})",
    )


@functools.cache  # reads and parses a file
def _line(thing: Any) -> int:
    return inspect.getsourcelines(thing)[1]


def chosen(
    words: tuple[str, ...] = (), branch: str | None = None, stage: str | None = None, paper: str | None = None
) -> tuple[Entry, ...]:
    """Entries whose name, purpose or source holds every word, of a branch, of a stage, from a paper.

    Raises  ConfigError for a branch or stage that does not exist, or when nothing is left
    """
    branches = [known.value for known in Branch]
    if branch is not None and not any(branch.lower() in known for known in branches):
        raise ConfigError(f"branch is {branch!r}: choose one of {', '.join(branches)}")
    if stage is not None and stage not in STAGES:
        raise ConfigError(f"stage is {stage!r}: choose one of {', '.join(STAGES)}")
    exact = tuple(entry for entry in entries() if words == (entry.name,))
    found = exact or tuple(
        entry
        for entry in entries()
        if all(word.lower() in f"{entry.name} {entry.purpose} {entry.source}".lower() for word in words)
    )
    found = tuple(
        entry
        for entry in found
        if (branch is None or branch.lower() in entry.branch.value)
        and (stage is None or stage in entry.stages)
        and (paper is None or paper.lower() in entry.source.lower())
    )
    if not found:
        asked = ", ".join(repr(word) for word in (*words, branch, stage, paper) if word is not None)
        raise ConfigError(f"no equation matches {asked}: `limpid equations` alone lists all of them")
    return found
