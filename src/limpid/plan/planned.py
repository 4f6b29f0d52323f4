"""The plan of one model: every figure there is about it, whether it fits, and what would make it fit."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from limpid.config import ModelConfig, TrainConfig
from limpid.errors import ConfigError
from limpid.options import check_words, require
from limpid.plan import cluster, flops, kept, memory, parameters, scaling
from limpid.plan.activations import Recompute
from limpid.plan.architecture import Architecture
from limpid.plan.figure import Figure, figure, given, shown
from limpid.plan.memory import Layout
from limpid.plan.subject import Subject, subject

AMOUNTS = {"tokens": "a number of tokens", "memory": "gigabytes of one device", "flops": "FLOP/s of one device"}


@dataclass(frozen=True)
class Options:
    """How it would be trained, on what."""

    tokens: float | None = None
    """Tokens to train on."""
    devices: int = 1
    """Devices that train together."""
    device: str | None = None
    """Their kind (a100, h100, h200, b200, rtx-4090, mi300x, …), or `here` to measure this machine."""
    memory: float | None = None
    """GB (10^9 bytes) of one device; --device knows its own."""
    flops: float | None = None
    """FLOP/s of one device's matrix products; --device knows its own."""
    price: float | None = None
    """Dollars per device and hour."""
    utilisation: float | None = None
    """Share of the peak that the model's own FLOPs reach (MFU); 0.4, or what a run measured, when left out."""
    batch_size: int | None = None
    """Sequences of one micro-batch on one replica."""
    context_length: int | None = None
    """Tokens of a sequence; the model's own when left out."""
    gradient_accumulation_steps: int = 1
    """Micro-batches per step."""
    precision: str | None = None
    """fp32, bf16, fp16 (mixed, with fp32 masters), bf16_pure, fp64; bf16 for published models. To generate in: fp8,
    int8, int4.
    """
    zero: int = 0
    """ZeRO stage: 1 divides the optimizer's memory among replicas, 2 gradients too, 3 weights too (FSDP)."""
    tensor: int = 1
    """Devices that share each matrix (tensor parallel, with sequence parallel)."""
    pipeline: int = 1
    """Stages of a pipeline."""
    recompute: Recompute = "none"
    """What is computed again instead of kept: nothing, attention's weights, or each whole block."""
    formed: bool = False
    """Attention keeps its weights instead of running fused."""

    def __post_init__(self) -> None:
        check_words(self)
        for name in ("devices", "batch_size", "context_length", "gradient_accumulation_steps", "tensor", "pipeline"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name} is {value}: it must be at least 1")
        for name, unit in AMOUNTS.items():
            value = getattr(self, name)
            require(value is None or 0 < value < math.inf, f"{name} is {value}: {unit}, above 0")
        require(
            self.price is None or 0 <= self.price < math.inf,
            f"price is {self.price}: dollars per device and hour, not negative",
        )
        require(
            self.utilisation is None or 0 < self.utilisation <= 1,
            f"utilisation is {self.utilisation}: it is a share of the peak, above 0 and at most 1",
        )
        known = (*memory.STATES, *(set(memory.WEIGHT_BYTES) - set(memory.STATES)))
        require(
            self.precision is None or self.precision in known,
            f"precision is {self.precision!r}: choose one of {', '.join(sorted(known))}",
        )


@dataclass(frozen=True)
class Plan:
    """Figures by section, in the order in which they are told."""

    name: str
    sections: dict[str, list[Figure]]
    notes: list[str] = field(default_factory=list)
    fits: bool | None = None
    """None when no memory was given."""
    advice: list[str] = field(default_factory=list)
    judged: str = "memory.total"
    """What was held against the memory: training, or generating where the format is one to generate in."""

    @property
    def figures(self) -> list[Figure]:
        return [one for section in self.sections.values() for one in section]

    def figure(self, name: str) -> Figure:
        """One figure by its name, or by the last words of it where that is enough.

        Raises  ConfigError naming the closest ones
        """
        names = {one.name: one for one in self.figures}
        if name in names:
            return names[name]
        ending = [one for one in names if one.endswith(f".{name}") or one.replace("_", ".").endswith(f".{name}")]
        if len(ending) == 1:
            return names[ending[0]]
        if ending:
            raise ConfigError(f"{name!r} is the end of several figures: choose one of {', '.join(ending)}")
        close = difflib.get_close_matches(name, names, 4, 0.4)
        raise ConfigError(f"no figure is called {name!r}: " + ("did you mean " if close else "there are ")
                          + ", ".join(close or names))  # fmt: skip

    def document(self) -> dict[str, Any]:
        """For JSON."""
        found: dict[str, Any] = {"name": self.name}
        found |= {title: [one.document() for one in section] for title, section in self.sections.items()}
        return found | {"fits": self.fits, "advice": self.advice, "notes": self.notes}


