"""The MLP: each position on its own, widened, passed through a nonlinearity, narrowed again."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from limpid.config import ModelConfig
from limpid.model.dropout import Dropout
from limpid.model.formed import formed_again
from limpid.model.kernels.gated import Gated
from limpid.model.kernels.native_activated_product import native_activated_product
from limpid.model.kernels.native_activated_product import serves as serves_both
from limpid.model.kernels.native_activation import native_activation, serves
from limpid.model.kernels.unseen import is_hooked
from limpid.model.linear import Linear, linear
from limpid.model.observe import FAST, Mode, Part

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}

KEEPING_RESULT = ("relu", "relu2")
"""Whose backward pass reads what they gave; the others' reads what they were given."""


class Mlp(Part):
    """f(x W_up) W_output, or f(x W_gate) ⊙ (x W_up) W_output when gated.

    Sources: Vaswani et al. 2017, eq. 2, arXiv:1706.03762; gated, Shazeer 2020, eq. 6, arXiv:2002.05202.
    """

    def __init__(self, config: ModelConfig, block: int) -> None:
        super().__init__(f"blocks.{block}.mlp")
        self.activation, self.word = ACTIVATIONS[config.activation], config.activation
        self.keeps_input = config.activation not in KEEPING_RESULT
        gated = config.mlp == "gated"
        d_model, d_ff, bias = config.d_model, config.sizes.d_ff, config.mlp_bias
        self.gate = linear(config, f"{self.name}.gate", d_model, d_ff, bias) if gated else None
        self.up = linear(config, f"{self.name}.up", d_model, d_ff, bias)
        self.output = linear(config, f"{self.name}.output", d_ff, d_model, bias)
        self.dropout = Dropout(f"{self.name}.dropped", config.dropout)

    def forward(
        self, x: Float[Tensor, "batch position d_model"], mode: Mode = FAST
    ) -> Float[Tensor, "batch position d_model"]:
        gate = None if self.gate is None else self.report(mode, "gate", self.gate(x, mode))
        up = self.report(mode, "up", self.up(x, mode))
        if self.is_fused(up if gate is None else gate, mode):
            x, other = (up, None) if gate is None else (gate, up)
            output = native_activated_product(x, other, self.output.weight, self.output.bias, self.word)
        else:
            hidden = self.activated(up, gate, mode)
            output = self.output(self.report(mode, "hidden", hidden), mode)
        return self.dropout(self.report(mode, "output", output), mode)

    def is_fused(self, x: Tensor, mode: Mode) -> bool:
        """Whether f(x) and its product are in the kernels of one function: nobody looks between them."""
        seen = mode.plain or mode.observe is not None or type(self.output) is not Linear
        return not seen and serves_both(x, self.output.weight, self.word) and not is_hooked(self.output)

    def activated(self, up: Tensor, gate: Tensor | None, mode: Mode) -> Tensor:
        """f(up), or f(gate) ⊙ up; the backward pass forms it again from up and gate."""
        hidden: Tensor
        if mode.plain or torch.compiler.is_compiling():
            return self.activation(up) if gate is None else self.activation(gate) * up
        if serves(up.device.type, up.dtype, up.shape[-1], self.word):
            return self.natively_activated(up, gate)
        if gate is None:
            hidden = self.activation(up)
            return formed_again(hidden, self.activation, up) if self.keeps_input else hidden
        hidden = Gated.apply(gate, up, self.activation)
        return formed_again(hidden, lambda gate, up: self.activation(gate) * up, gate, up)

    def natively_activated(self, up: Tensor, gate: Tensor | None) -> Tensor:
        """The same in limpid's own kernel."""
        if gate is None:
            return formed_again(
                native_activation(up, None, self.word), lambda up: native_activation(up, None, self.word), up
            )
        hidden = native_activation(gate, up, self.word)
        return formed_again(hidden, lambda gate, up: native_activation(gate, up, self.word), gate, up)
