"""y = x Wᵀ + b in the precision of x, and a low-rank change beside it: master weights are cast where they are used."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from limpid.config import ModelConfig
from limpid.model.dropout import Dropout
from limpid.model.narrow import narrow, product, widened
from limpid.model.observe import FAST, Mode, Named
from limpid.quantities import VALUE, parameters


class Linear(nn.Linear):
    """Fast twin of maths.Linear. Initialised by `model.initialise`."""

    def reset_parameters(self) -> None:
        """Nothing is drawn here."""

    def forward(self, input: Float[Tensor, "... d_in"], mode: Mode = FAST) -> Float[Tensor, "... d_out"]:
        return product(input, self.weight, self.bias, mode)


class LowRankLinear(Linear, Named):
    """W x + b + s B A x. Source: Hu et al. 2021, eq. 3, arXiv:2106.09685.

    With magnitudes m / n (W x + s B A x) + b, n the lengths of the rows of W + s B A, through which no gradient goes.
    Source: Liu et al. 2024, section 4.3, arXiv:2402.09353.

    In training the factors may read an x' of which entries are dropped: W x + b + s B A x', and with magnitudes
    W x + b + m / n (W x' + s B A x') - W x', as in both papers' own code.
    """

    def __init__(
        self,
        name: str,
        d_in: int,
        d_out: int,
        bias: bool,
        config: ModelConfig,
        d_head: int | None,
        d_head_in: int | None,
    ) -> None:
        super().__init__(d_in, d_out, bias)
        self.name, self.scale, self.d_head, self.d_head_in = name, config.lora_scale, d_head, d_head_in
        self.dropout = Dropout(f"{name}.dropped", config.lora_dropout)
        self.lora_a = Linear(d_in, config.lora_rank, bias=False)
        self.lora_b = Linear(config.lora_rank, d_out, bias=False)
        self.lora_magnitude = nn.Parameter(torch.empty(d_out)) if config.use_dora else None
        self.active = True

    def forward(self, input: Float[Tensor, "... d_in"], mode: Mode = FAST) -> Float[Tensor, "... d_out"]:
        if not self.active:
            return super().forward(input, mode)
        magnitude = self.lora_magnitude
        read = product(input, self.weight, self.bias if magnitude is None else None, mode)
        base = self.report(mode, "base", _heads(read, self.d_head))
        dropped = self._dropped(input, mode)
        low = self.report(mode, "lora_a", self.lora_a(dropped, mode))
        change = self.report(mode, "lora_b", _heads(self.lora_b(low, mode), self.d_head))
        if magnitude is None:
            y = torch.add(base, change, alpha=self.scale)
        elif dropped is input:
            y = self._brought_to(magnitude, base, change, mode)
        else:
            read = product(dropped, self.weight, None, mode)
            read = self.report(mode, "base_dropped", _heads(read, self.d_head))
            brought = self.report(mode, "brought", self._brought_to(magnitude, read, change, mode))
            y = brought + self.report(mode, "rest", base - read)
        return y if self.d_head is None else y.flatten(-2)

    def _dropped(self, input: Tensor, mode: Mode) -> Tensor:
        """What the factors read: some of it dropped in training, where that was asked for."""
        if not (self.training and self.dropout.probability):
            return input
        dropped: Tensor = self.dropout(_heads(input, self.d_head_in), mode)
        return dropped if self.d_head_in is None else dropped.flatten(-2)

    def _brought_to(self, magnitude: Float[Tensor, " d_out"], base: Tensor, change: Tensor, mode: Mode) -> Tensor:
        """The changed map at the learned magnitudes, and the bias, in float32 or wider."""
        z = self.report(mode, "direction", torch.add(base, change, alpha=self.scale))
        change_made = self.lora_b.weight.detach() @ self.lora_a.weight.detach()
        changed = self.weight.detach() + self.scale * change_made  # compiled, torch.add of a product loses its alpha
        length = self.report(mode, "length", row_lengths(changed))
        y = z * _heads(magnitude / length, self.d_head)  # parameters are float32 or wider, and so is the product
        if self.bias is not None:
            y = y + _heads(self.bias, self.d_head)
        return y.to(z.dtype)


def _heads(y: Float[Tensor, "... feature"], d_head: int | None) -> Tensor:
    """Heads side by side, where a map reads or gives heads."""
    return y if d_head is None else y.unflatten(-1, (-1, d_head))


def row_lengths(weight: Float[Tensor, "d_out d_in"]) -> Float[Tensor, " d_out"]:
    """The Euclidean length of every row."""
    lengths: Tensor = torch.linalg.vector_norm(weight, dim=-1)
    return lengths


def begun_magnitudes(config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Where the magnitudes beside these weights begin: at the lengths of the rows of W, or of W + s B A."""
    named = [one.name for one in parameters(config) if one.init == "row lengths" and one.name not in weights]
    found = {}
    for name in named:
        at = name.removesuffix(".lora_magnitude")
        weight = weights[f"{at}.weight"]
        if f"{at}.lora_a.weight" in weights:
            down, up = weights[f"{at}.lora_a.weight"], weights[f"{at}.lora_b.weight"]
            weight = (weight.double() + config.lora_scale * up.double() @ down.double()).to(up.dtype)
        found[name] = row_lengths(weight)
    return found


def merge(config: ModelConfig, weights: Mapping[str, Tensor]) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The model that predicts or rates: W + s B A in the place of each W, its rows at their magnitudes where they have
    some, formed in float64, in W's format; without a value function, which only training asks."""
    if config.head == "vocabulary_and_value":
        config, weights = config.without_value(), {name: one for name, one in weights.items() if name != VALUE}
    if not config.lora_rank:
        return config, dict(weights)
    merged = {name: widened(weight) for name, weight in weights.items() if ".lora_" not in name}
    for name in merged:
        at = name.removesuffix(".weight")
        if f"{at}.lora_a.weight" in weights:
            a, b = weights[f"{at}.lora_a.weight"].double(), weights[f"{at}.lora_b.weight"].double()
            changed = weights[name].double() + config.lora_scale * b @ a
            if config.use_dora:
                magnitude = weights[f"{at}.lora_magnitude"].double()
                changed *= (magnitude / row_lengths(changed)).unsqueeze(-1)
            merged[name] = changed.to(weights[name].dtype)
    return config.without_factors(), merged


def linear(
    config: ModelConfig,
    name: str,
    d_in: int,
    d_out: int,
    bias: bool,
    d_head: int | None = None,
    d_head_in: int | None = None,
) -> Linear:
    """The linear map of a block, `name` as in blocks.3.mlp.up, with factors beside it where they are asked for.

    It gives heads of width d_head, or reads heads of width d_head_in.
    """
    adapted = config.adapted(name.split(".", 2)[-1])
    made = LowRankLinear(name, d_in, d_out, bias, config, d_head, d_head_in) if adapted else Linear(d_in, d_out, bias)
    narrow(made, config.base_precision)
    return made
