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

from limpid.adjoints.aten import DRAWN, outputs_of, short_name
from limpid.errors import ConfigError
from limpid.operations.formats import Format
from limpid.operations.forward import Forward, buffers_kept, is_in_place, is_wide, read, tensors
from limpid.operations.tried import in_format, with_values
from limpid.operations.widened import as_drawn

RESERVE = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "zeros", "new_zeros", "full")


class Part(NamedTuple):
    """Calls that are of a format together."""

    name: str
    form: Format
    is_asked: bool = False


@dataclass
class Told:
    """What a part would add to the loss, to first order.

    A part that is left and entered again is given what it changed itself the first time: each visit is by itself.
    """

    calls: int = 0
    adds: float = 0.0
    squares: dict[int, float] = field(default_factory=dict)  # of each visit, Σ (ḡ δ)² over entries that others read
    visit: int = 0
    last: int = -1  # number of its last call

    def called(self, number: int) -> int:
        """One more call: the visit that it belongs to."""
        self.visit += self.calls > 0 and number > self.last + 1
        self.calls, self.last = self.calls + 1, number
        return self.visit

    def add(self, visit: int, parts: Tensor) -> None:
        """ḡ δ of what others read."""
        self.adds += float(parts.sum())
        self.squares[visit] = self.squares.get(visit, 0.0) + float(parts.square().sum())


class Value(NamedTuple):
    """What a part made of a tensor, at which of its visits."""

    tensor: Tensor
    visit: int


@dataclass
class Differences:
    """What parts changed in a pass in their formats, where others read it: of each operand of a call, by its number."""

    of_calls: dict[int, list[dict[Part, Value]]] = field(default_factory=dict)
    of_loss: dict[Part, Value] = field(default_factory=dict)
    told: dict[Part, Told] = field(default_factory=dict)


@dataclass
class Forecast:
    """Of all parts, in the order in which they begin."""

    loss: float
    eps: float  # of the loss's format
    parts: dict[Part, Told]
    is_narrow: bool  # something of the pass itself is computed in 16 bits: what is behind a change rounds anew


PartsOf = Callable[[str, str], Sequence[Part]]
"""Those that a call belongs to, by its module and operation."""


def forecast(
    model: nn.Module,
    function: Callable[[], Tensor],
    state: Tensor,
    parts_of: PartsOf,
    differences: Differences | None = None,
) -> Forecast:
    """One forward and one backward pass; no gradient of a parameter is left behind.

    differences  of parts that were tried already: weighed with the gradients of this pass

    Raises  ConfigError for a loss that has no gradient
    """
    mode = _Weighed(model, parts_of, differences or Differences())
    weights = [one for one in model.parameters() if one.requires_grad]
    with as_drawn(state), buffers_kept(model):
        with mode.watching():
            loss = function()
        if loss.numel() != 1 or loss.grad_fn is None or not weights:
            raise ConfigError("the loss has no gradient: expected one number that parameters of the model lead to")
        mode.ask(loss.grad_fn)
        for part, (off, visit) in (mode.off(loss) | mode.differences.of_loss).items():
            mode.told[part].add(visit, off.double())
        mode.shadows.clear()
        torch.autograd.grad(loss, weights, allow_unused=True)
    return Forecast(float(loss.detach()), torch.finfo(loss.dtype).eps, mode.told, mode.is_narrow)


