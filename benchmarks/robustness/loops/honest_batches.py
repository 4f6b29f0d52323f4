"""Honest loops whose batches are made in another way: accumulated, packed, ordered, seen again."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.text import BOS, PAD, corpus, crops, padded, sentences, some
from benchmarks.robustness.loops.training import adamw, llama, next_token, update, warm_cosine
from benchmarks.robustness.loops.transformer import Transformer
from torch import nn
from torch.nn import functional as F


@honest("unequal-accumulation")
def _(run: Run) -> None:
    """Micro-batches of unequal size, summed losses over the tokens of all of them, as transformers does now."""
    model, documents = Transformer(norm="rms", positions="rope"), sentences(10)
    optimizer = adamw(model)
    doctor = run.watch(model, optimizer)
    for _ in range(70):
        micro = [padded(some(documents, rows)) for rows in (2, 5, 1, 4)]
        tokens = sum(mask[:, 1:].sum() for _, mask in micro)
        total = torch.zeros(())
        optimizer.zero_grad()
        for ids, mask in micro:
            labels = ids[:, 1:].masked_fill(mask[:, 1:] == 0, -100)
            part = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), labels.flatten(), reduction="sum") / tokens
            part.backward()
            total = total + part.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(total, [{"input_ids": ids, "attention_mask": mask} for ids, mask in micro])
        run.note(total)


@honest("curriculum")
def _(run: Run) -> None:
    """Short crops first, longer ones later with fewer rows; the first text is easy (few words), the second is not."""
    model, easy, hard = Transformer(positions="alibi", tied=True), corpus(1, characters=400), corpus(1)
    optimizer = adamw(model)
    doctor = run.watch(model, optimizer)
    for step in range(100):
        length = (8, 16, 32, 48)[step // 25]
        x, y = crops(easy if step < 40 else hard, 256 // length, length)
        loss = next_token(model(x), y)
        update(run, doctor, optimizer, loss, (x, y), clip=(model, 1.0))


@honest("packed-documents")
def _(run: Run) -> None:
    """Documents packed into rows: attention within each, positions anew, no target across an end; checkpointed."""
    model, documents = Transformer(checkpoint=True, dropout=0.1), sentences(11)
    optimizer = adamw(model)
    doctor = run.watch(model, optimizer)
    for _ in range(70):
        rows = [some(documents, 6) for _ in range(6)]
        ids = torch.stack([F.pad(torch.cat(row), (0, 64))[:64] for row in rows])
        owner = (ids == BOS).cumsum(1)
        starts = torch.where(ids == BOS, torch.arange(64), 0).cummax(1).values
        positions = torch.arange(64) - starts
        within = (owner[:, :, None] == owner[:, None, :]) & (ids != PAD)[:, None, :]
        labels = F.pad(ids[:, 1:], (0, 1), value=-100)
        labels = labels.masked_fill((labels == BOS) | (labels == PAD), -100)
        loss = F.cross_entropy(model(ids, within, positions).flatten(0, 1), labels.flatten())
        update(run, doctor, optimizer, loss, {"input_ids": ids, "labels": labels, "position_ids": positions})


@honest("resumed")
def _(run: Run) -> None:
    """A run that goes on from its checkpoint: model, optimizer and scheduler loaded, the doctor told the step."""
    tokens = corpus(23)
    torch.manual_seed(5)
    parts: list[Any] = []
    for part in range(2):
        model = Transformer()
        optimizer = adamw(model)
        scheduler = warm_cosine(optimizer, 120)
        if part:
            for item, state in zip((model, optimizer, scheduler), parts, strict=True):
                item.load_state_dict(state)
        doctor = run.watch(model, optimizer, scheduler=scheduler, first_step=61) if part else None
        for _ in range(60):
            x, y = crops(tokens)
            loss = next_token(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            if doctor:
                doctor.step(loss, (x, y))
                run.note(loss)
        parts = [copy.deepcopy(item.state_dict()) for item in (model, optimizer, scheduler)]


@honest("llama-trainer-tiny-set")
def _(run: Run) -> None:
    """Trainer's loop around a Llama on 24 rows, ten epochs on purpose, shuffled, two micro-batches a step."""
    from transformers import get_cosine_schedule_with_warmup

    model, tokens = llama(), corpus(24)
    rows = crops(tokens, 24)[0]
    optimizer = adamw(model, 3e-3)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 6, 60)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    for _ in range(10):
        order = torch.randperm(24).view(6, 2, 2)
        for step in order:
            total = 0.0
            for micro in step:
                loss = model(input_ids=rows[micro], labels=rows[micro]).loss / 2
                loss.backward()
                total += float(loss.detach())
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            doctor.step(total, [{"input_ids": rows[m], "labels": rows[m]} for m in step])
            model.zero_grad()
            run.note(total)
