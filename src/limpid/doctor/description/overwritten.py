"""Modules that write over what they are given, in place: whoever reads it afterwards reads something else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from limpid.doctor.calls import find_rows
from limpid.doctor.description.others import outputs
from limpid.doctor.description.words import listed

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam


@dataclass(frozen=True)
class Overwritten:
    """By name, modules with parts, none of which calls them one after another alone, as `nn.Sequential` does."""

    names: tuple[str, ...]

    def told(self) -> Iterator[str]:
        """In a sentence, where there are such."""
        if self.names:
            many = len(self.names) > 1
            how = "overwrite in place what they are given" if many else "overwrites in place what it is given"
            yield f"{listed(list(self.names), 4)} {how}"


def overwritten(exam: Exam) -> Overwritten | None:
    """Seen in one pass of a few rows, by the counters that tensors keep of writes in place."""
    call = None if exam.info.translates else exam.few_rows
    if call is None:
        return None
    given: dict[int, list[tuple[Tensor, int]]] = {}
    found: dict[str, None] = {}
    names = {
        module: name
        for name, module in exam.info.model.named_modules()
        if name and any(module.children()) and not isinstance(module, nn.Sequential)
    }

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = [one for one in [*args, *kwargs.values()] if isinstance(one, Tensor) and one.is_floating_point()]
        given[id(module)] = [(one, one._version) for one in tensors if not one.is_inference()]

    def after(module: nn.Module, *_: Any) -> None:
        if any(one._version != version for one, version in given.pop(id(module), [])):
            found[names[module]] = None

    handles = [module.register_forward_pre_hook(before, with_kwargs=True) for module in names]
    handles += [module.register_forward_hook(after) for module in names]
    try:
        outputs(exam, call.without_loss(), find_rows)
    finally:
        for handle in handles:
            handle.remove()
    return Overwritten(tuple(found))