def plan(what: str | Path | ModelConfig | TrainConfig | Architecture | None = None, **options: Any) -> Plan:
    """Plan a model: a published name, a run, `last`, a Hugging Face folder, config.json, a TOML, or a configuration.

    options: the fields of Options, as in plan("llama-3-8b", devices=8, device="h100", zero=3, tokens=1e12)
    Raises  ConfigError, CheckpointError for what is not known
    """
    unknown = set(options) - {entry.name for entry in dataclasses.fields(Options)}
    require(not unknown, f"plan has no option {', '.join(sorted(unknown))}: see limpid plan --help")
    return planned(subject(what), Options(**options))


def planned(subject: Subject, options: Options) -> Plan:
    """Every figure about a subject under some options."""
    model = subject.architecture
    context = options.context_length or model.context_length or 2048
    device = None if options.device is None else cluster.device_named(options.device)
    sections = {"parameters": parameters.figures(model), "flops": flops.figures(model, context)}
    notes = list(subject.notes)
    stored = options.precision if options.precision not in memory.STATES else None
    trained = options if stored is None else dataclasses.replace(options, precision=None)
    if stored is not None:
        notes.append(f"{stored} is a format to generate in: training is planned without it")
    account, spelled = _memory(subject, trained, context)
    sections["memory"] = account
    notes.append(spelled)
    if model.head:
        weights = options.precision or ("bf16" if subject.config is None else "fp32")
        sections["decoding"] = memory.decoding(model, options.batch_size or 1, context, weights)
    limit = _limit(options, device)
    fits, advice, judged = None, [], "memory.total"
    if limit is not None:
        judged = "decoding.total" if stored is not None and model.head else "memory.total"
        used = next(one for section in sections.values() for one in section if one.name == judged)
        sections["memory"].append(given("memory.device", limit, "bytes", "" if device is None else device.source))
        share = figure("memory.share", "share", "total / device", {"total": used, "device": limit})
        sections["memory"].append(share)
        fits = used.value <= limit
        advice = [] if fits or judged != "memory.total" else list(what_would_fit(subject, trained, context, limit))
    sections |= _time(subject, trained, context, device)
    if model.head:
        sections["scaling"] = _scaling(subject, options)
    return Plan(model.name, sections, notes, fits, advice, judged)


def _limit(options: Options, device: cluster.Device | None) -> float | None:
    if options.memory is not None:
        return options.memory * 1e9
    return None if device is None else device.memory


def _here(subject: Subject, options: Options) -> bool:
    """Whether limpid's own engine would train it: it has a configuration, and stays on one device."""
    one = (options.devices, options.zero, options.tensor, options.pipeline) == (1, 0, 1, 1)
    plain = options.recompute == "none" and not options.formed and options.precision != "bf16_pure"
    return subject.config is not None and one and plain


def _memory(subject: Subject, options: Options, context: int) -> tuple[list[Figure], str]:
    """The account of memory, and in words which one it is."""
    if _here(subject, options) and subject.config is not None:
        config = _with(subject.config, options)
        on_processor = options.device is None
        run = config.run
        where = "a processor" if on_processor else "a graphics processor"
        said = (f"memory: as limpid trains it on one device, {where}: {run.precision}, {run.batch_size} × "
                f"{config.model.context_length:,} tokens per micro-batch")  # fmt: skip
        return kept.figures(config, on_processor), said
    layout = _layout(subject, options, context)
    said = (f"memory: the standard account: {layout.precision}, Adam, {layout.batch} × {layout.context:,} tokens per "
            f"micro-batch, ZeRO {layout.zero} over {layout.replicas} replicas, tensor {layout.tensor}, "
            f"pipeline {layout.pipeline}, recomputation {layout.recompute}, attention "
            f"{'with its weights kept' if layout.formed else 'fused'}")  # fmt: skip
    return memory.training(subject.architecture, layout), said


def _with(config: TrainConfig, options: Options) -> TrainConfig:
    """The configuration with what was asked for instead."""
    run: dict[str, Any] = {"batch_size": options.batch_size, "precision": options.precision}
    if options.gradient_accumulation_steps > 1:
        run["gradient_accumulation_steps"] = options.gradient_accumulation_steps
    model = config.model
    if options.context_length is not None:
        model = dataclasses.replace(model, context_length=options.context_length)
    return dataclasses.replace(
        config,
        run=dataclasses.replace(config.run, **{key: value for key, value in run.items() if value is not None}),
        model=model,
    )


def _layout(subject: Subject, options: Options, context: int) -> Layout:
    config = subject.config
    batch = options.batch_size or (1 if config is None else config.run.batch_size)
    precision = options.precision or ("bf16" if config is None else config.run.precision)
    optimizer = "adamw" if config is None else config.update.optimizer
    same = {name: getattr(options, name) for name in ("devices", "zero", "tensor", "pipeline", "recompute", "formed")}
    return Layout(**same, batch=batch, micro_batches=options.gradient_accumulation_steps, context=context,
                  precision=precision, optimizer=optimizer)  # fmt: skip


