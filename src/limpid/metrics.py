"""What a run measured: the lines of its metrics.jsonl, and columns of them as arrays."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limpid.config.names import probably_meant
from limpid.errors import ConfigError
from limpid.html import curve, titled

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float, Int

COUNTS = ("step", "num_tokens")
MEASURED = ("seconds", "tokens_per_second", "peak_share")
NUMBERS = ("loss", "eval_loss", *MEASURED)
"""What is computed with: a line that holds something else there is no line of metrics."""
LARGEST = 2**63
"""Counts are below it: arrays hold them in int64."""


@dataclass(frozen=True)
class Progress:
    """How far a run has come, and how fast."""

    tokens: float
    tokens_per_second: float
    """Median over the steps since it was last started."""
    peak_share: float | None
    """Share of the peak, which is measured at every start, at that speed; None for runs that do not record it."""
    process_peak: float | None = None
    """Bytes that the process has held at most; None for runs that do not record it."""


@dataclass(frozen=True)
class Sample:
    """What the model made of a prompt after a step."""

    step: int
    prompt: str
    text: str
    """Without the prompt."""

    @staticmethod
    def read(file: Path) -> tuple[Sample, ...]:
        """Every line of a file that is whole and a sample."""
        lines = Metrics.read(file).lines
        texts = (line for line in lines if isinstance(line.get("prompt"), str) and isinstance(line.get("text"), str))
        return tuple(Sample(line["step"], line["prompt"], line["text"]) for line in texts)


@dataclass(frozen=True)
class Metrics:
    """Lines in the order in which they were written: one per step, one per evaluation."""

    lines: tuple[dict[str, Any], ...]

    @staticmethod
    def read(file: Path) -> Metrics:
        """Every line that is whole: the last one of a run that was killed may be cut short."""
        try:
            texts = file.read_bytes().splitlines()
        except OSError:
            return Metrics(())
        return Metrics(tuple(line for line in map(line_of, texts) if line is not None))

    @property
    def steps(self) -> tuple[dict[str, Any], ...]:
        """Lines of training steps."""
        return tuple(line for line in self.lines if "loss" in line)

    @property
    def evaluations(self) -> tuple[dict[str, Any], ...]:
        """Lines of evaluations on held-out text."""
        return tuple(line for line in self.lines if "eval_loss" in line)

    @property
    def names(self) -> tuple[str, ...]:
        """Columns that hold numbers."""
        return tuple(dict.fromkeys(name for line in self.lines for name in line if number_of(line[name]) is not None))

    def column(self, name: str) -> tuple[Int[np.ndarray, " line"], Float[np.ndarray, " line"]]:
        """Steps and values of one quantity, such as loss, eval_loss, grad_norm_before_clip or tokens_per_second.

        Raises  ConfigError for a name that no line holds
        """
        import numpy as np

        if self.lines and name not in self.names:
            close = probably_meant(name, self.names)
            hint = f"did you mean {close}?" if close else f"there are {', '.join(self.names)}"
            raise ConfigError(f"no line holds {name!r}: {hint}")
        held = [(line["step"], number) for line in self.lines if (number := number_of(line.get(name))) is not None]
        return np.array([step for step, _ in held], np.int64), np.array([number for _, number in held], np.float64)

    def progress(self) -> Progress | None:
        """Tokens, speed and share of the peak; None before the first step."""
        steps = [line for line in self.steps if line.get("tokens_per_second", 0) > 0 and "num_tokens" in line]
        if not steps:
            return None
        shares = [line.get("peak_share", 0.0) for line in steps]
        ratios = [
            (share if math.isfinite(share) else 0.0) / line["tokens_per_second"]
            for share, line in zip(shares, steps, strict=True)
        ]
        together = [line for line, ratio in zip(steps, ratios, strict=True) if math.isclose(ratio, ratios[-1])]
        speed = statistics.median(line["tokens_per_second"] for line in together)
        held = [number for line in steps if (number := number_of(line.get("process_peak_bytes"))) is not None]
        return Progress(float(steps[-1]["num_tokens"]), speed, speed * ratios[-1] or None, max(held) if held else None)

    def _repr_html_(self) -> str:
        return titled(self, self.loss_curve())

    def loss_curve(self) -> str:
        """The loss of every step, as SVG; nothing where there is none."""
        if not self.steps:
            return ""
        steps, losses = self.column("loss")
        return curve(steps.tolist(), losses.tolist(), "step", "loss, nats per token")

    def __repr__(self) -> str:
        last = f" to step {self.lines[-1]['step']:,}" if self.lines else ""
        counts = f"{len(self.steps):,} steps{last}, {len(self.evaluations):,} evaluations"
        own = [name for name in self.names if "/" not in name]  # without what dashboards call them
        return f"Metrics({counts}: {', '.join(own)})"


def line_of(text: bytes) -> dict[str, Any] | None:
    """A line of metrics or samples; None for what is none, or cut short."""
    try:
        return checked_line(json.loads(text))
    except (ValueError, RecursionError):
        return None


def lines_of(block: bytes) -> list[dict[str, Any]]:
    """The lines of metrics or samples among whole lines."""
    return [line for line in map(checked_line, parsed(block)) if line is not None]


def parsed(block: bytes) -> list[Any]:
    """What JSON says of whole lines: all as one list, one by one where that is none, or has words only Python reads."""
    import orjson

    try:
        found: list[Any] = orjson.loads(b"[" + block.removesuffix(b"\n").replace(b"\n", b",") + b"]")
    except orjson.JSONDecodeError:
        return [line for line in map(line_of, block.split(b"\n")) if line is not None]
    return found


def checked_line(line: Any) -> dict[str, Any] | None:
    """What JSON said, where it is a line of metrics or samples."""
    if not isinstance(line, dict) or "step" not in line:
        return None
    whole = all(type(line[name]) is int and 0 <= line[name] < LARGEST for name in COUNTS if name in line)
    read = all(number_of(line[name]) is not None for name in NUMBERS if name in line)
    measured = all(type(line[name]) in (int, float) for name in MEASURED if name in line)
    return line if whole and read and measured else None


def number_of(value: Any) -> float | None:
    """A value of a column, where it is a number; what is not finite is written as a word."""
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number that no float can hold
        return None
