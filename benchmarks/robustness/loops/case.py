"""A case: a training loop that is right, one with a mistake and its twin without, or one rewritten without harm."""

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from benchmarks.robustness.loops.transformer import Counting
from torch import Tensor, nn

import limpid


class Nobody:
    """In the doctor's place when the loop runs unwatched."""

    findings: tuple[Any, ...] = ()

    def step(self, loss: Any = None, batch: Any = None) -> None: ...

    def preflight(self, batch: Any, loss: Any = None, **options: Any) -> None: ...

    def close(self) -> None: ...


class Run:
    """One loop: its seed, its random choices, its losses, and the doctors it asked for."""

    def __init__(self, name: str, seed: int, watched: bool, preflight: bool = False, proves: bool = False) -> None:
        self.draw = random.Random(f"{seed} {name}")  # settings; the same with the doctor and without
        self.watched, self.examine_first = watched, preflight
        self.proves = proves  # that it learns, or that a mistake bites: it is measured before, too
        self.losses: list[float] = []
        self.doctors: list[Any] = []
        self.models: list[nn.Module] = []
        start = self.draw.randrange(2**31)
        torch.manual_seed(start)
        random.seed(start)
        np.random.seed(start)  # noqa: NPY002

    def watch(self, model: nn.Module, optimizer: Any = None, **options: Any) -> Any:
        self.models.append(model)
        doctor = limpid.watch(model, optimizer, say=False, **options) if self.watched else Nobody()
        self.doctors.append(doctor)
        return doctor

    def preflight(self, doctor: Any, batch: Any, loss: Any) -> None:
        """Where the list is run with --preflight."""
        if self.examine_first:
            doctor.preflight(batch, loss=loss)

    def note(self, loss: Tensor | float) -> None:
        self.losses.append(float(loss.detach() if isinstance(loss, Tensor) else loss))

    def findings(self) -> list[Any]:
        return [finding for doctor in self.doctors for finding in doctor.findings]

    def state(self) -> dict[str, Any]:
        """What must not depend on whether anybody watched."""
        numpy_state: Any = np.random.get_state()  # noqa: NPY002
        return {
            "losses": np.array(self.losses).tobytes(),
            "weights": [t.detach().clone() for m in self.models for t in m.state_dict().values() if torch.is_tensor(t)],
            "modes": [m.training for model in self.models for m in model.modules()],
            "gradients": [p.grad is None for model in self.models for p in model.parameters()],
            "torch's random numbers": torch.get_rng_state(),
            "Python's random numbers": random.getstate(),
            "NumPy's random numbers": (numpy_state[1].tobytes(), numpy_state[2:]),
            "calls": [m.calls for model in self.models for m in model.modules() if isinstance(m, Counting)],
        }


@dataclass(frozen=True)
class Honest:
    name: str
    what: str
    loop: Callable[[Run], None]
    drawn_by: str = ""  # the name that its settings are drawn by, where that is another's

    @property
    def file(self) -> str:
        """The module that it stands in, without its package."""
        return self.loop.__module__.rpartition(".")[2]


@dataclass(frozen=True)
class Fault:
    """`wanted`: every pattern must be found in a right diagnosis, each in any of its alternatives."""

    name: str
    category: str
    what: str
    wanted: tuple[str, ...]
    loop: Callable[[Run, bool], None]

    @property
    def file(self) -> str:
        """The module that it stands in, without its package."""
        return self.loop.__module__.rpartition(".")[2]


@dataclass(frozen=True)
class Innocent:
    """A loop that works, and where `changed` the same loop rewritten so that nothing that matters is another."""

    name: str
    what: str
    loop: Callable[[Run, bool], None]

    @property
    def file(self) -> str:
        """The module that it stands in, without its package."""
        return self.loop.__module__.rpartition(".")[2]


HONEST: list[Honest] = []

FAULTS: list[Fault] = []

INNOCENT: list[Innocent] = []


def honest(name: str) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    def keep(loop: Callable[[Run], None]) -> Callable[[Run], None]:
        HONEST.append(Honest(name, (loop.__doc__ or "").strip(), loop))
        return loop

    return keep


def _one_way(loop: Callable[[Run, bool], None], changed: bool) -> Callable[[Run], None]:
    @functools.wraps(loop)
    def run_it(run: Run) -> None:
        loop(run, changed)

    return run_it


def innocent(name: str) -> Callable[..., Any]:
    def keep(loop: Callable[[Run, bool], None]) -> Callable[[Run, bool], None]:
        what = (loop.__doc__ or "").strip()
        INNOCENT.append(Innocent(name, what, loop))
        for side, changed in (("as it was", False), ("changed", True)):
            HONEST.append(Honest(f"{name} {side}", what, _one_way(loop, changed), name))
        return loop

    return keep


def add_fault(name: str, category: str, what: str, wanted: str | tuple[str, ...], loop: Callable[..., None]) -> None:
    FAULTS.append(Fault(name, category, what, (wanted,) if isinstance(wanted, str) else wanted, loop))


def fault(name: str, category: str, wanted: str | tuple[str, ...]) -> Callable[..., Any]:
    def keep(loop: Callable[[Run, bool], None]) -> Callable[[Run, bool], None]:
        add_fault(name, category, (loop.__doc__ or "").strip(), wanted, loop)
        return loop

    return keep
