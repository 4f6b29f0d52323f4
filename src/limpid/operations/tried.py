"""A forward pass with chosen operations in another format, or disturbed by as much as that format rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from limpid.adjoints.aten import mapped, short_name
from limpid.operations.formats import Format
from limpid.operations.forward import Forward, buffers_kept, factors, is_in_place, is_wide, operands, replaced
from limpid.operations.widened import as_drawn

Change = Callable[[Tensor, Format], Tensor]
FormatOf = Callable[[str, str], Format | None]
"""Of a call, by its module and operation; None where it stays as it is."""


class Tried(Forward):
    """Chosen calls take their operands and give their results in another format, or disturbed as by its rounding."""

    def __init__(self, model: nn.Module, format_of: FormatOf, change: Change) -> None:
        super().__init__(model)
        self.format_of, self.change = format_of, change

    def computed(self, func: Any, args: Any, kwargs: Any, node: int) -> Any:
        form = self.format_of(self.module, short_name(func))
        if form is None:
            return func(*args, **kwargs)
        return done_in(func, args, kwargs, form, self.change)


def rounded(tensor: Tensor, form: Format) -> Tensor:
    """The change that a format makes."""
    return form.rounded(tensor)


def in_format(
    func: Any,
    args: Any,
    kwargs: Any,
    form: Format,
    value: Callable[[Tensor], Tensor] = lambda one: one,
    change: Change = rounded,
) -> Any:
    """What a call makes in a format; of what it writes over, a copy.

    value  what stands for a tensor that it is given
    """
    own = {func._schema.arguments[0].name} if is_in_place(func) else set[str]()
    names = set(factors(func)) if form.is_of_factors else own | set(operands(func, args, kwargs))

    def changed(tensor: Tensor) -> Tensor:
        return change(tensor, form) if is_wide(tensor) else tensor

    def given(name: str, one: Any) -> Any:
        found = mapped(one, value)
        return mapped(found, changed) if name in names else found

    args, kwargs = replaced(func, args, kwargs, given)
    made = func(*_copied(func, args), **kwargs)
    if form.is_of_factors:
        return made
    found = mapped(made, changed)
    return tuple(found) if isinstance(made, tuple) else found


def done_in(func: Any, args: Any, kwargs: Any, form: Format, change: Change = rounded) -> Any:
    """The call itself in a format: what it writes over is written."""
    made = in_format(func, args, kwargs, form, change=change)
    if not is_in_place(func):
        return made
    args[0].copy_(made)
    return args[0]


def with_values(func: Any, args: Any, kwargs: Any, value: Callable[[Tensor], Tensor]) -> Any:
    """What a call makes of other values; of what it writes over, a copy."""
    args, kwargs = replaced(func, args, kwargs, lambda _, one: mapped(one, value))
    return func(*_copied(func, args), **kwargs)


def _copied(func: Any, args: Any) -> Any:
    return (args[0].clone(), *args[1:]) if is_in_place(func) and isinstance(args[0], Tensor) else args


def loss_with(
    model: nn.Module, function: Callable[[], Tensor], state: Tensor, format_of: FormatOf, change: Change = rounded
) -> float:
    """The number that a function gives, chosen operations changed, random masks as they were."""
    mode = Tried(model, format_of, change)
    with as_drawn(state), buffers_kept(model), mode.watching():
        return float(function().detach())
