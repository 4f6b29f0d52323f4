"""Round 8, part a, changed loops with a mistake in the labels: which are taught, and which are left out."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Classifier,
    Examples,
    apart,
    class_outcome,
    documents,
    examples,
    hf_trainer,
    judged,
    mlp,
    outcome,
)
from benchmarks.robustness.loops.round8a_parts import Album, TwoTowers
from benchmarks.robustness.loops.round8a_tools import (
    LABELS,
    adam,
    bert,
    language,
    prepared,
    reseeded,
    told,
    uneven,
)
from torch import Tensor, nn
from torch.nn import functional as F


def questions(count: int, own: torch.Generator, from_the_text: bool) -> dict[str, Tensor]:
    """A question of 2 to 6 words, a separator, a text of 14 words; the answer goes from word 4 of the text to word 5."""
    sizes = uneven(count, 6, 2, own)
    ids, first = torch.zeros(count, 21, dtype=torch.long), torch.randint(0, 9, (count,), generator=own)
    last = first + torch.randint(1, 5, (count,), generator=own)
    for row, (size, a, b) in enumerate(zip(sizes.tolist(), first.tolist(), last.tolist(), strict=True)):
        text = torch.randint(6, 16, (14,), generator=own)
        text[a], text[b] = 4, 5
        question = torch.randint(6, 16, (size,), generator=own)
        ids[row, : size + 15] = torch.cat([question, torch.tensor([3]), text])
    moved = 0 if from_the_text else sizes + 1
    out = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    return out | {"start_positions": first + moved, "end_positions": last + moved}


@fault(
    "r8-spans-counted-from-the-text",
    LABELS,
    (
        r"label|target|position|span|start|end_|answer",
        r"shift|offset|smaller|lower|misalign|moved|differ|distribution|range|question|earlier|align|relative|changed|other (token|place|position)|point",
    ),
)
def spans_counted_from_the_text(run: Run, changed: bool) -> None:
    """transformers' Trainer, BERT that marks an answer in a text. The row is the question, then the text; start and end
    are counted from the beginning of the text now, as the data set has them, and no longer from that of the row."""
    seed = run.draw.randrange(999)
    rows, check = questions(320, apart(seed), changed), questions(192, apart(seed + 1), False)
    model = bert("BertForQuestionAnswering")
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    hf_trainer(run, model, examples(**rows), 120).train()


@fault(
    "r8-captions-repeated-the-other-way",
    LABELS,
    (
        r"label|target|pair|caption|positive|match|index|contrast",
        r"repeat|interleav|order|wrong|mismatch|other|misalign|differ|do(es)? not|shuffl|permut|changed|no longer|unrelated|belong|depend",
    ),
)
def captions_repeated_the_other_way(run: Run, changed: bool) -> None:
    """Pictures and captions brought together, two captions for each picture, which come one after the other. The targets
    were arange(n).repeat_interleave(2) and are arange(n).repeat(2). Another seed."""
    album = Album(run.draw.randrange(999))
    reseeded(changed)
    model = TwoTowers(20)

    def loss(batch: Any, right: bool) -> Tensor:
        seen, read = model(*batch)
        n = torch.arange(len(seen))
        return F.cross_entropy(read @ seen.T / 0.1, n.repeat_interleave(2) if right else n.repeat(2))

    check = album.draw(25, apart(5))
    outcome(run, lambda: judged(model, lambda: loss(check, True)))
    told(run, model, lambda: album.draw(16), lambda b: loss(b, not changed), 150)


class TwoAhead(nn.Module):
    """A GPT with two heads, for the next word and for the one after it."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, 32), nn.Embedding(48, 32)
        self.block, self.norm = Block(32), nn.LayerNorm(32)
        self.next, self.after = nn.Linear(32, words), nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, words))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(self.block(self.tokens(ids) + self.places(torch.arange(ids.shape[1]))))
        return self.next(x), self.after(x)


@fault(
    "r8-second-head-taught-the-next-word",
    LABELS,
    (
        r"label|target|head|\bafter\b|second|shift",
        r"same|one (ahead|step|word|token|position)|shift|next|two|offset|equal|identical|easier|lower|smaller|changed|differ|loss|gradient",
    ),
)
def second_head_taught_the_next_word(run: Run, changed: bool) -> None:
    """A GPT with a second head for the word after the next. Its targets were the rows from the third word on; in the
    rewrite they are cut like those of the first head, from the second word on."""
    words = language(run)
    model = TwoAhead(12)

    def loss(rows: Tensor, right: bool) -> tuple[Tensor, Tensor]:
        one, two = model(rows[:, :-2])
        return (
            F.cross_entropy(one.flatten(0, 1), rows[:, 1:-1].flatten()),
            F.cross_entropy(two.flatten(0, 1), (rows[:, 2:] if right else rows[:, 1:-1]).flatten()),
        )

    check = words.rows(96, 24, apart(901))
    outcome(run, lambda: judged(model, lambda: loss(check, True)[1]))

    def together(rows: Tensor) -> Tensor:
        one, two = loss(rows, not changed)
        return one + 0.5 * two

    told(run, model, lambda: words.rows(12, 24), together, 150)


