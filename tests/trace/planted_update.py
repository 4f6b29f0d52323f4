"""Faults planted in the update, which moves all parameters in one batch: each fault in another matrix of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from planted import FAULTS, Fault

import limpid.training.record
from limpid.quantities import MOMENTS
from limpid.trace.record import Record
from limpid.trace.update import redo_update
from limpid.trace.verdict import Beyond
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
RESULTS = [(rule, result) for rule, moments in MOMENTS.items() for result in (*moments, "value", "step")
           if (rule, result) != ("muon", "step")]  # fmt: skip
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


def disagreements(file: Path) -> list[str]:
    """Every number of the update that rounding does not explain."""
    return [check.name for check in redo_update(Record(file)).checks if isinstance(check.verdict, Beyond)]


def blamed(result: str, parameter: str) -> str:
    """The one number that may be blamed."""
    return f"{result}({parameter})" if result in ("m", "v") else parameter
