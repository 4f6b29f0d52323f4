"""The parameters that a loss depends on, found in its graph: also those that the watched model does not know."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from limpid.doctor.weights import sample

ELEMENTS = 64
MOST = 200_000
"""Nodes that are walked; of larger graphs the rest is not known."""


def other_leaves(root: Any, known: Container[int]) -> list[nn.Parameter]:
    """Parameters that a loss will give a gradient to, but for those whose identities are known."""
    leaves = (getattr(node, "variable", None) for node in _nodes(root))
    return [leaf for leaf in leaves if isinstance(leaf, nn.Parameter) and id(leaf) not in known]


def reaches_any(root: Any, known: Container[int]) -> bool:
    """Whether one of the tensors whose identities are known is a leaf of a loss's graph."""
    return any(id(getattr(node, "variable", None)) in known for node in _nodes(root))


def has_own_backward(root: Any) -> bool:
    """Whether an autograd.Function that is not PyTorch's own stands between a loss and its leaves."""
    kinds = (getattr(type(node), "_forward_cls", None) for node in _nodes(root))
    return any(kind is not None and not kind.__module__.startswith("torch.") for kind in kinds)


def _nodes(root: Any) -> Iterator[Any]:
    start = root.grad_fn if isinstance(root, Tensor) else None
    todo, seen = [start], {start}
    while todo and len(seen) < MOST:
        node = todo.pop()
        if node is None:
            continue
        yield node
        for after, _ in node.next_functions:
            if after not in seen:
                seen.add(after)
                todo.append(after)


@dataclass
class OtherLeaf:
    """A parameter of nobody's that had a gradient, and what it was when first seen."""

    parameter: nn.Parameter
    first: Tensor
    times: int = 1

    @classmethod
    def of(cls, parameter: nn.Parameter) -> OtherLeaf:
        return cls(parameter, sample(parameter, ELEMENTS).clone())

    @property
    def stands_still(self) -> bool:
        return bool(torch.equal(self.first, sample(self.parameter, ELEMENTS)))


def path_to(model: nn.Module, parameter: Tensor) -> str:
    """Where a module keeps a parameter that it does not register, as in a list of blocks; nothing where it does not."""
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute.startswith("_"):
                continue
            keys = value.items() if isinstance(value, dict) else ()
            parts = keys or (enumerate(value) if isinstance(value, list | tuple) else [("", value)])
            for key, part in parts:
                inner = dict(part.named_parameters()) if isinstance(part, nn.Module) else {"": part}
                leaf = next((leaf for leaf, held in inner.items() if held is parameter), None)
                if leaf is not None:
                    place = f"{name}.{attribute}" if name else attribute
                    return f"{place}[{key!r}]".replace("['']", "") + (f".{leaf}" if leaf else "")
    return ""
