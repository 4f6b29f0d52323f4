"""Round 24d, mistakes in what moves: groups, rates, memories, adapters, parameters that an optimizer doesn't hold."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    class_outcome,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    outcome,
    pictures,
    tiny_bert,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_parts import Listener, Patches, sounds
from benchmarks.robustness.loops.round7b_tools import adam, taught
from benchmarks.robustness.loops.round8b_parts import causal_loss, text_class_outcome, texts, told_loss
from benchmarks.robustness.loops.round24d_parts import Dilated, slip, strokes
from torch import Tensor, nn


@slip("r24d-slowest-at-the-head")
def slowest_at_the_head(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a BERT of three layers that knows three topics and learns to tell one of them from the
    other two. Rates should fall by half with each layer from the new head down; the power is the layer's number from
    below, and the embeddings have the whole rate and the head a sixteenth of it. The twin counts from above. Judged by
    the cross-entropy of other texts."""
    old = tiny_bert(3, num_hidden_layers=3)
    taught(old, lambda: texts(32), told_loss, 60, 2e-3)
    net = tiny_bert(2, num_hidden_layers=3)
    net.bert.load_state_dict(old.bert.state_dict())

    def topic(count: int, own: torch.Generator | None = None) -> dict[str, Tensor]:
        rows = texts(count, own)
        return rows | {"labels": (rows["labels"] == 1).long()}

    text_class_outcome(run, net, topic(384, apart(1)))
    bert = net.bert
    floors = [bert.embeddings, *bert.encoder.layer, nn.ModuleList([bert.pooler, net.classifier])]
    groups = []
    for number, floor in enumerate(floors):
        power = number if wrong else len(floors) - 1 - number
        groups.append({"params": list(floor.parameters()), "lr": 2e-3 * 0.5**power})
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 60)
    hf_trainer(run, net, examples(**topic(640)), 60, more={"optimizers": (optimizer, schedule)}).train()


