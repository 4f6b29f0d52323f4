"""Round 10, part a, loops that are unusual and right: which rows come in, in which order, and which labels count."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, innocent
from benchmarks.robustness.loops.round5_tools import (
    Examples,
    Language,
    apart,
    class_outcome,
    cnn,
    endless,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round9a_tools import (
    EOS,
    Logits,
    accelerated,
    bert,
    gpt2,
    llama,
    other_seed,
    padded,
    sentences,
    vit,
)
from benchmarks.robustness.loops.round10a_tools import adamw, plain, tag_table, tagged
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Sampler


@innocent("r10a-half-of-each-window-is-context")
def half_of_each_window_is_context(run: Run, changed: bool) -> None:
    """Plain loop, GPT-2 on overlapping windows of a stream, whose first half is context and not taught. Windows were
    cut one by one in the loop, and are made by unfold beforehand; another order."""
    own = apart(run.draw.randrange(999))
    words = Language(run.draw.randrange(999), 12, first=4)
    stream = words.rows(1, 32 + 16 * 207, own)[0]
    model = gpt2(16)

    def cut(start: int) -> tuple[Tensor, Tensor]:
        row = stream[start : start + 32]
        return row, torch.where(torch.arange(32) < 16, -100, row)

    if changed:
        x = stream.unfold(0, 32, 16).contiguous()
        y = x.clone()
        y[:, :16] = -100
    else:
        x, y = (torch.stack(part) for part in zip(*(cut(16 * i) for i in range(208)), strict=True))
    held = torch.stack([x[160:], y[160:]])
    other_seed(changed)
    outcome(run, lambda: judged(model, lambda: model(input_ids=held[0], labels=held[1]).loss))
    batches = endless(loader(x[:160], y[:160]))
    plain(run, model, lambda: next(batches), lambda b: model(input_ids=b[0], labels=b[1]).loss, 110)


class FourTimes(Sampler[int]):
    """Every row four times in a row, the rows in random order."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return 4 * self.rows

    def __iter__(self) -> Any:
        return (i for i in torch.randperm(self.rows).tolist() for _ in range(4))


def moved(x: Tensor) -> Tensor:
    """Pictures, each shifted by up to one pixel and with noise of its own."""
    shifts = torch.randint(-1, 2, (len(x), 2)).tolist()
    rolled = torch.stack([shot.roll(tuple(shift), (-2, -1)) for shot, shift in zip(x, shifts, strict=True)])
    return rolled + 0.05 * torch.randn_like(x)


@innocent("r10a-each-picture-four-times")
def each_picture_four_times(run: Run, changed: bool) -> None:
    """Lightning, a ViT with repeated augmentation. Eight pictures were drawn and repeated in the training step; now a
    sampler says each index four times. Another seed."""
    seed = run.draw.randrange(999)
    x, y = pictures(480, seed, own=apart(seed + 1))
    other_seed(changed)
    model = vit()
    logits = lambda m, shots: m(pixel_values=shots - 0.5).logits
    check, right = pictures(192, seed, own=apart(seed + 2))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(logits(model, check), right)))
    sampler = FourTimes(480) if changed else None
    data = loader(x, y, size=32 if changed else 8, shuffle=not changed, sampler=sampler)

    def step(net: Any, batch: Any) -> Tensor:
        shots, labels = batch if changed else (part.repeat_interleave(4, 0) for part in batch)
        return F.cross_entropy(logits(net, moved(shots)), labels)

    fit(run, lit(model, step, adamw(2e-3)), data, 120, gradient_clip_val=1.0)


