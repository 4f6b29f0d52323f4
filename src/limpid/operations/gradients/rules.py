"""Operations of ATen as functions that can be differentiated in each of their arguments, where PyTorch's own cannot.

A backward pass is given statistics that its forward pass kept (a mean, a sum of exponentials) as numbers of their own,
which have roundings of their own. PyTorch's formulas for the second derivative take them for functions of the input,
and of some operations it has no second derivative at all. Both are written out here, in the arguments as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
import torch._decomp
from torch import Tensor

from limpid.adjoints.aten import short_name
from limpid.adjoints.widened import grouped_product
from limpid.operations.gradients.attention import ATTENTION
from limpid.operations.gradients.recurrent import lstm, lstm_backward


def _softmax(self: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return torch.softmax(self, dim)


def _log_softmax(self: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return torch.log_softmax(self, dim)


def native_layer_norm(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """γ (x - μ) / σ + β, and μ and 1 / σ."""
    axes = list(range(input.ndim - len(normalized_shape), input.ndim))
    mean = input.mean(axes, keepdim=True)
    rstd = ((input - mean).square().mean(axes, keepdim=True) + eps).rsqrt()
    made = (input - mean) * rstd
    made = made if weight is None else made * weight
    return (made if bias is None else made + bias), mean, rstd


def native_layer_norm_backward(
    grad_out: Tensor, input: Tensor, normalized_shape: list[int], mean: Tensor, rstd: Tensor, weight: Tensor | None,
    bias: Tensor | None, output_mask: list[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """x̄ = (ȳγ - mean(ȳγ) - x̂ mean(ȳγ x̂)) / σ, γ̄ = Σ ȳ x̂, β̄ = Σ ȳ."""
    first = input.ndim - len(normalized_shape)
    own, others = list(range(first, input.ndim)), list(range(first))
    x_hat = (input - mean) * rstd
    inner = grad_out if weight is None else grad_out * weight
    x_bar = rstd * (inner - inner.mean(own, keepdim=True) - x_hat * (inner * x_hat).mean(own, keepdim=True))
    return _masked(output_mask, x_bar, _added(grad_out * x_hat, others), _added(grad_out, others))


def native_group_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The same over groups of channels."""
    x = input.reshape(N, group, -1)
    mean = x.mean(-1, keepdim=True)
    rstd = ((x - mean).square().mean(-1, keepdim=True) + eps).rsqrt()
    made = ((x - mean) * rstd).reshape(N, C, HxW)
    made = made if weight is None else made * weight[:, None]
    made = made if bias is None else made + bias[:, None]
    return made.reshape(input.shape), mean.reshape(N, group), rstd.reshape(N, group)


