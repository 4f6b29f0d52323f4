"""Other models beside the one that is trained, or frozen within it: how they stand to it, and how they follow it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from limpid.doctor.alive import alive
from limpid.doctor.description.words import number
from limpid.doctor.devices import same_numbers
from limpid.doctor.weight_copies import copies_of, some_weights

if TYPE_CHECKING:
    from limpid.doctor.model_info import ModelInfo

ELEMENTS = 64
FITS = 0.05
"""Share of a copy's movement that may be other than towards the model, for a rate of following to be told."""


@dataclass
class Held:
    """Another model with the weights' shapes, and the part of the watched one that it stands beside."""

    what: str
    module: weakref.ref[nn.Module]
    beside: weakref.ref[nn.Module]
    before: Tensor | None = None  # some of its weights, as they were when a step was read the last time
    follows: float | None = None  # the part of its distance from the model that it goes with each update

    def both(self) -> tuple[nn.Module, nn.Module] | None:
        held, beside = self.module(), self.beside()
        return None if held is None or beside is None else (held, beside)

    def begins(self) -> None:
        """A step that is looked at is about to be made."""
        pair = self.both()
        self.before = None if pair is None else some_weights(pair[0])

    def ends(self) -> None:
        """The next one begins: how far it went since, on the way to where the model is."""
        pair, before, self.before = self.both(), self.before, None
        if pair is None or before is None:
            return
        moved, way = some_weights(pair[0]) - before, some_weights(pair[1]) - before
        length = float(way.square().sum())
        part = float((moved * way).sum()) / length if length else 0.0
        if not float(moved.norm()):
            self.follows = 0.0
        else:
            self.follows = part if float((moved - part * way).norm()) <= FITS * float(moved.norm()) else None

    def told(self) -> Iterator[str]:
        """In a sentence."""
        pair = self.both()
        if pair is None:
            return
        other, own = pair
        theirs, ours = list(other.parameters()), list(own.parameters())
        equal = sum(same_numbers(a, b) for a, b in zip(ours, theirs, strict=True))
        mode = "training mode" if other.training else "evaluation mode"
        asks = "with" if any(p.requires_grad for p in theirs) else "without"
        yield (
            f"{self.what}, in {mode}, {asks} gradients: {number(equal)} of its {number(len(ours))} tensors equal this "
            f"one's now{self._following()}{_buffers(own, other)}"
        )

    def _following(self) -> str:
        if self.follows is None:
            return ""
        return f"; goes {self.follows:.3g} of its way to this one with an update" if self.follows else "; stands still"


@dataclass
class HeldModels:
    """All of them, looked for once."""

    models: list[Held] | None = None
    looked_at: list[Held] = field(default_factory=list)

    def find(self, info: ModelInfo) -> None:
        """Once a step has been made: an average may be begun in it."""
        if self.models is None:
            self.models = found(info)

    def begins(self, looks: bool) -> None:
        """At the first backward pass of a step, when all of the one before has been done; `looks` at this one."""
        for one in self.looked_at:
            one.ends()
        self.looked_at = list(self.models or ()) if looks else []
        for one in self.looked_at:
            one.begins()

    def told(self) -> Iterator[str]:
        for one in self.models or ():
            yield from one.told()


def found(info: ModelInfo) -> list[Held]:
    """Models of its class that do not learn or began as copies, averages of torch's, frozen parts like others."""
    core = info.core
    own = list(core.parameters())
    inside = {id(one) for one in info.model.modules()}  # told of below, as a part
    modules = alive(nn.Module)
    copies = [one for one in copies_of(core, modules) if id(one) not in inside and _has_a_role(one, own)]
    models = [Held("another model of its class is held", weakref.ref(one), weakref.ref(core)) for one in copies]
    averages = [one for one in modules if isinstance(one, AveragedModel) and _alike(one.module, core)]
    models += [Held("an average of it is held", weakref.ref(one.module), weakref.ref(core)) for one in averages]
    parts = [(name, one) for name, one in info.model.named_modules() if name and any(True for _ in one.parameters())]
    trained = [(name, one) for name, one in parts if all(p.requires_grad for p in one.parameters())]
    frozen = [(name, one) for name, one in parts if not any(p.requires_grad for p in one.parameters())]
    taken: list[str] = []
    for name, one in frozen:
        if any(name.startswith(f"{other}.") for other in taken):
            continue
        twins, others = ([(n, t) for n, t in group if _in_its_place(n, t, name, one)] for group in (trained, frozen))
        if len(twins) == len(others) == 1:  # of many layers that are frozen none is a copy of the one that learns
            taken.append(name)
            models.append(Held(f"{name} is like {twins[0][0]}", weakref.ref(one), weakref.ref(twins[0][1])))
    return models


def _in_its_place(name: str, one: nn.Module, other_name: str, other: nn.Module) -> bool:
    """Whether two parts lie as deep, and are of one class and the same shapes."""
    return name.count(".") == other_name.count(".") and type(one) is type(other) and _alike(one, other)


def _alike(one: nn.Module, other: nn.Module) -> bool:
    return [p.shape for p in one.parameters()] == [p.shape for p in other.parameters()]


def _buffers(own: nn.Module, other: nn.Module) -> str:
    """Statistics that both keep, where these are not all equal."""
    both = zip(own.buffers(), other.buffers(), strict=False)
    pairs = [(a, b) for a, b in both if a.is_floating_point() and a.shape == b.shape]
    equal = sum(same_numbers(a, b) for a, b in pairs)
    return "" if equal == len(pairs) else f"; {number(equal)} of its {number(len(pairs))} buffers are equal"


def _has_a_role(other: nn.Module, own: Sequence[nn.Parameter]) -> bool:
    """Whether it does not learn, or begins as a copy: what is neither may be left over from before."""
    learns = other.training and any(p.requires_grad for p in other.parameters())
    return not learns or any(same_numbers(a, b) for a, b in zip(own, other.parameters(), strict=True) if a.ndim >= 2)
