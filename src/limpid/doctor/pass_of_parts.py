"""A forward pass whose parts the loop calls itself: which call begins it, which go on with it, what comes last."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from limpid.doctor.model_info import unwrapped
from limpid.doctor.parts import Computed, following, tensors_at

if TYPE_CHECKING:
    from limpid.doctor.calls import Call
    from limpid.doctor.model_info import ModelInfo


class PassOfParts:
    """The parts that have been called in one pass; none while the whole is called.

    A pass begins with the part that the very first one began with: a discriminator that is taught between two passes of
    its generator, or a net that guesses gradients, is a model of its own.
    """

    def __init__(self, info: ModelInfo) -> None:
        self.info = info
        self.first: nn.Module | None = None  # what passes begin with
        self.end()

    def end(self) -> None:
        """What is called next begins another pass."""
        self.modules: list[nn.Module] = []
        self.returned: list[Any] = []
        self._given: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def __bool__(self) -> bool:
        return bool(self.modules)

    @property
    def is_aside(self) -> bool:
        """Whether it is the pass of another model."""
        return bool(self.modules) and self.modules[0] is not self.first

    def is_no_part(self, module: nn.Module) -> bool:
        """Whether it begins no pass: a loss or a measure, which has nothing to learn."""
        return not self.modules and not any(True for _ in module.parameters())

    def begins(self, module: nn.Module) -> bool:
        """Take the first part; whether it begins a pass like those before."""
        self.end()
        self.modules.append(module)
        self.first = module if self.first is None else self.first
        return not self.is_aside

    def goes_on(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Take a part that belongs to the pass that has begun; the first one begins another."""
        if not self.modules or module is self.modules[0]:
            return False
        self.modules.append(module)
        self._given = args, kwargs
        return True

    def gave(self, call: Call, module: nn.Module, output: Any) -> tuple[Call, bool]:
        """The pass once a part has returned, and whether that is what comes of the pass so far.

        It is not where that is one number, a loss or a measure, or where the part was given nothing that others made.
        """
        given, self._given = self._given, None
        if self.is_aside or not any(tensor.ndim for _, tensor in tensors_at(output)):
            return call, False
        made, self.returned = self.returned, [*self.returned, output]
        if given is None or call.obstacle:
            return call, True
        try:
            part = following(unwrapped(module), *given, made, call.then)
        except Computed:
            self.info.is_called(unwrapped(module))
            names = " and ".join(self.info.name_of(one) for one in (self.modules[-2], module))
            why = f"the loop itself computes between the parts {names}, which it calls one by one"
            return replace(call, obstacle=why), True
        if part.follows:
            self.info.is_called(unwrapped(module))
        return replace(call, then=(*call.then, part)), part.follows
