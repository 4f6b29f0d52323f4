"""Round 13a, honest and odd: what goes into a batch."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Language,
    apart,
    class_outcome,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    outcome,
    tiny_gpt2,
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_parts import Reader
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round13a_parts import Decayed, PointNet, Strands, admissions, scans, strands
from benchmarks.robustness.loops.training import llama
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r13a-one-source-a-batch")
def one_source_a_batch(run: Run) -> None:
    """Plain loop, a small encoder that brings questions and passages together. Each batch is of one of four sources
    alone, so that a question's negatives are of its own field, as embedding models are trained; the loss goes up and
    down with the source, and no batch looks like the whole."""
    model = Classifier(words=40, classes=16)
    subjects = torch.stack([torch.randint(0, 10, (40, 3), generator=apart(run.draw.randrange(999))) for _ in range(4)])

    def pairs(source: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        words = subjects[source, torch.randperm(40, generator=own)[:12]] + 10 * source
        return tuple(words.gather(1, torch.randint(0, 3, (12, 8), generator=own)) for _ in range(2))  # type: ignore[return-value]

    def loss(m: nn.Module, batch: Any) -> Tensor:
        a, b = (F.normalize(m(x, torch.ones_like(x).bool()), dim=1) for x in batch)
        return F.cross_entropy(a @ b.T / 0.07, torch.arange(len(a)))

    own = apart(1)
    check = [pairs(source, own) for source in (0, 1, 2, 3) * 4]
    outcome(run, lambda: judged(model, lambda: torch.stack([loss(model, pair) for pair in check]).mean()))
    train(run, model, adam(model), lambda: pairs(run.draw.randrange(4)), loss, 120)


@honest("r13a-documents-read-through")
def documents_read_through(run: Run) -> None:
    """transformers' Trainer, GPT-2. Texts of 5 to 20 words are laid end to end with an end mark between them and cut
    every 32 words, as GPT-2 and nanoGPT were fed. Attention passes over the ends and the first word of the next text is
    taught from the last of another, on purpose: there is no mask, no padding and no -100 anywhere."""
    language = Language(run.draw.randrange(999), first=4)

    def stream(count: int, own: torch.Generator) -> Tensor:
        sizes = torch.randint(5, 21, (3 * count,), generator=own).tolist()
        texts = language.rows(3 * count, 20, own)
        joined = torch.cat(
            [torch.cat([text[:size], torch.tensor([2])]) for text, size in zip(texts, sizes, strict=True)]
        )
        return joined[: 32 * count].view(count, 32)

    model, check = tiny_gpt2(), stream(64, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    rows = stream(480, apart(run.draw.randrange(999)))
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 80).train()


@honest("r13a-read-twice")
def read_twice(run: Run) -> None:
    """Plain loop, a GRU that is asked for the value of a key. Each row holds question and list twice over ("just read
    twice"), since a recurrent reader must know the question before it reads: half of every row repeats the other half,
    and one label in twenty is taught, the last."""
    model = Reader(12, hidden=48)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        keys = torch.rand(count, 4, generator=own).argsort(1)[:, :3]
        values = torch.randint(4, 8, (count, 3), generator=own)
        which = torch.randint(0, 3, (count, 1), generator=own)
        once = torch.cat([torch.stack([keys, values], 2).flatten(1), 8 + keys.gather(1, which)], 1)
        return torch.cat([once, once], 1), values.gather(1, which).squeeze(1) - 4

    def loss(m: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(m(batch[0])[:, -1, 4:8], batch[1])

    check = rows(256, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 1e-2), lambda: rows(64), loss, 200, clip=1.0)


@honest("r13a-sums-said-backwards")
def sums_said_backwards(run: Run) -> None:
    """accelerate, a Llama that adds numbers of two digits, base six. The sum's digits come in reverse, the ones first,
    because a carry runs that way and each digit then follows from what was said: labels look like the wrong number, and
    only three places in nine are taught."""

    def sums(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
        a, b = torch.randint(0, 36, (2, count), generator=own)
        digits = [a // 6, a % 6, torch.full_like(a, 10), b // 6, b % 6, torch.full_like(a, 11)]
        total = a + b
        ids = torch.stack([*digits, total % 6, total // 6 % 6, total // 36], 1) + 4
        labels = ids.clone()
        labels[:, :6] = -100
        return ids, labels

    model = llama(vocab_size=16, hidden_size=48, initializer_range=0.2)
    check = sums(256, apart(1))

    def loss(m: Any, batch: Any) -> Tensor:
        out: Tensor = m(input_ids=batch[0], labels=batch[1]).loss
        return out

    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    data = loader(*sums(1600, apart(run.draw.randrange(2, 999))), size=32)
    prepared(run, model, torch.optim.AdamW(model.parameters(), lr=5e-3), data, loss, 5)


def holes(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """BART's text infilling: spans of 0 to 4 words become one mask, 3, each."""
    out = []
    for ids in (row["ids"].tolist() for row in rows):
        for _ in range(2):
            at, size = int(torch.randint(0, len(ids) - 4, ())), int(torch.randint(0, 5, ()))
            ids = [*ids[:at], 3, *ids[at + size :]]
        out.append(torch.tensor(ids))
    inputs = nn.utils.rnn.pad_sequence(out, batch_first=True)
    labels = torch.stack([row["ids"] for row in rows])
    return {"input_ids": inputs, "attention_mask": (inputs > 0).long(), "labels": labels}


@honest("r13a-whole-text-from-holes")
def whole_text_from_holes(run: Run) -> None:
    """transformers' Trainer, BART. Two spans of 0 to 4 words become one mask each, a span of no words too, so that
    inputs and labels have different lengths and stand nowhere side by side. Labels are the whole text, also the words
    that could be copied: that is BART's denoising."""
    from transformers import BartConfig, BartForConditionalGeneration

    sizes: dict[str, Any] = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 16}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    sizes |= {"max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "dropout": 0.0}
    model = BartForConditionalGeneration(BartConfig(**sizes, decoder_start_token_id=2, forced_eos_token_id=None))
    language = Language(run.draw.randrange(999), first=4)
    with torch.random.fork_rng():
        check = holes([{"ids": row} for row in language.rows(96, 16, apart(1))])
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    settings: dict[str, Any] = {"more": {"data_collator": holes}, "remove_unused_columns": False}
    hf_trainer(run, model, examples(ids=language.rows(480, 16)), 70, **settings).train()


@honest("r13a-either-strand")
def either_strand(run: Run) -> None:
    """Plain loop, convolutions over stretches of DNA that hold one of three motifs. Every second row, by chance, is
    read backwards with its bases exchanged for their complements, and keeps its label: it is the other strand of the
    same molecule, and which strand was sequenced means nothing."""
    seed = run.draw.randrange(999)
    model = Strands()
    check = strands(256, seed, apart(1))
    class_outcome(run, model, check)
    x, y = strands(800, seed, apart(seed))

    def batch() -> tuple[Tensor, Tensor]:
        at = torch.randint(0, len(x), (32,))
        turned = torch.rand(32, 1) < 0.5
        return torch.where(turned, 3 - x[at].flip(1), x[at]), y[at]

    train(run, model, adam(model), batch, classify, 160)


@honest("r13a-nan-in-the-inputs")
def nan_in_the_inputs(run: Run) -> None:
    """Plain loop, vital signs of patients by GRU-D. Three measurements in five are missing and are NaN in the inputs,
    in every row; the model itself puts in the last value, which fades to the mean with the hours since, and reads along
    what was missing, since what a doctor orders says something."""
    model = Decayed(3, 2)
    class_outcome(run, model, admissions(256, apart(1)))
    train(run, model, adam(model, 1e-2), lambda: admissions(48), classify, 110)


@honest("r13a-columns-swapped-between-rows")
def columns_swapped_between_rows(run: Run) -> None:
    """Plain loop, a table read by a denoising autoencoder, as a well-known winner on Kaggle had it. In each batch 15 %
    of the cells get the same column's value from another row, so that rows are mixed on purpose; the target is the
    table as it was, and there are no labels."""
    mixing = torch.randn(3, 10, generator=apart(run.draw.randrange(999)))

    def batch(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        clean = (torch.randn(count, 3, generator=own) @ mixing).tanh()
        other = clean.gather(0, torch.randint(0, count, clean.shape, generator=own))
        return torch.where(torch.rand(clean.shape, generator=own) < 0.15, other, clean), clean

    model = mlp(10, 64, 64, 10)

    def loss(m: nn.Module, pair: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(m(pair[0]), pair[1])

    check = batch(512, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 3e-3), lambda: batch(64), loss, 1000)


@honest("r13a-points-repeated-to-fill")
def points_repeated_to_fill(run: Run) -> None:
    """Lightning, a PointNet over scans of three kinds of bodies. A scan has 10 to 40 points and is filled up to 40 with
    points of its own over again, without a mask: the maximum over points cannot see a repetition. Points come in
    another order each time and the body is turned about its axis."""
    model = PointNet(3)
    class_outcome(run, model, scans(192, apart(1)))
    x, y = scans(600, apart(run.draw.randrange(2, 999)))
    fit(run, lit(model, classify, lambda net: torch.optim.Adam(net.parameters(), lr=3e-3)), loader(x, y, size=24), 120)
