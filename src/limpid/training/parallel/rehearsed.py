"""Which of several layouts to take: each rehearsed, and the one that sends least of those that fit."""

from __future__ import annotations

from dataclasses import dataclass

from limpid.config.options import require
from limpid.planning import hardware
from limpid.planning.communication import Links
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


def rehearsed(subject: Subject, ranks: int, parallel: str | None, options: Options, reporter: Reporter) -> Rehearsed:
    """Rehearse the layout that is named, else several, and choose.

    Raises  ConfigError for a model that limpid does not train itself
    """
    config = subject.config
    require(
        config is not None and options.tensor == options.pipeline == options.context_parallel == 1 and not options.zero,
        f"limpid does not train {subject.architecture.name} itself: name a run or a TOML configuration"
        if config is None
        else "with --rehearse, --parallel says how ranks divide the step: leave out --tensor, --pipeline, --zero",
    )
    assert config is not None
    config = with_options(config, options)
    device = None if options.device is None else hardware.device_named(options.device)
    node = options.link or (device.link_bytes_per_second / 1e9 if device is not None else hardware.LINK)
    network = hardware.NETWORK if options.network is None else options.network
    links = Links(node * 1e9, network * 1e9, options.devices_per_node)
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
    return Rehearsed(subject.architecture.name, batch, tuple(tried), links, chosen, _why(chosen, tried, limit))


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
