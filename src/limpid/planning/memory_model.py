"""Which memory model a plan uses: that of limpid's own engine, or the standard one over many devices."""

from __future__ import annotations

import dataclasses
from typing import Any

from limpid.config import TrainConfig
from limpid.planning import engine_memory, memory
from limpid.planning.cluster import Layout, Recompute
from limpid.planning.figure import Figure, given
from limpid.planning.options import Options
from limpid.planning.subject import Subject

BESIDE_TENSORS = (
    "; these are tensors: the process takes about 1.4 times as much, since the C library's heap keeps what is freed "
    "between others, and 0.24 GB for Python and PyTorch"
)
"""Measured: `python benchmarks/memory.py process`. Where each array is mapped by itself, the heap's share is gone."""


def memory_model(subject: Subject, options: Options, context: int) -> tuple[list[Figure], str]:
    """Memory of training, and in words which model of it this is."""
    if subject.config is not None and _on_one_device(options):
        config = with_options(subject.config, options)
        figures = engine_memory.figures(config, options.device is None)
        if subject.process_peak is not None and config == subject.config:
            figures.append(given("memory.process_here", subject.process_peak, "bytes",
                                 note="what the whole process of the run held at most"))  # fmt: skip
        return figures, _engine_said(config, options.device is None)
    layout = layout_of(subject, options, context)
    return memory.training(subject.architecture, layout), _standard_said(layout)


def _on_one_device(options: Options) -> bool:
    """Whether limpid's own engine could train it so: on one device, nothing that only other engines do."""
    one_device = (options.devices, options.zero, options.tensor, options.pipeline) == (1, 0, 1, 1)
    as_limpid = options.recompute != "selective" and options.attention == "fused"
    as_limpid = as_limpid and options.precision not in ("bf16_pure", "bf16_fp32_gradients")
    return one_device and as_limpid


def _engine_said(config: TrainConfig, on_processor: bool) -> str:
    run = config.run
    where = "a processor" if on_processor else "a graphics processor"
    recomputed = ", each block recomputed" if run.gradient_checkpointing == "on" else ""
    return (f"memory: as limpid trains it on one device, {where}: {run.precision}, {run.batch_size} × "
            f"{config.model.context_length:,} tokens per micro-batch{recomputed}"
            + (BESIDE_TENSORS if on_processor else ""))  # fmt: skip


def _standard_said(layout: Layout) -> str:
    shared = f"sequences shared by {layout.context_parallel}, " if layout.context_parallel > 1 else ""
    return (f"memory: the standard model: {layout.precision}, {layout.optimizer}, {layout.batch} × "
            f"{layout.context:,} tokens per micro-batch, ZeRO {layout.zero} over {layout.replicas} replicas, tensor "
            f"{layout.tensor}, pipeline {layout.pipeline}, {shared}recomputation {layout.recompute}, attention "
            f"{layout.attention}")  # fmt: skip


def with_options(config: TrainConfig, options: Options) -> TrainConfig:
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


def decoding(subject: Subject, options: Options, context: int) -> list[Figure]:
    """Memory of generating on one device, in the precision asked for, shared as training would be."""
    precision = options.precision or ("bf16" if subject.config is None else "fp32")
    layout = generating_layout(subject, options, context)
    return memory.decoding(subject.architecture, layout, precision, options.cache_precision)


def generating_layout(subject: Subject, options: Options, context: int) -> Layout:
    """How generating is laid out: one sequence at a time unless more are asked for."""
    layout = layout_of(subject, dataclasses.replace(options, precision=None), context)
    return dataclasses.replace(layout, batch=options.batch_size or 1)


def recomputation(subject: Subject, options: Options) -> Recompute:
    """What the backward pass computes again, as asked for or as the configuration says."""
    if subject.config is not None and subject.config.run.gradient_checkpointing == "on":
        return "full"
    return options.recompute


def layout_of(subject: Subject, options: Options, context: int) -> Layout:
    """How a step of the subject is laid out; what the options leave open is as its configuration says."""
    config = subject.config
    return Layout(
        devices=options.devices,
        zero=options.zero,
        tensor=options.tensor,
        pipeline=options.pipeline,
        interleave=options.interleave,
        context_parallel=options.context_parallel,
        recompute=recomputation(subject, options),
        attention=options.attention,
        batch=options.batch_size or (1 if config is None else config.run.batch_size),
        micro_batches=options.gradient_accumulation_steps,
        context=context,
        precision=options.precision or ("bf16" if config is None else config.run.precision),
        optimizer="adamw" if config is None else config.update.optimizer,
    )
