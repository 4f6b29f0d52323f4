"""Data, labels and the order of rows."""

import math
from typing import Any

import torch
from accelerate import Accelerator
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.training import gpt2
from benchmarks.robustness.loops.unseen_faults_common import Lit, fit, held_out, outcome, small_cnn, trainer, walks
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Reader(nn.Module):
    """A recurrent classifier of short rows of tokens."""

    def __init__(self, tokens: int, classes: int, width: int = 32) -> None:
        super().__init__()
        self.embed, self.gru = nn.Embedding(tokens, width), nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.norm, self.head = nn.LayerNorm(2 * width), nn.Linear(2 * width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.gru(self.embed(ids))[0].amax(1)))
        return out


def class_loss(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def marked(rows: int, classes: int, length: int = 12) -> tuple[Tensor, Tensor]:
    """Rows of tokens with a class: the one whose marker (a pair of tokens) stands somewhere in the row."""
    ids, label = torch.randint(classes, 40, (rows, length)), torch.randint(0, classes, (rows,))
    place = torch.randint(0, length - 1, (rows,))
    ids[torch.arange(rows), place] = label
    return ids, label


@fault(
    "two-lists-of-labels",
    "rows",
    (
        r"label|class|target",
        r"source|subset|some|part|half|third|inconsist|noise|noisy|conflict|disagree|mapp|wrong|swap|"
        r"permut|mislabel|contradict",
    ),
)
def two_lists_of_labels(run: Run, slip: bool) -> None:
    """accelerate, recurrent. Two annotated sources are joined; the second one lists its class names in another order,
    so that its numbers mean other classes, for two rows of five. The twin translates them."""
    other = torch.tensor([2, 0, 3, 1, 4])
    ids, label = marked(2400, 5)
    second = torch.rand(2400) < 0.4
    ids[second, 0] = torch.randint(30, 40, (int(second.sum()),))
    stored = torch.where(second, other[label], label)
    given = stored if slip else torch.where(second, other.argsort()[stored], stored)
    model = Reader(40, 5)
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(ids, given), batch_size=24, shuffle=True)
    prepared, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    fresh = [marked(400, 5)]
    outcome(run, lambda: held_out(model, fresh, class_loss))
    doctor = run.watch(prepared, optimizer)
    run.preflight(doctor, (ids[:24], given[:24]), class_loss)
    for batch in loader:
        loss = class_loss(prepared, batch)
        accelerator.backward(loss)
        optimizer.step()
        doctor.step(loss, batch)
        optimizer.zero_grad()
        run.note(loss)


@fault(
    "the-same-places-masked",
    "rows",
    (
        r"mask|label|target|position|place|supervis",
        r"same|fixed|always|repeat|identical|never|constant|seed|generator|only",
    ),
)
def the_same_places_masked(run: Run, slip: bool) -> None:
    """transformers' Trainer, BERT. The collator makes a generator with a fixed seed at every call, so that the same
    places of the batch are masked in every batch and the others are never asked for. The twin keeps its generator."""
    from transformers import BertConfig, BertForMaskedLM

    settings: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings |= {"intermediate_size": 64, "max_position_embeddings": 32, "vocab_size": 11}
    model = BertForMaskedLM(BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **settings))
    table = (0.9 * torch.eye(10)[torch.randperm(10)] + 0.01).log()
    seed = run.draw.randrange(1000)
    kept = torch.Generator().manual_seed(seed)

    def collate(rows: list[Tensor]) -> dict[str, Tensor]:
        ids = torch.stack(rows)
        generator = torch.Generator().manual_seed(seed) if slip else kept
        order = torch.rand(1, ids.shape[1], generator=generator).argsort(1)
        chosen = (order < 4).expand_as(ids)
        return {"input_ids": ids.masked_fill(chosen, 10), "labels": ids.masked_fill(~chosen, -100)}

    fresh = walks(table, 128, 24)
    hidden = torch.rand(fresh.shape) < 0.15
    batch = {"input_ids": fresh.masked_fill(hidden, 10), "labels": fresh.masked_fill(~hidden, -100)}
    outcome(run, lambda: held_out(model, [batch], lambda m, b: m(**b).loss))
    trainer(run, model, list(walks(table, 3000, 24)), 250, collate=collate, per_device_train_batch_size=32).train()


class Mixer(nn.Module):
    """An MLP over time, then over channels: a forecast of the next values of each channel."""

    def __init__(self, length: int, ahead: int, channels: int) -> None:
        super().__init__()
        self.time, self.back = nn.Linear(length, 48), nn.Linear(48, length)
        self.across, self.home = nn.Linear(channels, 16), nn.Linear(16, channels)
        self.out = nn.Linear(length, ahead)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.back(F.gelu(self.time(x.transpose(1, 2)))).transpose(1, 2)
        x = x + self.home(F.gelu(self.across(x)))
        out: Tensor = self.out(x.transpose(1, 2)).transpose(1, 2)
        return out


