"""Sketches of gradients and updates, of each parameter as its optimizer finds it and leaves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from limpid.doctor.baseline import tolerance
from limpid.doctor.baseline.sketch import Array, made, read, sketch
from limpid.doctor.baseline.step_sketch import Kind, Moment, Place, StepSketch

if TYPE_CHECKING:
    from limpid.doctor.model_info import ModelInfo


class UpdateSketcher:
    """What the optimizers of one step are given and change."""

    def __init__(self, step: StepSketch, info: ModelInfo, modules: int) -> None:
        self.step, self.info, self.modules = step, info, modules
        self._before: dict[str, tuple[Array, Array]] = {}  # weights, rows
        self._gradients: dict[str, Array | None] = {}  # as the first optimizer that has them found them
        self._moved: dict[str, Moment] = {}

    def begins(self, optimizer: Any) -> None:
        """Before each optimizer: weights, and gradients as it finds them."""
        if not self._before:
            for name, parameter in self.info.parameters.items():
                known = read(parameter)
                if known is not None:
                    self._before[name] = known
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._take_gradient(self.info.names.get(id(parameter)), parameter)

    def _take_gradient(self, name: str | None, parameter: Tensor) -> None:
        if name is None or name in self._gradients:
            return
        gradient = parameter.grad
        kept = None if gradient is None else sketch(gradient)
        seen = None if gradient is None else read(gradient)
        self._gradients[name] = None if seen is None else seen[0]
        self.step.moments.append(Moment(Place(Kind.GRADIENT, 0, name), "gradient", kept))

    def ended(self, optimizer: Any) -> None:
        """After each optimizer: what it changed."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = self.info.names.get(id(parameter))
                if name in self._before:
                    self._moved[name] = self._change(name, parameter)

    def finish(self) -> None:
        """The step has ended."""
        for name in self._before:
            self.step.moments.append(self._moved.get(name) or Moment(Place(Kind.UPDATE, 0, name), "update", None))
        self._before, self._gradients = {}, {}

    def _change(self, name: str, parameter: Tensor) -> Moment:
        (before, rows), gradient = self._before[name], self._gradients.get(name)
        now = read(parameter)
        assert now is not None
        change = now[0] - before
        form = str(parameter.dtype).removeprefix("torch.")
        rounding = float(np.linalg.norm(before)) * torch.finfo(parameter.dtype).eps
        shaky = 0.0 if gradient is None else float(np.linalg.norm(change * self._loose(gradient)))
        kept = made(change, rows, tuple(parameter.shape), form)
        return Moment(Place(Kind.UPDATE, 0, name), "update", kept, "", shaky + rounding)

    def _loose(self, gradient: Array) -> Array:
        """By how much, at most, the rounding of each entry of a gradient moves what is made of it."""
        near = tolerance.gradient(self.step.eps, self.step.terms, self.modules)
        own = float(np.sqrt((gradient * gradient).mean()))
        error = near * max(own, tolerance.FLOOR * self._rms_of_all)
        with np.errstate(divide="ignore", invalid="ignore"):
            loose: Array = np.minimum(2.0, np.nan_to_num(error / np.abs(gradient), nan=2.0, posinf=2.0))
        return loose

    @property
    def _rms_of_all(self) -> float:
        kept = [m.sketch for m in self.step.of(Kind.GRADIENT) if m.sketch is not None]
        count = sum(s.count for s in kept)
        return float(np.sqrt(sum(s.norm**2 for s in kept) / count)) if count else 0.0
