"""A line of every step: enough to say at which one two runs part, and in which part of it."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from limpid.doctor.baseline.sketch import PACKED, Sketch, sketch
from limpid.doctor.weights import sample

if TYPE_CHECKING:
    from limpid.doctor.model_info import ModelInfo

LAST = 200
"""The last step that has a line."""
TENSORS, EACH = 256, 64
"""Tensors of the model, and numbers of each, that stand for its weights."""
OUTPUTS = 4096
"""Numbers of what the model returns."""


@dataclass
class Line:
    """One step."""

    batch: int = 0  # of all inputs, in whatever order the passes come
    random: list[str] = field(default_factory=list)
    start: Sketch | None = None  # of the weights, a few of each tensor
    end: Sketch | None = None
    outputs: Sketch | None = None  # of one pass
    loss: float | None = None
    norm: float | None = None  # of the gradient
    rates: list[float] = field(default_factory=list)
    evaluating: int = 0  # modules in evaluation mode
    trained: int = 0  # parameters that require a gradient
    passes: int = 0

    def packed(self) -> list[Any]:
        """As JSON holds it."""
        sketches = [one and one.packed(False) for one in (self.start, self.end, self.outputs)]
        return [
            self.batch, self.random, *sketches, self.loss, self.norm, self.rates, self.evaluating, self.trained,
            self.passes,
        ]  # fmt: skip

    @classmethod
    def unpacked(cls, held: list[Any]) -> Line:
        """Raises what malformed documents raise."""
        batch, random, start, end, outputs, loss, norm, rates, evaluating, trained, passes = held
        a, b, c = (None if one is None else Sketch.unpacked(one) for one in (start, end, outputs))
        value, size = (None if one is None else float(one) for one in (loss, norm))
        states, used = [str(state) for state in random], [float(rate) for rate in rates]
        return cls(int(batch), states, a, b, c, value, size, used, int(evaluating), int(trained), int(passes))


def of_weights(info: ModelInfo) -> Sketch | None:
    """A few numbers of each parameter and buffer."""
    everything = (t for t in (*info.parameters.values(), *info.model.buffers()) if not is_lazy(t))
    held = [t for t in everything if t.is_floating_point() and not t.is_meta]
    few = [sample(t, EACH).to("cpu", torch.float64) for t in held[:: max(1, -(-len(held) // TENSORS))]]
    return sketch(torch.cat(few)) if few else None


def of_output(output: Tensor) -> Sketch | None:
    return sketch(sample(output, OUTPUTS).to("cpu", torch.float64))


def digest(tensors: Iterable[Tensor]) -> int:
    """Of the numbers of tensors, to the bit, whatever format holds them."""
    found = 0
    for tensor in tensors:
        few = sample(tensor, OUTPUTS).to("cpu", torch.float64)
        found = zlib.crc32(str(tuple(tensor.shape)).encode() + few.numpy().tobytes(), found)
    return found


JUMP = 30.0
"""How many times what lay between the runs before a step adds: rounding grows step by step, a change comes at once."""


class Parting:
    """Goes along two runs that are alike, and says where they part."""

    def __init__(self, near: float) -> None:
        self.near = near  # relative, that rounding explains on the first step
        self.apart: dict[str, float] = {}  # the largest relative distance so far, by what is compared

    def first(self, then: Line, now: Line) -> tuple[str, str] | None:
        """The part of the step that differs though all before it is as it was, and in words how.

        None where nothing does, or nothing that is learned: another way to the same weights, loss and gradient.
        """
        found = list(self._unlike(then, now))
        return found[0] if found and self._has_effect(then, now) else None

    def _has_effect(self, then: Line, now: Line) -> bool:
        """Whether weights differ, or rates; or the loss with its gradient, which tell of less than weights show."""
        weights = self._jumps("start", _distance(then.start, now.start)) or self._jumps(
            "end", _distance(then.end, now.end)
        )
        loss = self._jumps("loss", _apart(then.loss, now.loss))
        norm = self._jumps("norm", _apart(then.norm, now.norm)) or None in (then.norm, now.norm)
        return weights or (loss and norm) or bool(self._rates(then, now))

    def _unlike(self, then: Line, now: Line) -> Iterator[tuple[str, str]]:
        """All that differs, in the order of a step."""
        if self._jumps("start", _distance(then.start, now.start)):
            yield "model", f"the weights are others than the update before left them{_by(then.start, now.start)}"
        if now.passes != then.passes:
            yield "data", f"{now.passes} forward passes, then {then.passes}"
        if now.evaluating != then.evaluating:
            yield "model", f"{now.evaluating} modules in evaluation mode, then {then.evaluating}"
        if now.trained != then.trained:
            yield "model", f"{now.trained:,} parameters require a gradient, then {then.trained:,}"
        if now.batch != then.batch:
            yield ("data", "the batch is another one") if now.random == then.random else ("random", "")
        outputs = self._jumps("outputs", _distance(then.outputs, now.outputs))
        if now.random != then.random and outputs:
            yield "random", ""
        if outputs:
            yield "model", f"the same weights and inputs give other outputs{_by(then.outputs, now.outputs)}"
        if self._jumps("loss", _apart(then.loss, now.loss)):
            what = "outputs have" if now.outputs is not None else "weights and batch have"
            yield "loss", f"the same {what} another loss: {now.loss:.6g}, then {then.loss:.6g}"
        if self._jumps("norm", _apart(then.norm, now.norm)):
            yield "gradient", f"the same loss has another gradient: norm {now.norm:.6g}, then {then.norm:.6g}"
        for index, before, rate in self._rates(then, now)[:1]:
            yield "update", f"group {index}: rate {rate:.6g}, then {before:.6g}"
        if self._jumps("end", _distance(then.end, now.end)):
            yield "update", f"the same gradients make another update{_by(then.end, now.end)}"

    @staticmethod
    def _rates(then: Line, now: Line) -> list[tuple[int, float, float]]:
        """Groups whose rate is another one, in whatever order they are: the group, its rate then and now."""
        pairs = zip(sorted(then.rates), sorted(now.rates), strict=False)
        if len(now.rates) != len(then.rates) or all(_near(a, b) for a, b in pairs):
            return []
        both = enumerate(zip(then.rates, now.rates, strict=True))
        return [(index, a, b) for index, (a, b) in both if not _near(a, b)]

    def _jumps(self, what: str, distance: float) -> bool:
        known = max(self.apart.values(), default=0.0)
        if distance > max(self.near, PACKED, JUMP * known):
            return True
        self.apart[what] = max(distance, self.apart.get(what, 0.0))
        return False


def _distance(then: Sketch | None, now: Sketch | None) -> float:
    return 0.0 if then is None or now is None or then.shape != now.shape else now.distance(then)


def _by(then: Sketch | None, now: Sketch | None) -> str:
    return f" (relative {_distance(then, now):.2g})"


def _apart(then: float | None, now: float | None) -> float:
    if then is None or now is None:
        return 0.0
    if not (math.isfinite(then) and math.isfinite(now)):
        return 0.0 if str(then) == str(now) else math.inf
    return abs(now - then) / max(abs(now), abs(then), 1e-30)


def _near(a: float, b: float) -> bool:
    return a == b or math.isclose(a, b, rel_tol=1e-6) or (math.isnan(a) and math.isnan(b))
