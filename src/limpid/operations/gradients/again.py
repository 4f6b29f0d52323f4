"""A recorded call in float64: on what the engine had, to be differentiated, or on what it would have had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from limpid.adjoints.aten import DRAWN, mapped, outputs_of, short_name
from limpid.adjoints.widened import NARROW
from limpid.operations.gradients.entry import Entry, is_fraction, is_plain
from limpid.operations.gradients.memory import Exact, place_of
from limpid.operations.gradients.rules import functions
from limpid.operations.redo import written


class Again(NamedTuple):
    """Results, and the leaves that stand for arguments that may be differentiated."""

    results: list[Tensor | None]
    leaves: list[tuple[Tensor, Tensor]]  # a view of an argument, and its leaf


def again(
    entry: Entry,
    function: Callable[..., Any],
    value: Callable[[Tensor], Tensor],
    is_leaf: Callable[[Tensor], bool] = lambda _: False,
    along: Callable[[Tensor], Tensor | None] = lambda _: None,
) -> Again:
    """The call with other numbers in its arguments, all in float64.

    along  directions of arguments, of which results have the derivative, where there is a dual level of PyTorch

    Raises  what the function raises, or ValueError for what is no plain tensor
    """
    leaves, copies = list[tuple[Tensor, Tensor]](), list[Tensor | None]()
    over = set(written(entry.operation))

    def wide(one: Tensor, is_over: bool) -> Tensor:
        if not is_plain(one):
            raise ValueError("no plain tensor")
        numbers = value(one).detach()
        if not is_fraction(one):
            return numbers.clone() if is_over else numbers
        leaf = numbers.to(torch.complex128 if one.is_complex() else torch.float64)
        leaf = leaf.clone() if leaf is numbers else leaf
        if is_leaf(one):
            leaves.append((one, leaf.requires_grad_()))
        if (direction := along(one)) is not None:
            leaf = forward_ad.make_dual(leaf, direction)
        if not is_over:
            return leaf
        copy = leaf.clone()
        copies.append(copy)
        return copy

    def given(name: str, one: Any) -> Any:
        if isinstance(one, torch.dtype):
            return _wide_format(one)
        return mapped(one, lambda tensor: wide(tensor, name in over))

    names = [one.name for one in entry.operation._schema.arguments]
    args = [given(name, one) for name, one in zip(names, entry.args, strict=False)]
    kwargs = {name: given(name, one) for name, one in entry.kwargs.items()}
    made = function(*args, **kwargs)
    return Again(outputs_of(made) if made is not None else copies, leaves)


def _wide_format(form: torch.dtype) -> torch.dtype:
    return torch.float64 if form in NARROW else torch.complex128 if form == torch.complex64 else form


def follow(entry: Entry, exact: Exact) -> None:
    """What a call that was just made would have made without any rounding before it."""
    if is_view(entry) or not _is_new(entry, exact):
        return

    def value(one: Tensor) -> Tensor:
        return exact.view(one) if exact.has(one) else given_to(entry, one)

    results: list[Tensor | None] = entry.made  # where nothing else is known, what the engine made
    if short_name(entry.operation) not in DRAWN:
        for function in functions(entry.operation, entry.made):
            try:
                results = again(entry, function, value).results
            except Exception:
                continue
            break
    for view, numbers in zip(entry.made, results, strict=False):
        if view is not None:
            kept = numbers is not None and numbers.numel() == view.numel()
            if written(entry.operation):
                before = exact.view(view) if exact.has(view) else given_to(entry, view)
                entry.exact_before.append((view, before.clone()))
            exact.write(view, numbers.reshape(view.shape) if kept and numbers is not None else view)


def _is_new(entry: Entry, exact: Exact) -> bool:
    """Whether it makes fractions, or whole numbers of what may be others than the engine's."""
    met = list[bool]()
    mapped([entry.args, list(entry.kwargs.values())], lambda one: met.append(is_plain(one) and exact.has(one)))
    return any(one is not None and (is_fraction(one) or any(met)) for one in entry.made)


def given_to(entry: Entry, one: Tensor) -> Tensor:
    """An argument's numbers as the engine had them before the call."""
    return next((numbers for view, numbers in entry.before if _is_same(view, one)), one)


def _is_same(one: Tensor, other: Tensor) -> bool:
    return (one.data_ptr(), one.shape, one.stride()) == (other.data_ptr(), other.shape, other.stride())


def is_view(entry: Entry) -> bool:
    """Whether it gives memory that it was given: what lies beside memory stays where it is."""
    if torch.Tag.inplace_view in entry.operation.tags:
        return True
    if written(entry.operation):
        return False
    given = set[int]()
    mapped([entry.args, list(entry.kwargs.values())],
           lambda one: given.add(place_of(one)) if is_plain(one) else None)  # fmt: skip
    return all(one is None or place_of(one) in given for one in entry.made)
