"""Which of several layouts to take: each rehearsed, and the one that sends least of those that fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from limpid.config import TrainConfig
from limpid.config.options import require
from limpid.errors import ConfigError
from limpid.planning import hardware
from limpid.planning.communication import Links, links_of
from limpid.planning.figure import shown
from limpid.planning.memory_model import with_options
from limpid.planning.options import Options
from limpid.planning.subject import Subject
from limpid.reporter import Reporter
from limpid.training.parallel.rehearsal import Rehearsal, layouts, rehearse


@dataclass(frozen=True)
class Rehearsed:
    """Layouts that were tried, in their order, and the one to take."""

    name: str
    batch: str
    tried: tuple[Rehearsal, ...]
    links: Links
    chosen: Rehearsal | None
    why: str
    notes: tuple[str, ...] = ()
    """What of the run is rehearsed as something else."""

    def document(self) -> dict[str, Any]:
        """As plain values."""
        chosen = None if self.chosen is None else str(self.chosen.parallel)
        tried = [one.document() | {"seconds_sending": one.seconds(self.links)} for one in self.tried]
        return {"name": self.name, "batch": self.batch, "layouts": tried, "chosen": chosen, "why": self.why,
                "notes": list(self.notes)}  # fmt: skip


DIVIDES = ("devices", "zero", "tensor", "pipeline", "interleave", "context_parallel")
"""Options of a plan that say how devices divide the step: of a rehearsal --parallel does."""
USED = ("device", "memory", "devices_per_node", "link", "network", "batch_size", "context_length",
        "gradient_accumulation_steps", "precision", "recompute")  # fmt: skip
"""Options of a plan that change a rehearsal."""


def rehearsed(subject: Subject, ranks: int, parallel: str | None, options: Options, reporter: Reporter) -> Rehearsed:
    """Rehearse the layout that is named, else several, and choose.

    Raises  ConfigError for a model that limpid does not train itself
    """
    config = subject.config
    if config is None:
        raise ConfigError(
            f"limpid does not train {subject.architecture.name} itself: name a run or a TOML configuration"
        )
    _require_used(options)
    notes = tuple(_unlike(config))
    config = with_options(config, options)
    device = None if options.device is None else hardware.device_named(options.device)
    links = links_of(options if device is not None else replace(options, link=options.link or hardware.LINK), device)
    assert links is not None  # both know what a node sends at
    limit = (options.memory and options.memory * 1e9) or (None if device is None else device.memory_bytes)
    wanted = list(layouts(config, ranks, options.devices_per_node)) if parallel is None else [parallel]
    tried = []
    for number, one in enumerate(wanted):
        reporter.progress(f"rehearsing {one}", number, len(wanted))
        tried.append(rehearse(config, ranks, one, options.gradient_accumulation_steps))
    reporter.close()
    fitting = [one for one in tried if limit is None or one.peak <= limit]
    chosen = min(fitting, key=lambda one: (one.seconds(links) / one.tokens, one.peak), default=None)
    sizes = f"{options.gradient_accumulation_steps} × {config.run.batch_size} × {config.model.context_length:,}"
    batch = f"{sizes} tokens of a rank's own in a step, {config.run.precision}"
    return Rehearsed(subject.architecture.name, batch, tuple(tried), links, chosen, _why(chosen, tried, limit), notes)


def _require_used(options: Options) -> None:
    """Raise ConfigError for an option that changes no rehearsal."""
    for name, value in options.chosen().items():
        require(
            name not in DIVIDES,
            f"{name} is {value}, and of a rehearsal --parallel says how ranks divide the step, as in shard=4,tensor=2",
        )
        require(name in USED, f"{name} is {value}, which a rehearsal does not use: leave it out")
    require(options.recompute != "selective", "recompute is selective, and limpid recomputes whole blocks: give full")
    require(options.device != "here", "device is here, and a rehearsal measures nothing: name a kind, or give --memory")


def _unlike(config: TrainConfig) -> Iterator[str]:
    """What of a run is rehearsed as something else."""
    if config.run.compile == "on":
        yield "blocks are not compiled here: compiled ones hold fewer activations, and send the same"
    if config.tune is not None:
        yield (
            f"{config.tune.objective} is rehearsed as next-token training on rows of the whole context: a reference, a "
            "teacher and answers that are drawn come on top"
        )


def _why(chosen: Rehearsal | None, tried: list[Rehearsal], limit: float | None) -> str:
    if chosen is None:
        assert limit is not None
        least = min(tried, key=lambda one: one.peak)
        return (
            f"none fits {shown(limit, 'bytes')}: {least.parallel} takes least, {shown(least.peak, 'bytes')}; lower "
            "--batch-size, or recompute blocks with --recompute full"
        )
    if len(tried) == 1:
        return f"fits {shown(limit, 'bytes')}" if limit is not None else ""
    room = f"of those that fit {shown(limit, 'bytes')} " if limit is not None else ""
    more = "" if limit is not None else "; give --device or --memory, and those that do not fit are left out"
    return f"take --parallel {chosen.parallel}: {room}it sends for the shortest time per token{more}"
