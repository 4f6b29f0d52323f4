"""How long this process itself works in a step: where no process waits for another.

That is from one update to the next forward pass, when the loop reads its rows, and inside the blocks, which communicate
before and after. All the rest of a step takes every process as long as the slowest one.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from limpid.doctor.hooks import Hooks
from limpid.doctor.model_info import ModelInfo


class Pace:
    """Seconds of the step that runs: reading rows, in blocks, and altogether."""

    def __init__(self, info: ModelInfo, hooks: Hooks) -> None:
        self.on_cuda = info.device.type == "cuda"
        self.began = self.idle_since = time.perf_counter()
        self.reading: float | None = None
        self.passes: list[tuple[Any, Any]] = []  # marks before and after each pass through a block
        if info.compiled:
            return  # inside compiled code hooks would change what is compiled
        hooks.undo.append(info.outer.register_forward_pre_hook(self._read, prepend=True).remove)
        for _, block in info.blocks:
            hooks.undo += [
                block.register_forward_pre_hook(self._enter).remove,
                block.register_forward_hook(self._leave).remove,
            ]

    def taken(self) -> list[float] | None:
        """The seconds of the step that ends here; None where they are not all known."""
        now = time.perf_counter()
        read, passes, whole = self.reading, self.passes, now - self.began
        self.began = self.idle_since = now
        self.reading, self.passes = None, []
        if read is None or any(leave is None for _, leave in passes):
            return None
        if self.on_cuda:
            if not all(leave.query() for _, leave in passes):
                return None
            return [read, sum(enter.elapsed_time(leave) for enter, leave in passes) / 1e3, whole]
        return [read, sum(leave - enter for enter, leave in passes), whole]

    def _read(self, *_: Any) -> None:
        if self.reading is None and torch.is_grad_enabled():
            self.reading = time.perf_counter() - self.idle_since

    def _enter(self, *_: Any) -> None:
        if torch.is_grad_enabled():
            self.passes.append((self._mark(), None))

    def _leave(self, *_: Any) -> None:
        if torch.is_grad_enabled() and self.passes:
            self.passes[-1] = (self.passes[-1][0], self._mark())

    def _mark(self) -> Any:
        if not self.on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
