"""A forward pass that is looked at, or changed, call by call below autograd: the ground of what-if."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from limpid.adjoints.aten import DRAWN, short_name
from limpid.operations.exact import MOVED
from limpid.operations.module_path import ModulePath
from limpid.operations.redo import arguments_of

WIDE = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
FACTORS = {
    "mm": ("self", "mat2"), "bmm": ("self", "mat2"), "mv": ("self", "vec"), "dot": ("self", "tensor"),
    "addmm": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2"), "addmv": ("mat", "vec"),
    "linear": ("input", "weight"), "convolution": ("input", "weight"), "_grouped_mm": ("self", "mat2"),
}  # fmt: skip
"""What products multiply; those of attention are its query, key and value."""
ATTENTION = "_scaled_dot_product"


class Forward(TorchDispatchMode):
    """Tells calls that compute and take part in the gradient from all others."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.path = ModulePath(model)
        self.number = torch._C._autograd._get_sequence_nr()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Every call inside comes here, with the path of its module."""
        with self.path.followed(), torch.enable_grad(), self:
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        number = torch._C._autograd._get_sequence_nr()
        is_new, self.number = number != self.number, number
        is_forward = torch._C._current_autograd_node() is None and torch.is_grad_enabled()
        if func.namespace != "aten" or not is_new or not is_forward or not computes(func):
            return self.passed(func, args, kwargs)
        return self.computed(func, args, kwargs, number - 1)

    @property
    def module(self) -> str:
        return self.path.innermost

    def passed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A call that moves data, draws, or takes no part in the gradient."""
        return func(*args, **kwargs)

    def computed(self, func: Any, args: Any, kwargs: Any, node: int) -> Any:
        """One that computes; node is the number of its node in autograd."""
        return func(*args, **kwargs)


def computes(func: Any) -> bool:
    """Whether it is arithmetic."""
    name = short_name(func)
    return name not in DRAWN and (name not in MOVED or name == "where")


def operands(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments that are read alone and hold fractions, by their names; lists among them."""
    own = {one.name for one in func._schema.arguments if one.alias_info is not None and one.alias_info.is_write}
    given = arguments_of(func, args, kwargs)
    return {name: value for name, value in given.items() if name not in own and tensors(value)}


def read(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Operands in the order of the operation's arguments, what it writes over first."""
    found = tensors(args[:1]) if is_in_place(func) else []
    for value in operands(func, args, kwargs).values():
        found += tensors(value)
    return found


def factors(func: Any) -> tuple[str, ...]:
    """Names of what a product multiplies; none of other operations."""
    name = short_name(func)
    return ("query", "key", "value") if name.startswith(ATTENTION) else FACTORS.get(name, ())


def is_in_place(func: Any) -> bool:
    """Whether it writes over its first argument."""
    alias = func._schema.arguments[0].alias_info if func._schema.arguments else None
    return alias is not None and alias.is_write


def replaced(func: Any, args: Any, kwargs: Any, change: Callable[[str, Any], Any]) -> tuple[tuple[Any, ...], Any]:
    """Arguments with another value each."""
    names = [one.name for one in func._schema.arguments]
    return (
        tuple(change(name, one) for name, one in zip(names, args, strict=False)),
        {name: change(name, one) for name, one in kwargs.items()},
    )


def is_wide(tensor: Tensor) -> bool:
    return tensor.dtype in WIDE


def tensors(value: Any) -> list[Tensor]:
    """Those of fractions in a value, in lists too."""
    if isinstance(value, Tensor):
        return [value] if is_wide(value) else []
    return [one for several in value for one in tensors(several)] if isinstance(value, list | tuple) else []


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """What a forward pass counts or averages is afterwards as it was."""
    held = [(one, one.detach().clone()) for one in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, numbers in held:
                buffer.copy_(numbers)
