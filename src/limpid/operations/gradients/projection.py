"""Which number of the step is asked for: loss, grad, grad(NAME), grad(NAME)[i, j], or that along a direction given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

import torch
from torch import Tensor, nn

from limpid.errors import ConfigError

FORM = re.compile(r"grad(?:\((?P<name>[^()\[\]]+)\)(?:\[(?P<index>[-\d,\s]+)\])?)?")
EXPECTED = "grad(NAME), grad(NAME)[i, j], grad, which is that of all parameters, or loss"
LOSS = "loss"
Along = Mapping[str, Tensor]
"""A direction: of each parameter that is in it, as many numbers as it has."""


@dataclass(frozen=True)
class Wanted:
    """A number that depends on a gradient in proportion: ⟨v, g⟩; without parameters what the backward pass began at.

    v is what is given, or 1 at one entry; else it is the direction of the gradient as the engine has it, held fixed:
    then the number is its norm, and moves as the norm does, to first order.
    """

    of: str
    parameters: tuple[str, ...]
    index: tuple[int, ...] | None = None
    along: Along | None = None

    def directions(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """v for each parameter that a gradient came to, in float64."""
        wide = {name: gradients[name].double() for name in self.parameters if name in gradients}
        if self.along is not None:
            return {name: self.along[name].detach().to(one) for name, one in wide.items()}
        if self.index is not None:
            (name,) = self.parameters
            found = torch.zeros_like(wide[name])
            found[self.index] = 1
            return {name: found}
        norm = torch.stack([one.square().sum() for one in wide.values()]).sum().sqrt()
        return {name: one / norm if norm else one for name, one in wide.items()}


@dataclass(frozen=True)
class Projected:
    """What came of it: the number, and what every call adds to it by its own rounding."""

    of: str
    engine: float
    errors: dict[int, float]  # by the call's number
    beyond: dict[int, float]  # the same beyond the first order: curvature, and kinks that rounding led over
    unknown: int  # calls that lead to it, but through which it could not be followed: what they add is missing
    directions: dict[str, Tensor] = field(repr=False)  # v, by parameters


def wanted(of: str, model: nn.Module, along: Along | None = None) -> Wanted:
    """The number that is called so.

    along  its direction, where it has one of its own

    Raises  ConfigError for another form, a parameter that the model has not or that learns nothing, an entry outside
    """
    if along is not None:
        return _along(of, model, along)
    if of == LOSS:
        return Wanted(of, ())
    found = FORM.fullmatch(of.strip())
    if found is None:
        raise ConfigError(f"{of!r} is no gradient: expected {EXPECTED}")
    learned = {name: one for name, one in model.named_parameters() if one.requires_grad}
    name, index = found["name"], found["index"]
    if name is None:
        if not learned:
            raise ConfigError(f"{of!r}: the model has no parameter that requires a gradient")
        return Wanted(of, tuple(learned))
    name = name.strip()
    _require(of, name, learned)
    return Wanted(of, (name,), None if index is None else _entry(of, index, learned[name].shape))


def _along(of: str, model: nn.Module, along: Along) -> Wanted:
    if not isinstance(along, Mapping):
        raise ConfigError(
            f"errors_of {of!r} is {along!r}: expected None, or a direction, a tensor for each parameter by name"
        )
    if of == LOSS or FORM.fullmatch(of.strip()):
        raise ConfigError(f"{of!r} has a direction of its own and the name of another number: expected another name, "
                          f"such as 'along the update'")  # fmt: skip
    learned = {name: one for name, one in model.named_parameters() if one.requires_grad}
    if not along:
        raise ConfigError(f"{of!r} has no direction: expected a tensor of each parameter in it, by its name")
    for name, direction in along.items():
        _require(of, name, learned)
        shape = list(learned[name].shape)
        if list(direction.shape) != shape or direction.is_complex() or not bool(direction.isfinite().all()):
            raise ConfigError(f"{of!r}: the direction of {name} has shape {list(direction.shape)} of "
                              f"{direction.dtype}, expected finite real numbers of shape {shape}")  # fmt: skip
    return Wanted(of, tuple(along), along=along)


def _require(of: str, name: str, learned: Mapping[str, Tensor]) -> None:
    if name not in learned:
        raise ConfigError(f"{of!r}: no parameter that requires a gradient is called {name!r}, "
                          f"{_near(name, list(learned))}")  # fmt: skip


def _near(name: str, names: Sequence[str]) -> str:
    close = get_close_matches(name, names, 3, 0.4) or [one for one in names if one.endswith(name)][:3]
    return f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(names[:3])}, …"


def _entry(of: str, index: str, shape: torch.Size) -> tuple[int, ...]:
    places = [one.strip() for one in index.split(",") if one.strip()]
    found = tuple(int(one) for one in places if one.lstrip("-").isdigit())
    if len(found) != len(shape) or len(found) != len(places) or any(
            not -size <= one < size for one, size in zip(found, shape, strict=True)):  # fmt: skip
        raise ConfigError(f"{of!r}: expected an entry of shape {list(shape)}")
    return found


def found_in(projected: Mapping[str, Projected], of: str) -> Projected:
    """What came of one of them.

    Raises  ConfigError where it was not asked for, or no gradient came
    """
    if of not in projected:
        there = ", ".join(dict.fromkeys([LOSS, *projected]))
        raise ConfigError(f"no error of {of!r} is known, there are {there}: limpid.recording(model, "
                          f"errors_of=[{of!r}]) asks for it, and a backward pass has to come to it")  # fmt: skip
    return projected[of]