def native_group_norm_backward(
    grad_out: Tensor, input: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, N: int, C: int, HxW: int,
    group: int, output_mask: list[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """As of a layer norm, over each group."""
    x_hat = ((input.reshape(N, group, -1) - mean.reshape(N, group, 1)) * rstd.reshape(N, group, 1)).reshape(N, C, HxW)
    given = grad_out.reshape(N, C, HxW)
    inner = (given if weight is None else given * weight[:, None]).reshape(N, group, -1)
    within = x_hat.reshape(N, group, -1)
    x_bar = rstd.reshape(N, group, 1) * (
        inner - inner.mean(-1, keepdim=True) - within * (inner * within).mean(-1, keepdim=True)
    )
    return _masked(output_mask, x_bar.reshape(input.shape), (given * x_hat).sum((0, 2)), given.sum((0, 2)))


def native_batch_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    training: bool, momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The same over the batch, of each channel, or with the averages of before."""
    axes = [axis for axis in range(input.ndim) if axis != 1]
    if training or running_mean is None or running_var is None:
        mean, variance = input.mean(axes), input.var(axes, correction=0)
        kept = mean, (variance + eps).rsqrt()
    else:
        mean, variance = running_mean, running_var
        kept = input.new_zeros(0), input.new_zeros(0)
    made = (input - _channels(mean, input)) * _channels((variance + eps).rsqrt(), input)
    made = made if weight is None else made * _channels(weight, input)
    return (made if bias is None else made + _channels(bias, input)), *kept


def native_batch_norm_backward(
    grad_out: Tensor, input: Tensor, weight: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    save_mean: Tensor | None, save_invstd: Tensor | None, train: bool, eps: float, output_mask: list[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """As of a layer norm, over the batch; with the averages of before x̄ = ȳγ / σ."""
    axes = [axis for axis in range(input.ndim) if axis != 1]
    if train:
        assert save_mean is not None
        assert save_invstd is not None
        mean, rstd = save_mean, save_invstd
    else:
        assert running_mean is not None
        assert running_var is not None
        mean, rstd = running_mean, (running_var + eps).rsqrt()
    rstd = _channels(rstd, input)
    x_hat = (input - _channels(mean, input)) * rstd
    inner = grad_out if weight is None else grad_out * _channels(weight, input)
    centred = inner - inner.mean(axes, keepdim=True) - x_hat * (inner * x_hat).mean(axes, keepdim=True)
    return _masked(output_mask, rstd * (centred if train else inner), (grad_out * x_hat).sum(axes), grad_out.sum(axes))


def _cudnn_batch_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    training: bool, exponential_average_factor: float, epsilon: float,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    made = native_batch_norm(
        input, weight, bias, running_mean, running_var, training, exponential_average_factor, epsilon
    )
    return (*made, None)


def _cudnn_batch_norm_backward(
    input: Tensor, grad_output: Tensor, weight: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    save_mean: Tensor | None, save_var: Tensor | None, epsilon: float, reserveSpace: Tensor | None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """`save_var` is 1 / σ."""
    return native_batch_norm_backward(
        grad_output, input, weight, running_mean, running_var, save_mean, save_var, True, epsilon, [True] * 3
    )


def _channels(one: Tensor, like: Tensor) -> Tensor:
    return one.reshape(1, -1, *[1] * (like.ndim - 2))


def _added(one: Tensor, axes: list[int]) -> Tensor:
    return one.sum(axes) if axes else one


def _masked(mask: list[bool], *results: Tensor) -> tuple[Tensor | None, ...]:
    return tuple(one if is_asked else None for one, is_asked in zip(results, mask, strict=True))


RULES: dict[str, Callable[..., Any]] = {
    "_softmax": _softmax,
    "_log_softmax": _log_softmax,
    "mkldnn_rnn_layer": lstm,
    "mkldnn_rnn_layer_backward": lstm_backward,
    "_grouped_mm": grouped_product,
    "native_layer_norm": native_layer_norm,
    "native_layer_norm_backward": native_layer_norm_backward,
    "native_group_norm": native_group_norm,
    "native_group_norm_backward": native_group_norm_backward,
    "native_batch_norm": native_batch_norm,
    "native_batch_norm_backward": native_batch_norm_backward,
    "cudnn_batch_norm": _cudnn_batch_norm,
    "cudnn_batch_norm_backward": _cudnn_batch_norm_backward,
    **ATTENTION,
}


def functions(operation: Any, results: list[Tensor | None]) -> list[Callable[..., Any]]:
    """What stands for an operation: its rule; else PyTorch's own, and what PyTorch says it is made of.

    results  the engine's, for the mask that was drawn
    """
    name = short_name(operation)
    if name == "native_dropout" and results[1] is not None:
        return [partial(_dropout, mask=results[1])]
    if name in RULES:
        return [RULES[name]]
    if torch.Tag.nondeterministic_seeded in operation.tags:
        return []  # would draw again
    return [operation, *_made_of(operation)]


@cache  # PyTorch walks through all of its operations for each
def _made_of(operation: Any) -> tuple[Callable[..., Any], ...]:
    """What PyTorch says that an operation is made of."""
    return tuple(torch._decomp.get_decompositions([operation]).values())


def _dropout(input: Tensor, p: float, train: bool | None, *, mask: Tensor) -> tuple[Tensor, Tensor]:
    return input * mask / (1 - p) if train else input, mask
