"""Public issues about which tokens the loss counts, and how a mean over them is taken."""

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.public_issues_parts import (
    IGNORE,
    Chats,
    Decoder,
    answer_loss,
    batch_of,
    outcome,
    pick,
    shifted,
    step_down,
)
from torch import nn

FAMILY = "public issues: loss and masks"


@fault(
    "issue-nanochat-582",
    FAMILY,
    (r"prompt|user|question|instruction|no .{0,30}(mask|ignor)", r"loss|label|mask|train|count"),
)
def prompt_tokens_in_loss(run: Run, slip: bool) -> None:
    """karpathy/nanochat pull request 582: when the SFT loader was rewritten to pack conversations, the mask that the
    tokenizer gives with each conversation was thrown away, so user prompts and special tokens counted in the loss as
    much as the answers. Conversations packed end to end, best fit with padding at the end of a row."""
    chats = Chats(run.draw.randrange(1000), 8, 14)
    train, held = chats.some(400), chats.some(100)
    model = Decoder(Chats.VOCABULARY, width=48, length=96, rotary=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    scheduler = step_down(optimizer, 160)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    outcome(run, lambda: answer_loss(model, held))
    for _ in range(160):
        rows, targets, pieces = [], [], []
        for _ in range(6):
            ids: list[int] = []
            labels: list[int] = []
            piece: list[int] = []
            while True:
                prompt, answer = pick(train, 1)[0]
                if len(ids) + len(prompt) + len(answer) > 72:
                    break
                counted = prompt if slip else [IGNORE] * len(prompt)
                piece += [len(piece)] * (len(prompt) + len(answer))
                ids, labels = ids + prompt + answer, labels + counted + answer
            gap = 72 - len(ids)
            rows.append(ids + [Chats.BOS] * gap)
            targets.append(labels + [IGNORE] * gap)
            pieces.append(piece + [-1] * gap)
        x, y, which = torch.tensor(rows), torch.tensor(targets), torch.tensor(pieces)
        loss = shifted(model(x, pieces=which), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, {"input_ids": x, "labels": y})
        scheduler.step()
        run.note(loss)


@fault("issue-torchtune-1875", FAMILY, (r"accumul|micro", r"token|means?\b|length|unequal|weigh|normali[sz]"))
def mean_of_means(run: Run, slip: bool) -> None:
    """meta-pytorch/torchtune pull request 1875: with gradient accumulation each micro-batch's loss was the mean over
    its own unpadded tokens, divided by the number of micro-batches, so a token in a micro-batch of short answers
    weighed many times one in a long answer. Repaired: sums, divided once by all tokens of the step."""
    seed = run.draw.randrange(1000)
    short, long = Chats(seed, 1, 2), Chats(seed + 1, 14, 18)
    train = short.some(200), long.some(200)
    held = long.some(60) + short.some(60)
    model = Decoder(Chats.VOCABULARY, width=48, rotary=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = step_down(optimizer, 150)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    outcome(run, lambda: answer_loss(model, held))
    for _ in range(150):
        parts = [batch_of(pick(train[kind], 2)) for kind in (0, 0, 0, 1)]
        tokens = sum(int((labels[:, 1:] != IGNORE).sum()) for _, _, labels in parts)
        optimizer.zero_grad()
        total = 0.0
        for ids, mask, labels in parts:
            logits = model(ids, mask)
            loss = shifted(logits, labels) / len(parts) if slip else shifted(logits, labels, "sum") / tokens
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        doctor.step(total, [{"input_ids": i, "attention_mask": m, "labels": y} for i, m, y in parts])
        scheduler.step()
        run.note(total)
