"""Normalisation over features, groups or a batch, forward and backward."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from limpid.maths.operation import Array
from limpid.operations.exact.elementwise import FUNCTION
from limpid.operations.exact.exact import Exact, arithmetic, growth, summed


def _normalised(x: Array, axes: tuple[int, ...], eps: float) -> tuple[Array, Array, Array, float]:
    """(x - μ) / σ, μ, 1 / σ, and roundings of a mean over the axes."""
    middle = x.mean(axes, keepdims=True)
    scale = 1 / np.sqrt(x.var(axes, keepdims=True) + eps)
    return (x - middle) * scale, middle, scale, growth(math.prod(x.shape[axis] for axis in axes))


def _affine(x: Array, weight: Any, bias: Any, axes: tuple[int, ...], eps: float) -> tuple[Exact, Array, Array]:
    """γ (x - μ) / σ + β: an error of μ counts by the largest |x|, since x - μ may cancel."""
    made, middle, scale, count = _normalised(x, axes, eps)
    gain, shift = (1.0 if weight is None else weight), (0.0 if bias is None else bias)
    size = np.abs(x).mean(axes, keepdims=True)
    off_middle = (count + FUNCTION) * size
    relative = 2 * count + 2 * FUNCTION + 2 * off_middle * scale  # of 1 / σ, by the variance's own error
    off = np.abs(gain) * (scale * (np.abs(x) + np.abs(middle) + off_middle) + np.abs(made) * relative)
    return Exact(made * gain + shift, off + FUNCTION * np.abs(shift)), middle, scale


def _statistics(middle: Array, scale: Array, x: Array, axes: tuple[int, ...]) -> list[Exact | None]:
    count = growth(math.prod(x.shape[axis] for axis in axes))
    size = np.abs(x).mean(axes, keepdims=True)
    off = scale * (2 * count + 2 * FUNCTION + 2 * count * size * scale)
    return [Exact(middle, (count + FUNCTION) * size), Exact(scale, off)]


@arithmetic("native_layer_norm", "_fused_layer_norm")
def layer_norm(input: Array, normalized_shape: list[int], weight: Any, bias: Any, eps: float) -> list[Exact | None]:
    """γ (x - μ) / σ + β over the last axes, μ and 1 / σ."""
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    made, middle, scale = _affine(input, weight, bias, axes, eps)
    return [made, *_statistics(middle, scale, input, axes)]


def _input_gradient(taught: Array, made: Array, scale: Array, axes: tuple[int, ...], x: Array) -> Exact:
    """(ȳ γ - mean(ȳ γ) - x̂ mean(ȳ γ x̂)) / σ."""
    count = growth(math.prod(made.shape[axis] for axis in axes))
    first, second = taught.mean(axes, keepdims=True), (taught * made).mean(axes, keepdims=True)
    value = scale * (taught - first - made * second)
    size = np.abs(taught).mean(axes, keepdims=True)
    along = (np.abs(taught) * np.abs(made)).mean(axes, keepdims=True)
    unsure = (np.abs(x) + np.abs(x).mean(axes, keepdims=True)) * scale  # how far x̂ may be off, in units of u
    formed = np.abs(taught) + size + np.abs(made) * along
    off = (
        (count + 3 * FUNCTION) * formed
        + unsure * along
        + np.abs(made) * (np.abs(taught) * unsure).mean(axes, keepdims=True)
    )
    return Exact(value, scale * off)


@arithmetic("native_layer_norm_backward")
def layer_norm_backward(
    grad_out: Array, input: Array, normalized_shape: list[int], mean: Array, rstd: Array, weight: Any, bias: Any,
    output_mask: list[bool], formats: dict[str, Any],
) -> list[Exact | None]:  # fmt: skip
    """Of x, γ and β, from the statistics of the forward pass. Of γ and β rows are added up in the format of x."""
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    rows = tuple(range(input.ndim - len(normalized_shape)))
    made = (input - mean) * rstd
    taught = grad_out * (1.0 if weight is None else weight)
    of_gain, of_shift = summed(grad_out * made, rows), summed(grad_out, rows)
    unsure = FUNCTION * (np.abs(grad_out) * rstd * (np.abs(input) + np.abs(mean))).sum(rows)
    of_gain = Exact(of_gain.value, np.asarray(of_gain.rounding) + unsure)
    learned = [
        Exact(one.value, one.rounding, np.abs(one.value) + np.asarray(one.rounding), formats["input"])
        for one in (of_gain, of_shift)
    ]
    found = [_input_gradient(taught, made, rstd, axes, input), *learned]
    return [one if asked else None for one, asked in zip(found, output_mask, strict=True)]


@arithmetic("native_group_norm")
def group_norm(
    input: Array, weight: Any, bias: Any, N: int, C: int, HxW: int, group: int, eps: float
) -> list[Exact | None]:
    """γ (x - μ) / σ + β over groups of channels."""
    x = input.reshape(N, group, C // group, HxW)
    gain = None if weight is None else np.reshape(weight, (1, group, C // group, 1))
    shift = None if bias is None else np.reshape(bias, (1, group, C // group, 1))
    made, middle, scale = _affine(x, gain, shift, (2, 3), eps)
    found = Exact(made.value.reshape(input.shape), np.broadcast_to(made.rounding, x.shape).reshape(input.shape))
    return [found, *(_reshaped(one, (N, group)) for one in _statistics(middle, scale, x, (2, 3)))]


def _reshaped(one: Exact | None, shape: tuple[int, ...]) -> Exact | None:
    if one is None:
        return None
    return Exact(one.value.reshape(shape), np.broadcast_to(one.rounding, one.value.shape).reshape(shape))


@arithmetic("native_group_norm_backward")
def group_norm_backward(
    grad_out: Array, input: Array, mean: Array, rstd: Array, weight: Any, N: int, C: int, HxW: int, group: int,
    output_mask: list[bool],
) -> list[Exact | None]:  # fmt: skip
    """Of x, γ and β."""
    shape = (N, group, C // group, HxW)
    x, bar = input.reshape(shape), grad_out.reshape(shape)
    scale = rstd.reshape(N, group, 1, 1)
    made = (x - mean.reshape(N, group, 1, 1)) * scale
    taught = bar * (1.0 if weight is None else np.reshape(weight, (1, group, C // group, 1)))
    inner = _input_gradient(taught, made, scale, (2, 3), x)
    of_gain, of_shift = summed(bar * made, (0, 3)), summed(bar, (0, 3))
    unsure = FUNCTION * (np.abs(bar) * scale * (np.abs(x) + np.abs(x - made / scale))).sum((0, 3))
    found = [
        _reshaped(inner, input.shape),
        _reshaped(Exact(of_gain.value, np.asarray(of_gain.rounding) + unsure), (C,)),
        _reshaped(of_shift, (C,)),
    ]
    return [one if asked else None for one, asked in zip(found, output_mask, strict=True)]


@arithmetic("_weight_norm_interface")
def weight_norm(v: Array, g: Array, dim: int = 0) -> list[Exact | None]:
    """g v / ‖v‖ along all axes but one, and ‖v‖."""
    axes = tuple(axis for axis in range(v.ndim) if axis != dim % v.ndim)
    norm = np.sqrt((v**2).sum(axes, keepdims=True))
    count = growth(math.prod(v.shape[axis] for axis in axes))
    return [Exact(v * g / norm, (count + 2 * FUNCTION) * np.abs(v * g / norm)), Exact(norm, (count + FUNCTION) * norm)]


@arithmetic("_weight_norm_interface_backward")
def weight_norm_backward(
    grad_w: Array, saved_v: Array, saved_g: Array, saved_norms: Array, dim: int
) -> list[Exact | None]:
    """Of v and g."""
    axes = tuple(axis for axis in range(saved_v.ndim) if axis != dim % saved_v.ndim)
    inner = summed(grad_w * saved_v, axes, True)
    along = inner.value / saved_norms**2
    value = saved_g / saved_norms * (grad_w - saved_v * along)
    size = np.abs(saved_g / saved_norms)
    unsure = np.asarray(inner.rounding) / saved_norms
    off = 3 * FUNCTION * (np.abs(grad_w) + np.abs(saved_v * along)) + np.abs(saved_v) * unsure / saved_norms
    of_gain = inner.value / saved_norms
    return [Exact(value, size * off), Exact(of_gain, unsure + FUNCTION * np.abs(of_gain))]


@arithmetic("native_batch_norm", "_native_batch_norm_legit")
def batch_norm(
    input: Array, weight: Any, bias: Any, training: bool, momentum: float, eps: float, running_mean: Any = None,
    running_var: Any = None,
) -> list[Exact | None]:  # fmt: skip
    """γ (x - μ) / σ + β over the batch, or with the averages; μ and 1 / σ."""
    axes = (0, *range(2, input.ndim))
    wide = (1, -1, *(1 for _ in axes[1:]))
    gain, shift = (None if one is None else np.reshape(one, wide) for one in (weight, bias))
    if training:
        made, middle, scale = _affine(input, gain, shift, axes, eps)
        channels = (input.shape[1],)
        return [made, *(_reshaped(one, channels) for one in _statistics(middle, scale, input, axes))]
    middle, scale = np.reshape(running_mean, wide), 1 / np.sqrt(np.reshape(running_var, wide) + eps)
    times = scale if gain is None else scale * gain
    value = (input - middle) * times + (0.0 if shift is None else shift)
    size = (np.abs(input) + np.abs(middle)) * np.abs(times) + (0.0 if shift is None else np.abs(shift))
    return [Exact(value, 2 * FUNCTION * size), None, None]


@arithmetic("native_batch_norm_backward")
def batch_norm_backward(
    grad_out: Array, input: Array, weight: Any, running_mean: Any, running_var: Any, save_mean: Any,
    save_invstd: Any, train: bool, eps: float, output_mask: list[bool],
) -> list[Exact | None]:  # fmt: skip
    """Of x, γ and β."""
    axes = (0, *range(2, input.ndim))
    wide = (1, -1, *(1 for _ in axes[1:]))
    middle = np.reshape(save_mean if train else running_mean, wide)
    scale = np.reshape(save_invstd if train else 1 / np.sqrt(np.asarray(running_var) + eps), wide)
    made = (input - middle) * scale
    taught = grad_out * (1.0 if weight is None else np.reshape(weight, wide))
    of_gain, of_shift = summed(grad_out * made, axes), summed(grad_out, axes)
    unsure = 2 * FUNCTION * (np.abs(grad_out) * scale * (np.abs(input) + np.abs(middle))).sum(axes)
    inner = _input_gradient(taught, made, scale, axes, input) if train else Exact(
        taught * scale, 2 * FUNCTION * np.abs(taught * scale))  # fmt: skip
    found = [inner, Exact(of_gain.value, np.asarray(of_gain.rounding) + unsure), of_shift]
    return [one if asked else None for one, asked in zip(found, output_mask, strict=True)]


@arithmetic("cudnn_batch_norm")
def cudnn_batch_norm(
    input: Array, weight: Any, bias: Any, training: bool, exponential_average_factor: float, epsilon: float,
    running_mean: Any = None, running_var: Any = None,
) -> list[Exact | None]:  # fmt: skip
    """The same, with what cuDNN keeps for itself."""
    made = batch_norm(input, weight, bias, training, exponential_average_factor, epsilon, running_mean, running_var)
    return [*made, None]


@arithmetic("cudnn_batch_norm_backward")
def cudnn_batch_norm_backward(
    input: Array, grad_output: Array, weight: Any, epsilon: float, running_mean: Any = None, running_var: Any = None,
    save_mean: Any = None, save_var: Any = None, reserveSpace: Any = None,
) -> list[Exact | None]:  # fmt: skip
    """Of x, γ and β; `save_var` is 1 / σ."""
    return batch_norm_backward(
        grad_output, input, weight, running_mean, running_var, save_mean, save_var, True, epsilon, [True] * 3
    )


@arithmetic("_fused_rms_norm")
def rms_norm(input: Array, normalized_shape: list[int], weight: Any, eps: float | None) -> list[Exact | None]:
    """γ x / √(mean x² + ε), and 1 / √(…)."""
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    least = float(np.finfo(np.float32).eps) if eps is None else eps
    scale = 1 / np.sqrt((input**2).mean(axes, keepdims=True) + least)
    value = input * scale * (1.0 if weight is None else weight)
    count = growth(math.prod(input.shape[axis] for axis in axes))
    return [Exact(value, (count + 2 * FUNCTION) * np.abs(value)), Exact(scale, (count + 2 * FUNCTION) * scale)]
