"""The way of the gradient from a loss to what the model gave: into which passes, through which weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules._functions import BackwardHookFunction

from limpid.doctor.description.couplings import Coupling, couplings_of
from limpid.doctor.description.summands import Summand, summands_of
from limpid.doctor.description.words import listed, patterns
from limpid.doctor.shield import Obstacle, Shield
from limpid.doctor.undisturbed import undisturbed

MOST = 4096
"""Nodes of a graph that are walked between a loss and the outputs: about five milliseconds."""
PASSES, TERMS = 8, 6
"""Forward passes of one backward pass, and parts of one loss, that are told."""
RESHAPED = ("TBackward", "TransposeBackward", "PermuteBackward", "ViewBackward", "UnsqueezeBackward", "ToCopyBackward")
"""What a weight goes through on its way into an operation."""
LIBRARIES = ("torch.", "limpid.")
REST = 0.01
"""Share of a loss from which on the rest of it is told."""


@dataclass
class Term:
    """What a loss function of torch's returned, and what its gradient was multiplied by."""

    name: str
    value: Tensor
    reduction: str
    factor: Tensor | None = None  # None where no gradient came

    def told(self, scale: float) -> str:
        factor = 0.0 if self.factor is None else float(self.factor) / scale
        return f"{factor:.3g} × {self.name} {float(self.value):.4g} ({self.reduction})"

    def is_less_than(self, loss: float | None, scale: float) -> bool:
        """Whether something else is in the loss, too."""
        if loss is None or self.factor is None or self.value.numel() != 1:
            return False
        return not math.isclose(loss, float(self.factor) / scale * float(self.value), rel_tol=REST)


@dataclass
class OwnFunction:
    """An autograd.Function of somebody's own that returns one number: what its backward pass is given and gives."""

    name: str
    given: Tensor
    handed_on: Tensor  # the norm
    doubled: float | None  # of what goes out, if twice as much comes in; None where that could not be tried

    def told(self) -> str:
        twice = (
            "" if self.doubled is None else f"; if twice as much came in, {self.doubled:.3g} times as much would go out"
        )
        return (
            f"{self.name} is an autograd function of one's own: {float(self.given):.3g} comes into its backward pass, "
            f"a gradient of norm {float(self.handed_on):.3g} goes out{twice}"
        )


