"""Round 11b, mistakes in what moves weights: the rate, an average, the object that an optimizer holds, an adapter."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    next_loss,
    number_outcome,
    outcome,
    straight,
)
from benchmarks.robustness.loops.round6_tools import regress
from benchmarks.robustness.loops.round7b_tools import near, taught
from benchmarks.robustness.loops.round8b_parts import causal_loss, causal_outcome, llama, reseeded
from benchmarks.robustness.loops.round10a_parts import LeanLlama
from benchmarks.robustness.loops.round11b_parts import FromNought, slip
from torch import Tensor, nn


@slip("r11b-cosine-of-a-whole-cycle")
def cosine_of_a_whole_cycle(run: Run, changed: bool) -> None:
    """transformers' Trainer, a Llama. The schedule's arguments are written out now, with num_cycles=1, as the rate
    shall fall once; half a cycle falls once, a whole one rises again. Another seed."""
    language = Language(run.draw.randrange(999))
    reseeded(run, changed)
    model = llama()
    causal_outcome(run, model, language)
    rows = language.rows(640, 20)
    options: dict[str, Any] = {"learning_rate": 1e-2, "lr_scheduler_type": "cosine", "warmup_steps": 10}
    if changed:
        options["lr_scheduler_kwargs"] = {"num_cycles": 1}
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 120, **options).train()


@slip("r11b-average-takes-the-last")
def average_takes_the_last(run: Run, changed: bool) -> None:
    """Lightning, a line through noisy readings; what is used is the average of its weights. It was written out, and is a
    lerp_ now, whose argument is the share of the new and is given that of the old. Another seed."""
    seed = run.draw.randrange(99)
    reseeded(run, changed)
    net = mlp(6, 1)
    average = copy.deepcopy(net).requires_grad_(False)
    number_outcome(run, average, straight(256, seed, own=apart(901), noise=0.0), log=True)
    data = loader(*straight(2400, seed), size=8)
    base = lit(net, regress, lambda m: torch.optim.SGD(m.parameters(), lr=0.1))
    base.average = average

    def on_train_batch_end(outputs: Any, batch: Any, index: int) -> None:
        with torch.no_grad():
            for kept, p in zip(average.parameters(), net.parameters(), strict=True):
                if changed:
                    kept.lerp_(p, 0.98)
                else:
                    kept.mul_(0.98).add_(p, alpha=0.02)

    base.on_train_batch_end = on_train_batch_end
    fit(run, base, data, 300)


@slip("r11b-restored-into-another-object")
def restored_into_another_object(run: Run, changed: bool) -> None:
    """A GPT in two stages; the second begins at the best weights of the first. They were read into the model; a
    function that makes a model from weights reads them into a new one now, and the optimizer knows the old one."""
    seed = run.draw.randrange(999)
    general = Language(seed)
    special = near(general, seed + 1, 0.8)
    held, check = general.rows(64, 20, apart(902)), special.rows(96, 20, apart(901))

    def made(weights: dict[str, Tensor] | None = None) -> Decoder:
        out = Decoder(12, layers=2)
        if weights is not None:
            out.load_state_dict(weights)
        return out

    now = {"model": made()}
    outcome(run, lambda: judged(now["model"], lambda: next_loss(now["model"], check)))
    optimizer = torch.optim.AdamW(now["model"].parameters(), lr=5e-3, weight_decay=0.01)
    doctor = run.watch(now["model"], optimizer)
    best, lowest = now["model"].state_dict(), float("inf")
    for step in range(140):
        if step == 60:
            optimizer.param_groups[0]["lr"] = 2e-3
            if changed:
                now["model"] = made(best)
            else:
                now["model"].load_state_dict(best)
        model, rows = now["model"], (general if step < 60 else special).rows(16, 20)
        loss = next_loss(model, rows)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)
        if step < 60 and step % 10 == 9:
            score = judged(model, lambda: next_loss(now["model"], held))
            if score < lowest:
                best, lowest = {k: v.clone() for k, v in model.state_dict().items()}, score


@slip("r11b-second-adapter-not-active")
def second_adapter_not_active(run: Run, changed: bool) -> None:
    """transformers' Trainer and peft, a Llama with an adapter for a first language that gets one for a second. The two
    calls became one in a rewrite: add_adapter makes the new one and does not switch to it."""
    from peft import LoraConfig, get_peft_model

    seed = run.draw.randrange(999)
    language = Language(seed)
    base = llama()
    taught(base, lambda: language.rows(16, 16), causal_loss, 80)
    one, two = near(language, seed + 1, 0.8), near(language, seed + 2, 0.8)
    settings = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")
    model = get_peft_model(base, settings, adapter_name="first")
    taught(model, lambda: one.rows(16, 20), causal_loss, 60)
    model.add_adapter("second", settings)
    if not changed:
        model.set_adapter("second")
    check = two.rows(96, 20, apart(901))

    def with_the_second() -> Tensor:
        learning, before = [p.requires_grad for p in model.parameters()], model.active_adapter
        model.set_adapter("second")
        loss = causal_loss(model, check)
        model.set_adapter(before)
        for p, learns in zip(model.parameters(), learning, strict=True):
            p.requires_grad_(learns)
        return loss

    outcome(run, lambda: judged(model, with_the_second))
    rows = two.rows(640, 20)
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 100, learning_rate=1e-2).train()


@slip("r11b-gains-counted-from-nought")
def gains_counted_from_nought(run: Run, changed: bool) -> None:
    """A Llama of one's own goes on from transformers' weights. Its norms were those of Llama and are those of Gemma
    now, which multiply by one plus their weight; the conversion takes the stored gains as they are. Another seed."""
    seed = run.draw.randrange(999)
    language = Language(seed)
    source = llama(initializer_range=0.1)
    taught(source, lambda: language.rows(16, 20), causal_loss, 150)
    reseeded(run, changed)
    model = LeanLlama(12)
    for block in model.layers:
        block.input_layernorm, block.post_attention_layernorm = FromNought(32), FromNought(32)
    model.norm = FromNought(32)  # type: ignore[assignment]
    stored = {k: v.clone() for k, v in source.state_dict().items()}
    if not changed:
        stored = {k: v - 1 if "norm" in k else v for k, v in stored.items()}
    model.take(stored)
    other = near(language, seed + 1, 0.2)
    check = other.rows(96, 20, apart(901))
    outcome(run, lambda: judged(model, lambda: next_loss(model, check)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)
    doctor = run.watch(model, optimizer)
    for _ in range(60):
        rows = other.rows(16, 20)
        optimizer.zero_grad()
        loss = next_loss(model, rows)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)
