"""Faults planted in the update, which moves all parameters in one batch: each fault in another matrix of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from planted import FAULTS, Fault

import limpid.training.record
from limpid.quantities import MOMENTS
from limpid.tracing.record import Record
from limpid.tracing.update import redo_update
from limpid.tracing.verdict import Beyond, NotFinite
from limpid.training.update import TORCH_NAMES

MATRICES = (
    "attention.query",
    "attention.key",
    "attention.value",
    "attention.output",
    "mlp.gate",
    "mlp.up",
    "mlp.output",
)
PLACES = {fault: f"blocks.0.{matrix}.weight" for fault, matrix in zip(FAULTS, MATRICES, strict=True)}
RESULTS = [(rule, result) for rule, moments in MOMENTS.items() for result in (*moments, "value", "step")]
"""What the update of a parameter makes: its moments, its value, and how far that is from the one before."""


@contextmanager
def planted(rule: str, result: str, faults: dict[str, Fault]) -> Iterator[None]:
    """The recorded step with a fault in one result of the update of each of these parameters."""
    own = limpid.training.record.step

    def faulty(state, *arguments):
        before = {name: state.model.get_parameter(name).detach().clone() for name in faults}
        outcome = own(state, *arguments)
        for name, fault in faults.items():
            parameter = state.model.get_parameter(name)
            made = parameter.detach()
            if result == "step":
                made.copy_(before[name] + fault(made - before[name]))
                continue
            if result != "value":
                made = state.optimizer.state[parameter][TORCH_NAMES[rule][MOMENTS[rule].index(result)]]
            made.copy_(fault(made))
        return outcome

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(limpid.training.record, "step", faulty)
        yield


class FaultyTorch:
    """PyTorch with a fault in what Muon makes of the first matrix of every batch."""

    def __init__(self, kind: str, fault: Fault) -> None:
        self.kind, self.fault, self.linalg = kind, fault, self

    def __getattr__(self, name: str):
        return getattr(torch, name)

    def vector_norm(self, *arguments, **options):
        return self._first("norm", torch.linalg.vector_norm(*arguments, **options))

    def baddbmm(self, own, *arguments, **options):
        return self._first(
            "polynomials" if own is arguments[0] else "iterates", torch.baddbmm(own, *arguments, **options)
        )

    def _first(self, kind: str, made: torch.Tensor) -> torch.Tensor:
        if kind == self.kind:
            made[0] = self.fault(made[0])
        return made


def disagreements(file: Path) -> list[str]:
    """Every number of the update that rounding does not explain."""
    return [check.name for check in redo_update(Record(file)).checks if isinstance(check.verdict, Beyond | NotFinite)]


def blamed(result: str, parameter: str) -> str:
    """The number that has the fault."""
    return parameter if result in ("value", "step") else f"{result}({parameter})"


def parameter(number: str) -> str:
    """Whose update a number belongs to."""
    return number.partition("(")[2].rstrip(")") or number
