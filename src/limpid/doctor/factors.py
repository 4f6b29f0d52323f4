"""Low-rank factors beside a model's matrices, whoever wrote them: limpid's, peft's, loralib's, by their names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from limpid.doctor.model_info import kept_by

A_NAMES, B_NAMES = ("lora_a", "lora_A"), ("lora_b", "lora_B")
BASES = ("base_layer", "base", "linear", "original", "orig")


@dataclass(frozen=True)
class Factors:
    """W + s B A at one matrix."""

    name: str
    a: nn.Parameter  # (rank, d_in)
    b: nn.Parameter  # (d_out, rank)
    base: Tensor | None  # (d_out, d_in)
    scale: float

    @property
    def fits(self) -> bool:
        """Whether B A has the shape of W."""
        return self.base is not None and self.base.shape == (self.b.shape[0], self.a.shape[1])


def factors_of(model: nn.Module) -> list[Factors]:
    return [one for name, module in model.named_modules() for one in _beside(name, module)]


def _beside(name: str, module: nn.Module) -> Iterator[Factors]:
    if not any(kept.keys() & {*A_NAMES} for kept in (module._parameters, module._modules, vars(module))):
        return
    a, b = (_named(module, names) for names in (A_NAMES, B_NAMES))
    for key in a.keys() & b.keys():
        if a[key].ndim == b[key].ndim == 2 and a[key].shape[0] == b[key].shape[1]:
            yield Factors(name, a[key], b[key], _base(module), _scale(module, key))


def _named(module: nn.Module, names: tuple[str, ...]) -> dict[str, nn.Parameter]:
    """The matrices that a module keeps under any of these names; peft keeps one for each adapter."""
    kept = next((one for name in names if (one := kept_by(module, name)) is not None), None)
    if isinstance(kept, nn.ModuleDict | nn.ParameterDict):
        return {key: weight for key, one in kept.items() if (weight := _weight(one)) is not None}
    weight = _weight(kept)
    return {} if weight is None else {"": weight}


def _weight(kept: Any) -> nn.Parameter | None:
    weight = kept_by(kept, "weight") if isinstance(kept, nn.Module) else kept
    return weight if isinstance(weight, nn.Parameter) else None


def _base(module: nn.Module) -> Tensor | None:
    inside = (kept_by(module, name) for name in BASES)
    inner = next((one for one in inside if isinstance(one, nn.Module)), module)
    weight = kept_by(inner, "weight")
    return weight if isinstance(weight, Tensor) and weight.ndim == 2 and weight.is_floating_point() else None


def _scale(module: nn.Module, key: str) -> float:
    kept = next((one for name in ("scaling", "scale") if (one := kept_by(module, name)) is not None), 1.0)
    kept = kept.get(key, 1.0) if isinstance(kept, dict) else kept
    return float(kept) if isinstance(kept, int | float) else 1.0
