"""A step repeated, as it was or with one thing changed, and its first operation whose output is not finite."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from limpid.doctor.calls import IGNORED, Call, find_logits, find_loss
from limpid.doctor.devices import set_random_state
from limpid.doctor.finding import Skipped
from limpid.doctor.micro_batches import Micro
from limpid.doctor.model_info import ModelInfo
from limpid.doctor.shield import Shield
from limpid.doctor.undisturbed import undisturbed

HALVES = (torch.float16, torch.bfloat16)


FILLS = ("masked_fill", "where", "full", "fill", "scalar_tensor", "new_full")
"""Operations that place values: an infinity in their output is a mask."""
UNSET = ("empty", "new_empty", "_local_scalar")
"""Operations whose output holds nothing yet."""


@dataclass
class Origin:
    """The first operation whose output is not finite though its inputs are."""

    op: str
    module: str
    backward: bool
    largest: float  # of its finite inputs
    inputs: tuple[str, ...]  # formats and shapes
    dtype: torch.dtype
    empty_rows: int = 0  # rows of a softmax with nothing visible
    exact_largest: float | None = None  # of the same operation in float64

    @property
    def name(self) -> str:
        """The operation without its overload."""
        return self.op.split(".")[0]

    @property
    def limit(self) -> float:
        """The largest number of its format."""
        return float(torch.finfo(self.dtype).max)

    @property
    def multiplies_queries_and_keys(self) -> bool:
        """Whether it is a batched product: both factors have 3 axes or more."""
        product = any(word in self.name for word in ("mm", "bmm", "matmul", "baddbmm", "dot"))
        axes = [entry[entry.index("[") :].count(",") + 1 for entry in self.inputs[:2]]
        return product and len(axes) == 2 and min(axes) >= 3


class NonFiniteSearch(TorchDispatchMode):
    """Stops looking at the first bad output; passes everything on unchanged."""

    def __init__(self, where: Callable[[], str]) -> None:
        super().__init__()
        self.where, self.backward = where, False
        self.origin: Origin | None = None
        self.skipped = Skipped()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.origin is None and isinstance(out, Tensor) and out.is_floating_point() and out.numel():
            with self.skipped.noting(str(func)):  # an operation that we cannot judge is not the culprit
                self.look(func, args, kwargs or {}, out)
        return out

    def look(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        if bool(torch.isfinite(out).all()):
            return
        name = str(func).removeprefix("aten.")
        if name.startswith(UNSET):
            return
        nan = bool(torch.isnan(out).any())
        inputs = [a for a in _flat(args) if isinstance(a, Tensor) and a.is_floating_point()]
        if any(bool(torch.isnan(a).any()) for a in inputs):
            return
        if not nan:
            infinite = any(bool(torch.isinf(a).any()) for a in inputs)
            if infinite or name.startswith(FILLS):
                return
        finite = [a[torch.isfinite(a)].abs().max() for a in inputs if bool(torch.isfinite(a).any())]
        origin = Origin(
            name,
            self.where(),
            self.backward,
            float(max(finite)) if finite else 0.0,
            tuple(f"{str(a.dtype).removeprefix('torch.')}{list(a.shape)}" for a in inputs),
            out.dtype,
        )
        if "softmax" in name and inputs:
            axis = args[1] if len(args) > 1 and isinstance(args[1], int) else -1
            empty = (inputs[0] == -math.inf).all(axis)
            origin.empty_rows = int(empty.sum())
        if out.dtype in (torch.float16, torch.bfloat16):
            wide = [a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
            again = func(*wide, **kwargs)
            if isinstance(again, Tensor) and bool(torch.isfinite(again).all()):
                origin.exact_largest = float(again.abs().max())
        self.origin = origin


def _flat(values: Any) -> list[Any]:
    return [e for v in values for e in (_flat(v) if isinstance(v, tuple | list) else [v])]


@dataclass(frozen=True)
class RecordedPass:
    """One forward and backward pass, ready to be made again."""

    info: ModelInfo
    call: Call
    micro: Micro | None = None
    rng: tuple[Tensor, ...] | None = None  # random state before the forward pass
    autocast: torch.dtype | None = None  # the format that autocast computed in
    weights: dict[str, Tensor] | None = None  # others than the model's own, by name
    wide: bool = False  # in float32, whatever the model asks for


@dataclass(frozen=True)
class ReplayResult:
    """What a replay showed."""

    origin: Origin | None
    logits_finite: bool
    loss: float | None


def replay(recorded: RecordedPass, backward: bool = True) -> ReplayResult:
    """Repeat the forward pass, and the backward pass unless the forward pass breaks already."""
    model, call = recorded.info.model, recorded.call
    loss, finite = None, True
    with undisturbed(Shield(model), gradients=backward), _named(model) as stack:
        model.train()
        if recorded.rng is not None:
            set_random_state(recorded.info.device, recorded.rng)
        searching = NonFiniteSearch(lambda: stack[-1] if stack else "model")
        with searching, _format(recorded):
            own = {} if recorded.weights is None else _leaves(recorded.weights, model, backward)
            output = functional_call(_Made(model, call), own, ()) if own else call.make(model)
            logits = find_logits(output)
            finite = logits is None or bool(torch.isfinite(logits).all())
            if searching.origin is None:
                stack[:] = ["loss"]
                loss = _plain_loss(output, call, recorded.micro)
                if backward and loss is not None and loss.requires_grad:
                    searching.backward = True
                    loss.backward()
    return ReplayResult(searching.origin, finite, None if loss is None else float(loss.detach()))


@contextlib.contextmanager
def _named(model: nn.Module) -> Iterator[list[str]]:
    """The names of the modules that run, innermost last."""
    stack: list[str] = []

    def enter(name: str) -> Any:
        return lambda *_: stack.append(name)

    def leave(*_: Any) -> None:
        if stack:
            stack.pop()

    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(enter(name or "model")))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield stack
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _format(recorded: RecordedPass) -> Iterator[None]:
    """The formats that the step was computed in, or float32 in place of the narrow ones."""
    kind = recorded.info.device.type
    if recorded.wide:
        with torch.autocast(kind, enabled=False), Widened():
            yield
    elif recorded.autocast is not None:
        with torch.autocast(kind, recorded.autocast, cache_enabled=False):
            yield
    else:
        yield


class Widened(TorchDispatchMode):
    """Computes in float32 what asks for a narrower format."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*map(_wide, args), **{name: _wide(value) for name, value in (kwargs or {}).items()})


