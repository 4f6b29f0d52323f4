"""Every operation in float64, or off by about as much as rounding is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from limpid.adjoints.aten import DRAWN, mapped, short_name

NARROW = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)


class Widened(TorchDispatchMode):
    """Every operation in float64, whatever format is asked for; what is drawn is drawn as it was, then widened.

    drawn  the formats of what is drawn, in order, where these are known; float32 else
    """

    def __init__(self, drawn: Sequence[torch.dtype] = ()) -> None:
        super().__init__()
        self.drawn = iter(drawn)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func.namespace != "aten":
            return func(*args, **kwargs)
        if short_name(func) in DRAWN:
            return mapped(_drawn(func, args, kwargs, next(self.drawn, torch.float32)), wider)
        if kwargs.get("dtype") in NARROW:
            kwargs["dtype"] = torch.float64
        own = {one.name for one in func._schema.arguments if one.alias_info is not None and one.alias_info.is_write}
        names = [one.name for one in func._schema.arguments]
        wide = [one if name in own else _wider(one) for name, one in zip(names, args, strict=False)]
        made = func(*wide, **{name: one if name in own else _wider(one) for name, one in kwargs.items()})
        return made if own else _wider(made)


def wider(tensor: Tensor) -> Tensor:
    """In float64, where it is of narrower fractions."""
    return tensor.to(torch.float64) if tensor.dtype in NARROW else tensor


def _wider(value: Any) -> Any:
    """The same of all tensors of a value, which is a dtype at times."""
    if value in NARROW if isinstance(value, torch.dtype) else False:
        return torch.float64
    found = mapped(value, wider)
    return tuple(found) if isinstance(value, tuple) else found


def _drawn(func: Any, args: Any, kwargs: Any, form: torch.dtype) -> Any:
    """Numbers as they are drawn in their own format, which are not those of float64."""
    target = args[0] if args else None
    if func._schema.name.endswith("_") and isinstance(target, Tensor) and target.dtype == torch.float64:
        return target.copy_(func(target.to(form), *args[1:], **kwargs))
    if "dtype" in {one.name for one in func._schema.arguments} and kwargs.get("dtype") is None:
        given = next((one for one in args if isinstance(one, Tensor)), None)
        kwargs = kwargs | {"dtype": form if given is None or given.dtype == torch.float64 else given.dtype}
    elif isinstance(target, Tensor) and target.dtype == torch.float64:
        args = (target.to(form), *args[1:])
    return func(*args, **kwargs)


class Rounded(Widened):
    """In float64, each result of arithmetic off by about a rounding of a coarser format: what that may come to."""

    def __init__(self, unit: float, seed: int, drawn: Sequence[torch.dtype] = ()) -> None:
        super().__init__(drawn)
        self.unit, self.generator = unit, torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_dispatch__(func, types, args, kwargs)
        aliases = [one.alias_info for one in (*func._schema.arguments, *func._schema.returns)]
        if short_name(func) in DRAWN or any(one is not None and not one.is_write for one in aliases):
            return made  # a view of what is off already
        if any(one is not None for one in aliases):
            return mapped(made, lambda one: one.mul_(self._near(one)) if one.is_floating_point() else one)
        found = mapped(made, self.rounded)
        return tuple(found) if isinstance(made, tuple) else found

    def rounded(self, tensor: Tensor) -> Tensor:
        """Numbers that rounding could have made of it."""
        return tensor * self._near(tensor) if tensor.is_floating_point() else tensor

    def _near(self, tensor: Tensor) -> Tensor:
        noise = torch.randn(tensor.shape, generator=self.generator, dtype=torch.float64).to(tensor.device)
        return (1 + self.unit * noise).to(tensor.dtype)
