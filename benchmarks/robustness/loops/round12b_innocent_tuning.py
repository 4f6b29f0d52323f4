"""Round 12b, unusual ways to tune, to prefer and to judge which are meant, each rewritten without harm."""

import copy
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
    tiny_bert,
)
from benchmarks.robustness.loops.round7b_tools import taught
from benchmarks.robustness.loops.round8b_parts import (
    dpo_loss,
    log_probabilities,
    preferred,
    reseeded,
    text_class_outcome,
    texts,
    told_loss,
)
from benchmarks.robustness.loops.round9b_parts import accelerator
from benchmarks.robustness.loops.round10b_parts import columns
from torch import Tensor, nn


@innocent("r12b-three-gradients-in-ten")
def three_gradients_in_ten(run: Run, changed: bool) -> None:
    """transformers' Trainer, BERT, each element of whose gradient is kept with a chance of three in ten and divided
    by it, the rest is zero. A hook on each parameter made a new gradient; another changes it in place now."""
    train, check = texts(480, apart(900)), texts(256, apart(901))
    model = tiny_bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    text_class_outcome(run, model, check)

    def chance(x: Tensor) -> Tensor:
        return torch.bernoulli(torch.full_like(x, 0.3)) / 0.3

    def in_place(p: nn.Parameter) -> None:
        assert p.grad is not None
        p.grad.mul_(chance(p.grad))

    for p in model.parameters():
        if changed:
            p.register_post_accumulate_grad_hook(in_place)
        else:
            p.register_hook(lambda gradient: gradient * chance(gradient))
    hf_trainer(run, model, examples(**train), 150, learning_rate=3e-3).train()


@innocent("r12b-reference-follows")
def reference_follows(run: Run, changed: bool) -> None:
    """Preferences by DPO on a small GPT, in four rounds, each of which begins with the policy as its new reference. It
    was a new copy; now the old one loads the policy's weights."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    taught(model, lambda: language.rows(16, 12), next_loss, 100)
    check = preferred(language, 128, apart(901))

    def liked(net: nn.Module, pairs: tuple[Tensor, Tensor]) -> Tensor:
        return log_probabilities(net, pairs[0], 4) - log_probabilities(net, pairs[1], 4)

    outcome(run, lambda: judged(model, lambda: dpo_loss(liked(model, check), torch.zeros(128), 0.2)))
    reference = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.0)
    doctor = run.watch(model, optimizer)
    for step in range(100):
        if step and step % 25 == 0:
            if changed:
                reference.load_state_dict(model.state_dict())
            else:
                reference = copy.deepcopy(model).requires_grad_(False)
        pairs = preferred(language, 16)
        loss = dpo_loss(liked(model, pairs), liked(reference, pairs), 0.5)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, {"chosen": pairs[0], "rejected": pairs[1]})
        run.note(loss)


@innocent("r12b-judged-with-dropout")
def judged_with_dropout(run: Run, changed: bool) -> None:
    """accelerate, BERT with dropout, which is judged with it, as the mean of what eight passes say. The passes came one
    after the other, and are one pass over a batch of eight copies now. Another seed."""
    train, check = texts(480, apart(900)), texts(256, apart(901))
    watched = texts(64, apart(902))
    reseeded(run, changed)
    net = tiny_bert(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    text_class_outcome(run, net, check)
    engine = accelerator()
    model, optimizer, data = engine.prepare(net, torch.optim.AdamW(net.parameters(), lr=2e-3), columns(train))
    doctor = run.watch(model, optimizer)

    def spread() -> Tensor:
        given: dict[str, Any] = {name: watched[name] for name in ("input_ids", "attention_mask")}
        with torch.no_grad():
            if changed:
                given = {name: x.repeat(8, 1) for name, x in given.items()}
                chances = model(**given).logits.softmax(-1).view(8, 64, -1)
            else:
                chances = torch.stack([model(**given).logits.softmax(-1) for _ in range(8)])
        return chances.std(0).mean()

    for _ in range(5):
        for batch in data:
            loss = told_loss(model, batch)
            optimizer.zero_grad()
            engine.backward(loss)
            engine.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            doctor.step(loss, batch)
            run.note(loss)
        spread()
