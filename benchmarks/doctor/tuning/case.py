"""What a case is, and what it is given to work with. To write one, nothing of the doctor's rules needs to be known.

A case is a function in a file of cases/, or in any file that is named to the command with --cases:

    @fault("prompt-in-the-loss", wanted=("prompt|user", "mask|label"))
    def _(bench: Bench, wrong: bool) -> None:
        '''One sentence: what is wrong.'''
        records = [...]
        bench.tune("sft", records, {"run": {"max_steps": 20}}, patches={"module:name": replacement} if wrong else {})

    @honest("long-answers-wanted")
    def _(bench: Bench) -> None:
        '''One sentence: why one might take it for a fault.'''

A fault runs twice, with wrong=True and with wrong=False: that is its twin, and must be silent. `wanted` are regular
expressions that a right diagnosis holds, each somewhere in the words of its finding (rule, place, text, cause, fix).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from benchmarks.doctor.tuning import models

import limpid
from limpid.doctor.doctor import Doctor
from limpid.doctor.finding import Finding, finding_from
from limpid.doctor.finding_log import ranked
from limpid.doctor.logs import read_record
from limpid.doctor.report import diagnose
from limpid.run import Run

OPTIONS = {"threads": 1, "precision": "fp32", "batch_size": 8, "eval_steps": 0, "save_steps": 0}


@dataclass
class Bench:
    """One case under way: models and records to work with, and what the doctor says of what is done with them."""

    folder: Path
    base: Run | None = None
    """A run of limpid that has learned to add, from texts such as "3+4=7": a byte-level model of two layers."""
    findings: list[Finding] = field(default_factory=list)

    # runs of limpid

    def tune(
        self,
        objective: str,
        records: Sequence[Mapping[str, Any]],
        sections: Mapping[str, Any] | None = None,
        patches: Mapping[str, Any] | None = None,
        base: Any = None,
        name: str = "tuned",
    ) -> Run:
        """`limpid tune` on these records, watched; afterwards `limpid doctor` reads its folder.

        sections  options as in a configuration file: {"tune": {"options": {"beta": 0.1}}, "update": {…}, "run": {…}}
        patches   what takes the place of a function, as "module:name" or "module:Class.name", while the run lasts
        """
        file = self.records(records, name)
        asked = {key: dict(value) for key, value in (sections or {}).items()}
        asked["run"] = {**OPTIONS, "max_steps": 60, **asked.get("run", {})}
        with self.patched(patches or {}), torch.random.fork_rng():
            run = limpid.tune(objective, base or self.base, file, asked, str(self.folder / name))  # type: ignore[arg-type]
        self.read(run.path)
        return run

    def records(self, records: Sequence[Mapping[str, Any]], name: str = "records") -> Path:
        """A file of them."""
        file = self.folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
        return file

    def rewards(self, source: str, name: str = "rewards") -> Path:
        """A file of reward functions: `--reward FILE:function`."""
        file = self.folder / f"{name}.py"
        file.write_text(source)
        return file

    @contextlib.contextmanager
    def patched(self, patches: Mapping[str, Any]) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for place, value in patches.items():
                module, _, path = place.partition(":")
                owner = importlib.import_module(module)
                *outer, last = path.split(".")
                for one in outer:
                    owner = getattr(owner, one)
                stack.enter_context(mock.patch.object(owner, last, value))
            yield

    # loops and logs

    def watch(self, model: torch.nn.Module, optimizer: Any, **options: Any) -> Doctor:
        """`limpid.watch`, whose findings count for the case; call its step() as a user would."""
        doctor = limpid.watch(model, optimizer, say=False, **options)
        self.doctors.append(doctor)
        return doctor

    def read(self, log: Path) -> None:
        """What was found while a run trained, and what `limpid doctor LOG` finds."""
        recorded = log / "findings.jsonl"
        lines = recorded.read_text().splitlines() if recorded.is_file() else []
        self.findings += [finding_from(json.loads(line)) for line in lines]
        self.findings += diagnose(read_record(log))

    def log(self, entries: Sequence[Mapping[str, float]], name: str = "log") -> None:
        """A log of another tool, one entry a step, examined."""
        self.read(self.records(entries, name))

    # models for loops

    def chat_tokenizer(self) -> Any:
        """A tokenizer of transformers on bytes with the marks of ChatML, its template, and another model's marks."""
        return models.chat_tokenizer()

    def chat_model(self, tokenizer: Any, seed: int = 0, dropout: float = 0.0) -> Any:
        """A Llama of transformers with two blocks and random weights."""
        return models.chat_model(tokenizer, seed, dropout)

    doctors: list[Doctor] = field(default_factory=list)

    def said(self) -> list[Finding]:
        """All that is said, root causes first, each rule once."""
        for doctor in self.doctors:
            doctor.close()
        found = {f.rule: f for f in [*self.findings, *(f for doctor in self.doctors for f in doctor.findings)]}
        return [finding for finding in ranked(list(found.values())) if finding.is_said]


@dataclass(frozen=True)
class Fault:
    name: str
    does: str
    wanted: tuple[str, ...]
    run: Callable[[Bench, bool], None]


@dataclass(frozen=True)
class Honest:
    name: str
    does: str
    run: Callable[[Bench], None]


FAULTS: dict[str, Fault] = {}
HONEST: dict[str, Honest] = {}


def fault(name: str, wanted: str | tuple[str, ...]) -> Callable[..., Any]:
    def keep(run: Callable[[Bench, bool], None]) -> Callable[[Bench, bool], None]:
        FAULTS[name] = Fault(name, _does(run), (wanted,) if isinstance(wanted, str) else wanted, run)
        return run

    return keep


def honest(name: str) -> Callable[..., Any]:
    def keep(run: Callable[[Bench], None]) -> Callable[[Bench], None]:
        HONEST[name] = Honest(name, _does(run), run)
        return run

    return keep


def _does(run: Callable[..., None]) -> str:
    return " ".join((run.__doc__ or "").split())


def load(files: Sequence[Path] = ()) -> None:
    """The files of cases/, and those that are named."""
    for file in sorted((Path(__file__).parent / "cases").glob("[!_]*.py")):
        importlib.import_module(f"benchmarks.doctor.tuning.cases.{file.stem}")
    for file in files:
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Runs lie under the folder that one works in."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
