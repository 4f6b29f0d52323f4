"""Round 8, part a, changed loops with a mistake in the data: what goes into the model is another thing than before."""

from typing import Any

import numpy as np
import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Decoder,
    Examples,
    apart,
    class_outcome,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    next_loss,
    outcome,
)
from benchmarks.robustness.loops.round8a_parts import Neighbours, citations
from benchmarks.robustness.loops.round8a_tools import DATA, adam, bert, language, prepared, reseeded, told, uneven
from torch import Tensor, nn
from torch.nn import functional as F


@fault(
    "r8-token-file-read-by-half",
    DATA,
    (
        r"token|\bids?\b|batch|input|embedding|data|vocab",
        r"zero|\b0\b|half|every (second|other)|repeat|dtype|byte|uint|frequen|distribution|distinct|unique|fewer|share|same (id|token)|entropy|common",
    ),
)
def token_file_read_by_half(run: Run, changed: bool) -> None:
    """Plain GPT. The corpus lies in a file of uint16, as numbers below 65536 do; the new reader opens it as uint8, so
    that every other id is 0, the high byte of the one before it."""
    words = language(run, 20)
    model = Decoder(20)
    language_outcome(run, model, words)
    file = words.rows(60, 100).flatten().numpy().astype(np.uint16).tobytes()
    ids = torch.from_numpy(np.frombuffer(file, np.uint8 if changed else np.uint16).astype(np.int64))

    def crop() -> Tensor:
        return torch.stack([ids[s : s + 25] for s in torch.randint(0, len(ids) - 25, (12,)).tolist()])

    told(run, model, crop, lambda rows: next_loss(model, rows), 150)


class Reader(nn.Module):
    """An encoder whose head reads the mean over the row."""

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, 32), nn.Embedding(32, 32)
        self.block, self.head = Block(32, causal=False), nn.Linear(32, classes)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.block(self.tokens(ids) + self.places(torch.arange(ids.shape[1]))).mean(1))
        return out


def reports(count: int, own: torch.Generator) -> list[tuple[list[int], int]]:
    """Rows of 14 to 24 words; the last six tell which of three classes it is."""
    rows = []
    for _ in range(count):
        y, size = int(torch.randint(3, (1,), generator=own)), int(torch.randint(14, 25, (1,), generator=own))
        ids = torch.randint(0, 15, (size,), generator=own)
        end = 5 * y + torch.randint(0, 5, (6,), generator=own)
        ids[-6:] = torch.where(torch.rand(6, generator=own) < 0.7, end, ids[-6:])
        rows.append((ids.tolist(), y))
    return rows


@fault(
    "r8-cut-at-the-other-side",
    DATA,
    (
        r"token|\bids?\b|batch|input|text|rows?\b|data|word|embedding",
        r"trunc|cut|begin|end\b|first|last|side|differ|distribution|frequen|other (text|part|words)|tell.{0,20}less|inform|unrelated|depend|not what|changed|shift|no longer",
    ),
)
def cut_at_the_other_side(run: Run, changed: bool) -> None:
    """accelerate, an encoder for reports whose conclusion stands at the end. Ten words are kept: the old tokenizer cut
    on the left, the new one cuts on the right. Another seed."""
    own = apart(run.draw.randrange(999))
    train, check = reports(320, own), reports(192, own)
    reseeded(changed)
    model = Reader(15, 3)

    def collate(rows: list[Any], left: bool = True) -> tuple[Tensor, Tensor]:
        ids = [row[-10:] if left else row[:10] for row, _ in rows]
        return torch.tensor(ids), torch.tensor([y for _, y in rows])

    class_outcome(run, model, collate(check))
    data = torch.utils.data.DataLoader(
        Examples(train), 16, shuffle=True, collate_fn=lambda rows: collate(rows, not changed)
    )
    prepared(run, model, data, lambda m, b: F.cross_entropy(m(b[0]), b[1]), 8)


