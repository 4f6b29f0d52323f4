"""How large what tables give is, what the first block is given of it, and how far outputs spread at first."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from limpid.doctor.calls import find_logits
from limpid.doctor.weights import sample

if TYPE_CHECKING:
    from limpid.doctor.model_info import ModelInfo

ENTRIES = 65536
"""Entries by which the size of a table is measured."""
SHOWN = 4
"""Blocks whose sizes are told one by one."""
OTHER = 1.5
"""How many times as large as its entries what a table gives must be to be told apart from them."""


@dataclass
class Scales:
    """Root mean squares in a pass before the first update."""

    tables: dict[str, tuple[float, float]] = field(default_factory=dict)  # by module: of its entries, of what it gives
    first: float | None = None  # of what the first block is given; None where there are no blocks
    outputs: float | None = None  # deviation of the logits
    of_matrix: float | None = None  # what their matrix would make of a normed input: its size times √width
    blocks: list[float] = field(default_factory=list)  # of what blocks return, in the order of their calls
    normed: list[bool] = field(default_factory=list)  # whether that is what a norm inside of the block gave
    norms: bool = False  # whether blocks have norms

    def told(self) -> Iterator[str]:
        """In sentences, of models with tables or blocks."""
        yield from self._of_blocks()
        if not self.tables or self.first is None:
            return
        said = [
            f"{name} {given:.2g}" + (f" (entries {own:.2g})" if _apart(own, given) else "")
            for name, (own, given) in self.tables.items()
        ]
        spread = ""
        if self.outputs is not None:
            normed = "" if self.of_matrix is None else f" ({self.of_matrix:.2g} of a normed input)"
            spread = f"; outputs spread by {self.outputs:.2g} at first{normed}"
        added = math.hypot(*(given for _, given in self.tables.values()))
        beside = "" if len(said) == 1 else f" ({added:.2g} if added as they are)"
        yield (
            f"size (rms) of what tables give: {', '.join(said)}; of the first block's input "
            f"{self.first:.2g}{beside}{spread}"
        )

    def _of_blocks(self) -> Iterator[str]:
        if not self.blocks or not all(map(math.isfinite, self.blocks)):
            return
        sizes = ", ".join(f"{one:.2g}" for one in self.blocks[:SHOWN])
        more = f" and so on to {self.blocks[-1]:.2g}" if len(self.blocks) > SHOWN else ""
        which = "all" if all(self.normed) else "none" if not any(self.normed) else "some"
        last = f"; {which} return{'' if which == 'all' else 's' if which == 'none' else ''} what a norm of theirs gave"
        yield f"size (rms) of what blocks return: {sizes}{more}{last if self.norms else ''}"


@contextlib.contextmanager
def scales(info: ModelInfo) -> Iterator[Scales]:
    """Seen in the passes that are made meanwhile, of the model or of its core alone."""
    seen = Scales()

    def gives(name: str) -> Any:
        def look(module: nn.Embedding, _: Any, made: Tensor) -> None:
            seen.tables[name] = _size(module.weight), _size(made)

        return look

    def given(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found = (one for one in [*args, *kwargs.values()] if isinstance(one, Tensor) and one.is_floating_point())
        if (one := next(found, None)) is not None:
            seen.first = _size(one)

    def said(_: nn.Module, __: Any, output: Any) -> None:
        logits = find_logits(output)
        words = logits is not None and logits.ndim == 3 and logits.shape[-1] == info.table_rows
        head = (info.head(int(logits.shape[-1])) or info.embedding) if words and logits is not None else None
        if logits is not None and head is not None and head[1].ndim == 2:
            seen.outputs = float(logits.detach().float().std())
            seen.of_matrix = _size(head[1]) * math.sqrt(head[1].numel() / logits.shape[-1])

    gave: dict[int, Tensor] = {}  # what norms inside of blocks gave last

    def norm_gave(module: nn.Module, _: Any, made: Any) -> None:
        if isinstance(made, Tensor):
            gave[id(module)] = made

    def returned(block: nn.Module, _: Any, made: Any) -> None:
        out = made if isinstance(made, Tensor) else next((one for one in made if isinstance(one, Tensor)), None)
        if out is not None and out.is_floating_point() and len(seen.blocks) < len(info.blocks):  # in the first pass
            seen.blocks.append(_size(out))
            seen.normed.append(any(gave.get(id(part)) is out for part in block.modules()))
        gave.clear()

    tables = [(name, module) for name, module in info.model.named_modules() if isinstance(module, nn.Embedding)]
    handles = [module.register_forward_hook(gives(name)) for name, module in tables]
    handles += [module.register_forward_pre_hook(given, with_kwargs=True) for _, module in info.blocks[:1]]
    handles += [module.register_forward_hook(said) for module in {info.core: None, info.model: None}]
    norms = {
        part: None for _, block in info.blocks for part in block.modules() if "norm" in type(part).__name__.lower()
    }
    seen.norms = bool(norms)
    handles += [part.register_forward_hook(norm_gave) for part in norms]
    handles += [block.register_forward_hook(returned) for _, block in info.blocks]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _size(values: Tensor) -> float:
    return float(sample(values, ENTRIES).float().square().mean().sqrt())


def _apart(one: float, other: float) -> bool:
    return max(one, other) > OTHER * min(one, other)
