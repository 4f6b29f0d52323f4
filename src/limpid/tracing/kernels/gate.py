"""The gate, f(gate) · up: in kernels of PyTorch's, each with a tensor of its own, or in one of limpid's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from limpid.maths.mlp import Gated
from limpid.maths.operation import Array
from limpid.tracing.ball import Ball, stored
from limpid.tracing.kernels.kernel import Formats


@dataclass(frozen=True)
class EagerGate:
    """model/mlp.py: opened = f(gate), hidden = opened · up; backward, up̄ = h̄ · opened and ḡ = f'(gate) · (h̄ · up)."""

    operation: Gated
    formats: Formats
    arithmetic = "f(gate) and h̄ · up are rounded to the compute format, f in float32 to a few u"

    def forward(self, inputs: Sequence[Array]) -> tuple[Ball, tuple[Array, Array, Ball]]:
        gate, up = inputs
        activation, unit = self.operation.activation, self.formats.unit
        opened = self._kept(Ball(activation.value(gate), unit * activation.value_error(gate)))
        return self._times(opened, up), (gate, up, opened)

    def backward(self, y_bar: Array, saved: tuple[Array, Array, Ball]) -> list[Ball]:
        gate, up, opened = saved
        activation, unit = self.operation.activation, self.formats.unit
        through = self._kept(Ball(y_bar * up, unit * np.abs(y_bar * up)))
        slope = activation.slope(gate)
        error = unit * (activation.slope_error(gate) + np.abs(slope))
        gate_bar = Ball(slope * through.value, np.abs(slope) * through.reach + error * np.abs(through.value))
        return [gate_bar, self._times(opened, y_bar)]

    def exact(self, ball: Ball, saved: tuple[Array, Array, Ball]) -> Array | None:
        """None: f(gate) was rounded."""
        return None

    def _kept(self, array: Ball) -> Ball:
        """What is read of an array that is formed on the way."""
        return stored(array, self.formats.compute)

    def _times(self, ball: Ball, y: Array) -> Ball:
        size = np.abs(y)
        return Ball(ball.value * y, ball.reach * size + self.formats.unit * np.abs(ball.value) * size)


@dataclass(frozen=True)
class NativeGate(EagerGate):
    """model/kernels/native_activation.py: everything on the way stays in float32."""

    arithmetic = "formed in float32, f to a few u, and rounded once"

    def _kept(self, array: Ball) -> Ball:
        return array

    def exact(self, ball: Ball, saved: tuple[Array, Array, Ball]) -> Array:
        return ball.value
