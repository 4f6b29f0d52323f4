"""Copies of the watched model that live in this process: averages of its weights, references, teachers."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from limpid.doctor.devices import joined
from limpid.doctor.weights import sample

if TYPE_CHECKING:
    from limpid.doctor.description.beside import Beside

ELEMENTS = 64


def copies_of(model: nn.Module, modules: Sequence[nn.Module]) -> list[nn.Module]:
    """Of modules those of its class with tensors of the same names and shapes, of their own; not torch's averages."""
    inside = {id(module) for module in model.modules()}
    shapes = {name: p.shape for name, p in model.named_parameters()}
    averaged = {id(one.module) for one in modules if isinstance(one, AveragedModel)}
    found = [one for one in modules if type(one) is type(model) and id(one) not in inside | averaged]
    own = {p.data_ptr() for p in model.parameters()}
    return [
        one
        for one in found
        if {name: p.shape for name, p in one.named_parameters()} == shapes
        and not own & {p.data_ptr() for p in one.parameters()}
    ]


def _statistics(model: nn.Module) -> Tensor:
    """A few numbers of every buffer that is no count."""
    kept = [sample(b, ELEMENTS).float() for b in model.buffers() if b.is_floating_point() and b.numel()]
    return joined(kept).clone().cpu()


def some_weights(model: nn.Module) -> Tensor:
    """A few numbers of every parameter, on the host: two models may lie on different devices."""
    return joined([sample(p, ELEMENTS).float() for p in model.parameters()]).clone().cpu()


class Followers:
    """Models of the watched one's class that a loop calls without gradients, as they were when they were seen first."""

    def __init__(self) -> None:
        self.first: dict[int, tuple[weakref.ref[nn.Module], Tensor]] = {}

    def take(self, core: nn.Module, called: Iterable[Beside]) -> None:
        """Add those that a step has called."""
        for one in called:
            if type(one.module) is type(core) and not any(one.with_gradients) and id(one.module) not in self.first:
                self.first[id(one.module)] = weakref.ref(one.module), some_weights(one.module)

    def moved(self) -> bool:
        """Whether the weights of any are others by now."""
        alive = ((ref(), weights) for ref, weights in self.first.values())
        return any(one is not None and not torch.equal(some_weights(one), weights) for one, weights in alive)


@dataclass
class WeightCopy:
    """A copy as it was when first seen, and the statistics of the model then."""

    module: weakref.ref[nn.Module]
    weights: Tensor
    statistics: Tensor
    of_model: Tensor

    @classmethod
    def of(cls, module: nn.Module, model: nn.Module) -> WeightCopy:
        return cls(weakref.ref(module), some_weights(module), _statistics(module), _statistics(model))

    def follows_without_statistics(self, model: nn.Module) -> bool:
        """Whether its weights have moved towards the model's, and its buffers not at all, though the model's have."""
        module = self.module()
        if module is None or not self.statistics.numel():
            return False
        moved, way = some_weights(module) - self.weights, some_weights(model) - self.weights
        towards = float(moved.norm()) > 0 and float(torch.cosine_similarity(moved, way, dim=0)) > 0.5
        kept = torch.equal(_statistics(module), self.statistics)
        return towards and kept and not torch.equal(_statistics(model), self.of_model)
