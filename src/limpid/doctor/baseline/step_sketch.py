"""One step as a row of sketches, in the order in which its tensors were made."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from limpid.doctor.baseline.sketch import Sketch


class Kind(StrEnum):
    """What a tensor of a step is."""

    WEIGHT = "weight"  # at the start
    BUFFER = "buffer"
    BATCH = "batch"  # as the loop reports it
    GIVEN = "given"  # to a module, where no other returned it
    OUTPUT = "output"  # of a module
    SCORED = "scored"  # what a loss function is given
    TARGET = "target"
    LOSS = "loss"  # what a backward pass begins at
    BACK = "back"  # the gradient at an output
    GRADIENT = "gradient"  # of a parameter, as the update finds it
    UPDATE = "update"


class Place(NamedTuple):
    """Where in a step a tensor is."""

    kind: Kind
    forward: int = 0  # which forward pass of the update
    name: str = ""  # of a module, a parameter or a function; empty for the whole model
    call: int = 0  # which call of it in that pass
    tensor: str = ""  # which of several: a name or a number


@dataclass(frozen=True)
class Moment:
    """One tensor of a step."""

    place: Place
    part: str  # of a step, as `loop_facts.PARTS` names them
    sketch: Sketch | None  # None where there is no tensor, such as a gradient
    drew: str = ""  # state of the random numbers before it was made, where making it drew some
    shaky: float = 0.0  # of an update: the norm of what rounding of the gradient may make of it
    plain: dict[str, Any] = field(default_factory=dict)  # plain attributes of the module that made it
    depth: int = 0  # modules around it

    @property
    def is_of_batch(self) -> bool:
        """Whether it came from outside of the model, as inputs and targets do."""
        kind = self.place.kind
        return kind in (Kind.BATCH, Kind.TARGET) or (kind == Kind.GIVEN and self.part in ("data", "labels"))


@dataclass
class StepSketch:
    """All of them, and what the step was done with."""

    moments: list[Moment] = field(default_factory=list)
    random: list[str] = field(default_factory=list)  # states of torch, Python and NumPy as the step began
    eps: float = 0.0  # spacing of the coarsest format that the step computes in
    terms: int = 1  # the most numbers that any product adds up
    compiled: bool = False

    def of(self, *kinds: Kind) -> list[Moment]:
        return [moment for moment in self.moments if moment.place.kind in kinds]

    def packed(self, profiles: bool) -> dict[str, Any]:
        """As JSON holds it, with profiles along the axes or without."""
        moments = [
            [*m.place, m.part, m.depth, m.sketch and m.sketch.packed(profiles), m.drew, m.shaky, m.plain]
            for m in self.moments
        ]
        return {
            "random": self.random, "eps": self.eps, "terms": self.terms, "compiled": self.compiled, "moments": moments,
        }  # fmt: skip

    @classmethod
    def unpacked(cls, held: dict[str, Any]) -> StepSketch:
        """Raises what malformed documents raise."""
        moments = [
            Moment(
                Place(Kind(kind), int(forward), str(name), int(call), str(tensor)),
                str(part), None if packed is None else Sketch.unpacked(packed), str(drew), float(shaky), dict(plain),
                int(depth),
            )
            for kind, forward, name, call, tensor, part, depth, packed, drew, shaky, plain in held["moments"]
        ]  # fmt: skip
        random = [str(state) for state in held["random"]]
        return cls(moments, random, float(held["eps"]), int(held["terms"]), bool(held["compiled"]))
