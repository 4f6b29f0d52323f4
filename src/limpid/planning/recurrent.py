"""Mixers that carry a state of fixed size from token to token in place of attention over all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

Row = tuple[str, str]
"""A name, and an equation in the sizes of the architecture."""


@dataclass(frozen=True)
class Recurrent:
    """What every such mixer says about itself, per block and in the names of the architecture's sizes."""

    source: ClassVar[str]
    state: ClassVar[str]
    """Numbers of the state of one sequence."""
    state_flops: ClassVar[str]
    """FLOPs per token of writing to the state and reading from it, token by token; kernels over chunks do more."""

    def matrices(self) -> Iterator[Row]:
        """Learned matrices that multiply every token."""
        raise NotImplementedError

    def vectors(self) -> Iterator[Row]:
        """Everything else that is learned."""
        raise NotImplementedError

    def saved(self) -> Iterator[Row]:
        """Numbers kept per token for the backward pass by a kernel that computes states again."""
        raise NotImplementedError


@dataclass(frozen=True)
class StateSpace(Recurrent):
    """A selective state space (Mamba): every channel has a state of its own, driven by what the token says."""

    d_inner: int
    """Channels."""
    d_state: int
    """Numbers per channel."""
    d_conv: int
    """Tokens that the convolution ahead of the state sees."""
    dt_rank: int
    """Rank of the step sizes."""
    conv_bias: bool = True
    proj_bias: bool = False
    inner_norms: bool = False
    """RMS norms of step sizes, inputs and outputs of the state (Jamba)."""

    source = "Gu & Dao 2023, section 3.4 and algorithm 2, arXiv:2312.00752"
    memory, window, driven = "d_inner * d_state", "d_inner * d_conv", "dt_rank + 2 * d_state"
    state = f"{memory} + {window}"
    state_flops = f"6 * {memory} + 2 * {window}"

    def matrices(self) -> Iterator[Row]:
        yield "input", "d_model * 2 * d_inner"
        yield "step_input_output", f"d_inner * ({self.driven})"
        yield "step_sizes", "dt_rank * d_inner"
        yield "output", "d_inner * d_model"

    def vectors(self) -> Iterator[Row]:
        yield "convolution", f"{self.window} + conv_bias * d_inner"
        yield "decay_and_skip", f"{self.memory} + d_inner"
        yield "step_bias", "d_inner"
        if self.proj_bias:
            yield "in_and_out_biases", "2 * d_inner + d_model"
        if self.inner_norms:
            yield "inner_norms", self.driven

    def saved(self) -> Iterator[Row]:
        yield "convolved input and gate", "2 * d_inner"
        yield "convolution, output", "d_inner"
        yield "step, input and output of the state", self.driven
        yield "step sizes", "d_inner"
        yield "output product, input", "d_inner"


@dataclass(frozen=True)
class DeltaNet(Recurrent):
    """A gated delta rule (Qwen3-Next): each value head's state is corrected where its key points, and decays."""

    linear_key_heads: int
    linear_value_heads: int
    linear_d_key: int
    linear_d_value: int
    d_conv: int

    source = "Yang, Kautz & Hatamizadeh 2024, eq. 10, arXiv:2412.06464"
    keys, values = "linear_key_heads * linear_d_key", "linear_value_heads * linear_d_value"
    convolved = f"2 * {keys} + {values}"
    memory, window = "linear_value_heads * linear_d_key * linear_d_value", f"({convolved}) * d_conv"
    state = f"{memory} + {window}"
    state_flops = f"6 * {memory} + 2 * {window}"

    def matrices(self) -> Iterator[Row]:
        yield "query_key", f"d_model * 2 * {self.keys}"
        yield "value_gate", f"d_model * 2 * {self.values}"
        yield "rate_and_decay", "d_model * 2 * linear_value_heads"
        yield "output", f"{self.values} * d_model"

    def vectors(self) -> Iterator[Row]:
        yield "convolution", self.window
        yield "decay_and_bias", "2 * linear_value_heads"
        yield "out_norm", "linear_d_value"

    def saved(self) -> Iterator[Row]:
        yield "queries, keys and values", self.convolved
        yield "convolution, output", self.convolved
        yield "rates and decays", "2 * linear_value_heads"
        yield "mixed values, and normalised", f"2 * {self.values}"
        yield "gate", self.values
        yield "output product, input", self.values


@dataclass(frozen=True)
class LightningAttention(Recurrent):
    """Attention without a softmax, as a decaying sum of key-value products (MiniMax-01); the heads are attention's."""

    source = "MiniMax 2025, section 2.2, arXiv:2501.08313"
    width = "num_heads * d_head"
    state = "num_heads * d_head ** 2"
    state_flops = f"4 * {state}"

    def matrices(self) -> Iterator[Row]:
        yield "query_key_value", f"d_model * 3 * {self.width}"
        yield "gate", f"d_model * {self.width}"
        yield "output", f"{self.width} * d_model"

    def vectors(self) -> Iterator[Row]:
        yield "out_norm", self.width

    def saved(self) -> Iterator[Row]:
        yield "queries, keys and values", f"3 * {self.width}"
        yield "mixed values, and normalised", f"2 * {self.width}"
        yield "gate", self.width
        yield "output product, input", self.width
