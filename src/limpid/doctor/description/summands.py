"""The summands of a loss: what each is worth in the gradient, beside the whole."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

TERMS, LEAVES, NODES = 6, 2, 256
"""Parts that are told, weights at which a part is told that does not reach the outputs, nodes looked at for them."""
ROOM = 2**24
"""Entries of the outputs, in all, beyond which the gradient of no single part is formed."""
SCALED = ("MulBackward0", "DivBackward0", "NegBackward0", "ToCopyBackward0", "CloneBackward0", "AliasBackward0")
SHAPED = ("ViewBackward0", "SqueezeBackward0", "SqueezeBackward1", "UnsqueezeBackward0", "ReshapeAliasBackward0")
MEANS = ("MeanBackward0", "MeanBackward1", "SumBackward0", "SumBackward1")
SUMS = ("AddBackward0", "SubBackward0")
Edge = tuple[Any, int]
"""A node of the graph, and which of what it made."""


@dataclass
class Leaf:
    """A weight that a part learns by, where it does not reach the outputs."""

    size: Tensor  # norm of the part's gradient
    weight: Tensor | None  # until the pass is over
    before: Tensor | None  # its gradient before the pass
    whole: Tensor | None = None  # norm of what the pass added to it

    def ended(self) -> None:
        if self.weight is not None and self.weight.grad is not None:
            self.whole = (self.weight.grad.float() - (0.0 if self.before is None else self.before.float())).norm()
        self.weight = self.before = None

    def told(self, name: str, scale: float) -> str:
        of = "" if self.whole is None else f" of {float(self.whole) / scale:.3g}"
        return f"{float(self.size) / scale:.3g}{of} at {name}"


@dataclass
class Summand:
    """One of them, as the first backward pass of a step finds it."""

    name: str
    node: Any  # until the pass is over
    factor: Tensor  # the gradient that comes to it, in sum
    leaves: dict[str, Leaf]
    size: Tensor | None = None  # of its gradient at the outputs, all passes; None where it does not reach them
    cosine: Tensor | None = None  # of this to that of the whole

    def ended(self) -> None:
        """The backward pass is over."""
        self.node = None
        for leaf in self.leaves.values():
            leaf.ended()

    def told(self, known: str, scale: float) -> str:
        """`known` is what is said of it where a loss function of torch's made it."""
        what = known or f"{float(self.factor) / scale:.3g} × {self.name}"
        if self.size is not None and self.cosine is not None:
            along = f" (cosine to the whole's {float(self.cosine):.2f})" if float(self.size) else ""
            return f"{what}, gradient {float(self.size) / scale:.3g} at the outputs{along}"
        at = "".join(f", {leaf.told(name, scale)}" for name, leaf in self.leaves.items())
        return f"{what}, no gradient at the outputs{at}"


def summands_of(root: Tensor, outputs: Sequence[Edge], made: Sequence[Any], names: Mapping[int, str]) -> list[Summand]:
    """Of a loss that its backward pass is about to begin with; none where it is no sum.

    made    nodes of what loss functions returned, which are no sums
    """
    ends = {node for node, _ in outputs} | set(made)
    edges = _scalars(root.grad_fn, ends)
    if len(edges) == 1:
        edges = _elementwise(edges[0], ends)
    if not 1 < len(edges) <= TERMS:
        return []
    places = [GradientEdge(*place) for place in outputs]
    if sum(_count(*place) for place in outputs) > ROOM:
        return []
    came = torch.autograd.grad(root, [GradientEdge(*edge) for edge in edges], retain_graph=True, allow_unused=True)
    found, gradients = [], []
    for edge, factor in zip(edges, came, strict=True):
        if factor is None:
            return []
        given = _gradients(edge, places, factor)
        leaves = {} if any(one is not None for one in given) else _nearest(edge[0], names, ends)
        at = _gradients(edge, list(leaves.values()), factor)
        kept = {
            name: Leaf(g.float().norm(), leaf, None if leaf.grad is None else leaf.grad.detach().clone())
            for (name, leaf), g in zip(leaves.items(), at, strict=True)
            if g is not None
        }
        gradients.append(given)
        found.append(Summand(_named(edge[0]), edge[0], factor.sum(), kept))
    _compare(found, gradients)
    return found


