"""A recurrence in one operation and a loss over alignments: honest ones pass, and planted faults do not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import limpid
from limpid.operations import Report


class Planted(TorchDispatchMode):
    """One result of the operations of a name is off by 3%."""

    def __init__(self, name: str, output: int) -> None:
        super().__init__()
        self.name, self.output = name, output

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ == self.name:
            result = made[self.output] if isinstance(made, list | tuple) else made
            result.mul_(1.03)
        return made


def lstm(**given: Any) -> Callable[[], Tensor]:
    torch.manual_seed(0)
    unit, inputs = nn.LSTM(3, 5, 2, **given), torch.randn(7, 4, 3, requires_grad=True)

    def loss() -> Tensor:
        made, (hidden, cell) = unit(inputs)
        return made.square().sum() + hidden.sum() + cell.cos().sum()

    return loss


def ctc(long: int = 12, zero_infinity: bool = False) -> Callable[[], Tensor]:
    torch.manual_seed(0)
    scores = torch.randn(long, 3, 6, requires_grad=True)
    targets, counts = torch.tensor([[1, 2, 2, 5], [3, 3, 3, 0], [4, 1, 0, 0]]), torch.tensor([4, 3, 2])
    times = torch.tensor([long, long - 1, long - 3])
    return lambda: functional.ctc_loss(scores.log_softmax(-1), targets, times, counts, zero_infinity=zero_infinity)


def recorded_of(loss: Callable[[], Tensor]) -> Report:
    with limpid.recording(nn.Identity()) as recorded:
        loss().backward()
    return recorded.verify()


HONEST = {
    "plain": lstm(), "without shifts": lstm(bias=False), "both ways": lstm(bidirectional=True), "ctc": ctc(),
    "ctc of many times": ctc(300), "ctc without a way": ctc(5, True),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_honest_sequences_are_within_rounding(name: str) -> None:
    report = recorded_of(HONEST[name])
    assert not report.wrong, str(report.wrong[0])
    assert not report.unchecked, str(report.unchecked[0])


FAULTS = [
    ("_ctc_loss", 0), ("_ctc_loss", 1), ("_ctc_loss_backward", 0),
    *(("mkldnn_rnn_layer", place) for place in range(3)),
    *(("mkldnn_rnn_layer_backward", place) for place in range(7)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "output"), FAULTS)
def test_planted_faults_are_found(name: str, output: int) -> None:
    loss = ctc() if "ctc" in name else lstm()
    if name not in {call.operation.split(".")[1] for call in recorded_of(loss).calls}:
        pytest.skip("PyTorch computes it otherwise here")
    with Planted(name, output):
        wrong = [call.operation.split(".")[1] for call in recorded_of(loss).wrong]
    assert wrong[0] == name
    assert set(wrong) <= {name, f"{name}_backward"}  # which reads what oneDNN kept, and not the result