def _wide(value: Any) -> Any:
    return torch.float32 if isinstance(value, torch.dtype) and value in HALVES else value


class _Made(nn.Module):
    """A call of a model or its parts, as a module without inputs."""

    def __init__(self, model: nn.Module, call: Call) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self) -> Any:
        return self.call.make(self.model)


def _leaves(weights: dict[str, Tensor], model: nn.Module, gradients: bool) -> dict[str, Tensor]:
    """Weights that take gradients where the model's own do, by their names in `_Made`."""
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return {f"model.{name}": w.detach().requires_grad_(gradients and name in trained) for name, w in weights.items()}


def _plain_loss(output: Any, call: Call, micro: Micro | None) -> Tensor | None:
    """The model's own loss, or a mean cross-entropy with the labels there are."""
    own, logits = find_loss(output), find_logits(output)
    if own is not None:
        return own
    labels = micro.labels if micro is not None and micro.labels is not None else call.labels
    if labels is None and call.ids is not None:
        labels = torch.cat([call.ids[:, 1:], torch.full_like(call.ids[:, :1], IGNORED)], 1)
    if logits is None or labels is None or labels.numel() * logits.shape[-1] != logits.numel():
        return None if logits is None else logits.float().mean()
    return F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), labels.to(logits.device).flatten(), ignore_index=IGNORED
    )
