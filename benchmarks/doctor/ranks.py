"""The base loop on several processes: gradients averaged by DistributedDataParallel, or by hand."""

from __future__ import annotations

import multiprocessing
import os
import queue
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.doctor.data import rows
from benchmarks.doctor.loop import Loop
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

PATIENCE = 300
"""Seconds after which a process that has not answered has failed."""


class RankedLoop(Loop):
    """A loop in one of several processes; each reads rows of its own."""

    wrapped: nn.Module

    def prepare(self) -> None:
        super().prepare()
        self.wrapped = DistributedDataParallel(self.model) if self.settings.averaging == "ddp" else self.model

    @property
    def watched(self) -> nn.Module:
        return self.wrapped

    def tokens(self, step: int, micro: int) -> Tensor:
        s = self.settings
        return rows(s.text, s.vocab, s.rows, s.positions, (self.seed, step, micro, self.reader()))

    def reader(self) -> int:
        """Whose rows this process reads."""
        return dist.get_rank()

    def forward(self, batch: Any) -> Tensor:
        out = self.wrapped(batch[0])
        return getattr(out, "logits", out)

    def unscale(self) -> None:
        """Where gradients are averaged by hand, if they are: after the last backward pass, before clipping."""
        if self.settings.averaging == "by hand":
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()


def on_ranks(work: Callable[[], Any], world: int = 2) -> list[Any]:
    """What `work` gives on each of `world` processes that can talk to each other."""
    context = multiprocessing.get_context("fork")
    answers: Any = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        started = [
            context.Process(target=one_rank, args=(rank, world, Path(folder) / "meeting", work, answers))
            for rank in range(world)
        ]
        for process in started:
            process.start()
        try:
            found = dict(answers.get(timeout=PATIENCE) for _ in started)
        except queue.Empty:
            found = {}
        for process in started:
            process.join(5)
            if process.is_alive():
                process.terminate()
    for rank in range(world):
        if isinstance(found.get(rank, "no answer"), str):
            raise RuntimeError(f"rank {rank}: {found.get(rank, 'no answer')}")
    return [found[rank] for rank in range(world)]


def one_rank(rank: int, world: int, meeting: Path, work: Callable[[], Any], answers: Any) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    try:
        answers.put((rank, work()))
    except Exception:
        answers.put((rank, traceback.format_exc()))
    dist.destroy_process_group()