class Shadowed(Forward):
    """Follows what parts make of tensors in another way than the pass itself, up to where others read it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.told: dict[Part, Told] = {}
        self.shadows: Any = WeakTensorKeyDictionary()  # tensor: what each part makes of it
        self.count = 0  # of calls that compute
        self.reserved: Any = WeakTensorKeyDictionary()  # memory that is written to by parts, such as what is padded

    def passed(self, func: Any, args: Any, kwargs: Any) -> Any:
        found = self.changed(args, kwargs) if short_name(func) not in DRAWN else set[Part]()
        made_of = {part: with_values(func, args, kwargs, self.value_of(part)) for part in found}
        visits = {part: self.told[part].visit for part in found}
        made = func(*args, **kwargs)
        if short_name(func) in RESERVE and isinstance(made, Tensor):
            self.reserved[made] = None
        self.keep(func, args, made, made_of, visits)
        return made

    def off(self, tensor: Tensor) -> dict[Part, Value]:
        """By how much each part's own is another than the pass's."""
        found = self.shadows.get(tensor, {})
        return {part: Value(value - tensor.detach(), visit) for part, (value, visit) in found.items()}

    def value_of(self, part: Part) -> Callable[[Tensor], Tensor]:
        def value(tensor: Tensor) -> Tensor:
            found: Value | None = self.shadows[tensor].get(part) if tensor in self.shadows else None
            return tensor if found is None else found.tensor

        return value

    def changed(self, args: Any, kwargs: Any) -> set[Part]:
        """Parts that made what is read here."""
        given = [*tensors(args), *tensors(list(kwargs.values()))]
        return {part for one in given if one in self.shadows for part in self.shadows[one]}

    def keep(self, func: Any, args: Any, made: Any, made_of: dict[Part, Any], visits: dict[Part, int]) -> None:
        results = outputs_of(made)
        if is_in_place(func) and isinstance(args[0], Tensor):
            self.shadows.pop(args[0], None)
            results = [args[0]]
            made_of = {part: other for part, other in made_of.items() if isinstance(other, Tensor)}
            for whole in self._around(args[0]) if made_of else ():
                self._write(whole, args[0], made_of, visits)
        for part, other in made_of.items():
            for one, value in zip(results, outputs_of(other), strict=False):
                if one is not None and value is not None and is_wide(one) and value.shape == one.shape:
                    self.shadows.setdefault(one, {})[part] = Value(value.detach(), visits[part])

    def _around(self, view: Tensor) -> list[Tensor]:
        """Tensors of which that is a part."""
        base = [] if view._base is None else [view._base]
        place = view.untyped_storage().data_ptr()
        return base or [one for one in self.reserved if one.untyped_storage().data_ptr() == place and one is not view]

    def _write(self, whole: Tensor, view: Tensor, made_of: dict[Part, Any], visits: dict[Part, int]) -> None:
        """What parts wrote to a view is written to their whole."""
        for part, other in made_of.items():
            value = self.value_of(part)(whole).detach().clone()
            begin = view.storage_offset() - whole.storage_offset()
            if is_wide(whole) and value.stride() == whole.stride() and other.shape == view.shape:
                value.as_strided(view.shape, view.stride(), begin).copy_(other)
                self.shadows.setdefault(whole, {})[part] = Value(value, visits[part])


class _Weighed(Shadowed):
    """Computes every call again for each part that it belongs to, or that has changed what it reads."""

    def __init__(self, model: nn.Module, parts_of: PartsOf, differences: Differences) -> None:
        super().__init__(model)
        self.parts_of, self.differences = parts_of, differences
        self.told |= differences.told
        self.asked: dict[int, list[_Read]] = {}
        self.is_narrow = False

    def computed(self, func: Any, args: Any, kwargs: Any, node: int) -> Any:
        own = self.parts_of(self.module, short_name(func))
        changed = self.changed(args, kwargs)
        made_of, visits = dict[Part, Any](), dict[Part, int]()
        for part in own:
            visits[part] = self.told.setdefault(part, Told()).called(self.count)
            made_of[part] = in_format(func, args, kwargs, part.form, self.value_of(part))
        left, tried = changed - set(own), self.differences.of_calls.get(self.count)
        if left or tried:
            self.asked[node] = self._reads(func, args, kwargs, left, tried)
        self.count += 1
        made = func(*args, **kwargs)
        self.is_narrow |= any(one is not None and is_wide(one) and one.itemsize < 4 for one in outputs_of(made))
        self.keep(func, args, made, made_of, visits)
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

    def _reads(
        self, func: Any, args: Any, kwargs: Any, left: set[Part], tried: list[dict[Part, Value]] | None
    ) -> list[_Read]:
        """Operands in the order of the operation's arguments, and by how much parts that are left changed them."""
        reads = []
        for place, one in enumerate(read(func, args, kwargs)):
            off = {part: value for part, value in self.off(one).items() if part in left}
            reads.append(_Read(one.shape, one.requires_grad, off | (tried[place] if tried else {})))
        return reads


@dataclass
class _Read:
    """An operand of a call."""

    shape: torch.Size
    has_gradient: bool
    off: dict[Part, Value] = field(default_factory=dict)


class _Weigher:
    """Of one call: called with the gradients of its operands, which have places in their order."""

    def __init__(self, told: dict[Part, Told], reads: list[_Read]) -> None:
        self.told, self.reads = told, reads

    def __call__(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None]) -> None:
        left = list(inputs)
        for one in self.reads:
            while one.has_gradient and left:
                gradient = left.pop(0)
                if gradient is not None and gradient.shape == one.shape:
                    self._weigh(one, gradient)
                    break

    def _weigh(self, one: _Read, gradient: Tensor) -> None:
        for part, (off, visit) in one.off.items():
            self.told[part].add(visit, gradient.double() * off.double())