def what_would_fit(subject: Subject, options: Options, context: int, limit: float) -> Iterator[str]:
    """Changes that bring the plan below the limit: one at a time, then together, then more devices."""
    model, layout = subject.architecture, _layout(subject, options, context)

    def total(candidate: Layout) -> float:
        return float(next(one.value for one in memory.training(model, candidate) if one.name == "memory.total"))

    single: list[tuple[str, Layout]] = []
    if layout.recompute != "full":
        single.append(("--recompute full", dataclasses.replace(layout, recompute="full")))
    if layout.batch > 1:
        halved = layout.batch
        while halved > 1 and total(dataclasses.replace(layout, batch=halved)) > limit:
            halved //= 2
        single.append((f"--batch-size {halved}", dataclasses.replace(layout, batch=halved)))
    if layout.replicas > 1:
        for stage in range(layout.zero + 1, 4):
            single.append((f"--zero {stage}", dataclasses.replace(layout, zero=stage)))
    if layout.precision in ("fp32", "fp64"):
        single.append(("--precision bf16_pure", dataclasses.replace(layout, precision="bf16_pure")))
    found = False
    for words, candidate in single:
        if (needed := total(candidate)) <= limit:
            found = True
            yield f"{words}: {shown(needed, 'bytes')} per device"
    if found:
        return
    least = dataclasses.replace(layout, recompute="full", batch=1, zero=3 if layout.replicas > 1 else layout.zero)
    words = "--recompute full --batch-size 1" + (" --zero 3" if layout.replicas > 1 else "")
    if (needed := total(least)) <= limit:
        yield f"{words}: {shown(needed, 'bytes')} per device"
        return
    more = dataclasses.replace(least, zero=3)
    while more.devices < 1 << 20:
        more = dataclasses.replace(more, devices=more.devices * 2)
        if (needed := total(more)) <= limit:
            yield (f"--devices {more.devices} --zero 3 --recompute full --batch-size 1: "
                   f"{shown(needed, 'bytes')} per device")  # fmt: skip
            return
    yield (f"no number of devices is enough by itself: a single sequence of {context:,} tokens needs more than "
           f"{shown(limit, 'bytes')}; shorten it (--context-length), or split it (--tensor, --pipeline)")  # fmt: skip


def _time(subject: Subject, options: Options, context: int, device: cluster.Device | None) -> dict[str, list[Figure]]:
    """How long, and what it costs; how well a run used the machine."""
    step = next(one for one in flops.figures(subject.architecture, context) if one.name == "flops.step")
    precision = options.precision or ("bf16" if subject.config is None else subject.config.run.precision)
    rate = None
    if options.flops is not None:
        rate = given("time.peak", options.flops, "FLOP/s", note="as given")
    elif device is not None:
        rate = cluster.rate_of(device, precision)
    if rate is None:
        return {}
    found: list[Figure] = []
    utilisation = cluster.UTILISATION
    if subject.speed is not None:
        found.append(given("time.measured_speed", subject.speed, "tokens/s", note="median of the run's steps"))
        found.append(cluster.utilisation_of(float(step.value), subject.speed, options.devices, float(rate.value)))
        utilisation = min(1.0, float(found[-1].value))
    tokens = options.tokens or _tokens_of(subject)
    if tokens:
        if options.utilisation is not None:
            utilisation = options.utilisation
        found += cluster.time_and_money(step, tokens, options.devices, rate, utilisation, options.price)
    if options.pipeline > 1:
        found.append(figure("time.pipeline_bubble", "share", "(p - 1) / m",
                            {"p": options.pipeline, "m": options.gradient_accumulation_steps},
                            cluster.NARAYANAN.format("section 2.2"), "idle over working time"))  # fmt: skip
    return {"time": found} if found else {}


def _tokens_of(subject: Subject) -> float | None:
    """Tokens that the configuration trains on."""
    if subject.config is None:
        return None
    run = subject.config.run
    return float(run.max_steps * run.batch_size * run.gradient_accumulation_steps * subject.config.model.context_length)


def _scaling(subject: Subject, options: Options) -> list[Figure]:
    """For how many tokens this size is the best one; and of a number of tokens, how far it is from that."""
    size = float(flops.active_parameters(subject.architecture))
    tokens = options.tokens or subject.trained_tokens or _tokens_of(subject)
    if tokens:
        return scaling.judge(scaling.REFIT, size, tokens) + scaling.judge(scaling.APPROACH_3, size, tokens)[1:]
    return [one for law in scaling.LAWS for one in scaling.allocate(law, parameters=size)]
