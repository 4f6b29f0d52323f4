"""One step again, operation by operation, until the first number that should not be."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from limpid.doctor.anatomy import Anatomy
from limpid.doctor.calls import IGNORED, Call, Micro, find_logits, find_loss
from limpid.doctor.undisturbed import undisturbed

FILLS = ("masked_fill", "where", "full", "fill", "scalar_tensor", "new_full")
"""Operations that place values: an infinity in their output is a mask."""


UNSET = ("empty", "new_empty", "_local_scalar")
"""Operations whose output holds nothing yet."""


@dataclass
class Culprit:
    """The first operation that made a number that is none."""

    op: str
    module: str
    backward: bool
    largest: float  # of its finite inputs
    inputs: tuple[str, ...]  # formats and shapes
    dtype: torch.dtype
    empty_rows: int = 0  # rows of a softmax with nothing visible
    rows: tuple[int, ...] = ()  # of the batch
    exact_largest: float | None = None  # of the same operation in float64
    chain: list[str] = field(default_factory=list)  # modules whose largest value grew on the way


class Searching(TorchDispatchMode):
    """Stops looking at the first bad output; passes everything on unchanged."""

    def __init__(self, where: Callable[[], str]) -> None:
        super().__init__()
        self.where, self.found, self.backward = where, None, False
        self.bad_inputs: str | None = None

    found: Culprit | None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.found is None and isinstance(out, Tensor) and out.is_floating_point() and out.numel():
            with contextlib.suppress(Exception):  # an operation that we cannot judge is not the culprit
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
        culprit = Culprit(
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
            culprit.empty_rows = int(empty.sum())
        bad = ~torch.isfinite(out)
        if out.ndim > 1:
            culprit.rows = tuple(bad.flatten(1).any(1).nonzero()[:, 0].tolist()[:16])
        if out.dtype in (torch.float16, torch.bfloat16):
            wide = [a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
            again = func(*wide, **kwargs)
            if isinstance(again, Tensor) and bool(torch.isfinite(again).all()):
                culprit.exact_largest = float(again.abs().max())
        self.found = culprit


def search(
    anatomy: Anatomy, call: Call, micro: Micro | None, rng: Tensor | None, backward: bool = True
) -> tuple[Culprit | None, bool]:
    """The first bad operation of a call (and of the way back), and whether logits came out finite."""
    stack: list[str] = []
    handles = []
    model = anatomy.model

    def enter(name: str) -> Any:
        def push(*_: Any) -> None:
            stack.append(name)

        return push

    def leave(*_: Any) -> None:
        if stack:
            stack.pop()

    mode = Searching(lambda: stack[-1] if stack else "model")
    finite = True
    with undisturbed(model, gradients=backward):
        model.train()
        if rng is not None:
            torch.set_rng_state(rng)
        for name, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(enter(name or "model")))
            handles.append(module.register_forward_hook(leave, always_call=True))
        try:
            with mode:
                output = call.make(model)
                logits = find_logits(output)
                finite = logits is None or bool(torch.isfinite(logits).all())
                if mode.found is None and backward:
                    stack[:] = ["loss"]
                    loss = _plain_loss(output, call, micro)
                    if loss is not None and loss.requires_grad:
                        mode.backward = True
                        loss.backward()
        finally:
            for handle in handles:
                handle.remove()
    return mode.found, finite


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


def _flat(values: Any) -> list[Any]:
    return [e for v in values for e in (_flat(v) if isinstance(v, tuple | list) else [v])]
