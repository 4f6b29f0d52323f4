"""How the processes of a run divide its step among themselves, as `--parallel shard=2,tensor=2` says it."""

from __future__ import annotations

import dataclasses
import difflib
import math
from dataclasses import dataclass
from typing import Any, Literal

from limpid.config.domain import Count
from limpid.config.model import ModelConfig
from limpid.config.options import Checked, require
from limpid.errors import ConfigError

Schedule = Literal["1f1b", "interleaved1f1b", "interleavedzerobubble", "zbvzerobubble"]
AXES = ("pipeline", "replicate", "shard", "tensor")
"""Axes of the mesh, the outermost first: neighbours, which the fastest links join, share a matrix."""


@dataclass(frozen=True, repr=False)
class Parallel(Checked):
    """Processes along each axis, and how those of an axis work together."""

    replicate: Count = 1
    """Copies of the model, each with rows of its own, whose gradients are added up (data parallel)."""
    shard: Count = 1
    """Processes with rows of their own that divide a copy's parameters, gradients and moments among them (FSDP)."""
    tensor: Count = 1
    """Processes that share every matrix of a block by its heads or columns, and the positions between matrices."""
    pipeline: Count = 1
    """Processes that share the blocks, some in a row each (stages)."""
    zero: Literal[1, 2, 3] = 3
    """What `shard` divides at all times: 1 the moments, 2 the gradients too, 3 the parameters too (ZeRO stages)."""
    schedule: Schedule = "1f1b"
    """In which order stages take the micro-batches, by PyTorch's names; all but 1f1b give each process two stages."""

    @property
    def processes(self) -> int:
        """Of the whole mesh."""
        return math.prod(getattr(self, axis) for axis in AXES)

    @property
    def stages(self) -> int:
        """Into how many stages a model is cut."""
        return self.pipeline * (1 if self.schedule == "1f1b" else 2)

    def held(self, rank: int) -> tuple[int, ...]:
        """The stages of one process of a pipeline: one, or two in turn, or there and back again."""
        if self.schedule == "1f1b":
            return (rank,)
        return rank, self.stages - 1 - rank if self.schedule == "zbvzerobubble" else rank + self.pipeline

    def holder(self, stage: int) -> int:
        """Which process of a pipeline holds a stage."""
        return next(rank for rank in range(self.pipeline) if stage in self.held(rank))

    @property
    def micro_batches(self) -> int:
        """Of what number a step's micro-batches are a multiple: each part of the rows keeps every stage busy."""
        return self.data * self.pipeline

    @property
    def data(self) -> int:
        """Processes, or groups of them, with rows of their own."""
        return self.replicate * self.shard

    def __str__(self) -> str:
        """As it is typed, without what is 1 or usual."""
        return ",".join(f"{name}={value}" for name, value in self.chosen().items())


WORDS = tuple(entry.name for entry in dataclasses.fields(Parallel))


def typed(text: str) -> dict[str, Any]:
    """The words of `--parallel`, checked one by one.

    Raises  ConfigError for an unknown word, a word that is there twice, and a value that it cannot have
    """
    found: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.strip().partition("=")
        if name not in WORDS:
            close = difflib.get_close_matches(name, WORDS, 1)
            hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(WORDS)}, as in shard=2,tensor=2"
            raise ConfigError(f"parallel is {text}, and {name!r} is no axis of it: {hint}")
        require(name not in found, f"parallel is {text}, which says {name} twice: leave one out")
        found[name] = int(value) if value.isdecimal() else value
    try:
        Parallel(**found)
    except ConfigError as error:
        raise ConfigError(f"parallel is {text}: {error}") from error
    return found


def parallel_of(text: str, processes: int) -> Parallel:
    """The layout of so many processes; where `shard` is not named, it takes those that are left.

    Raises  ConfigError where the axes multiply to another number of processes
    """
    named = typed(text)
    others = Parallel(**{name: value for name, value in named.items() if name != "shard"}).processes
    if "shard" not in named and processes % others == 0:
        named["shard"] = processes // others
    parallel = Parallel(**named)
    count = "1 process" if processes == 1 else f"{processes} processes"
    start = f"start it with torchrun --nproc-per-node {parallel.processes}, or choose axes that multiply to {processes}"
    require(
        parallel.processes == processes,
        f"parallel is {text}, which takes {parallel.processes} processes, and this run has {count}: {start}",
    )
    return parallel


def require_divides(model: ModelConfig, parallel: Parallel) -> None:
    """Raise ConfigError for a model that cannot be cut along the axes."""
    if parallel.tensor == 1:
        return
    heads = {"num_heads": model.num_heads, "num_kv_heads": model.sizes.num_kv_heads}
    for name, count in heads.items():
        require(
            count % parallel.tensor == 0,
            f"tensor is {parallel.tensor} and {name} {count}: each process takes whole heads, so choose a divisor of "
            f"{math.gcd(*heads.values())}",
        )