@dataclass
class GradientWays:
    """Of one step's first backward pass."""

    names: Mapping[int, str]  # of parameters, by identity
    alone: bool  # whether no other process takes part
    outputs: dict[int, tuple[Any, int]] = field(default_factory=dict)  # node and slot, by forward pass
    terms: list[Term] = field(default_factory=list)
    own: list[type] = field(default_factory=list)  # Functions of somebody's own between the outputs and the loss
    functions: list[OwnFunction] = field(default_factory=list)
    came: dict[tuple[str, ...], dict[int, list[Tensor]]] = field(default_factory=dict)  # norms, by weights and pass
    passes: int = 0  # that the backward pass found
    sums: list[tuple[Summand, Term | None]] = field(default_factory=list)  # of the loss, and what made each
    couplings: list[Coupling] = field(default_factory=list)  # of rows of the outputs
    _begun: bool = False
    _beside: list[tuple[Any, int]] = field(default_factory=list)  # node and slot of other outputs
    _compared: list[Any] = field(default_factory=list)  # nodes of the terms
    _removed: list[Any] = field(default_factory=list)

    def gave(self, index: int, rows: Tensor, beside: Sequence[Tensor]) -> None:
        """What a forward pass returned: numbers of its rows, and others such as a value of each row."""
        if not self._begun:
            self.outputs[index] = rows.grad_fn, rows.output_nr
            counts = [math.prod(rows.shape[:axes]) for axes in range(1, rows.ndim + 1)]
            alike = [one for one in beside if one is not rows and one.grad_fn is not None and one.numel() in counts]
            self._beside += [(one.grad_fn, one.output_nr) for one in alike]

    def compared(self, name: str, value: Tensor, reduction: str) -> None:
        """What a loss function returned."""
        node = value.grad_fn
        if node is None or self._begun or len(self.terms) >= TERMS or any(node is one for one in self._compared):
            return
        term, slot = Term(name, value.detach().mean(), reduction), value.output_nr
        self.terms.append(term)
        self._compared.append(node)

        def back(gradients: tuple[Tensor | None, ...]) -> None:
            if (gradient := gradients[slot]) is not None:
                term.factor = gradient.detach().sum()

        self._removed.append(node.register_prehook(back))

    def begins(self, root: Tensor, splits: bool) -> None:
        """A backward pass is about to start; `splits` where parts of it may be made before."""
        if self._begun or root.grad_fn is None:
            return
        self._begun, self.passes = True, len(self.outputs)
        graph = _Graph(root.grad_fn, self.outputs)
        if splits and self.alone and root.numel() == 1 and self.outputs and not (graph.own or graph.hooked):
            self._find_summands(root)
            self._find_couplings(root)
        for node, places in graph.entered.items():
            through = tuple(patterns(self.names.get(one, "other weights") for one in graph.through(node)))
            kinds = ([()] if graph.is_straight(node) else []) + ([through] if through else [])
            self._hook(node, places, kinds[0] if len(kinds) == 1 else ("", *through))
        for node in graph.own:
            self._follow(node)
        self.outputs, self._beside, self._compared = {}, [], []

    def _find_summands(self, root: Tensor) -> None:
        """Summands of the loss by backward passes of their own, from each to the outputs and no further."""
        made = dict(zip(map(id, self._compared), self.terms, strict=True))
        try:
            found = summands_of(root, [*self.outputs.values(), *self._beside], self._compared, self.names)
        except RuntimeError:  # compiled code that can run backward once
            return
        self.sums = [(part, made.get(id(part.node))) for part in found]

    def _find_couplings(self, root: Tensor) -> None:
        try:
            self.couplings = couplings_of(root, self.outputs)
        except RuntimeError:  # an operation without a second derivative
            return

    def ended(self) -> None:
        """It is over: nothing is held of the graph."""
        if self._begun:
            for part, _ in self.sums:
                part.ended()
            for handle in self._removed:
                handle.remove()
            self._removed.clear()

    def _hook(self, node: Any, places: Sequence[tuple[int, int]], way: tuple[str, ...]) -> None:
        kept = self.came.setdefault(way, {})

        def back(handed_on: tuple[Tensor | None, ...], _: Any) -> None:
            for place, index in places:
                if (gradient := handed_on[place]) is not None:
                    kept.setdefault(index, []).append(gradient.detach().float().norm())

        self._removed.append(node.register_hook(back))

    def _follow(self, node: Any) -> None:
        function = type(node)._forward_cls
        self.own.append(function)

        def back(handed_on: tuple[Tensor | None, ...], given: tuple[Tensor | None, ...]) -> None:
            if len(given) != 1 or given[0] is None or given[0].numel() != 1 or len(self.functions) >= TERMS:
                return
            norms = [one.detach().float().norm() for one in handed_on if one is not None]
            if norms:
                twice = _doubled(function, node, given[0], handed_on) if self.alone else None
                size = torch.stack(norms).norm()
                self.functions.append(OwnFunction(function.__name__, given[0].detach().reshape(()), size, twice))

        self._removed.append(node.register_hook(back))

    def told(self) -> Iterator[str]:
        """In sentences; nothing of one pass whose loss is of its outputs alone."""
        if self.came and (self.passes > 1 or any(self.came)):
            passes = range(min(PASSES, 1 + max(index for kept in self.came.values() for index in kept)))
            said = []
            for way in sorted(self.came, key=lambda one: (len(one) > 0, one)):
                norms = [_norm(self.came[way].get(index)) for index in passes]
                said.append(f"{', '.join(norms)} {_which(way)}")
            straight = any(way[:1] in ((), ("",)) for way in self.came)
            none = "" if straight else "; none straight from the loss"
            yield f"gradient at the outputs by forward pass (norm): {'; '.join(said)}{none}"
        yield from (one.told() for one in self.functions)

    def parts(self, scale: float, loss: float | None) -> Iterator[str]:
        """The loss as the sum that its gradient shows, where it is more than what one function of torch's returned."""
        if self.sums:
            said = [part.told("" if term is None else term.told(scale), scale) for part, term in self.sums]
            yield f"parts of the loss, each times its factor in the gradient: {'; '.join(said)}"
        elif len(self.terms) > 1 and any(one.factor is not None for one in self.terms):
            yield "parts of the loss, each times its factor in the gradient: " + ", ".join(
                one.told(scale) for one in self.terms
            )
        elif len(self.terms) == 1 and self.terms[0].is_less_than(loss, scale):
            yield f"what a function of torch's has in it, times its factor in the gradient: {self.terms[0].told(scale)}"


