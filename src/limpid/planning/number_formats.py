"""Bytes of numbers: of one in each format, and of what training stores per parameter in each precision."""

from __future__ import annotations

from dataclasses import dataclass

from limpid.config.options import require

BYTES = {"fp64": 8.0, "fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}
"""Of one number."""
WEIGHT_BYTES = {**BYTES, "bf16_pure": BYTES["bf16"], "bf16_fp32_gradients": BYTES["bf16"]}
"""Of one weight while generating, by precision."""


@dataclass(frozen=True)
class TrainingBytes:
    """Bytes per parameter while training, and of a number in an activation."""

    weights: int
    gradients: int
    master: int
    """Of the wide copy that updates are added to."""
    moment: int
    """Of each moment that the update rule remembers."""
    activation: int


TRAINING_BYTES = {
    "fp64": TrainingBytes(8, 8, 0, 8, 8),
    "fp32": TrainingBytes(4, 4, 0, 4, 4),
    "bf16": TrainingBytes(2, 2, 4, 4, 2),
    "fp16": TrainingBytes(2, 2, 4, 4, 2),
    "bf16_pure": TrainingBytes(2, 2, 0, 2, 2),
    "bf16_fp32_gradients": TrainingBytes(2, 4, 4, 4, 2),
}
"""By precision. bf16 and fp16 are mixed: fp32 masters and moments beside narrow weights and gradients, 16 bytes with
Adam (Rajbhandari et al. 2020, section 3.1, arXiv:1910.02054); with gradients summed in fp32, as Megatron-LM does, 18.
"""
ADDRESSABLE = 2**64
"""Bytes that a device, a file or a program can tell apart: what needs more is a slip in a size."""


def require_addressable(parameters: float, what: str) -> None:
    """Refuse a model that could not be addressed even at one byte each, and one whose sizes leave nothing."""
    require(parameters > 0, f"{what} has {parameters:.3g} parameters: check its sizes")
    require(
        parameters < ADDRESSABLE,
        f"{what} has {parameters:.3g} parameters, more than 64 bits can address: check its sizes",
    )
