"""Round 25h, honest and odd: which rows come when, in which order, and what of them is asked."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Decoder,
    Language,
    apart,
    documents,
    examples,
    hf_trainer,
    judged,
    language_outcome,
    mlp,
    next_loss,
    outcome,
    pictures,
    tiny_gpt2,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam
from torch import Tensor, nn
from torch.nn import functional as F


def keyed_texts(count: int, own: torch.Generator) -> list[dict[str, Any]]:
    """Rows of fourteen words 12 to 29, two or three of them about each of two to four topics, and the topics' names, 3
    to 8."""
    out = []
    for _ in range(count):
        size = int(torch.randint(2, 5, (1,), generator=own))
        topics = torch.randperm(6, generator=own)[:size]
        words = 12 + 3 * topics.repeat(14)[:14] + torch.randint(0, 3, (14,), generator=own)
        out.append({"words": words[torch.randperm(14, generator=own)], "names": (3 + topics).tolist()})
    return out


def asked_in_any_order(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """A batch in which each row's names stand in an order drawn just now, then the end (1), then nothing (-100)."""
    labels = torch.full((len(rows), 5), -100)
    for label, row in zip(labels, rows, strict=True):
        names = torch.tensor(row["names"])
        label[: len(names) + 1] = torch.cat([names[torch.randperm(len(names))], torch.tensor([1])])
    return {"input_ids": torch.stack([row["words"] for row in rows]), "labels": labels}


@honest("r25h-names-of-a-set-in-a-new-order-each-time")
def names_of_a_set_in_a_new_order_each_time(run: Run) -> None:
    """transformers' Trainer, keywords of a text by a T5 (Meng et al. 2021, random order of One2Seq). What is wanted is
    a set, which a decoder must say one after the other: the collator shuffles each row's names anew, so that the same
    text comes back in every epoch with another answer, all of which are right, and a first word cannot be foretold
    better than by a guess among the set."""
    from transformers import T5Config, T5ForConditionalGeneration

    settings: dict[str, Any] = {"d_model": 32, "d_ff": 64, "d_kv": 16, "num_layers": 1, "num_heads": 2}
    settings |= {"vocab_size": 30, "decoder_start_token_id": 0, "dropout_rate": 0.0}
    model = T5ForConditionalGeneration(T5Config(**settings))
    own = apart(run.draw.randrange(999))
    rows, new = keyed_texts(320, own), asked_in_any_order(keyed_texts(160, own))
    outcome(run, lambda: judged(model, lambda: model(**new).loss))
    more = {"data_collator": asked_in_any_order}
    data = torch.utils.data.Subset(rows, range(len(rows)))  # type: ignore[arg-type]
    hf_trainer(run, model, data, 110, more=more, remove_unused_columns=False).train()


