"""Round 9, part a, innocent changes of the data's way into the model: other loaders, names, orders and forms."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, innocent
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Decoder,
    Examples,
    Language,
    apart,
    class_outcome,
    documents,
    endless,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    next_loss,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round9a_tools import (
    PAD,
    Denoiser,
    accelerated,
    gpt2,
    llama,
    noised,
    other_seed,
    padded,
    plain,
    sentences,
    t5,
    translations,
    vit,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


@innocent("r9a-loaded-by-two-workers")
def loaded_by_two_workers(run: Run, changed: bool) -> None:
    """transformers' Trainer, GPT-2. Rows are put together by two worker processes in place of the training's own."""
    own = apart(run.draw.randrange(999))
    words = Language(run.draw.randrange(999), 12, first=4)
    train, check = sentences(words, 480, own), sentences(words, 128, own)
    model = gpt2(16)

    def collate(rows: list[list[int]]) -> dict[str, Tensor]:
        ids, mask = padded(rows)
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}

    kept = collate(check)
    outcome(run, lambda: judged(model, lambda: model(**kept).loss))
    options: dict[str, Any] = {"remove_unused_columns": False, "dataloader_num_workers": 2 if changed else 0}
    hf_trainer(run, model, Examples(train), 100, more={"data_collator": collate}, **options).train()


@innocent("r9a-padded-rows-flattened")
def padded_rows_flattened(run: Run, changed: bool) -> None:
    """Plain loop, Llama. Rows were padded and masked; now they are laid one behind the other in a single row whose
    position_ids begin anew with each, as DataCollatorWithFlattening does; no word of a row sees another row."""
    own = apart(run.draw.randrange(999))
    words = Language(run.draw.randrange(999), 12, first=4)
    train, check = sentences(words, 400, own), sentences(words, 128, own)
    model = llama(16)

    def padded_batch(rows: list[list[int]]) -> dict[str, Tensor]:
        ids, mask = padded(rows)
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}

    def flattened(rows: list[list[int]]) -> dict[str, Tensor]:
        ids = torch.tensor([[word for row in rows for word in row]])
        places = torch.tensor([[i for row in rows for i in range(len(row))]])
        return {"input_ids": ids, "position_ids": places, "labels": ids.masked_fill(places == 0, -100)}

    kept = padded_batch(check)
    outcome(run, lambda: judged(model, lambda: model(**kept).loss))
    data = DataLoader(Examples(train), 16, shuffle=True, collate_fn=flattened if changed else padded_batch)
    batches = endless(data)
    plain(run, model, lambda: next(batches), lambda b: model(**b).loss, 100)


@innocent("r9a-vocabulary-sorted-by-frequency")
def vocabulary_sorted_by_frequency(run: Run, changed: bool) -> None:
    """Plain loop, a small GPT from scratch. The vocabulary was sorted by the alphabet and is now sorted by frequency: the
    same text under other ids, in training and evaluation alike. The embeddings are other draws."""
    words = Language(run.draw.randrange(999), 20)
    text = words.rows(240, 60, apart(run.draw.randrange(999)))
    check = words.rows(96, 24, apart(901))
    other_seed(changed)
    if changed:
        order = text.flatten().bincount(minlength=20).argsort(descending=True)
        number = torch.empty(20, dtype=torch.long).scatter_(0, order, torch.arange(20))
        text, check = number[text], number[check]
    model = Decoder(20)
    outcome(run, lambda: judged(model, lambda: next_loss(model, check)))
    ids = text.flatten()

    def crop() -> Tensor:
        return torch.stack([ids[s : s + 25] for s in torch.randint(0, len(ids) - 25, (16,)).tolist()])

    plain(run, model, crop, lambda rows: next_loss(model, rows), 150)


class Normalised(nn.Module):
    """Pictures in [0, 1] are normalised within the model."""

    def __init__(self, inner: nn.Module, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.inner = inner

    def forward(self, pixel_values: Tensor, labels: Tensor) -> Any:
        return self.inner(pixel_values=(pixel_values - self.mean) / self.std, labels=labels)


@innocent("r9a-pictures-normalised-in-the-model")
def pictures_normalised_in_the_model(run: Run, changed: bool) -> None:
    """Lightning, a ViT. Mean and spread were taken off by the data set; for the sake of deployment the model does it now,
    with the same two numbers as buffers, and the batch holds pictures in [0, 1]."""
    seed = run.draw.randrange(999)
    (x, y), (check, right) = (pictures(n, seed, 1, apart(seed + k)) for n, k in ((480, 1), (192, 2)))
    mean, std = x.mean(), x.std()
    inner = vit()
    model = Normalised(inner, mean, std) if changed else inner
    if not changed:
        x, check = (x - mean) / std, (check - mean) / std
    outcome(run, lambda: judged(model, lambda: model(pixel_values=check, labels=right).loss))
    rule = lambda net: torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    told = lit(model, lambda m, b: m(pixel_values=b[0], labels=b[1]).loss, rule)
    fit(run, told, loader(x, y), 110, gradient_clip_val=1.0)


@innocent("r9a-rows-from-datasets")
def rows_from_datasets(run: Run, changed: bool) -> None:
    """accelerate, an encoder. Three tensors in a TensorDataset became a table of the datasets library, whose batches are
    dicts with other names; the order of rows is another one."""
    from datasets import Dataset

    own = apart(run.draw.randrange(999))
    train, check = documents(480, own), documents(192, own)
    model = Classifier()
    class_outcome(run, model, check)
    if changed:
        columns = dict(zip(("input_ids", "attention_mask", "labels"), (c.tolist() for c in train), strict=True))
        table = Dataset.from_dict(columns).shuffle(seed=7).with_format("torch")
        data: Any = DataLoader(table, batch_size=16, shuffle=True)
        loss = lambda m, b: F.cross_entropy(m(ids=b["input_ids"], keep=b["attention_mask"].bool()), b["labels"])
    else:
        data = loader(*train)
        loss = lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2])
    accelerated(run, model, data, loss, 4)


@innocent("r9a-noise-from-its-own-generator")
def noise_from_its_own_generator(run: Run, changed: bool) -> None:
    """Plain loop, a denoising diffusion model. Times and noise are drawn from a generator of their own, so that
    evaluation does not disturb them; the numbers are others than before."""
    seed = run.draw.randrange(999)
    x, check = (4 * (pictures(n, seed, own=apart(seed + k))[0].flatten(1) - 0.5) for n, k in ((640, 1), (200, 2)))
    kept = (1 - torch.linspace(1e-3, 0.15, 40)).cumprod(0)
    model = Denoiser(40)
    own = apart(7)
    times, noise = torch.randint(0, 40, (200,), generator=own), torch.randn(check.shape, generator=own)
    right = noised(check, noise, times, kept)
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(right, times), noise)))
    apart_from_all = apart(seed + 11)

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        clean = x[torch.randint(0, len(x), (32,))]
        if changed:
            t = torch.randint(0, 40, (32,), generator=apart_from_all)
            noise = torch.randn(32, 64, generator=apart_from_all)
        else:
            t, noise = torch.randint(0, 40, (32,)), torch.randn(32, 64)
        return noised(clean, noise, t, kept), t, noise

    plain(run, model, batch, lambda b: F.mse_loss(model(b[0], b[1]), b[2]), 200, rate=3e-3)


@innocent("r9a-seq2seq-trainer-for-a-loop")
def seq2seq_trainer_for_a_loop(run: Run, changed: bool) -> None:
    """T5. A plain loop became Seq2SeqTrainer with the same optimizer, rate and clipping; the order of rows is another."""
    from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

    own = apart(run.draw.randrange(999))
    table = 4 + torch.randperm(12, generator=own)
    train, check = translations(640, table, own), translations(128, table, own)
    model = t5(16)
    outcome(run, lambda: judged(model, lambda: model(input_ids=check[0], labels=check[1]).loss))
    if changed:
        rows = [{"input_ids": a, "attention_mask": (a != PAD).long(), "labels": b} for a, b in zip(*train, strict=True)]
        options = {"kind": Seq2SeqTrainingArguments, "lr_scheduler_type": "constant", "weight_decay": 0.0}
        hf_trainer(run, model, Examples(rows), 150, Seq2SeqTrainer, **options).train()
        return
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    doctor = run.watch(model, optimizer)
    model.train()
    batches = endless(loader(*train))
    for _ in range(150):
        ids, labels = next(batches)
        optimizer.zero_grad()
        value = model(input_ids=ids, attention_mask=(ids != PAD).long(), labels=labels).loss
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(value, (ids, labels))
        run.note(value)
