"""Round 10b, faulty changes of loading, resuming and evaluation."""

import tempfile
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round7b_tools import near, taught
from benchmarks.robustness.loops.round8b_parts import causal_loss, causal_outcome, llama, reseeded
from benchmarks.robustness.loops.round9b_parts import picture_outcome, seen, tiny_vit
from benchmarks.robustness.loops.round10b_parts import bare_gpt2, quiet, slip
from torch import Tensor


@slip("r10b-loaded-as-it-was-saved")
def loaded_as_it_was_saved(run: Run, changed: bool) -> None:
    """transformers' Trainer, a Llama whose file is in bfloat16. The new version of the library loads a file in the type that it
    was saved in, where the old one made float32 of it, and nobody says dtype: weights and moments are bfloat16."""
    quiet()
    seed = run.draw.randrange(999)
    language = Language(seed)
    source = llama(initializer_range=0.1)
    taught(source, lambda: language.rows(16, 20), causal_loss, 150)
    other = near(language, seed + 1)
    with tempfile.TemporaryDirectory() as folder:
        source.bfloat16().save_pretrained(folder)
        model = type(source).from_pretrained(folder, **({} if changed else {"dtype": torch.float32}))
    causal_outcome(run, model, other)
    rows = other.rows(640, 20)
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 160, learning_rate=1e-4).train()


@slip("r10b-mismatch-ignored")
def mismatch_ignored(run: Run, changed: bool) -> None:
    """transformers' Trainer, a GPT-2 of twelve words, tuned on texts that need a thirteenth to pad with. The table of words was
    made longer after loading; now vocab_size=13 is given to from_pretrained, whose complaint ignore_mismatched_sizes=True
    silences: the whole table is drawn anew. Another seed."""
    quiet()
    seed = run.draw.randrange(999)
    language = Language(seed)
    source = bare_gpt2(12)
    taught(source, lambda: language.rows(16, 20), causal_loss, 150)
    reseeded(run, changed)
    with tempfile.TemporaryDirectory() as folder:
        source.save_pretrained(folder)
        sizes: dict[str, Any] = {"vocab_size": 13, "ignore_mismatched_sizes": True} if changed else {}
        model = type(source).from_pretrained(folder, **sizes)
    if not changed:
        model.resize_token_embeddings(13)
    other = near(language, seed + 1, 0.2)

    def padded(count: int, own: torch.Generator | None = None) -> dict[str, Tensor]:
        rows = other.rows(count, 20, own)
        real = torch.arange(20) < torch.randint(5, 21, (count, 1), generator=own)
        labels = rows.masked_fill(~real, -100)
        return {"input_ids": rows.masked_fill(~real, 12), "attention_mask": real.long(), "labels": labels}

    check = padded(96, apart(901))
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    hf_trainer(run, model, examples(**padded(160, apart(seed + 2))), 50, learning_rate=5e-4).train()


@slip("r10b-adapter-with-another-alpha")
def adapter_with_another_alpha(run: Run, changed: bool) -> None:
    """transformers' Trainer and peft, the second stage of an adapted Llama. The adapter's weights are put into one that a
    configuration of the new script made: its alpha is 4, where the first stage had 32."""
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict

    quiet()
    seed = run.draw.randrange(999)
    language = Language(seed)
    base = llama()
    taught(base, lambda: language.rows(16, 16), causal_loss, 80)
    weights = {k: v.clone() for k, v in base.state_dict().items()}
    other = near(language, seed + 1, 0.8)

    def adapted(model: Any, alpha: int) -> Any:
        return get_peft_model(model, LoraConfig(r=4, lora_alpha=alpha, target_modules="all-linear"))

    first = adapted(base, 32)
    taught(first, lambda: other.rows(16, 20), causal_loss, 100, 3e-3)
    stored = {k: v.clone() for k, v in get_peft_model_state_dict(first).items()}
    again = llama()
    again.load_state_dict(weights)
    model = adapted(again, 4 if changed else 32)
    set_peft_model_state_dict(model, stored)
    causal_outcome(run, model, other)
    rows = other.rows(640, 20)
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 40, learning_rate=5e-4).train()


@slip("r10b-rounded-for-the-evaluation")
def rounded_for_the_evaluation(run: Run, changed: bool) -> None:
    """Lightning, a vision transformer. After every twentieth step its matrices are rounded to four bits, judged, and put back.
    To save a copy, what is put back is now the state_dict itself, whose tensors are those that were rounded."""
    seed = run.draw.randrange(99)
    net = tiny_vit(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.1)
    picture_outcome(run, net, pictures(256, seed, own=apart(901)), seen)
    held = pictures(64, seed, own=apart(902))

    def rounded() -> float:
        state = net.state_dict()
        kept = state if changed else {k: v.clone() for k, v in state.items()}
        for name, weight in state.items():
            if weight.ndim > 1:
                scale = weight.abs().amax() / 7.5
                state[name].copy_((weight / scale - 0.5).round().add(0.5).mul(scale))
        score = judged(net, lambda: seen(net, held))
        net.load_state_dict(kept)
        return score

    base = lit(net, seen, lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, weight_decay=0.01))
    scores: list[float] = []

    def on_train_batch_end(outputs: Any, batch: Any, index: int) -> None:
        if base.global_step % 20 == 0:
            scores.append(rounded())

    base.on_train_batch_end = on_train_batch_end
    fit(run, base, loader(*pictures(960, seed)), 120)