@fault(
    "scaled-with-its-future",
    "rows",
    (r"leak|future|target|forecast|ahead", r"normali|standardi|scal|mean|statistic|window"),
)
def scaled_with_its_future(run: Run, slip: bool) -> None:
    """A forecast of random walks by an MLP-mixer. Each window is standardised with the mean and deviation of its past
    and its future together, so that the past tells where the future lies. The twin uses the past alone."""
    past, ahead = 16, 16

    def windows(rows: int, right: bool) -> tuple[Tensor, Tensor]:
        walk = torch.randn(rows, past + ahead, 2).cumsum(1) + 5 * torch.randn(rows, 1, 2)
        walk = walk + 0.5 * torch.randn_like(walk)
        part = walk[:, :past] if right else walk
        walk = (walk - part.mean(1, keepdim=True)) / part.std(1, keepdim=True)
        return walk[:, :past], walk[:, past:]

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        return F.huber_loss(model(batch[0]), batch[1])

    model = Mixer(past, ahead, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    fresh = [windows(1000, True)]
    outcome(run, lambda: held_out(model, fresh, loss_of))
    doctor = run.watch(model, optimizer)
    run.preflight(doctor, windows(32, not slip), loss_of)
    for _ in range(150):
        batch = windows(32, not slip)
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


@fault(
    "the-first-rows-only",
    "rows",
    (
        r"repeat|same|again|duplicat|few|only|first|small|seen|unique|shuffl|memori|overfit|epoch",
        r"row|batch|sample|data|example",
    ),
)
def the_first_rows_only(run: Run, slip: bool) -> None:
    """accelerate, recurrent. An epoch is ended after eight batches to validate more often, but the loader does not
    shuffle: every epoch is the same eight batches of 150. A quarter of the labels is noise. The twin shuffles."""
    ids, label = marked(1200, 6, 16)
    wrong = torch.rand(1200) < 0.25
    label = torch.where(wrong, torch.randint(0, 6, (1200,)), label)
    model = Reader(40, 6, 48)
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(ids, label), batch_size=8, shuffle=not slip)
    prepared, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    fresh = [marked(400, 6, 16)]
    outcome(run, lambda: held_out(model, fresh, class_loss))
    doctor = run.watch(prepared, optimizer)
    for _ in range(17):
        for step, batch in enumerate(loader):
            if step >= 8:
                break
            loss = class_loss(prepared, batch)
            accelerator.backward(loss)
            optimizer.step()
            doctor.step(loss, batch)
            optimizer.zero_grad()
            run.note(loss)