@slip("r24d-old-words-still-decay")
def old_words_still_decay(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a GPT-2 that is given four new words; only their rows of the shared table of words should
    move. Gradients of the old rows are set to nought, and AdamW's decay shrinks these rows nevertheless. The twin puts
    the old rows back after each step. Judged by the cross-entropy of other texts with old words and new ones."""
    from transformers import TrainerCallback

    whole = Language(run.draw.randrange(999), 16)
    known = Language(0, 12)
    known.one, known.two = whole.one[:12, :12], whole.two[:12, :12]
    net = tiny_gpt2(16)
    taught(net, lambda: known.rows(16, 20), causal_loss, 150)
    for weight in net.parameters():
        weight.requires_grad_(False)
    table = net.transformer.wte.weight.requires_grad_()
    old = (torch.arange(16) < 12)[:, None]
    table.register_hook(lambda slope: slope.masked_fill(old, 0.0))
    before = table.detach().clone()

    class PutBack(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if not wrong:
                table.data.copy_(torch.where(old, before, table.data))

    check = whole.rows(96, 20, apart(901))
    outcome(run, lambda: judged(net, lambda: causal_loss(net, check)))
    rows = whole.rows(640, 20)
    more = {"callbacks": [PutBack()]}
    settings: dict[str, Any] = {"learning_rate": 4e-2, "weight_decay": 0.1, "lr_scheduler_type": "constant"}
    hf_trainer(run, net, examples(input_ids=rows, labels=rows), 120, more=more, **settings).train()


@slip("r24d-second-factors-in-no-group")
def second_factors_in_no_group(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a BERT with PEFT's adapters, whose second factors should learn eight times as fast as
    their first. They are looked for by the end of a name that PEFT doesn't give them, and their group is empty: they
    stay nought, and nothing but the head learns. The twin looks for a part of the name. Judged by the cross-entropy of
    other texts."""
    from peft import LoraConfig, get_peft_model

    old = tiny_bert(3, num_hidden_layers=2)
    taught(old, lambda: texts(32), told_loss, 100, 2e-3)
    base = tiny_bert(3, num_hidden_layers=2)
    base.bert.load_state_dict(old.bert.state_dict())
    target = ["query", "key", "value", "dense"]
    skipped = ["classifier", "pooler.dense"]
    setting = LoraConfig(r=4, lora_alpha=8, target_modules=target, exclude_modules=skipped, modules_to_save=skipped[:1])
    net: Any = get_peft_model(base, setting)

    def by_beginning(count: int, own: torch.Generator | None = None) -> dict[str, Tensor]:
        rows = texts(count, own)
        return rows | {"labels": (rows["input_ids"][:, 0] - 1) // 5}

    text_class_outcome(run, net, by_beginning(384, apart(1)))
    named = [(name, weight) for name, weight in net.named_parameters() if weight.requires_grad]
    second = [w for name, w in named if (name.endswith("lora_B.weight") if wrong else "lora_B" in name)]
    slow = [w for name, w in named if "lora_B" not in name]
    optimizer = torch.optim.AdamW([{"params": slow, "lr": 2e-3}, {"params": second, "lr": 1.6e-2}], weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 120)
    hf_trainer(run, net, examples(**by_beginning(960)), 120, more={"optimizers": (optimizer, schedule)}).train()


@slip("r24d-memories-exchanged")
def memories_exchanged(run: Run, wrong: bool) -> None:
    """accelerate, convolutions over tones. AdamW's two memories are given in the other order: 0.999 for the mean of the
    gradients, which is then of the whole run, and 0.9 for that of their squares. The twin has 0.9 and 0.999. Judged by
    the cross-entropy of other tones."""
    net = Listener()
    class_outcome(run, net, sounds(384, apart(1)))
    betas = (0.999, 0.9) if wrong else (0.9, 0.999)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, betas=betas, weight_decay=0.01)
    prepared(run, net, optimizer, loader(*sounds(640)), classify, 3)


@slip("r24d-one-step-of-the-rate-each-epoch")
def one_step_of_the_rate_each_epoch(run: Run, wrong: bool) -> None:
    """Lightning, a small vision transformer. The schedule counts steps, fifteen of warm-up and 120 in all, and
    Lightning, which isn't told, takes one step of it after each of the five epochs: the rate never gets beyond a third
    of what was meant. The twin says that the interval is a step. Judged by the cross-entropy of other pictures."""
    seed = run.draw.randrange(999)
    net = Patches(4)
    class_outcome(run, net, pictures(384, seed, own=apart(1)))

    def factor(step: int) -> float:
        return min((step + 1) / 15, 0.5 + 0.5 * math.cos(math.pi * min(step / 120, 1.0)))

    def optimizers(m: Any) -> Any:
        optimizer = torch.optim.AdamW(m.parameters(), lr=3e-3, weight_decay=0.01)
        schedule: Any = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        if not wrong:
            schedule = {"scheduler": schedule, "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    fit(run, lit(net, classify, optimizers), loader(*pictures(384, seed)), 120)


@slip("r24d-split-after-the-optimizer-was-made")
def split_after_the_optimizer_was_made(run: Run, wrong: bool) -> None:
    """accelerate, dilated causal convolutions with weight normalisation, which splits each kernel into a length and a
    direction. It is put on after the optimizer was made: that holds the old kernels, and lengths and directions stay as
    drawn. The twin puts it on before. Judged by the cross-entropy of other movements."""
    seed = run.draw.randrange(999)
    net = Dilated()
    class_outcome(run, net, strokes(384, seed, apart(1)))

    def split() -> None:
        for layer in net.layers:
            nn.utils.parametrizations.weight_norm(layer)

    if wrong:
        optimizer = adam(net, 3e-3)
        split()
    else:
        split()
        optimizer = adam(net, 3e-3)
    prepared(run, net, optimizer, loader(*strokes(640, seed)), classify, 3)
