"""AdamW and the norm of gradients in limpid's own kernel, native/adamw.cpp: all parameters in one call."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from limpid.model.kernels.native_call import is_here, kernels
from limpid.model.kernels.unseen import is_watched

Group = Mapping[str, Any]
Pointers = ctypes.Array[ctypes.c_void_p]


class Arrays(ctypes.Structure):
    """Pointers to the arrays of every parameter."""

    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("parameters", "gradients", "first_moments", "second_moments", "updates")
    )


class Rule(ctypes.Structure):
    """What is the same for every parameter of a group."""

    _fields_ = tuple((name, ctypes.c_double) for name in ("rate", "beta1", "beta2", "eps", "weight_decay", "factor"))


def serves(groups: Iterable[Group]) -> bool:
    """Whether the kernel is there for all parameters of these groups and their gradients."""
    return not is_watched() and is_here() and all(map(_serves_group, groups))


def _serves_group(group: Group) -> bool:
    other = ("amsgrad", "maximize", "capturable", "differentiable")
    if any(group[name] for name in other) or isinstance(group["lr"], Tensor):
        return False
    return all(p.grad is None or (_is_plain(p) and _is_plain(p.grad)) for p in group["params"])


def _is_plain(x: Tensor) -> bool:
    """Float32 numbers in one piece of the processor's memory."""
    in_memory = type(x) in (Tensor, nn.Parameter) and x.layout == torch.strided and x.device.type == "cpu"
    return in_memory and x.dtype == torch.float32 and x.is_contiguous()


def norm(gradients: Sequence[Tensor]) -> float:
    """√Σ g² over every entry; bits do not depend on threads."""
    return math.sqrt(_kernels().sum_of_squares(*_counted(gradients, _pointers(gradients)), torch.get_num_threads()))


def update(group: Group, states: MutableMapping[Tensor, dict[str, Any]], factor: float = 1.0) -> None:
    """Move the parameters of a group and their moments, by `factor` times their gradients."""
    parameters = [p for p in group["params"] if p.grad is not None]
    if not parameters:
        return
    held = [_begun(states[p], p) for p in parameters]
    lists = [parameters, [p.grad for p in parameters]]
    lists += [[one[name] for one in held] for name in ("exp_avg", "exp_avg_sq", "step")]
    arrays = Arrays(*(ctypes.cast(_pointers(one), ctypes.c_void_p) for one in lists))
    rule = Rule(group["lr"], *group["betas"], group["eps"], group["weight_decay"], factor)
    counted = _counted(parameters, ctypes.byref(arrays))
    _kernels().adamw(*counted, ctypes.byref(rule), torch.get_num_threads())
    torch.autograd.graph.increment_version(parameters)


def _begun(state: dict[str, Any], parameter: Tensor) -> dict[str, Any]:
    """What the optimizer remembers of a parameter, as PyTorch begins it."""
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32)
        state["exp_avg"], state["exp_avg_sq"] = (
            torch.zeros_like(parameter, memory_format=torch.preserve_format) for _ in range(2)
        )
    return state


def _counted(tensors: Sequence[Tensor], arrays: Any) -> tuple[ctypes.c_int64, Any, ctypes.Array[ctypes.c_int64]]:
    """How many arrays, where they are, and the size of each."""
    return ctypes.c_int64(len(tensors)), arrays, (ctypes.c_int64 * len(tensors))(*(one.numel() for one in tensors))


def _pointers(tensors: Sequence[Tensor]) -> Pointers:
    return (ctypes.c_void_p * len(tensors))(*(one.data_ptr() for one in tensors))


def _kernels() -> ctypes.CDLL:
    found = kernels()
    found.sum_of_squares.restype = ctypes.c_double
    return found
