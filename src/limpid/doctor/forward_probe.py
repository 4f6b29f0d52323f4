"""One forward pass seen module by module: who is called, and what passes through."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from limpid.doctor.calls import Call
from limpid.doctor.model_info import ModelInfo
from limpid.doctor.shield import Shield
from limpid.doctor.undisturbed import seeded, undisturbed


@dataclass
class Flow:
    """What one forward pass did."""

    called: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)  # parameters that some operation took
    cosine: dict[str, float] = field(default_factory=dict)  # of each block: input and output
    cut: list[str] = field(default_factory=list)  # modules whose output has left the graph, in order
    one_row: set[str] = field(default_factory=set)  # tables looked up at many positions, at one and the same row


def flow(info: ModelInfo, shield: Shield, call: Call) -> Flow:
    """Watch one forward pass, in training mode with gradients on."""
    seen = Flow()
    handles = []
    blocks = dict(info.blocks)

    def hook(name: str) -> Any:
        def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            seen.called.add(name)
            if type(module).forward is nn.Embedding.forward and args and _constant(args[0], call):
                seen.one_row.add(name)
            given = next(
                (v for v in [*args, *kwargs.values()] if isinstance(v, Tensor) and v.is_floating_point()), None
            )
            made = output[0] if isinstance(output, tuple | list) and output else output
            if not isinstance(made, Tensor) or not made.is_floating_point():
                return
            if name in blocks and given is not None and given.shape == made.shape:
                x, y = given.detach().float().flatten(0, -2), made.detach().float().flatten(0, -2)
                seen.cosine[name] = float(torch.nn.functional.cosine_similarity(x, y, dim=-1).mean())
            if not made.requires_grad and any(p.requires_grad for p in module.parameters()):
                seen.cut.append(name)

        return look

    with undisturbed(shield, gradients=True):
        info.model.train()
        seeded()
        for name, module in info.model.named_modules():
            handles.append(module.register_forward_hook(hook(name), with_kwargs=True))
        try:
            call.make(info.model)
        finally:
            for handle in handles:
                handle.remove()
    return seen


def _constant(index: Any, call: Call) -> bool:
    """Whether an index over the positions of the call is the same at each of them."""
    length = 0 if call.ids is None else call.ids.shape[1]
    if not isinstance(index, Tensor) or index.ndim < 1 or length < 8 or index.shape[-1] != length:
        return False
    return bool((index == index.flatten()[0]).all())


def shortcut_gains(info: ModelInfo, shield: Shield, call: Call) -> dict[str, float]:
    """〈v, J v〉/〈v, v〉 of each block for a random v: the share of a change that passes through as it is.

    With x + f(x) the mean is 1 + tr(∂f)/d, near 1; without the shortcut tr(∂f)/d, near 0.
    """
    entered: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {}
    handles = []
    gains: dict[str, float] = {}

    def keep(name: str) -> Any:
        def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            entered[name] = (module, args, kwargs)

        return look

    with undisturbed(shield):
        info.model.eval()
        for name, block in info.blocks:
            handles.append(block.register_forward_pre_hook(keep(name), with_kwargs=True))
        try:
            call.make(info.model)
        finally:
            for handle in handles:
                handle.remove()
        seeded()
        for name, (module, args, kwargs) in entered.items():
            x = args[0] if args else None
            if not isinstance(x, Tensor) or not x.is_floating_point():
                continue
            v = torch.randn_like(x) * x.float().pow(2).mean().sqrt().to(x.dtype) * 1e-3
            with_change, without = (_first(module(y, *args[1:], **kwargs)) for y in (x + v, x))
            if with_change is None or without is None or without.shape != x.shape:
                continue
            change = (with_change - without).float()
            gains[name] = float((change * v.float()).sum() / (v.float() * v.float()).sum())
    return gains


def _first(output: Any) -> Tensor | None:
    made = output[0] if isinstance(output, tuple | list) and output else output
    return made if isinstance(made, Tensor) else None