def _norm(norms: list[Tensor] | None) -> str:
    return f"{math.hypot(*map(float, norms)):.3g}" if norms else "none"


def _which(way: tuple[str, ...]) -> str:
    if not way:
        return "straight from the loss"
    weights = listed([one for one in way if one], 2)
    return f"straight from the loss and through {weights} in one" if way[0] == "" else f"through {weights}"


class _Graph:
    """The nodes between a loss and the outputs, from the loss on."""

    def __init__(self, root: Any, outputs: Mapping[int, tuple[Any, int]]) -> None:
        found = {node: (index, slot) for index, (node, slot) in outputs.items()}
        self.root = root
        self.entered: dict[Any, list[tuple[int, int]]] = {}  # place of the edge, forward pass
        self.own: list[Any] = []
        self.hooked = False  # whether a module between hooks into the pass
        self._before: dict[Any, list[Any]] = {}
        self._weights: dict[Any, list[int]] = {}
        todo, seen = [root], {root}
        while todo and len(seen) < MOST:
            node = todo.pop()
            if node in found and node is not root:
                continue
            kind = getattr(type(node), "_forward_cls", None)
            self.hooked |= kind is BackwardHookFunction
            if kind is not None and not kind.__module__.startswith(LIBRARIES):
                self.own.append(node)
            for place, (after, slot) in enumerate(node.next_functions):
                if after is None:
                    continue
                if (leaf := None if after in found else _leaf(after)) is not None:
                    self._weights.setdefault(node, []).append(id(leaf))
                    continue
                self._before.setdefault(after, []).append(node)
                if after in found and found[after][1] == slot:
                    self.entered.setdefault(node, []).append((place, found[after][0]))
                if after not in seen:
                    seen.add(after)
                    todo.append(after)

    def through(self, node: Any) -> list[int]:
        """Identities of the leaves that take part between a node and the loss, it included, the nearest first."""
        return [leaf for one in self._above(node, False) for leaf in self._weights.get(one, ())]

    def is_straight(self, node: Any) -> bool:
        """Whether a way from it to the loss has no leaf on it."""
        return self.root in self._above(node, True)

    def _above(self, node: Any, bare: bool) -> list[Any]:
        if bare and node in self._weights:
            return []
        seen = {node: None}  # in the order in which they were met
        todo = [node]
        while todo:
            for before in self._before.get(todo.pop(0), ()):
                if before not in seen and not (bare and before in self._weights):
                    seen[before] = None
                    todo.append(before)
        return list(seen)


def _leaf(node: Any) -> Tensor | None:
    """The leaf that a node is, or that reaches it turned or in another format alone."""
    while node is not None and node.name().rstrip("0123456789") in RESHAPED:
        node = node.next_functions[0][0]
    leaf: Tensor | None = getattr(node, "variable", None)
    return leaf


def _doubled(function: Any, node: Any, given: Tensor, handed_on: Sequence[Tensor | None]) -> float | None:
    """How many times as large what goes out of a backward pass is along itself, when twice as much comes in."""
    try:
        with undisturbed(Shield(None, [function.backward])):
            made = function.backward(node, 2 * given)
    except (Obstacle, RuntimeError, TypeError, ValueError, AttributeError):
        return None
    made = made if isinstance(made, tuple | list) else (made,)
    both = [(a, b) for a, b in zip(handed_on, made, strict=False) if a is not None and isinstance(b, Tensor)]
    size = sum(float(a.detach().double().square().sum()) for a, _ in both)
    along = sum(float((a.detach().double() * b.detach().double()).sum()) for a, b in both if a.shape == b.shape)
    return along / size if size else None
