"""Every operation in float64, or off by about as much as rounding is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from limpid.adjoints.aten import DRAWN, mapped, short_name

NARROW = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)


COMPARING = {
    "linear", "bilinear", "matmul", "__matmul__", "mm", "bmm", "addmm", "baddbmm", "einsum", "conv1d", "conv2d",
    "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "scaled_dot_product_attention",
}  # fmt: skip
"""What wants its arguments to be of one format."""


class Widened(TorchDispatchMode):
    """Every operation in float64, whatever format is asked for; what is drawn is drawn as it was, then widened.

    drawn  the formats of what is drawn, in order, where these are known; float32 else
    """

    def __init__(self, drawn: Sequence[torch.dtype] = ()) -> None:
        super().__init__()
        self.drawn = iter(drawn)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: to be skipped by the compiler would load it, seconds for a run that compiles nothing."""
        return False

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
        kwargs = {name: one if name in own else _wider(one) for name, one in kwargs.items()}
        made = grouped_product(*wide, **kwargs) if short_name(func) == "_grouped_mm" else func(*wide, **kwargs)
        return made if own else _wider(made)


class Alike(TorchFunctionMode):
    """Arguments of products in float64 before PyTorch compares their formats, which it does above where it computes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in COMPARING:
            args, kwargs = _wider(tuple(args)), {name: _wider(one) for name, one in kwargs.items()}
        with torch._C.DisableTorchFunction():
            return func(*args, **kwargs)


def wider(tensor: Tensor) -> Tensor:
    """In float64, where it is of narrower fractions."""
    return tensor.to(torch.float64) if tensor.dtype in NARROW else tensor


def _wider(value: Any) -> Any:
    """The same of all tensors of a value, which is a dtype at times."""
    if value in NARROW if isinstance(value, torch.dtype) else False:
        return torch.float64
    found = mapped(value, wider)
    return tuple(found) if isinstance(value, tuple) else found


def grouped_product(
    self: Tensor, mat2: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: Any = None
) -> Tensor:
    """A product for each group, which PyTorch computes in no float64; offs are where groups end.

    Groups are of rows (2 × 3 axes), of columns (3 × 2), of what is added up (2 × 2), or the first axis of both (3 × 3).
    """
    if offs is None:
        made = self @ mat2
    else:
        ends = offs.tolist()
        groups = list(enumerate(zip([0, *ends[:-1]], ends, strict=True)))
        if self.ndim == 2 and mat2.ndim == 3:
            parts = [self[begin:end] @ mat2[group] for group, (begin, end) in groups]
            parts.append(self.new_zeros(self.shape[0] - ends[-1], mat2.shape[2]))
            made = torch.cat(parts)
        elif self.ndim == 3:
            parts = [self[group] @ mat2[:, begin:end] for group, (begin, end) in groups]
            parts.append(self.new_zeros(self.shape[1], mat2.shape[1] - ends[-1]))
            made = torch.cat(parts, 1)
        else:
            made = torch.stack([self[:, begin:end] @ mat2[begin:end] for _, (begin, end) in groups])
    return made if bias is None else made + bias


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
