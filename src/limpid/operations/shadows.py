"""Parts of a forward pass as they would compute in another format, beside the pass itself, up to where they are left.

Each part is given what it was given: so one pass serves all of them. Where what a part made is read by others, its
difference is weighed with the gradient there, ⟨ḡ, δ⟩: what comes behind is told to first order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from limpid.errors import ConfigError
from limpid.operations.formats import Format
from limpid.operations.forward import Forward, buffers_kept, is_in_place, is_wide, operands, tensors
from limpid.operations.redo import DRAWN, outputs_of, short_name
from limpid.operations.tried import in_format, with_values
from limpid.operations.widened import as_drawn


class Part(NamedTuple):
    """Calls that are of a format together."""

    name: str
    form: Format


@dataclass
class Told:
    """What a part would add to the loss, to first order."""

    calls: int = 0
    adds: float = 0.0
    square: float = 0.0  # Σ (ḡ δ)² over entries of what others read of it


@dataclass
class Forecast:
    """Of all parts, in the order in which they begin."""

    loss: float
    parts: dict[Part, Told]


PartsOf = Callable[[str, str], Sequence[Part]]
"""Those that a call belongs to, by its module and operation."""


def forecast(model: nn.Module, function: Callable[[], Tensor], state: Tensor, parts_of: PartsOf) -> Forecast:
    """One forward and one backward pass; no gradient of a parameter is left behind.

    Raises  ConfigError for a loss that has no gradient
    """
    mode = _Shadowed(model, parts_of)
    weights = [one for one in model.parameters() if one.requires_grad]
    with as_drawn(state), buffers_kept(model):
        with mode.watching():
            loss = function()
        if loss.numel() != 1 or loss.grad_fn is None or not weights:
            raise ConfigError("the loss has no gradient: expected one number that parameters of the model lead to")
        mode.ask(loss.grad_fn)
        for part, value in mode.shadows.get(loss, {}).items():
            mode.told[part].adds += float(value) - float(loss.detach())
            mode.told[part].square += (float(value) - float(loss.detach())) ** 2
        mode.shadows.clear()
        torch.autograd.grad(loss, weights, allow_unused=True)
    return Forecast(float(loss.detach()), mode.told)


class _Shadowed(Forward):
    """Computes every call again for each part that it belongs to, or that has changed what it reads."""

    def __init__(self, model: nn.Module, parts_of: PartsOf) -> None:
        super().__init__(model)
        self.parts_of = parts_of
        self.told: dict[Part, Told] = {}
        self.shadows: Any = WeakTensorKeyDictionary()  # tensor: what each part makes of it
        self.asked: dict[int, list[_Read]] = {}

    def passed(self, func: Any, args: Any, kwargs: Any) -> Any:
        found = self._changed(args, kwargs) if short_name(func) not in DRAWN else set[Part]()
        made_of = {part: with_values(func, args, kwargs, self._of(part)) for part in found}
        made = func(*args, **kwargs)
        self._keep(func, args, made, made_of)
        return made

    def computed(self, func: Any, args: Any, kwargs: Any, node: int) -> Any:
        own = self.parts_of(self.module, short_name(func))
        changed = self._changed(args, kwargs)
        made_of = {}
        for part in own:
            self.told.setdefault(part, Told()).calls += 1
            made_of[part] = in_format(func, args, kwargs, part.form, self._of(part))
        if left := changed - set(own):
            self.asked[node] = self._reads(func, args, kwargs, left)
        made = func(*args, **kwargs)
        self._keep(func, args, made, made_of)
        return made

    def ask(self, root: Any) -> None:
        """Have every node below weigh what its call reads."""
        seen, below = set(), [root]
        while below:
            node = below.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if (reads := self.asked.pop(node._sequence_nr(), None)) is not None:
                node.register_hook(_Weigher(self.told, reads))
            below += [one for one, _ in node.next_functions]

    def _of(self, part: Part) -> Callable[[Tensor], Tensor]:
        def value(tensor: Tensor) -> Tensor:
            found: Tensor = self.shadows[tensor].get(part, tensor) if tensor in self.shadows else tensor
            return found

        return value

    def _changed(self, args: Any, kwargs: Any) -> set[Part]:
        """Parts that made what is read here."""
        given = [*tensors(args), *tensors(list(kwargs.values()))]
        return {part for one in given if one in self.shadows for part in self.shadows[one]}

    def _reads(self, func: Any, args: Any, kwargs: Any, left: set[Part]) -> list[_Read]:
        """Operands in the order of the operation's arguments, and by how much parts that are left changed them."""
        found = tensors(args[:1]) if is_in_place(func) else []
        for value in operands(func, args, kwargs).values():
            found += tensors([value])
        reads = []
        for one in found:
            parts = {part: value for part, value in self.shadows.get(one, {}).items() if part in left}
            off = {part: value - one.detach() for part, value in parts.items()}
            reads.append(_Read(one.shape, one.requires_grad, off))
        return reads

    def _keep(self, func: Any, args: Any, made: Any, made_of: dict[Part, Any]) -> None:
        results = outputs_of(made)
        if is_in_place(func) and isinstance(args[0], Tensor):
            self.shadows.pop(args[0], None)
            results = [args[0]]
        for part, other in made_of.items():
            for one, value in zip(results, outputs_of(other), strict=False):
                if one is not None and value is not None and is_wide(one) and value.shape == one.shape:
                    self.shadows.setdefault(one, {})[part] = value.detach()


@dataclass
class _Read:
    """An operand of a call."""

    shape: torch.Size
    has_gradient: bool
    off: dict[Part, Tensor] = field(default_factory=dict)


class _Weigher:
    """Of one call: called with the gradients of its operands, which have places in their order."""

    def __init__(self, told: dict[Part, Told], reads: list[_Read]) -> None:
        self.told, self.reads = told, reads

    def __call__(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None]) -> None:
        left = list(inputs)
        for read in self.reads:
            while read.has_gradient and left:
                gradient = left.pop(0)
                if gradient is not None and gradient.shape == read.shape:
                    self._weigh(read, gradient)
                    break

    def _weigh(self, read: _Read, gradient: Tensor) -> None:
        for part, off in read.off.items():
            parts = gradient.double() * off.double()
            self.told[part].adds += float(parts.sum())
            self.told[part].square += float(parts.square().sum())
