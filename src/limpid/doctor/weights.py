"""Values of parameters, or of this process's part of them; and whether they look drawn, not trained."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.model_info import ModelInfo


def rate_of(group: Mapping[str, Any]) -> float:
    """The rate of a parameter group; nan where the optimizer finds its own, as Adafactor does."""
    rate = group.get("lr", 0.0)
    return math.nan if rate is None else float(rate)


def local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor that several share; any other tensor itself. Never waits for the others."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def sample(tensor: Tensor, count: int) -> Tensor:
    """Up to `count` elements of what this process holds, spread evenly, flat."""
    held = local(tensor.detach())
    spacing = held.numel() // count
    if spacing > 1 and held.is_contiguous() and not hasattr(held, "__tensor_flatten__"):  # in one operation
        return held.as_strided((count,), (spacing,))
    flat = held.reshape(-1)
    return flat if flat.numel() <= count else flat[::spacing][:count]


def storage(parameter: Tensor) -> int:
    """What two views of one tensor share; an empty part of a tensor shares nothing."""
    return local(parameter).data_ptr() or id(parameter)


def is_zero(tensor: Tensor) -> bool:
    return not bool(local(tensor.detach()).any())


def hands_gradient_on(parameter: Tensor) -> bool:
    """Whether a hook is given its gradient when that is complete, as main_grad of Megatron-LM is, and may remove it."""
    return bool(getattr(parameter, "_post_accumulate_grad_hooks", None))


def rests_at_zero(info: ModelInfo) -> bool:
    """Whether most of a matrix that is trained is 0: it started there, or is kept there."""
    trained = [p for p in info.parameters.values() if p.requires_grad and p.ndim > 1]
    return any(2 * int(local(p.detach()).count_nonzero()) < local(p).numel() for p in trained)


def is_constant(tensor: Tensor) -> bool:
    values = local(tensor.detach()).flatten()
    return bool((values == values[:1]).all())


def root_mean_square(tensor: Tensor) -> float:
    return float(local(tensor.detach()).float().pow(2).mean().sqrt())


def deviation(tensor: Tensor) -> float:
    return float(local(tensor.detach()).float().std())


def constant_matrices(info: ModelInfo) -> tuple[list[str], list[str], list[str]]:
    """Names of the matrices that are 0, of those whose rows or columns are all equal, and of those beside drawn ones.

    Beside a drawn matrix of its own shape in one module a constant one holds deviations, gains or gates of its entries;
    beside a list of as many modules as it has rows, those of each of them.
    """
    zero: list[str] = []
    equal: list[str] = []
    drawn: set[tuple[str, tuple[int, ...]]] = set()
    for name, parameter in info.parameters.items():
        matrix = parameter.detach()
        if matrix.ndim < 2 or min(matrix.shape) < 2 or not parameter.requires_grad or not matrix.is_floating_point():
            continue
        if is_zero(matrix):
            zero.append(name)
        elif bool((matrix == matrix[:1]).all()) or bool((matrix == matrix[:, :1]).all()):
            equal.append(name)
        else:
            drawn.add(_place(info, name))
    beside = [name for name in equal if _place(info, name) in drawn or _one_row_each(info, name)]
    return zero, [name for name in equal if name not in beside], beside


def units_stay_alike(info: ModelInfo, names: Iterable[str]) -> bool:
    """Whether gradients of matrices of equal rows or columns are so, too, or, where none is there, nothing is drawn.

    A gradient of 0, as behind a matrix that starts at 0, shows nothing yet.
    """
    for name in names:
        gradient = info.parameters[name].grad
        if gradient is None:
            if not all(map(is_constant, info.parameters.values())):
                return False
        elif not gradient.any() or not any(_is_close(gradient, part) for part in (gradient[:1], gradient[:, :1])):
            return False
    return True


def _is_close(tensor: Tensor, other: Tensor) -> bool:
    """Whether they are equal but for the order in which sums were formed."""
    return bool((tensor - other).abs().max() <= 1e-4 * tensor.abs().max())


def _one_row_each(info: ModelInfo, name: str) -> bool:
    """Whether a matrix has a row for each module of a list beside it: gains of many layers in one."""
    from torch import nn

    owner = info.model.get_submodule(name.rpartition(".")[0])
    lists = [child for child in owner.children() if isinstance(child, nn.ModuleList | nn.Sequential)]
    return any(len(child) == len(info.parameters[name]) for child in lists)


def _place(info: ModelInfo, name: str) -> tuple[str, tuple[int, ...]]:
    """The module that holds a parameter, and its shape."""
    return name.rpartition(".")[0], tuple(info.parameters[name].shape)


def fresh_gains(info: ModelInfo) -> tuple[int, int]:
    """How many gains of norms are exactly 1 (or, stored as an offset, 0) everywhere, and how many there are."""
    gains = [local(info.parameters[name].detach()) for name in info.norm_gains]
    return sum(bool((gain == 1).all()) or bool((gain == 0).all()) for gain in gains), len(gains)


def fresh(info: ModelInfo) -> bool:
    """Whether the weights look drawn, not trained: gains all equal and biases of norms 0."""
    fresh, count = fresh_gains(info)
    if count:
        norms = {gain.rpartition(".")[0] for gain in info.norm_gains}
        biases = [
            p
            for name, p in info.parameters.items()
            if name.endswith("bias") and p.ndim == 1 and name.rpartition(".")[0] in norms
        ]
        return fresh == count and all(map(is_zero, biases))
    return all(_drawn(p, 5, 0.05) for p in info.parameters.values() if p.ndim == 2)


def looks_drawn(info: ModelInfo, block: str, errors: float) -> bool:
    """Whether the matrices of a block are spread like a fresh draw, within some standard errors."""
    matrices = [p for name, p in info.parameters.items() if name.startswith(block + ".") and p.ndim >= 2]
    spread = [p for p in matrices if not is_constant(p)]
    return bool(spread) and all(_drawn(p, errors, 0.0) for p in spread)


def _drawn(weight: Tensor, errors: float, slack: float) -> bool:
    """Whether entries are spread like a Gaussian or uniform variable: kurtosis 3 or 1.8, whose error is √(24/n)."""
    values = sample(weight, 65536).float()
    spread = values.std(correction=0)
    if not spread:
        return True
    kurtosis = float(((values - values.mean()) / spread).pow(4).mean())
    return min(abs(kurtosis - 3), abs(kurtosis - 1.8)) < errors * (24 / values.numel()) ** 0.5 + slack
