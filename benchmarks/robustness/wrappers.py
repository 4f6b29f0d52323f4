"""The same faults and the same healthy loop in every wrapper that a model comes in: what is said in each.

    python -m benchmarks.robustness.wrappers [--only WRAPPER …] [--faults FAULT …] [--json FILE]

A mark a fault and wrapper: + said, o kept as a notice, - not named, . does not apply; of the healthy loop what is said.
Below a row stands what was not examined, as a user reads it. The run ends with 1 where a mark is another than that of
the plain loop.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch.nn.functional as F
from benchmarks.robustness.faulty_decoder import (
    IGNORED,
    ROWS,
    STEPS,
    WIDTH,
    Decoder,
    WithMethods,
    alone,
    batch,
    called,
    loop,
    loss_of,
    optimizer_of,
)  # fmt: skip
from torch import Tensor, nn

import limpid

FAULTS = {
    "no causal mask": {"not-causal"},
    "rows mix": {"batch-leaks"},
    "padding counts": {"padding-counts"},
    "dropout in evaluation": {"dropout-in-evaluation"},
    "head not tied": {"tied-weights-apart"},
    "head never taught": {"parameters-not-in-optimizer"},
    "positions ignored": {"positions-ignored"},
    "loss over padding": {"padding-trained-on"},
    "half overflows": {"overflow-in-half", "not-finite"},
}
"""Each with the rules that name it."""
HEALTHY = "healthy"


def plain(fault: str, folder: Path) -> Any:
    return called(Decoder(fault), fault)


def sequential(fault: str, folder: Path) -> Any:
    model = Decoder(fault)
    return called(nn.Sequential(model.body, model.head), fault)


def data_parallel(fault: str, folder: Path) -> Any:
    return called(nn.DataParallel(Decoder(fault)), fault)


@alone()
def distributed(fault: str, folder: Path) -> Any:
    return called(nn.parallel.DistributedDataParallel(Decoder(fault)), fault)


@alone()
def fully_sharded(fault: str, folder: Path) -> Any:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import init_device_mesh

    model = Decoder(fault)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    return called(model, fault)


def compiled(fault: str, folder: Path) -> Any:
    torch.compiler.reset()
    model: Any = torch.compile(Decoder(fault), backend="eager")
    return called(model, fault)


def compiled_in_place(fault: str, folder: Path) -> Any:
    torch.compiler.reset()
    model = Decoder(fault)
    model.compile(backend="eager")
    return called(model, fault)


def accelerate(fault: str, folder: Path) -> Any:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = Decoder(fault)
    model, optimizer = accelerator.prepare(model, optimizer_of(model, fault))
    with limpid.watch(model, optimizer, say=False) as doctor:
        for step in range(STEPS):
            given = batch(step, fault)
            value = loss_of(model(given[0]), given[1])
            accelerator.backward(value)
            optimizer.step()
            optimizer.zero_grad()
            doctor.step(value, given)
    return doctor


def peft(fault: str, folder: Path) -> Any:
    from peft import LoraConfig, get_peft_model

    options = LoraConfig(r=4, target_modules=["qkv", "up"])
    return called(get_peft_model(Decoder(fault), options), fault)


class ValueHead(nn.Module):
    """As trl had it for PPO: a language model, and a value for each position."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.pretrained_model, self.v_head = model, nn.Linear(WIDTH, 1)

    def forward(self, ids: Tensor) -> tuple[Tensor, None, Tensor]:
        states = self.pretrained_model.body(ids)
        return self.pretrained_model.head(states), None, self.v_head(states).squeeze(-1)


def value_head(fault: str, folder: Path) -> Any:
    model = ValueHead(Decoder(fault))

    def loss(given: tuple[Tensor, Tensor]) -> Tensor:
        logits, _, values = model(given[0])
        return loss_of(logits, given[1]) + 0.1 * (values - 1.0)[given[1] != IGNORED].square().mean()

    return loop(model, fault, loss)