@fault(
    "answers-cut-off",
    "rows",
    (
        r"trunc|cut|length|-100|ignor|no (target|label|supervis)|without (target|label)|empty|missing",
        r"answer|label|target|row|example|sample|token",
    ),
)
def answers_cut_off(run: Run, slip: bool) -> None:
    """transformers' Trainer, GPT-2. A question of 8 to 44 tokens is followed by an answer of three, which alone is
    trained on. Rows are cut to 28 tokens at their end, which takes the answer from every long question and leaves the
    row without a target. The twin cuts at the beginning."""
    model = gpt2(vocab_size=48, n_embd=48)
    key = torch.randperm(10)

    def row(length: int, cut_end: bool) -> dict[str, Tensor]:
        body, asked, long = torch.randint(0, 10, (length,)), int(torch.randint(0, 10, ())), length >= 24
        body[-1] = asked + 10 * long  # long questions are asked and answered in other words
        answer = torch.tensor([int(20 + key[asked] + 10 * long), 40 + int(key[asked]) // 4, 44])
        ids = torch.cat([body, answer])
        labels = torch.cat([torch.full_like(body, -100), answer])
        part = slice(None, 28) if cut_end else slice(-28, None)
        pad = max(0, 28 - len(ids))
        return {"input_ids": F.pad(ids[part], (0, pad), value=45), "labels": F.pad(labels[part], (0, pad), value=-100)}

    rows = [row(run.draw.randint(8, 44), slip) for _ in range(1200)]
    fresh = [row(run.draw.randint(8, 44), False) for _ in range(200)]
    batch = {k: torch.stack([r[k] for r in fresh]) for k in fresh[0]}
    outcome(run, lambda: held_out(model, [batch], lambda m, b: m(**b).loss))
    trainer(run, model, rows, 150).train()


@fault(
    "mirrored-without-its-label",
    "rows",
    (r"flip|mirror|augment|horizontal|left|right", r"label|class|target|direction|confus|left|contradict|wrong"),
)
def mirrored_without_its_label(run: Run, slip: bool) -> None:
    """Lightning, convolutional. Arrows to the left, right, up and down; half of the pictures are mirrored, which
    makes a left arrow a right one, but the label stays. The twin exchanges the two labels with the picture."""

    def arrows(rows: int) -> tuple[Tensor, Tensor]:
        out, label = 0.3 * torch.randn(rows, 1, 10, 10), torch.randint(0, 4, (rows,))
        for row in range(rows):
            picture = torch.zeros(10, 10)
            y, x = int(torch.randint(2, 8, ())), int(torch.randint(3, 7, ()))
            picture[y, x - 2 : x + 3] = 1.0
            picture[y - 1, x - 1] = picture[y + 1, x - 1] = 1.0  # to the left
            turned = {0: picture, 1: picture.flip(1), 2: picture.T, 3: picture.T.flip(0)}
            out[row, 0] += turned[int(label[row])]
        return out, label

    def training_loss(model: nn.Module, batch: Any) -> Tensor:
        pictures, label = batch
        mirrored = torch.rand(len(label)) < 0.5
        pictures = torch.where(mirrored[:, None, None, None], pictures.flip(-1), pictures)
        if not slip:
            label = torch.where(mirrored & (label < 2), 1 - label, label)
        return F.cross_entropy(model(pictures), label)

    net = small_cnn(4)
    fresh = [arrows(256)]
    outcome(run, lambda: held_out(net, fresh, class_loss))
    loader = DataLoader(TensorDataset(*arrows(960)), batch_size=32, shuffle=True)
    fit(run, Lit(net, training_loss), loader, 4)


@fault(
    "classes-numbered-by-batch",
    "rows",
    (
        r"label|class|target|index",
        r"batch|unique|renumber|shift|inconsist|missing|absent|relabel|map|noise|noisy|wrong|contradict|max|range",
    ),
)
def classes_numbered_by_batch(run: Run, slip: bool) -> None:
    """accelerate, recurrent. The raw labels (3, 7, 12, ...) become class numbers through torch.unique of the batch;
    where a class is absent from the batch, all after it move down by one. The twin numbers them once for all."""
    raw = torch.tensor([3, 7, 12, 15, 21, 30])
    ids, label = marked(1600, 6)
    model = Reader(40, 6)
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(ids, raw[label]), batch_size=10, shuffle=True)
    prepared, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    fresh = [marked(400, 6)]
    outcome(run, lambda: held_out(model, fresh, class_loss))
    doctor = run.watch(prepared, optimizer)
    for x, given in loader:
        numbers = torch.unique(given, return_inverse=True)[1] if slip else torch.searchsorted(raw, given)
        loss = F.cross_entropy(prepared(x), numbers)
        accelerator.backward(loss)
        optimizer.step()
        doctor.step(loss, (x, numbers))
        optimizer.zero_grad()
        run.note(loss)


class Bag(nn.Module):
    """An embedding of a row of tokens as a unit vector, by a small mixing MLP."""

    def __init__(self, tokens: int, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).mean(1)
        return F.normalize(x + self.down(F.gelu(self.up(x))), dim=-1)


def info_nce(model: nn.Module, batch: Any, temperature: float = 0.1) -> Tensor:
    a, b = model(batch[0]), model(batch[1])
    return F.cross_entropy(a @ b.T / temperature, torch.arange(len(a)))


@fault(
    "twins-among-the-negatives",
    "rows",
    (
        r"negative|contrast|duplicat|same (group|topic|class|question|document)|false",
        r"negative|positive|duplicat|repeat|batch|shuffl|sort|similar",
    ),
)
def twins_among_the_negatives(run: Run, slip: bool) -> None:
    """An embedding model with a contrastive loss. The pairs are stored by topic, eight in a row, and the loader does
    not shuffle: of the 31 negatives of a pair in a batch, seven say the same thing. The twin draws 32 topics for a
    batch."""
    topics = 150
    words = torch.randint(0, 200, (topics, 6))

    def say(topic: Tensor) -> Tensor:
        chosen = torch.rand(len(topic), 6).argsort(1)[:, :3]
        return torch.cat([words[topic].gather(1, chosen), torch.randint(0, 200, (len(topic), 2))], 1)

    model = Bag(200)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    some = torch.randperm(topics)[:100]
    fresh = [(say(some), say(some)) for _ in range(4)]
    outcome(run, lambda: held_out(model, fresh, info_nce))
    doctor = run.watch(model, optimizer)
    for step in range(150):
        order = torch.randperm(topics)
        topic = (order[:4] if slip else order[:32]).repeat_interleave(8 if slip else 1)
        batch = (say(topic), say(topic))
        loss = info_nce(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = 5e-3 * (1 + math.cos(step / 150 * math.pi)) / 2
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)
