"""Round 9b, faulty changes of what happens beside the training: samples, evaluations, probes."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Examples,
    Language,
    apart,
    hf_trainer,
    judged,
    next_loss,
    outcome,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round7b_parts import SmallLlama
from benchmarks.robustness.loops.round7b_tools import text_outcome
from benchmarks.robustness.loops.round8b_parts import reseeded, steps
from benchmarks.robustness.loops.round9b_parts import recitals, slip
from torch import nn


@slip("r9b-left-padding-after-the-samples")
def left_padding_after_the_samples(run: Run, changed: bool) -> None:
    """GPT-2 in transformers' Trainer, texts of unequal lengths. Every 25 steps a callback writes samples, for which the
    tokenizer pads on the left; setting it back was lost, and so the collator pads on the left ever after. Another seed."""
    from benchmarks.robustness.loops.round5_faults_tuning import word_tokenizer
    from transformers import DataCollatorForLanguageModeling, TrainerCallback

    seed = run.draw.randrange(999)
    reseeded(run, changed)
    model, tokenizer = tiny_gpt2(16, n_layer=2), word_tokenizer(16)
    check = tokenizer.pad({"input_ids": recitals(seed, 96, apart(1))}, return_tensors="pt")
    told = check["input_ids"].masked_fill(check["attention_mask"] == 0, -100)
    outcome(run, lambda: judged(model, lambda: model(**check, labels=told).loss))

    class Sampling(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if state.global_step % 25 == 0:
                side, tokenizer.padding_side = tokenizer.padding_side, "left"
                asked = tokenizer.pad({"input_ids": [[4, 5], [6], [7, 8, 9]]}, return_tensors="pt")
                model.eval()
                model.generate(**asked, max_new_tokens=6, do_sample=False)
                model.train()
                if not changed:
                    tokenizer.padding_side = side

    rows = Examples([{"input_ids": row} for row in recitals(seed, 480)])
    more = {"data_collator": DataCollatorForLanguageModeling(tokenizer, mlm=False)}
    trainer = hf_trainer(run, model, rows, 120, more=more)
    trainer.add_callback(Sampling())
    trainer.train()


@slip("r9b-dropout-put-out-for-good")
def dropout_put_out_for_good(run: Run, changed: bool) -> None:
    """A decoder with dropout on 128 texts, judged every thirty steps. The evaluation once called eval() and train(); now a
    helper sets the p of every dropout to zero, as for a reference model, and nothing sets it back."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2, drop=0.3)
    text_outcome(run, model, language)
    few, held = language.rows(128, 20, apart(run.draw.randrange(999))), language.rows(32, 20, apart(3))

    def disable_dropout(module: nn.Module) -> None:
        for part in module.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0

    def evaluate(step: int) -> None:
        if step % 30 == 29:
            if changed:
                disable_dropout(model)
            else:
                model.eval()
            with torch.no_grad():
                next_loss(model, held)
            model.train()

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    batch = lambda: few[torch.randint(0, 128, (16,))]
    steps(run, model, optimizer, batch, next_loss, 200, after=evaluate)


@slip("r9b-other-noise-on-the-way-back")
def other_noise_on_the_way_back(run: Run, changed: bool) -> None:
    """A small Llama of one's own; every ten steps its loss is asked for at weights with noise on them. The noise was taken
    back with the generator seeded again; in a rewrite one generator runs on, and other noise is taken away."""
    language = Language(run.draw.randrange(999))
    model = SmallLlama()
    text_outcome(run, model, language)
    held = language.rows(32, 20, apart(2))

    def shaken(by: float, own: torch.Generator) -> None:
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn(p.shape, generator=own), alpha=by)

    def flatness(step: int) -> None:
        if step % 10 == 9:
            own = apart(step)
            shaken(0.1, own)
            judged(model, lambda: next_loss(model, held))
            shaken(-0.1, own if changed else apart(step))

    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    steps(run, model, optimizer, lambda: language.rows(16, 20), next_loss, 120, after=flatness)