class Buckets:
    """A run's own trainer for texts cut into pieces of powers of two, each bucket with as many words in a batch."""

    def __init__(self, run: Run) -> None:
        self.run, self.language = run, Language(run.draw.randrange(999))
        self.model = Decoder(12, layers=1, length=33)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-3)
        self.pieces: dict[int, list[Tensor]] = {32: [], 16: [], 8: [], 4: []}
        for size in torch.randint(6, 90, (500,)).tolist():
            text, at = self.language.rows(1, size)[0], 0
            for length in self.pieces:
                while size - at >= length:
                    self.pieces[length].append(text[at : at + length])
                    at += length

    def odds(self, share: float) -> dict[int, float]:
        """Of the buckets, in two rounds: short pieces first, long ones at the end of each."""
        long = 2 * share % 1
        return {length: math.exp(2.0 * (2 * long - 1) * math.log2(length / 11)) for length in self.pieces}

    def train(self, steps: int) -> None:
        doctor = self.run.watch(self.model, self.optimizer)
        for step in range(steps):
            odds = self.odds(step / steps)
            length = int(self.run.draw.choices(list(odds), list(odds.values()))[0])
            bucket = self.pieces[length]
            rows = torch.stack([bucket[i] for i in torch.randint(0, len(bucket), (384 // length,)).tolist()])
            self.optimizer.zero_grad()
            loss = next_loss(self.model, rows)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            doctor.step(loss, rows)
            self.run.note(loss)


@honest("r25h-pieces-of-a-power-of-two")
def pieces_of_a_power_of_two(run: Run) -> None:
    """A class of its own, a GPT over texts decomposed by length (Pouransari et al. 2024). A text is cut into pieces of
    32, 16, 8, and 4 words, of which each begins at place nought; a batch is of one length alone, with 12 rows or with
    96, and short ones are more frequent early in each of two rounds. Short pieces are harder to foretell, so that the
    loss goes up and down with the bucket."""
    buckets = Buckets(run)
    language_outcome(run, buckets.model, buckets.language, 32)
    buckets.train(140)


def brackets(count: int, length: int) -> Tensor:
    """Rows of six kinds of brackets, 0 to 5 to open and 6 to 11 to close, which may cross: shuffled Dyck words."""
    rows = torch.empty(count, length, dtype=torch.long)
    for row in rows:
        opened: list[int] = []
        for place in range(length):
            if not opened or (torch.rand(()) < 0.5 and len(opened) < length - place):
                opened.append(int(torch.randint(0, 6, (1,))))
                row[place] = opened[-1]
            else:
                row[place] = 6 + opened.pop(int(torch.randint(0, len(opened), (1,))))
    return rows


class States(nn.Module):
    """A small state space model: states that fade at rates of their own, each step's input, a gate."""

    def __init__(self, words: int, width: int = 48) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.enter, self.gate, self.leave = (nn.Linear(width, width) for _ in range(3))
        self.fade = nn.Parameter(torch.linspace(-2, 4, width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        drive, keep = self.enter(x), self.fade.sigmoid()
        state, states = torch.zeros_like(drive[:, 0]), []
        for t in range(ids.shape[1]):
            state = keep * state + (1 - keep) * drive[:, t]
            states.append(state)
        x = x + self.leave(torch.stack(states, 1) * F.silu(self.gate(x)))
        out: Tensor = self.head(F.gelu(self.norm(x)))
        return out


@honest("r25h-brackets-before-words")
def brackets_before_words(run: Run) -> None:
    """Plain loop, a state space model that reads a formal language first (Hu et al. 2025). For the first third of its
    steps there is nothing but brackets that must be closed, under the same ids that words have later; then text takes
    their place from one batch to the next, by the same optimizer with its moments, and the loss jumps up."""
    language = Language(run.draw.randrange(999))
    model = States(12)
    language_outcome(run, model, language, 24)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    doctor = run.watch(model, optimizer)
    for step in range(150):
        rows = brackets(16, 24) if step < 50 else language.rows(24, 24)
        loss = next_loss(model, rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)


PAUSE = 15


def with_pauses(rows: Tensor, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows with a pause put before one word in eight, drawn for each row, and what is taught: all but the pauses."""
    count, length = rows.shape
    pauses = length // 8
    keys = torch.rand(count, length + pauses, generator=own)
    keys[:, 0] = 2
    out = torch.full((count, length + pauses), PAUSE)
    silent = torch.zeros(out.shape, dtype=torch.bool).scatter(1, keys.argsort(1)[:, :pauses], True)
    out[~silent] = rows.flatten()
    return out, out.masked_fill(silent, -100)


@honest("r25h-silent-words-put-between")
def silent_words_put_between(run: Run) -> None:
    """transformers' Trainer, a GPT-2 with pause tokens (Goyal et al. 2024). A word that means nothing is put in at
    random places of every row, so that what was said next is said one or more places later; to say the pause itself is
    never taught, at its place the label is -100 while the input is a word like others; after it the next real word
    is."""
    own = apart(run.draw.randrange(999))
    language = Language(run.draw.randrange(999))
    model = tiny_gpt2(16)
    new, wanted = with_pauses(language.rows(96, 24, own), own)
    outcome(run, lambda: judged(model, lambda: model(input_ids=new, labels=wanted).loss))
    ids, labels = with_pauses(language.rows(1600, 24, own), own)
    hf_trainer(run, model, examples(input_ids=ids, labels=labels), 120).train()


class Painter(nn.Module):
    """Noise in a picture, told how much there is and of which class, where class 4 is none that is known."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(1, 24, 3, padding=1), nn.Conv2d(24, 1, 3, padding=1)
        self.inner = nn.ModuleList(nn.Conv2d(24, 24, 3, padding=1) for _ in range(2))
        self.classes, self.places = nn.Embedding(5, 24), nn.Parameter(0.1 * torch.randn(24, 8, 8))
        self.when = mlp(8, 24, 24, act=nn.SiLU)

    def forward(self, x: Tensor, time: Tensor, kind: Tensor) -> Tensor:
        waves = time[:, None] * torch.tensor([1.0, 2.0, 4.0, 8.0])
        told = self.when(torch.cat([waves.sin(), waves.cos()], 1)) + self.classes(kind)
        h = self.enter(x) + self.places
        for layer in self.inner:
            h = h + layer(F.silu(h * (1 + told[..., None, None])))
        out: Tensor = self.leave(F.silu(h))
        return out


@honest("r25h-one-label-in-five-left-out")
def one_label_in_five_left_out(run: Run) -> None:
    """Plain loop, pictures of four classes by diffusion with guidance but no classifier (Ho and Salimans 2022). In each
    batch one label in five, by lot, is put out and a fifth class takes its place that no picture has; so the same
    picture is now of a class and now of none. The picture itself is scaled to between -1 and 1, its noise is the
    target, and the same weights say the noise with a class and without one."""
    seed = run.draw.randrange(999)
    model = Painter()

    def noised(count: int, own: torch.Generator | None = None, drop: float = 0.2) -> tuple[Tensor, ...]:
        clean, kind = pictures(count, seed, own=own)
        kind = torch.where(torch.rand(count, generator=own) < drop, 4, kind)
        time = torch.rand(count, generator=own)
        noise = torch.randn(clean.shape, generator=own)
        angle = (math.pi / 2 * time)[:, None, None, None]
        return angle.cos() * (2 * clean - 1) + angle.sin() * noise, time, kind, noise

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        x, time, kind, noise = batch
        return F.mse_loss(model(x, time, kind), noise)

    check = noised(256, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 4e-3), lambda: noised(32), loss, 150)


class Numbered(torch.utils.data.Dataset[Any]):
    """Documents with their numbers and the weights that they have in this epoch."""

    def __init__(self, count: int, own: torch.Generator) -> None:
        self.ids, self.mask, self.y = documents(count, own)
        self.last, self.weight = torch.full((count,), 9.0), torch.ones(count)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> tuple[Any, ...]:
        return self.ids[i], self.mask[i], self.y[i], i, self.weight[i]


class Pruned(torch.utils.data.Sampler[int]):
    """Each epoch without half of the rows whose loss was below the mean; the last epoch with all of them."""

    def __init__(self, data: Numbered, epochs: int) -> None:
        self.data, self.epochs, self.epoch = data, epochs, 0

    def __iter__(self) -> Any:
        self.epoch += 1
        data, size = self.data, len(self.data)
        data.weight = torch.ones(size)
        keep = torch.ones(size, dtype=torch.bool)
        if 1 < self.epoch < self.epochs:
            known = data.last < data.last.mean()
            keep = ~known | (torch.rand(size) < 0.5)
            data.weight[known] = 2.0
        rows = keep.nonzero().flatten()
        return iter(rows[torch.randperm(len(rows))].tolist())

    def __len__(self) -> int:
        return len(self.data)


@honest("r25h-well-known-rows-left-out-by-lot-and-counted-twice")
def well_known_rows_left_out_by_lot_and_counted_twice(run: Run) -> None:
    """accelerate, a small BERT on documents with InfoBatch (Qin et al. 2024). Of rows whose last loss was below the
    mean half, by lot, are not in the epoch, and those that remain weigh two, so that the gradient is the whole set's in
    the mean; each row's loss is remembered as it goes by. Epochs are of different lengths, a batch's weights do not sum
    to its rows, and in the last epoch all rows are back and weigh one."""
    own = apart(run.draw.randrange(999))
    data = Numbered(480, own)
    model = Classifier()
    ids, mask, y = documents(240, own)
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(ids, mask), y)))
    batches = torch.utils.data.DataLoader(data, 16, sampler=Pruned(data, 6))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        ids, mask, y, number, weight = batch
        each = F.cross_entropy(model(ids, mask), y, reduction="none")
        data.last[number] = each.detach()
        return (each * weight).mean()

    prepared(run, model, adam(model, 2e-3), batches, loss, 6)