def dialogues(count: int, own: torch.Generator | None = None) -> dict[str, Tensor]:
    """Five turns of four words by two speakers; the class is the mood of the second speaker, in which his words are."""
    speakers = torch.randint(0, 2, (count, 5), generator=own)
    speakers[:, 1] = 1 - speakers[:, 0]
    kinds = speakers.repeat_interleave(4, 1)
    moods = torch.randint(0, 2, (count, 2), generator=own)
    mood = moods.gather(1, kinds)
    own_words = 7 * mood + torch.randint(0, 7, kinds.shape, generator=own)
    other_words = torch.randint(0, 14, kinds.shape, generator=own)
    ids = 2 + torch.where(torch.rand(kinds.shape, generator=own) < 0.7, own_words, other_words)
    return {"input_ids": ids, "token_type_ids": kinds, "labels": moods[:, 1]}


@fault(
    "r8-segments-not-passed",
    DATA,
    (
        r"token_?.?type|segment|speaker|type.?ids|kinds? of token",
        r"zero|constant|missing|absent|no(t)? |only|never|one (type|value|row|id)|same|gone|lack|without|still|unused|single",
    ),
)
def segments_not_passed(run: Run, changed: bool) -> None:
    """transformers' Trainer, BERT over dialogues. token_type_ids say who speaks; the new way to tokenize does not return
    them, and BERT takes zeros in their place."""
    own = apart(run.draw.randrange(999))
    rows, check = dialogues(400, own), dialogues(192, own)
    model = bert("BertForSequenceClassification", num_labels=2)
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    names = [name for name in rows if not (changed and name == "token_type_ids")]
    data = Examples([{name: rows[name][i] for name in names} for i in range(400)])
    hf_trainer(run, model, data, 150).train()


def opinions(count: int, own: torch.Generator, padding: int) -> tuple[Tensor, Tensor]:
    """Rows of 5 to 14 words, padded; four classes: by the group of most words, and by whether a certain word occurs."""
    group, negated = (torch.randint(0, 2, (count,), generator=own) for _ in range(2))
    ids = 4 + 6 * group[:, None] + torch.randint(0, 6, (count, 14), generator=own)
    noise = 4 + torch.randint(0, 12, ids.shape, generator=own)
    ids = torch.where(torch.rand(ids.shape, generator=own) < 0.6, ids, noise)
    ids[torch.arange(count), torch.randint(0, 5, (count,), generator=own)] = torch.where(negated == 1, 3 - padding, 4)
    keep = torch.arange(14) < uneven(count, 14, 5, own)[:, None]
    return ids.masked_fill(~keep, padding), 2 * group + negated


@fault(
    "r8-mask-from-the-old-padding-id",
    DATA,
    (
        r"mask|padding|\bpad",
        r"mask|\bids?\b|attend|cover|differ|changed|token|zero|ones|share|keep|hid",
    ),
)
def mask_from_the_old_padding_id(run: Run, changed: bool) -> None:
    """Lightning, BERT. The new tokenizer pads with 3, where the old one padded with 0, and 0 is the word "not" now, which
    was 3. The mask is `ids != 0` as before: padding is seen, and that word is hidden. Another seed."""
    own, padding = apart(run.draw.randrange(999)), 3 if changed else 0
    (ids, y), (seen, truth) = opinions(320, own, padding), opinions(192, own, padding)
    reseeded(changed)
    model = bert("BertForSequenceClassification", num_labels=4)

    def loss(net: Any, batch: Any) -> Tensor:
        logits = net(input_ids=batch[0], attention_mask=(batch[0] != 0).long()).logits
        return F.cross_entropy(logits, batch[1])

    outcome(run, lambda: judged(model, lambda: loss(model, (seen, truth))))
    rows = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ids, y), 16, shuffle=True)
    fit(run, lit(model, loss, adam), rows, 150)


@fault(
    "r8-edges-one-way",
    DATA,
    (
        r"edge|adjacen|graph|neighbou?r|near\d",
        r"half|fewer|symmetr|direct|revers|one.way|missing|less|shape|smaller|number|count|differ|changed|both|size|zero",
    ),
)
def edges_one_way(run: Run, changed: bool) -> None:
    """A graph network over papers. Each pair is in the file once; the old reader added the reverse of each, which the new
    version of the library leaves to the user."""
    x, y, edges = citations(run.draw.randrange(999))
    if not changed:
        edges = torch.cat([edges, edges.flip(0)], 1)
    taught = torch.rand(len(x), generator=apart(3)) < 0.4
    model = Neighbours()
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(x, edges)[~taught], y[~taught])))
    told(run, model, lambda: (x, edges), lambda b: F.cross_entropy(model(*b)[taught], y[taught]), 60)
