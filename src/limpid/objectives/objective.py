"""What training minimises, as one protocol: the same loss at speed and as mathematics.

Importing an objective loads neither PyTorch nor NumPy: each half loads what it needs when it is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.config import ModelConfig
    from limpid.data.batches import MicroBatch
    from limpid.maths.chain import Chain
    from limpid.model.observe import Mode
    from limpid.model.transformer import Transformer
    from limpid.quantities import Quantity

POLICY = "policy"
"""The model that is trained; others, such as a reference, stand beside it under their own names."""


class Mean(NamedTuple):
    """A metric that is a mean over other terms than the loss: of each micro-batch their sum, and how many there are."""

    total: Tensor  # ()
    terms: Tensor  # ()


class Least(NamedTuple):
    """A metric that is the smallest of a step: that of a micro-batch."""

    value: Tensor  # ()


class Most(NamedTuple):
    """The same for the largest."""

    value: Tensor  # ()


Metric: TypeAlias = "Tensor | Mean | Least | Most"
"""What a micro-batch knows of a number that is logged for the whole step; a tensor is its share, and shares add up."""


@dataclass(frozen=True)
class Loss:
    """The share of one micro-batch in the loss of its step."""

    value: Tensor  # (), nats per label; the shares of all micro-batches add up to the loss of the step
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # logged beside the loss


def in_memory(loss: Loss) -> Loss:
    """The same as plain numbers in the memory of the processor, which processes may tell each other."""
    metrics = {
        name: type(one)(*(part.detach().cpu() for part in one)) if isinstance(one, tuple) else one.detach().cpu()
        for name, one in loss.metrics.items()
    }
    return Loss(loss.value.detach().cpu().clone(), metrics)


class Objective(Protocol):
    """What training minimises. One file implements it; its hyperparameters are fields of a frozen dataclass."""

    @property
    def name(self) -> str:
        """The word that records and configurations know it by."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The arrays that a micro-batch must hold."""

    def labels(self, micro: MicroBatch) -> int:
        """How many terms this micro-batch has in the mean over the whole step."""

    def loss(self, models: Mapping[str, Transformer], micro: MicroBatch, labels: int, mode: Mode) -> Loss:
        """The engine: forward pass and loss, divided by the labels of the whole step.

        Under mode.path "plain" every quantity is formed; under "fast" kernels may fuse several.
        """

    def chain(self, chain: Chain, config: ModelConfig) -> str:
        """The mathematics: the same in a chain, from named arrays of the batch to the name of the loss."""

    def quantities(self, config: ModelConfig) -> tuple[Quantity, ...]:
        """Every quantity that `chain` forms, in order."""


def to_document(objective: Objective) -> dict[str, object]:
    """Its name and hyperparameters, as records keep them."""
    return {"name": objective.name, **asdict(objective)}  # type: ignore[call-overload]
