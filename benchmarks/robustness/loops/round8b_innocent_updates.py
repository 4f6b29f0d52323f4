"""Round 8b, innocent changes of the optimizer, its schedule, clipping, accumulation and precision."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, innocent
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    examples,
    hf_trainer,
    judged,
    next_loss,
    outcome,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round6_tools import classify
from benchmarks.robustness.loops.round7b_parts import Patches, spots
from benchmarks.robustness.loops.round7b_tools import text_outcome
from benchmarks.robustness.loops.round8b_parts import (
    causal_loss,
    causal_outcome,
    llama,
    reseeded,
    steps,
    t5,
    text_class_outcome,
    told_loss,
    translated,
    word_table,
)
from torch import Tensor, nn


@innocent("r8-adamw-fused")
def adamw_fused(run: Run, changed: bool) -> None:
    """transformers' Trainer, GPT-2: AdamW in its fused form."""
    language = Language(run.draw.randrange(999))
    model = tiny_gpt2(12, pad_token_id=None, n_layer=2)
    causal_outcome(run, model, language)
    rows = language.rows(320, 20)
    optim = "adamw_torch_fused" if changed else "adamw_torch"
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 70, optim=optim).train()


@innocent("r8-clipped-by-hand")
def clipped_by_hand(run: Run, changed: bool) -> None:
    """A decoder with SGD whose gradients are clipped to 0.5 by torch's function, then by operations on all tensors."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2)
    text_outcome(run, model, language)

    def clip() -> None:
        if not changed:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            return
        gradients: list[Any] = [p.grad for p in model.parameters()]
        whole = torch.stack(torch._foreach_norm(gradients)).norm()
        torch._foreach_mul_(gradients, float((0.5 / (whole + 1e-6)).clamp(max=1)))

    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    steps(run, model, optimizer, lambda: language.rows(16, 20), next_loss, 70, between=clip)


@innocent("r8-halves-accumulated")
def halves_accumulated(run: Run, changed: bool) -> None:
    """A Llama whose batch of sixteen rows no longer fits: two micro-batches of eight, each loss divided by two."""
    language = Language(run.draw.randrange(999))
    model = llama()
    causal_outcome(run, model, language)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(70):
        rows = language.rows(16, 20)
        parts = list(rows.chunk(2)) if changed else [rows]
        optimizer.zero_grad()
        total = torch.zeros(())
        for part in parts:
            loss = causal_loss(model, part) / len(parts)
            loss.backward()
            total += loss.detach()
        optimizer.step()
        doctor.step(total, parts if changed else rows)
        run.note(total)


@innocent("r8-rates-set-by-hand")
def rates_set_by_hand(run: Run, changed: bool) -> None:
    """T5: a warmup and a cosine by LambdaLR; the same rates are then written into the optimizer before each step."""
    model, table = t5(), word_table(run.draw.randrange(999))
    text_class_outcome(run, model, translated(96, table, apart(1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def share(t: int) -> float:
        return (t + 1) / 15 if t < 15 else 0.5 * (1 + math.cos(math.pi * (t - 15) / 85))

    if not changed:
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
        batch = lambda: translated(16, table)
        steps(run, model, optimizer, batch, told_loss, 100, after=lambda _: schedule.step(), scheduler=schedule)
        return
    doctor = run.watch(model, optimizer)
    for t in range(100):
        data = translated(16, table)
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * share(t)
        optimizer.zero_grad()
        loss = told_loss(model, data)
        loss.backward()
        optimizer.step()
        doctor.step(loss, data)
        run.note(loss)


@innocent("r8-steps-in-hooks")
def steps_in_hooks(run: Run, changed: bool) -> None:
    """To save memory each parameter has an optimizer of its own, which steps in a hook once its gradient is complete, and
    gives the gradient back at once. No clipping on either side."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=1)
    text_outcome(run, model, language)
    if not changed:
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
        steps(run, model, optimizer, lambda: language.rows(16, 20), next_loss, 80)
        return
    each: dict[Any, Any] = {p: torch.optim.AdamW([p], lr=5e-3) for p in model.parameters()}

    def hook(p: Tensor) -> None:
        each[p].step()
        each[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    doctor = run.watch(model, list(each.values()))
    for _ in range(80):
        rows = language.rows(16, 20)
        loss = next_loss(model, rows)
        loss.backward()
        doctor.step(loss, rows)
        run.note(loss)


@innocent("r8-no-decay-for-vectors")
def no_decay_for_vectors(run: Run, changed: bool) -> None:
    """A decoder with a decay of 0.01 on all; then, as is usual, none on biases and norms, in a group of their own. Another
    seed."""
    language = Language(run.draw.randrange(999))
    reseeded(run, changed)
    model = Decoder(12, layers=2)
    text_outcome(run, model, language)
    groups: Any = model.parameters()
    if changed:
        groups = [{"params": [p for p in model.parameters() if p.dim() > 1]}]
        groups += [{"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=4e-3, weight_decay=0.01)
    steps(run, model, optimizer, lambda: language.rows(16, 20), next_loss, 80)


@innocent("r8-average-kept-beside")
def average_kept_beside(run: Run, changed: bool) -> None:
    """A vision transformer; an exponential average of its weights is kept beside it and judged now and then."""
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model = Patches(4)
    check = spots(256, 4, apart(1))
    outcome(run, lambda: judged(model, lambda: classify(model, check)))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95)) if changed else None

    def keep(step: int) -> None:
        if average is not None:
            average.update_parameters(model)
            if step % 20 == 19:
                with torch.no_grad():
                    classify(average, check)

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    steps(run, model, optimizer, lambda: spots(24, 4), classify, 80, after=keep)


@innocent("r8-loss-times-1024-and-back")
def loss_times_1024_and_back(run: Run, changed: bool) -> None:
    """A decoder, prepared for float16: the loss is multiplied by 1024 before its backward pass, the gradients are divided by
    it before they are clipped. What is told is the loss itself."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2)
    text_outcome(run, model, language)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(70):
        rows = language.rows(16, 20)
        optimizer.zero_grad()
        loss = next_loss(model, rows)
        if changed:
            (loss * 1024).backward()
            for p in model.parameters():
                p.grad /= 1024
        else:
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)


@innocent("r8-autocast-to-bfloat16")
def autocast_to_bfloat16(run: Run, changed: bool) -> None:
    """transformers' Trainer, Llama: bf16=True."""
    language = Language(run.draw.randrange(999))
    model = llama()
    causal_outcome(run, model, language)
    rows = language.rows(320, 20)
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 70, bf16=changed).train()