def trainer(fault: str, folder: Path) -> Any:
    from transformers import PrinterCallback, Trainer, TrainingArguments

    from limpid.doctor.callbacks import trainer_callback

    class Own(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
            return loss_of(model(inputs["ids"]), inputs["labels"])

    batches = [zip(*batch(step, fault), strict=True) for step in range(STEPS)]
    rows = [{"ids": ids, "labels": labels} for rows in batches for ids, labels in rows]
    options = TrainingArguments(
        output_dir=str(folder), max_steps=STEPS, per_device_train_batch_size=ROWS, report_to="none", use_cpu=True,
        save_strategy="no", disable_tqdm=True, remove_unused_columns=False, train_sampling_strategy="sequential",
    )  # fmt: skip
    model, callback = Decoder(fault), trainer_callback(say=False)
    optimizers = (optimizer_of(model, fault), None)
    own = Own(model=model, args=options, train_dataset=rows, callbacks=[callback], optimizers=optimizers)
    own.remove_callback(PrinterCallback)
    own.train()
    return callback.doctor


def methods_loss(fault: str, folder: Path) -> Any:
    """The loop calls a method that returns the loss."""
    model = WithMethods(fault)
    return loop(model, fault, lambda given: model.loss({"ids": given[0], "labels": given[1]}))


def methods_encode(fault: str, folder: Path) -> Any:
    """The loop calls one method, and a part of the model on what it returns."""
    model = WithMethods(fault)

    def loss(given: tuple[Tensor, Tensor]) -> Tensor:
        return loss_of(model.head(model.encode(given[0])), given[1])

    return loop(model, fault, loss)


def of_no_module(fault: str, folder: Path) -> Any:
    """A plain class holds the parts."""

    class Agent:
        def __init__(self) -> None:
            model = Decoder(fault)
            self.body, self.head = model.body, model.head

        def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
            return loss_of(self.head(self.body(ids)), labels)

    agent = Agent()
    return loop(nn.ModuleDict({"body": agent.body, "head": agent.head}), fault, lambda given: agent.loss(*given))


def fitted(module: Any, fault: str, folder: Path) -> Any:
    """Lightning's Trainer, and the doctor by its callback."""
    from lightning.pytorch import Trainer

    from limpid.doctor.callbacks import lightning_callback

    callback = lightning_callback(say=False)
    batches = torch.utils.data.DataLoader([batch(step, fault) for step in range(STEPS)], batch_size=None)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    Trainer(
        max_steps=STEPS, accelerator="cpu", devices=1, enable_model_summary=False, callbacks=[callback],
        default_root_dir=folder, **options,
    ).fit(module, batches)  # fmt: skip
    return callback.doctor


def module_of(fault: str, parts: Callable[[Any], None], loss: Callable[[Any, tuple[Tensor, Tensor]], Tensor]) -> Any:
    """A LightningModule without a forward method."""
    from lightning.pytorch import LightningModule

    class Lit(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            parts(self)

        def training_step(self, given: tuple[Tensor, Tensor], number: int) -> Tensor:
            value = loss(self, given)
            self.log("train_loss", value)
            return value

        def configure_optimizers(self) -> Any:
            return optimizer_of(self, fault)

    return Lit()


def lightning(fault: str, folder: Path) -> Any:
    def parts(lit: Any) -> None:
        lit.model = Decoder(fault)

    return fitted(module_of(fault, parts, lambda lit, given: loss_of(lit.model(given[0]), given[1])), fault, folder)


def lightning_parts(fault: str, folder: Path) -> Any:
    """Body and head in two attributes."""

    def parts(lit: Any) -> None:
        model = Decoder(fault)
        lit.body, lit.head = model.body, model.head

    return fitted(
        module_of(fault, parts, lambda lit, given: loss_of(lit.head(lit.body(given[0])), given[1])), fault, folder
    )


def lightning_teacher(fault: str, folder: Path) -> Any:
    """A teacher beside the student."""

    def parts(lit: Any) -> None:
        lit.student, lit.teacher = Decoder(fault), Decoder("").requires_grad_(False)

    def loss(lit: Any, given: tuple[Tensor, Tensor]) -> Tensor:
        with torch.no_grad():
            told = lit.teacher(given[0]).softmax(-1)
        logits, learned = lit.student(given[0]), given[1] != IGNORED
        apart = F.kl_div(logits[learned].log_softmax(-1), told[learned], reduction="batchmean")
        return loss_of(logits, given[1]) + 0.1 * apart

    return fitted(module_of(fault, parts, loss), fault, folder)


WRAPPERS: dict[str, Callable[[str, Path], Any]] = {
    "plain": plain,
    "Sequential of body and head": sequential,
    "DataParallel": data_parallel,
    "DistributedDataParallel": distributed,
    "fully_shard": fully_sharded,
    "torch.compile": compiled,
    "module.compile": compiled_in_place,
    "accelerate": accelerate,
    "PeftModel": peft,
    "trl's value head": value_head,
    "Trainer, own compute_loss": trainer,
    "Lightning: model": lightning,
    "Lightning: body and head": lightning_parts,
    "Lightning: student and teacher": lightning_teacher,
    "method: model.loss(batch)": methods_loss,
    "method: model.encode(ids)": methods_encode,
    "parts of a plain class": of_no_module,
}
DOES_NOT_APPLY = {("PeftModel", "head never taught"), ("PeftModel", "head not tied")}
"""Adapters train beside a head that rests."""


def tried(wrapper: str, fault: str) -> tuple[list[str], list[str], dict[str, str]]:
    """The rules that say something, those that keep a notice, and what was not examined and why."""
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        doctor = WRAPPERS[wrapper]("" if fault == HEALTHY else fault, Path(folder))
    said = [finding.rule for finding in doctor.findings if finding.is_said]
    return said, [finding.rule for finding in doctor.findings if not finding.is_said], dict(doctor.skipped)


def mark(wrapper: str, fault: str, said: list[str], kept: list[str]) -> str:
    if fault == HEALTHY:
        return "silent" if not said else ", ".join(said)
    if (wrapper, fault) in DOES_NOT_APPLY:
        return "."
    return "+" if FAULTS[fault] & set(said) else "o" if FAULTS[fault] & set(kept) else "-"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--only", nargs="*", default=list(WRAPPERS), choices=list(WRAPPERS), metavar="WRAPPER", help="wrappers"
    )
    parser.add_argument(
        "--faults", nargs="*", default=[*FAULTS, HEALTHY], choices=[*FAULTS, HEALTHY], metavar="FAULT", help="faults"
    )
    parser.add_argument("--json", type=Path, help="write all that was said to this file")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.fabric", "torch.distributed"):
        logging.getLogger(name).setLevel(logging.ERROR)
    width, uneven, rows = max(map(len, WRAPPERS)), 0, []
    usual: list[str] = []
    for number, fault in enumerate(arguments.faults):
        print(f"{number}: {fault}")
    print(" " * width, *(str(number) for number in range(len(arguments.faults))))
    for wrapper in arguments.only:
        marks, unseen = [], {}
        for fault in arguments.faults:
            said, kept, skipped = tried(wrapper, fault)
            marks.append(mark(wrapper, fault, said, kept))
            unseen |= skipped
            rows.append({"wrapper": wrapper, "fault": fault, "said": said, "kept": kept, "not examined": skipped})
        usual = usual or marks
        uneven += sum(one not in (".", like) for one, like in zip(marks, usual, strict=True))
        print(f"{wrapper:{width}}", *marks, flush=True)
        for what, why in unseen.items():
            print(f"{'':{width}}   not examined: {what}: {why}"[:200], flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    return int(uneven > 0)


if __name__ == "__main__":
    sys.exit(main())