def _compare(found: Sequence[Summand], gradients: Sequence[Sequence[Tensor | None]]) -> None:
    """Sizes at the outputs, and directions beside their sum."""
    columns = [[one.float() for one in column if one is not None] for column in zip(*gradients, strict=True)]
    wholes = [sum(column, torch.zeros(())) for column in columns]
    whole = _sum(one.square().sum() for one in wholes).sqrt()
    for part, given in zip(found, gradients, strict=True):
        there = [(one.float(), total) for one, total in zip(given, wholes, strict=True) if one is not None]
        if there:
            part.size = _sum(one.square().sum() for one, _ in there).sqrt()
            along = _sum((one * total).sum() for one, total in there)
            part.cosine = along / (part.size * whole).clamp(min=1e-30)


def _sum(numbers: Iterator[Tensor]) -> Tensor:
    return torch.stack(list(numbers)).sum()


def _gradients(edge: Edge, places: Sequence[Any], factor: Tensor) -> list[Tensor | None]:
    if not places:
        return []
    given = torch.autograd.grad(GradientEdge(*edge), places, factor, retain_graph=True, allow_unused=True)
    return list(given)


def _scalars(root: Any, ends: set[Any]) -> list[Edge]:
    """Numbers that a number is the sum of, each times a factor that does not learn."""
    todo: list[Edge] = [(root, 0)]
    found: list[Edge] = []
    while todo and len(found) <= TERMS:
        node, slot = todo.pop(0)
        after = _after(node)
        one_number = all(_count(*edge) == 1 for edge in after)
        if node in ends or not after or not one_number:
            stacked = node.name() in MEANS and len(after) == 1 and after[0][0].name() == "StackBackward0"
            below = _after(after[0][0]) if stacked and node not in ends else []
            if below and all(_count(*edge) == 1 for edge in below):
                todo[:0] = below
            else:
                found.append((node, slot))
        elif node.name() in SUMS or (node.name() in SCALED + SHAPED and len(after) == 1):
            todo[:0] = after
        else:
            found.append((node, slot))
    return found


def _elementwise(edge: Edge, ends: set[Any]) -> list[Edge]:
    """What is added entry by entry before the mean that a loss is, such as a divergence at each place."""
    node, slot = edge
    while node not in ends:
        after = _after(node)
        if node.name() == "AddBackward0" and len(after) == 2:
            return after
        if len(after) != 1 or node.name() not in SCALED + SHAPED + MEANS:
            break
        node, slot = after[0]
    return [(node, slot)]


def _after(node: Any) -> list[Edge]:
    return [(one, slot) for one, slot in node.next_functions if one is not None]


def _count(node: Any, slot: int) -> int:
    """Entries of what a node made."""
    return math.prod(node._input_metadata[slot].shape)


def _nearest(node: Any, names: Mapping[int, str], ends: set[Any]) -> dict[str, Tensor]:
    """The weights that a part learns by, the nearest first."""
    todo, seen = [node], {node}
    found: dict[str, Tensor] = {}
    while todo and len(seen) < NODES and len(found) < LEAVES:
        for one, _ in _after(todo.pop(0)):
            leaf = getattr(one, "variable", None)
            if leaf is not None and id(leaf) in names and len(found) < LEAVES:
                found[names[id(leaf)]] = leaf
            if one not in seen and one not in ends:
                seen.add(one)
                todo.append(one)
    return found


def _named(node: Any) -> str:
    """What made a part: its last operations."""
    said: list[str] = []
    while node is not None and len(said) < 3:
        said.append(node.name().rstrip("0123456789").removesuffix("Backward").lower())
        after = _after(node)
        node = after[0][0] if after else None
    return " of ".join(said)
