"""Frozen matrices held in bf16 or int8 beside low-rank factors, and widened where they are read.

Source: Dettmers et al. 2023 (QLoRA), section 3, arXiv:2305.14314.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int8
from torch import Tensor, nn

from limpid.config import BasePrecision, ModelConfig
from limpid.model.formed import formed_again, keeping_less
from limpid.model.kernels.native_product import native_product, serves
from limpid.model.observe import FAST, Mode
from limpid.quantities import parameters

aten = torch.ops.aten

SMALLEST_ROW = 2.0**-100
"""Largest entry below which a row is 0 or has coarser units: no unit is subnormal."""


class Narrow(Tensor):
    """A matrix that takes one or two bytes an entry, and is float32 to whoever reads it.

    What is copied into it is rounded; what was read from it comes back to the same bits. Each operation makes a widened
    copy for itself, and none is kept.
    """

    entries: Tensor
    scale: Tensor | None

    @staticmethod
    def __new__(cls, entries: Tensor, scale: Tensor | None) -> Narrow:
        made: Narrow = torch.Tensor._make_wrapper_subclass(
            cls, entries.shape, dtype=torch.float32, device=entries.device
        )
        made.entries, made.scale = entries, scale
        return made

    @classmethod
    def of(cls, weight: Tensor, precision: BasePrecision) -> Narrow:
        """A matrix in this format."""
        return cls(*quantised(weight)) if precision == "int8" else cls(weight.to(torch.bfloat16), None)

    def widened(self, dtype: torch.dtype = torch.float32) -> Float[Tensor, "d_out d_in"]:
        """The matrix as a product of this format reads it: exact in float32, and of that the nearest."""
        return self.entries.to(dtype) if self.scale is None else self.entries.float().mul_(self.scale).to(dtype)

    def hold(self, weight: Tensor) -> None:
        """Hold another matrix, in the same format."""
        new = weight if isinstance(weight, Narrow) else Narrow.of(weight, "bf16" if self.scale is None else "int8")
        self.entries.copy_(new.entries)
        if self.scale is not None and new.scale is not None:
            self.scale.copy_(new.scale)

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["entries"] if self.scale is None else ["entries", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], _meta: None, _size: Any, _stride: Any) -> Narrow:
        return Narrow(inner["entries"], inner.get("scale"))

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Moving and copying keep the format; any other operation reads the widened matrix."""
        first, kwargs = args[0] if args else None, kwargs or {}
        if isinstance(first, Narrow):
            if func in KEEPING or (func is aten._to_copy.default and kwargs.get("dtype") in (None, torch.float32)):
                asked = {name: value for name, value in kwargs.items() if name != "dtype"}
                scale = None if first.scale is None else func(first.scale, *args[1:], **asked)
                return cls(func(first.entries, *args[1:], **asked), scale)
            if func is aten.copy_.default:
                first.hold(args[1])
                return first
            if func._schema.is_mutable:
                raise TypeError(f"{func} would change a frozen matrix that is held in {first.entries.dtype}")
        return func(*torch.utils._pytree.tree_map(widened, args), **torch.utils._pytree.tree_map(widened, kwargs))


KEEPING = (aten.detach.default, aten.clone.default, aten.alias.default)


def narrowed(config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights, the frozen matrices of the blocks in the format in which they are held."""
    if config.base_precision == "fp32":
        return dict(weights)
    held = {one.name for one in parameters(config) if one.hidden and not one.low_rank}
    return {
        name: Narrow.of(weight, config.base_precision) if name in held else weight for name, weight in weights.items()
    }


def widened(one: Any) -> Any:
    """A plain tensor in the place of a narrow one; everything else as it is."""
    return one.widened() if isinstance(one, Narrow) else one


def on_disk(tensor: Tensor) -> Tensor:
    """What a file holds of a parameter: widened, in the memory of the processor, which comes back to the same bits."""
    held: Tensor = widened(tensor.cpu()) if isinstance(tensor, Narrow) else tensor
    return held


def quantised(weight: Float[Tensor, "d_out d_in"]) -> tuple[Int8[Tensor, "d_out d_in"], Float[Tensor, "d_out 1"]]:
    """Each row in units of its largest entry over 127, rounded to nearest; what is not a number stays none.

    Source: Dettmers et al. 2022, section 2.1, arXiv:2208.07339. The unit is rounded up to 16 bits: with the 7 of an
    entry their product is exact in float32, and a widened row has the same unit again.
    """
    largest = weight.detach().float().abs().amax(1, keepdim=True)
    unit = largest.clamp_min(SMALLEST_ROW) / 127
    rounded_up = ((unit.view(torch.int32) + 255) & -256).view(torch.float32)  # 16 bits are left of 24
    scale = torch.where(largest.isfinite(), rounded_up, torch.nan)
    return (weight.detach().float() / scale).nan_to_num(0).round().to(torch.int8), scale


class _Product(torch.autograd.Function):
    """x Wᵀ + b of a frozen W: x̄ = ȳ W, for which W is widened a second time instead of kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Narrow, bias: Tensor | None) -> Tensor:
        ctx.weight = weight
        return F.linear(x, weight.widened(x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, y_bar: Tensor) -> tuple[Tensor, None, None]:
        return y_bar @ ctx.weight.widened(y_bar.dtype), None, None


def product(
    x: Float[Tensor, "... d_in"],
    weight: Float[Tensor, "d_out d_in"],
    bias: Float[Tensor, " d_out"] | None,
    mode: Mode = FAST,
) -> Float[Tensor, "... d_out"]:
    """x Wᵀ + b in the format of x."""
    if not mode.plain and serves(x, weight):
        with keeping_less(x):
            return native_product(x, weight, bias)
    x_dtype = x.dtype
    bias = None if bias is None else bias.to(x_dtype)
    if isinstance(weight, Narrow):
        y: Tensor = _Product.apply(x, weight, bias)
        return y
    cast = weight.to(x.dtype)
    if cast is not weight:
        formed_again(cast, lambda held: held.to(x_dtype), weight)
    with keeping_less(x, cast):
        return F.linear(x, cast, bias)


def narrow(module: nn.Linear, precision: BasePrecision) -> None:
    """Hold a linear map's matrix in this format from now on, where that is another than float32."""
    if precision != "fp32":
        module.weight = nn.Parameter(Narrow.of(module.weight, precision), requires_grad=False)
