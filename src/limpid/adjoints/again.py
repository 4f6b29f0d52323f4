"""A custom Function done again, on its own inputs or others, and everything put back as it was."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from limpid.adjoints.aten import DRAWN, outputs_of, short_name
from limpid.adjoints.widened import wider

Gradients = Sequence[Tensor | None]


@contextmanager
def apart() -> Iterator[None]:
    """Where nothing is recorded."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


class Drawn:
    """Where random numbers are drawn from next."""

    def __init__(self) -> None:
        self.torch, self.python = torch.get_rng_state(), random.getstate()
        self.numpy = np.random.get_state()  # noqa: NPY002  which others draw from
        self.cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def set(self) -> None:
        torch.set_rng_state(self.torch)
        np.random.set_state(self.numpy)  # noqa: NPY002
        random.setstate(self.python)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)


class Autocast:
    """Which formats products are cast to."""

    def __init__(self) -> None:
        self.kinds = [("cpu", torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))]
        if torch.cuda.is_initialized():
            self.kinds.append(("cuda", torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")))

    @contextmanager
    def set(self) -> Iterator[None]:
        with ExitStack() as stack:
            for device, enabled, dtype in self.kinds:
                stack.enter_context(torch.autocast(device, dtype, enabled=enabled, cache_enabled=False))
            yield


def copy(tensor: Tensor, *, wide: bool = False) -> Tensor:
    """The same numbers in memory of their own, in the same order of axes; of what is repeated, repeated."""
    tensor = tensor.detach()
    repeated = [size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    once = tensor[tuple(slice(0, 1) if one else slice(None) for one in repeated)] if any(repeated) else tensor
    made = once.clone()
    return (wider(made) if wide else made).expand(tensor.shape)


@dataclass
class Applied:
    """A Function or an operation, what it was given, and where the random numbers stood."""

    name: str
    apply: Callable[..., Any]
    leaves: list[Any]  # arguments, tensors as copies from before it ran
    spec: TreeSpec
    places: list[int]  # of tensors in `leaves` that may have gradients, in the order of the node's inputs
    drawn: Drawn = field(default_factory=Drawn)
    autocast: Autocast = field(default_factory=Autocast)
    made: list[tuple[float, float]] = field(default_factory=list)  # sum and sum of sizes of each result
    gradients: list[Tensor | None] = field(default_factory=list)  # ȳ, as it came

    @classmethod
    def of(cls, name: str, apply: Callable[..., Any], given: tuple[Any, Any], *, nested: bool) -> Applied:
        """With copies of all tensors; of nested ones, in lists, only some operations have gradients."""
        leaves, spec = tree_flatten(given)
        places, at = [], 0
        for one in leaves if nested else given[0]:
            places += [at] if isinstance(one, Tensor) else []
            at += 1 if nested else len(tree_leaves(one))
        with apart():
            found = [_kept(one) if isinstance(one, Tensor) else one for one in leaves]
            return cls(name, apply, found, spec, places)

    @property
    def owed(self) -> list[int]:
        """Places of tensors whose gradients are asked for."""
        return [place for place in self.places if self.leaves[place].requires_grad]

    def forward(self, values: dict[int, Tensor], *, wide: bool) -> list[Tensor | None]:
        """Results for other values of some inputs."""
        with torch.no_grad():
            return self._results(values, wide=wide)

    def backward(self, values: dict[int, Tensor], gradients: Gradients, *, wide: bool) -> list[Tensor]:
        """x̄ of each input that is owed one, for other values of inputs and other ȳ."""
        with torch.enable_grad():
            at = {place: copy(values[place]).requires_grad_() for place in self.owed}
            results = self._results({place: one.clone() for place, one in at.items()}, wide=wide)
            pairs = [
                (one, copy(gradient, wide=wide).to(one.dtype))
                for one, gradient in zip(results, gradients, strict=True)
                if one is not None and gradient is not None and one.requires_grad
            ]
        if not pairs:
            return [torch.zeros_like(one) for one in at.values()]
        of, wanted = [one for one, _ in pairs], [one for _, one in pairs]
        found = torch.autograd.grad(of, list(at.values()), wanted, allow_unused=True)
        return [torch.zeros_like(x) if got is None else got.detach() for x, got in zip(at.values(), found, strict=True)]

    def _results(self, values: dict[int, Tensor], *, wide: bool) -> list[Tensor | None]:
        self.drawn.set()
        leaves = [
            values[place] if place in values else copy(one, wide=wide) if isinstance(one, Tensor) else one
            for place, one in enumerate(self.leaves)
        ]
        args, kwargs = tree_unflatten(leaves, self.spec)
        with self.autocast.set():
            return results_of(self.apply(*args, **kwargs))


def results_of(made: Any) -> list[Tensor | None]:
    """Tensors of fractions that came out, None where something else did."""
    several, _ = tree_flatten(made)
    return [one if isinstance(one, Tensor) and one.is_floating_point() else None for one in several]


def _kept(tensor: Tensor) -> Tensor:
    return copy(tensor).requires_grad_(tensor.requires_grad and tensor.is_floating_point())


def sums(results: Sequence[Tensor | None]) -> list[tuple[float, float]]:
    """By which results are known again."""
    wide = [None if one is None else one.detach().double() for one in results]
    return [(0.0, 0.0) if one is None else (float(one.sum()), float(one.abs().sum())) for one in wide]


class Formats(TorchDispatchMode):
    """The coarsest format of fractions that anything is rounded to, and the formats of what is drawn, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.coarsest, self.drawn = 0.0, list[torch.dtype]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in results_of(made):
            self.meets(one)
        if short_name(func) in DRAWN:
            self.drawn += [
                one.dtype if one.is_floating_point() else torch.float32
                for one in outputs_of(made)[:1]
                if one is not None
            ]
        return made

    def meets(self, tensor: Tensor | None) -> None:
        """A tensor of such a format."""
        if tensor is not None and tensor.is_floating_point():
            self.coarsest = max(self.coarsest, torch.finfo(tensor.dtype).eps / 2)


@contextmanager
def put_back(model: nn.Module, *objects: Any) -> Iterator[None]:
    """Afterwards random numbers, buffers, gradients of leaves, and what objects and classes hold are as before."""
    drawn, held = Drawn(), [(one, _held(one)) for one in objects if hasattr(one, "__dict__")]
    buffers = [one for one in model.buffers() if type(one) in (Tensor, nn.Buffer)]
    before = [one.detach().clone() for one in buffers]
    try:
        with _unsafe_preserve_version_counter(tuple(buffers)), _gradients_kept(model.parameters()):
            yield
            with torch.no_grad():
                for one, numbers in zip(buffers, before, strict=True):
                    one.copy_(numbers)
    finally:
        for one, values in held:
            _hold(one, values)
        drawn.set()


@contextmanager
def _gradients_kept(leaves: Iterable[Tensor]) -> Iterator[None]:
    """Gradients stay as they are, where a backward pass begins another: of these leaves and of all that it reaches."""
    held: dict[int, tuple[Any, Tensor | None]] = {}

    def hold(one: Any) -> None:
        if id(one) not in held:
            held[id(one)] = (one, one.grad)
            one.grad = None

    original = torch.autograd.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        for one in leaves_below(tree_leaves(tensors)):
            hold(one)
        original(tensors, *args, **kwargs)

    for one in leaves:
        hold(one)
    torch.autograd.backward = backward
    try:
        yield
    finally:
        torch.autograd.backward = original
        for one, gradient in held.values():
            one.grad = gradient


def leaves_below(tensors: Sequence[Any]) -> Iterator[Tensor]:
    below, seen = [one.grad_fn for one in tensors if isinstance(one, Tensor)], set[Any]()
    while below:
        node = below.pop()
        if node is not None and node not in seen:
            seen.add(node)
            if hasattr(node, "variable"):
                yield node.variable
            below += [one for one, _ in node.next_functions]


def _held(one: Any) -> dict[str, Any]:
    return {name: (value, _inside(value)) for name, value in vars(one).items()}


def _inside(value: Any) -> Any:
    return value.copy() if isinstance(value, dict | list | set) else None


def _hold(one: Any, values: dict[str, Any]) -> None:
    """What it held, in the same containers."""
    for name in [name for name in vars(one) if name not in values]:
        delattr(one, name)
    for name, (value, inside) in values.items():
        if vars(one).get(name) is not value:
            setattr(one, name, value)
        if inside is not None and _items(value) != _items(inside):
            value.clear()
            value.extend(inside) if isinstance(value, list) else value.update(inside)


def _items(inside: Any) -> list[int]:
    """What a container holds, by identity."""
    return [id(one) for pair in inside.items() for one in pair] if isinstance(inside, dict) else list(map(id, inside))
