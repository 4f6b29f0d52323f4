"""The gate, f(gate) · up: two kernels forward and three backward, each with a tensor of its own."""

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
        opened = stored(Ball(activation.value(gate), unit * activation.value_error(gate)), self.formats.compute)
        return self._times(opened, up), (gate, up, opened)

    def backward(self, y_bar: Array, saved: tuple[Array, Array, Ball]) -> list[Ball]:
        gate, up, opened = saved
        activation, unit = self.operation.activation, self.formats.unit
        through = stored(Ball(y_bar * up, unit * np.abs(y_bar * up)), self.formats.compute)
        slope = activation.slope(gate)
        error = unit * (activation.slope_error(gate) + np.abs(slope))
        gate_bar = Ball(slope * through.value, np.abs(slope) * through.reach + error * np.abs(through.value))
        return [gate_bar, self._times(opened, y_bar)]

    def _times(self, ball: Ball, y: Array) -> Ball:
        size = np.abs(y)
        return Ball(ball.value * y, ball.reach * size + self.formats.unit * np.abs(ball.value) * size)
