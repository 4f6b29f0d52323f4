"""Healthy steps of random configurations, none of which may be accused.

Every option of the model, the update and the run that a recorded step can have is drawn. A quarter are whole runs on
text, whose steps are replayed and compared with what the run wrote down; the rest are steps on random tokens with
labels left out, a few of them with DPO.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from rich.console import Console

from limpid.api import train
from limpid.config import DataConfig, ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.config.model import Activation
from limpid.config.sections import OptimizerName, ScheduleName
from limpid.data.batches import MicroBatch
from limpid.errors import ConfigError
from limpid.objectives import DPO, NEXT_TOKEN, Objective
from limpid.tracing import Trace
from limpid.tracing.document import StepDocument
from limpid.tracing.verdict import Beyond, Check, NotFinite
from limpid.training.loop import Diverged
from limpid.training.record import record_step
from limpid.training.replay import record_past
from limpid.training.state import fresh_state
from limpid.training.step import step

PRECISIONS = ("fp64", "fp32", "bf16", "fp16")
WORDS = "the cat dog bird tree river stone sees hears finds small old green and or not over naïve".split()  # noqa: SIM905


class Draw:
    """Random choices of one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def one(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def often(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def whole(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def power(self, low: float, high: float) -> float:
        """10 to an exponent between these."""
        return float(10 ** self.rng.uniform(low, high))

    def model(self) -> ModelConfig:
        heads, layers = self.one(1, 2, 3, 4), self.whole(1, 3)
        context = self.one(1, 2, self.whole(3, 40), self.whole(3, 40), self.whole(41, 80))
        scaling = self.one("none", "none", "linear", "llama3", "yarn")
        windowed = self.often(0.3)
        biases = {name: self.often(0.3) for name in ("attention_bias", "attention_output_bias", "mlp_bias")}
        return ModelConfig(
            vocab_size=self.whole(5, 90), context_length=context, d_model=2 * self.whole(2, 12), num_layers=layers,
            num_heads=heads, d_head=2 * self.whole(1, 6), d_ff=self.whole(1, 40),
            num_kv_heads=self.one(*(kv for kv in range(1, heads + 1) if heads % kv == 0)),
            norm=self.one("rms", "layer"), norm_placement=self.one("pre", "pre", "post", "after_mlp"),
            norm_eps=self.power(-12, -3), qk_norm=self.often(0.3), positions=self.one(
                "rotary", "rotary", "rotary", "learned", "sinusoidal", "none"),
            rotary_base=self.one(1e4, self.power(0.5, 6)), rotary_layout=self.one("half", "interleaved"),
            rotary_scaling=scaling, rotary_factor=1.0 if scaling == "none" else self.one(2.0, 4.0, 1.7),
            rotary_original_context=self.one(None, self.whole(8, 64)), rotary_high=self.one(4.0, 32.0),
            attention_window=self.whole(1, context) if windowed else None,
            windowed_blocks=(self.whole(0, layers - 1),) if windowed and self.often(0.5) else None,
            mlp=self.one("gated", "plain"), activation=self.one(*get_args(Activation)), tied=self.often(0.6),
            dropout=self.one(0.0, 0.0, 0.1, 0.5), init_std=self.one(0.02, 0.02, self.power(-3, 0.2)),
            scaled_residual_init=self.often(0.5), **biases,
        )  # fmt: skip

    def update(self) -> UpdateConfig:
        return UpdateConfig(
            optimizer=self.one(*get_args(OptimizerName)), learning_rate=self.power(-6, -1),
            beta1=self.one(0.9, 0.9, 0.0, self.rng.random()), beta2=self.one(0.95, 0.999, 0.0, self.rng.random()),
            eps=self.one(1e-8, 1e-8, 0.0, self.power(-12, -3)), weight_decay=self.one(0.1, 0.0, self.power(-4, 0)),
            frozen=("embed.*",) if self.often(0.1) else (), max_grad_norm=self.one(1.0, None, self.power(-3, 1)),
            schedule=self.one(*get_args(ScheduleName)), warmup_steps=self.one(0, 1, self.whole(0, 8)),
            min_learning_rate_ratio=self.one(0.1, 0.0, 1.0), schedule_cycles=self.whole(1, 30),
            schedule_power=self.power(-1, 0.6), decay_fraction=self.one(0.2, 0.0, 1.0, 0.01),
        )  # fmt: skip

    def configuration(self) -> TrainConfig:
        run = RunConfig(
            max_steps=self.whole(4, 12), batch_size=self.whole(1, 4), gradient_accumulation_steps=self.whole(1, 3),
            seed=self.whole(0, 10**6), precision=self.one(*PRECISIONS), gradient_checkpointing=self.one("off", "on"),
            threads=1, compile="off", eval_steps=0, save_steps=self.whole(1, 3), save_total_limit=0, doctor=False,
        )  # fmt: skip
        return TrainConfig(self.model(), update=self.update(), run=run)


def batch(draw: Draw, config: TrainConfig, objective: Objective) -> list[MicroBatch]:
    """Micro-batches in which labels fall unevenly; with DPO, pairs of answers."""
    found = []
    for part in range(config.run.gradient_accumulation_steps):
        rows = config.run.batch_size * (2 if isinstance(objective, DPO) else 1)
        tokens = draw.rng.integers(0, config.model.vocab_size, (rows, config.model.context_length + 1))
        missing = draw.rng.random(tokens[:, 1:].shape) < 0.5 * (part % 2)
        arrays = {"tokens": tokens[:, :-1], "targets": np.where(missing, -100, tokens[:, 1:])}
        if isinstance(objective, DPO):
            arrays["mask"] = (~missing).astype(np.float32)
            size = -np.log(config.model.vocab_size) * (~missing).sum(1)
            arrays |= {"reference_chosen": size[0::2], "reference_rejected": size[1::2]}
        found.append(MicroBatch(arrays, tuple(range(rows))))
    return found


def documents(seed: int) -> Iterator[StepDocument]:
    """The steps that a seed stands for, opened."""
    draw = Draw(seed)
    config = draw.configuration()
    if draw.often(0.25):
        yield from run_documents(draw, config)
        return
    objective: Objective = DPO(beta=draw.power(-2, 0)) if draw.often(0.15) else NEXT_TOKEN
    state, file = fresh_state(config), Path("step.safetensors")
    if state.scaler.is_enabled():
        state.scaler._init_scale = 2.0 ** draw.whole(0, 17)
    for _ in range(draw.whole(0, 3)):
        step(state, batch(draw, config, objective), config, objective)
    record_step(file, state, batch(draw, config, objective), config, run="honest", token_text=str, objective=objective)
    yield Trace.open(file, on_disk=False).step


def run_documents(draw: Draw, config: TrainConfig) -> Iterator[StepDocument]:
    """Two steps of a whole run on text."""
    lines = (" ".join(draw.one(*WORDS) for _ in range(9)) for _ in range(60))
    Path("text.txt").write_text("\n\n".join(lines), encoding="utf-8")
    data = DataConfig(paths=("text.txt",), tokenizer="characters")
    config = replace(config, data=data, model=replace(config.model, vocab_size=0))
    try:
        run = train(config, "run")
    except Diverged as diverged:  # its checkpoint is of the step before, which is the one to open
        run = diverged.run
    last = min(run.latest_checkpoint() + 1, config.run.max_steps)
    for number in sorted({draw.whole(1, last), last}):
        yield Trace.open(record_past(run, number), on_disk=False).step


def accused(seed: int) -> list[str]:
    """What an honest configuration is accused of: a number beyond rounding, or an operation where numbers end."""
    torch.set_num_threads(1)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["LIMPID_CACHE"] = folder
        try:
            for document in documents(seed):
                found += [_said(check) for check in _checks(document) if _accuses(check)]
        except ConfigError:  # a combination that is refused
            return found
        finally:
            os.chdir("/")
    return found


def _checks(document: StepDocument) -> Iterator[Check]:
    for quantity in document.quantities:
        yield from (check for check in (quantity.forward, quantity.backward) if check is not None)
    for parameter in document.parameters:
        yield from (check for check in (parameter.gradient, *parameter.checks) if check is not None)
    yield from document.update.checks
    yield from (one.check for one in document.written.checks) if document.written else ()
    first = document.verdict.first_disagreement
    yield from () if first is None else (first,)


def _accuses(check: Check) -> bool:
    return isinstance(check.verdict, Beyond) or (
        isinstance(check.verdict, NotFinite) and check.verdict.cause == "operation"
    )


def _said(check: Check) -> str:
    return f"{check.name} ({check.kind}) {check.engine:.6g} {check.expected:.6g} ± {check.bound:.2g}: {check.worst:.3g}"


def honest(first: int, count: int, console: Console, processes: int = 1) -> int:
    """How many of so many random configurations are accused."""
    wrong = 0
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        seeds = {pool.submit(accused, seed): seed for seed in range(first, first + count)}
        for number, done in enumerate(as_completed(seeds), 1):
            seed, error = seeds[done], done.exception()
            found = [repr(error)] if error is not None else done.result()
            if found:
                wrong += 1
                config = Draw(seed).configuration()
                console.print(f"{seed}: {len(found)}: {found[:3]} {config}", markup=False, soft_wrap=True)
            if number % 100 == 0:
                console.print(f"{number} done, {wrong} accused", markup=False)
                sys.stdout.flush()
    console.print(f"{wrong} of {count} healthy configurations accused")
    return wrong
