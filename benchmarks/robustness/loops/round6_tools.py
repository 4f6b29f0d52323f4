"""What the sixth round's loops share beyond the fifth's: a prepared loop, and networks that return their own loss."""

from collections.abc import Callable
from typing import Any

from benchmarks.robustness.loops.case import Run
from torch import Tensor, nn
from torch.nn import functional as F


def classify(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def regress(model: nn.Module, batch: Any) -> Tensor:
    return F.mse_loss(model(batch[0]).flatten(), batch[1])


def prepared(
    run: Run, net: nn.Module, optimizer: Any, data: Any, loss: Callable[[nn.Module, Any], Tensor], epochs: int
) -> None:
    """accelerate's loop around a network, an optimizer and a loader."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    engine = Accelerator(cpu=True)
    model, optimizer, data = engine.prepare(net, optimizer, data)
    doctor = run.watch(model, optimizer)
    for _ in range(epochs):
        for batch in data:
            optimizer.zero_grad()
            value = loss(model, batch)
            engine.backward(value)
            optimizer.step()
            doctor.step(value, batch)
            run.note(value)


class WithLoss(nn.Module):
    """A network as transformers' Trainer wants it: inputs and labels in, the loss and the logits out."""

    def __init__(self, net: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.loss = net, loss

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.net(x)
        return {"logits": logits} if labels is None else {"loss": self.loss(logits, labels), "logits": logits}