@innocent("r10a-questions-at-a-tenth")
def questions_at_a_tenth(run: Run, changed: bool) -> None:
    """accelerate, Llama. Questions are taught at a tenth of the weight of answers. That was one sum of weighted
    losses, and is two losses that are put together; the same number."""
    own = apart(run.draw.randrange(999))
    table = torch.randperm(8, generator=own)
    asked = torch.randint(0, 8, (528, 3), generator=own)
    edge = torch.ones(528, 1, dtype=torch.long)
    rows = torch.cat([edge, 4 + asked, 12 + table[asked], EOS * edge], 1)
    model = Logits(llama(24))
    weight = torch.tensor([0.1, 0.1, 0.1, 1.0, 1.0, 1.0, 1.0])

    def losses(net: Any, ids: Tensor) -> Tensor:
        return F.cross_entropy(net(ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none")

    def loss(net: Any, batch: Any) -> Tensor:
        each = losses(net, batch[0])
        if not changed:
            return (each * weight).sum() / (weight.sum() * len(each))
        question, answer = each[:, :3].mean(), each[:, 3:].mean()
        return (0.3 * question + 4 * answer) / 4.3

    outcome(run, lambda: judged(model, lambda: losses(model, rows[400:])[:, 3:].mean()))
    accelerated(run, model, loader(rows[:400]), loss, 6)


@innocent("r10a-short-texts-first")
def short_texts_first(run: Run, changed: bool) -> None:
    """Plain loop, GPT-2. Texts come from the shortest to the longest in each epoch. They were sorted once, and are now
    sorted in each epoch after a shuffle, so that texts of one length come in another order."""
    own = apart(run.draw.randrange(999))
    words = Language(run.draw.randrange(999), 12, first=4)
    train, check = sentences(words, 480, own), sentences(words, 128, own)
    model = gpt2(16)

    def collate(rows: list[list[int]]) -> dict[str, Tensor]:
        ids, mask = padded(rows)
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}

    def epochs() -> Any:
        order = sorted(range(480), key=lambda i: len(train[i]))
        while True:
            if changed:
                order = sorted(torch.randperm(480).tolist(), key=lambda i: len(train[i]))
            for at in range(0, 480, 16):
                yield collate([train[i] for i in order[at : at + 16]])

    kept, batches = collate(check), epochs()
    outcome(run, lambda: judged(model, lambda: model(**kept).loss))
    plain(run, model, lambda: next(batches), lambda b: model(**b).loss, 90)


@innocent("r10a-one-label-in-ten-drawn")
def one_label_in_ten_drawn(run: Run, changed: bool) -> None:
    """Plain loop, a small CNN with labels that are disturbed on purpose. The new class was put in by an index, and is
    now by torch.where, from a generator of its own."""
    seed = run.draw.randrange(999)
    x, y = pictures(480, seed, own=apart(seed + 1))
    model = cnn()
    class_outcome(run, model, pictures(192, seed, own=apart(seed + 2)))
    own = apart(seed + 3) if changed else None

    def disturbed(labels: Tensor) -> Tensor:
        hit, drawn = torch.rand(len(labels), generator=own) < 0.1, torch.randint(0, 4, labels.shape, generator=own)
        if changed:
            return torch.where(hit, drawn, labels)
        labels = labels.clone()
        labels[hit] = drawn[hit]
        return labels

    batches = endless((shots, disturbed(labels)) for _ in range(9) for shots, labels in loader(x, y))
    plain(run, model, lambda: next(batches), lambda b: F.cross_entropy(model(b[0]), b[1]), 120, rate=3e-3)


@innocent("r10a-rows-to-fill-the-batch")
def rows_to_fill_the_batch(run: Run, changed: bool) -> None:
    """transformers' Trainer, BERT for tags, always 16 rows of 16 ids. What is missing in the last batch of an epoch
    were copies of the first row without labels, and are rows of [CLS], [SEP] and padding."""
    own = apart(run.draw.randrange(999))
    table = tag_table(own)
    train, check = tagged(200, table, own), tagged(128, table, own)
    model = bert("BertForTokenClassification", num_labels=4)

    def collate(rows: list[tuple[list[int], list[int]]]) -> dict[str, Tensor]:
        ids, mask = padded([[1, *words, 2] for words, _ in rows], length=16)
        tags, _ = padded([[-100, *tags] for _, tags in rows], fill=-100, length=16)
        if missing := max(0, 16 - len(rows)):
            blank = torch.tensor([[1, 2] + [0] * 14])
            more, seen = (blank, (blank > 0).long()) if changed else (ids[:1], mask[:1])
            ids, mask = torch.cat([ids, more.expand(missing, -1)]), torch.cat([mask, seen.expand(missing, -1)])
            tags = torch.cat([tags, torch.full((missing, 16), -100)])
        return {"input_ids": ids, "attention_mask": mask, "labels": tags}

    kept = collate(check)
    outcome(run, lambda: judged(model, lambda: model(**kept).loss))
    more = {"data_collator": collate}
    hf_trainer(run, model, Examples(train), 130, more=more, remove_unused_columns=False).train()
