"""What the first layer with weights is given of measured numbers, where the model has changed them on their way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limpid.doctor.calls import find_rows
from limpid.doctor.description.inputs import measured
from limpid.doctor.description.others import outputs

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam

LAYERS = (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)


@dataclass(frozen=True)
class Entered:
    """Numbers on their way into a layer."""

    layer: str
    numbers: str

    def told(self) -> Iterator[str]:
        """In a sentence."""
        yield f"the first layer called, {self.layer}, is given {self.numbers}"


def entered(exam: Exam) -> Entered | None:
    """Of a pass in evaluation mode; None of tokens, and where the layer is given what the model is given."""
    call = exam.few_rows
    layers: dict[nn.Module, str] = {m: n for n, m in exam.info.model.named_modules() if isinstance(m, LAYERS)}
    if call is None or call.ids is not None or exam.info.translates:
        return None
    first: list[tuple[str, Tensor]] = []

    def look(module: nn.Module, args: tuple[Any, ...]) -> None:
        if not first and args and isinstance(args[0], Tensor) and args[0].is_floating_point() and args[0].numel():
            first.append((layers[module], args[0].detach()))

    handles = [layer.register_forward_pre_hook(look) for layer in layers]
    try:
        outputs(exam, call.without_loss(), find_rows)
    finally:
        for handle in handles:
            handle.remove()
    if not first:
        return None
    name, x = first[0]
    given = [one for one in call.tensors.values() if one.is_floating_point() and one.layout == torch.strided]
    if any(one.numel() == x.numel() and bool(torch.equal(one.reshape(x.shape).to(x), x)) for one in given):
        return None
    return Entered(name or type(exam.info.core).__name__, f"{' × '.join(map(str, x.shape))}, {measured(x)}")
