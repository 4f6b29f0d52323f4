"""Which account of memory a plan is: that of limpid's own engine, or the standard one over many devices."""

from __future__ import annotations

import dataclasses
from typing import Any

from limpid.config import TrainConfig
from limpid.plan import engine_memory, memory
from limpid.plan.figure import Figure
from limpid.plan.memory import Layout
from limpid.plan.options import Options
from limpid.plan.subject import Subject


def memory_model(subject: Subject, options: Options, context: int) -> tuple[list[Figure], str]:
    """The account of memory, and in words which one it is."""
    if _here(subject, options) and subject.config is not None:
        config = _with(subject.config, options)
        on_processor = options.device is None
        run = config.run
        where = "a processor" if on_processor else "a graphics processor"
        said = (f"memory: as limpid trains it on one device, {where}: {run.precision}, {run.batch_size} × "
                f"{config.model.context_length:,} tokens per micro-batch"
                f"{', each block computed again' * (run.gradient_checkpointing == 'on')}")  # fmt: skip
        return engine_memory.figures(config, on_processor), said
    layout = layout_of(subject, options, context)
    said = (f"memory: the standard account: {layout.precision}, {layout.optimizer}, {layout.batch} × "
            f"{layout.context:,} tokens per micro-batch, ZeRO {layout.zero} over {layout.replicas} replicas, tensor "
            f"{layout.tensor}, pipeline {layout.pipeline}, recomputation {layout.recompute}, attention "
            f"{'with its weights kept' if layout.formed else 'fused'}")  # fmt: skip
    return memory.training(subject.architecture, layout), said


def _here(subject: Subject, options: Options) -> bool:
    """Whether limpid's own engine would train it: it has a configuration, and stays on one device."""
    one = (options.devices, options.zero, options.tensor, options.pipeline) == (1, 0, 1, 1)
    plain = options.recompute != "selective" and not options.formed and options.precision != "bf16_pure"
    return subject.config is not None and one and plain


def _with(config: TrainConfig, options: Options) -> TrainConfig:
    """The configuration with what was asked for instead."""
    run: dict[str, Any] = {"batch_size": options.batch_size, "precision": options.precision}
    if options.gradient_accumulation_steps > 1:
        run["gradient_accumulation_steps"] = options.gradient_accumulation_steps
    if options.recompute == "full":
        run["gradient_checkpointing"] = "on"
    model = config.model
    if options.context_length is not None:
        model = dataclasses.replace(model, context_length=options.context_length)
    return dataclasses.replace(
        config,
        run=dataclasses.replace(config.run, **{key: value for key, value in run.items() if value is not None}),
        model=model,
    )


def layout_of(subject: Subject, options: Options, context: int) -> Layout:
    config = subject.config
    batch = options.batch_size or (1 if config is None else config.run.batch_size)
    precision = options.precision or ("bf16" if config is None else config.run.precision)
    optimizer = "adamw" if config is None else config.update.optimizer
    same = {name: getattr(options, name) for name in ("devices", "zero", "tensor", "pipeline", "recompute", "formed")}
    return Layout(**same, batch=batch, micro_batches=options.gradient_accumulation_steps, context=context,
                  precision=precision, optimizer=optimizer)  # fmt: skip