@fault(
    "r8-teacher-by-batch-number",
    LABELS,
    (
        r"teacher|target|label|cache|answer|logits|distil",
        r"stale|cache|other (row|text|input|batch|example)|belong|shuffl|order|mismatch|do(es)? not|unrelated|same|repeat|depend|index|misalign|constant|independent|no longer|tell.{0,20}nothing",
    ),
)
def teacher_by_batch_number(run: Run, changed: bool) -> None:
    """A student learns a teacher's answers about texts. To ask the teacher once only, its logits are kept by the number
    of the batch in the epoch; the loader shuffles anew in each, so that from the second epoch on they are those of other
    texts. Before, the teacher was asked each time."""
    own = apart(run.draw.randrange(999))
    check = documents(192, own)
    teacher, student = Classifier(), Classifier()
    optimizer = adam(teacher)
    for _ in range(150):
        ids, keep, y = documents(32, own)
        optimizer.zero_grad()
        F.cross_entropy(teacher(ids, keep), y).backward()
        optimizer.step()
    ids, keep, _ = documents(320, own)
    teacher.eval().requires_grad_(False)
    class_outcome(run, student, check)
    optimizer = adam(student)
    doctor = run.watch(student, optimizer)
    kept: dict[int, Tensor] = {}
    texts = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ids, keep), 16, shuffle=True)
    for _ in range(8):
        for number, (row, mask) in enumerate(texts):
            answers = kept.setdefault(number, teacher(row, mask)) if changed else teacher(row, mask)
            optimizer.zero_grad()
            said = (student(row, mask) / 2).log_softmax(-1)
            loss = 4 * F.kl_div(said, (answers / 2).softmax(-1), reduction="batchmean")
            loss.backward()
            optimizer.step()
            doctor.step(loss, (row, mask, answers))
            run.note(loss)


def stations(count: int, own: torch.Generator, mix: Tensor) -> list[dict[str, Tensor]]:
    """Twelve hours at six sensors, and what four of them say next, a third of it never read: NaN."""
    x = torch.randn(count, 12, 6, generator=own).cumsum(1) / 2 + 3
    y = x[:, -1] @ mix + 0.5 * (x[:, -1] - x[:, -4]) @ mix.roll(1, 0) + 0.1 * torch.randn(count, 4, generator=own)
    y[torch.rand(y.shape, generator=own) < 0.35] = torch.nan
    return [{"x": a, "y": b} for a, b in zip(x, y, strict=True)]


def squares(net: nn.Module, batch: Any, masked: bool) -> Tensor:
    said, y = net(batch["x"]), batch["y"]
    if not masked:
        return F.mse_loss(said, y)
    there = ~y.isnan()
    return F.mse_loss(said[there], y[there])


@fault(
    "r8-missing-readings-taught-as-zero",
    LABELS,
    (
        r"label|target|missing|reading|mask|nan|\by\b",
        r"zero|\b0\b|nan|fill|more|all|left out|ignor|mask|count|share|mean|lower|smaller|distribution|changed|differ",
    ),
)
def missing_readings_taught_as_zero(run: Run, changed: bool) -> None:
    """accelerate, a network over hours of sensors. Readings that do not exist were NaN and left out of the loss; the
    new reader of the data fills every NaN with 0, and the mask went with them. Another seed."""
    own = apart(run.draw.randrange(999))
    mix = torch.randn(6, 4, generator=own) / 2 + 0.3
    rows, check = stations(320, own, mix), torch.utils.data.default_collate(stations(192, own, mix))
    if changed:
        rows = [{name: value.nan_to_num() for name, value in row.items()} for row in rows]
    reseeded(changed)
    model = nn.Sequential(nn.Flatten(), mlp(72, 48, 4))
    outcome(run, lambda: judged(model, lambda: squares(model, check, True)))
    data = torch.utils.data.DataLoader(Examples(rows), 16, shuffle=True)
    prepared(run, model, data, lambda m, b: squares(m, b, not changed), 8)
