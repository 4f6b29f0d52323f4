"""Other people's loops: transformers' Trainer, Lightning, accelerate, compiled models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import limpid
from doctor.bench import Decoder, batch, groups, mean_loss, rules
from limpid.doctor.callbacks import lightning_callback, trainer_callback


def rows(count: int, shifted: bool = False) -> list[dict[str, Tensor]]:
    made = []
    for number in range(count):
        ids = batch(number, 1)[0][0]
        made.append({"input_ids": ids, "labels": ids.roll(-1) if shifted else ids.clone()})
    return made


def trained(tmp_path: Path, shifted: bool, **arguments: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=97, n_embd=32, n_layer=2, n_head=2, n_positions=24, bos_token_id=None, eos_token_id=None
    )
    callback = trainer_callback(say=False)
    options = TrainingArguments(
        output_dir=str(tmp_path), max_steps=14, per_device_train_batch_size=4, report_to="none", save_strategy="no",
        disable_tqdm=True, use_cpu=True, logging_steps=100, **arguments,
    )  # fmt: skip
    Trainer(model=GPT2LMHeadModel(config), args=options, train_dataset=rows(120, shifted), callbacks=[callback]).train()
    return callback.doctor


def test_the_trainer_of_transformers_is_watched(tmp_path: Path) -> None:
    doctor = trained(tmp_path, shifted=False, gradient_accumulation_steps=2)
    assert doctor.steps == 14
    assert doctor.skipped == {}
    assert rules(doctor.findings) == []
    assert 3 < doctor.history.losses.all[0] < 6


def test_labels_shifted_in_the_data_and_again_in_the_model(tmp_path: Path) -> None:
    doctor = trained(tmp_path, shifted=True)
    assert rules(doctor.findings)[0] == "labels-misaligned"
    assert "+2" in doctor.findings[0].says
    assert (tmp_path / "findings.jsonl").is_file()


def test_lightning_is_watched(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.decoder = Decoder()

        def training_step(self, given: Any, number: int) -> Tensor:
            return mean_loss(self.decoder, given)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW([*self.decoder.blocks.parameters(), *self.decoder.head.parameters()], lr=1e-3)

    callback = lightning_callback(say=False)
    trainer = lightning.Trainer(
        max_steps=8, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[callback], default_root_dir=tmp_path,
    )  # fmt: skip
    data = torch.utils.data.DataLoader([batch(number) for number in range(8)], batch_size=None)
    trainer.fit(Module(), data)
    assert callback.doctor.steps == 8
    assert rules(callback.doctor.findings)[0] == "parameters-not-in-optimizer"
    assert len(callback.doctor.history.losses.all) == 8


def test_accelerate_is_watched() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=1)
    model = Decoder()
    optimizer = torch.optim.AdamW(groups(model), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    with limpid.watch(model, optimizer, scheduler=schedule, say=False) as doctor:
        for number in range(8):
            loss = mean_loss(model, batch(number))
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            doctor.step(loss, batch(number))
    assert doctor.steps == 8
    assert rules(doctor.findings) == []


def compiled_losses(in_place: bool, watched: bool) -> tuple[list[float], int, Any]:
    torch._dynamo.reset()
    model = Decoder()
    graphs: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(1)
        return graph.forward

    compiled: Any = model
    if in_place:
        model.compile(backend=backend)
    else:
        compiled = torch.compile(model, backend=backend)
    optimizer = torch.optim.AdamW(groups(model), lr=1e-3)
    doctor = limpid.watch(compiled, optimizer, say=False) if watched else None
    losses = []
    for number in range(12):
        loss = mean_loss(compiled, batch(number))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        if doctor is not None:
            doctor.step(loss, batch(number))
    if doctor is not None:
        doctor.close()
    return losses, len(graphs), doctor


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_model_is_watched_without_being_compiled_anew(in_place: bool) -> None:
    plain, graphs, _ = compiled_losses(in_place, watched=False)
    losses, again, doctor = compiled_losses(in_place, watched=True)
    assert losses == plain
    assert again == graphs
    assert doctor.steps == 12
    assert doctor.skipped == {}
    assert rules(doctor.findings) == []
    assert doctor.history.levels


@pytest.mark.parametrize("cleared", [True, False])
def test_two_players_that_clear_right_before_their_own_pass(cleared: bool) -> None:
    """A generator's pass adds to the gradients of the discriminator, which are cleared before they are used."""
    torch.manual_seed(0)
    players = torch.nn.ModuleDict({"draws": torch.nn.Linear(4, 2), "judges": torch.nn.Linear(2, 1)})
    draws, judges = players["draws"], players["judges"]
    first, second = (torch.optim.Adam(one.parameters(), lr=1e-3) for one in (draws, judges))
    with limpid.watch(players, [first, second], say=False) as doctor:
        for _ in range(4):
            made, real = draws(torch.randn(8, 4)), torch.randn(8, 2)
            loss = torch.nn.functional.softplus(-judges(made)).mean()
            first.zero_grad()
            loss.backward()
            first.step()
            if cleared:
                second.zero_grad()
            told = torch.cat([-judges(real), judges(made.detach())])
            torch.nn.functional.softplus(told).mean().backward()
            second.step()
            doctor.step(loss)
    assert ("gradients-not-cleared" in rules(doctor.findings)) is not cleared
