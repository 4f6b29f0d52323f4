"""Round 17a, honest and odd: data and batches."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Examples,
    Language,
    apart,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    number_outcome,
    outcome,
    table,
    tiny_gpt2,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared, regress
from benchmarks.robustness.loops.round10a_tools import adamw
from torch import Tensor, nn
from torch.nn import functional as F


class Tunes(Examples):
    """Rows of pitches, each time a few half-tones higher."""

    def __getitem__(self, index: int) -> Any:
        row = self.rows[index] + int(torch.randint(0, 12, ()))
        return {"input_ids": row, "labels": row}


@honest("r17a-each-tune-in-another-key")
def each_tune_in_another_key(run: Run) -> None:
    """transformers' Trainer, a GPT-2 for melodies, transposed as in Music Transformer (Huang et al. 2019). Each time a
    tune is read all of its ids, and its labels with them, are raised by the same random number from 0 to 11, so that a
    row of the data never comes twice in the same words: what a tune is lies in the steps between pitches and not in
    pitches."""
    degrees = Language(run.draw.randrange(999), words=8, sharp=2.0)
    scale = torch.tensor([0, 2, 4, 5, 7, 9, 11, 12]) + 4
    model = tiny_gpt2(28)
    check = scale[degrees.rows(96, 20, apart(1))] + torch.randint(0, 12, (96, 1), generator=apart(2))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    tunes = scale[degrees.rows(160, 20)]
    hf_trainer(run, model, Tunes(list(tunes)), 130, lr_scheduler_type="cosine", warmup_steps=10).train()


def overlapping(letters: Tensor) -> Tensor:
    """(rows, n) letters 0 to 3 as (rows, n - 2) words of three letters each, 4 to 67."""
    return 4 + 16 * letters[:, :-2] + 4 * letters[:, 1:-1] + letters[:, 2:]


def three_in_a_row_hidden(words: Tensor, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    starts = torch.rand(len(words), words.shape[1] - 2, generator=own) < 0.07
    starts[:, 4] |= ~starts.any(1)
    hidden = torch.zeros_like(words, dtype=torch.bool)
    for shift in range(3):
        hidden[:, shift : shift + starts.shape[1]] |= starts
    return words.masked_fill(hidden, 1), words.masked_fill(~hidden, -100)


@honest("r17a-words-that-overlap-by-two-letters")
def words_that_overlap_by_two_letters(run: Run) -> None:
    """transformers' Trainer, BERT on DNA as DNABERT has it (Ji et al. 2021). A word is three letters and the next word
    is the same but one letter on, so that most of a hidden word is in plain sight in its neighbours; words are hidden
    three in a row for that reason, and even so the first and the last of them can be read off."""
    from transformers import BertConfig, BertForMaskedLM

    language = Language(run.draw.randrange(999), words=4, sharp=1.8)
    size: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertForMaskedLM(
        BertConfig(**size, intermediate_size=64, vocab_size=68, max_position_embeddings=24, initializer_range=0.1)
    )
    seen, asked = three_in_a_row_hidden(overlapping(language.rows(128, 22, apart(1))), apart(2))
    outcome(run, lambda: judged(model, lambda: model(input_ids=seen, labels=asked).loss))

    def collate(rows: list[Any]) -> dict[str, Tensor]:
        ids, labels = three_in_a_row_hidden(torch.stack([row["input_ids"] for row in rows]))
        return {"input_ids": ids, "labels": labels}

    data = Examples([{"input_ids": row} for row in overlapping(language.rows(480, 22))])
    more = {"data_collator": collate}
    hf_trainer(run, model, data, 230, more=more, warmup_steps=10, per_device_train_batch_size=24).train()


def facts(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """(count, 3, 4) passages and (count, 1) answers: two facts each, 4 to 27, of a thing (of six) and a value (of
    four), a word that says nothing, 28 to 31, and the thing that is asked for, 32 to 37."""
    things = torch.rand(count, 6, generator=own).argsort(1)
    values = torch.randint(0, 4, (count, 6), generator=own)
    said = (4 + 4 * things + values).view(count, 3, 2)
    filling = torch.randint(28, 32, (count, 3, 1), generator=own)
    asked = torch.randint(0, 6, (count, 1), generator=own)
    question = (32 + things.gather(1, asked))[:, None].expand(-1, 3, -1)
    return torch.cat([question, said, filling], 2), 38 + values.gather(1, asked)


@honest("r17a-three-rows-for-one-answer")
def three_rows_for_one_answer(run: Run) -> None:
    """accelerate, a T5 that answers from three passages by fusion in the decoder (Izacard and Grave 2021). Passages go
    through the encoder as rows of their own, so that its batch is three times as large as the decoder's, and are laid
    end to end afterwards; each of them begins at place nought, none sees another, and two in three hold nothing of
    use."""
    from transformers import T5Config, T5ForConditionalGeneration
    from transformers.modeling_outputs import BaseModelOutput

    size: dict[str, Any] = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
    model = T5ForConditionalGeneration(T5Config(**size, vocab_size=42, dropout_rate=0.0, decoder_start_token_id=0))

    def loss(model: Any, batch: Any) -> Tensor:
        passages, answer = batch
        states = model.encoder(input_ids=passages.flatten(0, 1)).last_hidden_state
        fused = BaseModelOutput(last_hidden_state=states.view(len(passages), -1, states.shape[-1]))
        out: Tensor = model(encoder_outputs=fused, labels=answer).loss
        return out

    check = facts(192, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    data = loader(*facts(640, apart(run.draw.randrange(999))), size=32)
    prepared(run, model, torch.optim.AdamW(model.parameters(), lr=1e-2), data, loss, 9)


class RowsSeeRows(nn.Module):
    """Columns of a row look at each other, and then the rows of the batch do."""

    def __init__(self, columns: int, width: int = 16) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.randn(columns, width))
        self.names = nn.Parameter(torch.randn(columns, width))
        settings: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.within = nn.TransformerEncoderLayer(width, 2, 2 * width, **settings)
        self.between = nn.TransformerEncoderLayer(columns * width, 2, 2 * columns * width, **settings)
        self.head = mlp(columns * width, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.within(x[..., None] * self.values + self.names).flatten(1)
        out: Tensor = self.head(self.between(h[None])[0])
        return out


@honest("r17a-rows-of-a-batch-see-each-other")
def rows_of_a_batch_see_each_other(run: Run) -> None:
    """Lightning, SAINT for a table (Somepalli et al. 2021). After attention over the columns of a row there is
    attention over the rows of the batch: what is said of a row depends on which others happen to stand beside it, and
    a gradient flows from each row's loss to all other rows, on purpose, since a row that lacks something may borrow it
    from one like it."""
    seed = run.draw.randrange(999)
    model = RowsSeeRows(6)
    number_outcome(run, model, table(256, seed, apart(1)))
    fit(run, lit(model, regress, adamw(2e-3)), loader(*table(512, seed), size=32), 180)


def weighed_events(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Events of two processes with weights of one, and of minus one for a part of the first: three rows in sixteen of
    it cancel as many that were drawn too much in the same corner, and together they have the right density."""
    y = torch.randint(0, 2, (count,), generator=own)
    x = torch.randn(count, 4, generator=own) + 0.7 * y[:, None] * torch.tensor([1.0, -1.0, 0.5, 0.0])
    corner = 0.5 * torch.randn(count, 4, generator=own) + torch.tensor([1.0, -0.5, 0.0, 0.5])
    drawn = torch.rand(count, generator=own)
    odd = (y == 0) & (drawn < 6 / 16)
    weight = torch.where((y == 0) & (drawn < 3 / 16), -1.0, 1.0)
    return torch.where(odd[:, None], corner, x), y.float(), weight


@honest("r17a-rows-with-a-weight-of-minus-one")
def rows_with_a_weight_of_minus_one(run: Run) -> None:
    """Plain loop, events of a collider in two classes, as simulations to next-to-leading order give them (MC@NLO,
    Frixione and Webber 2002). One event in ten has a weight of minus one: its loss is made larger, on purpose, because
    it stands for events that were generated too often in the same corner, and without it that corner would seem fuller
    than it is."""
    model = mlp(4, 32, 32, 1)
    y = (torch.rand(1024, generator=apart(1)) < 16 / 26).float()
    x = torch.randn(1024, 4, generator=apart(2)) + 0.7 * y[:, None] * torch.tensor([1.0, -1.0, 0.5, 0.0])
    outcome(run, lambda: judged(model, lambda: F.binary_cross_entropy_with_logits(model(x).squeeze(1), y)))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        x, y, weight = batch
        each = F.binary_cross_entropy_with_logits(model(x).squeeze(1), y, reduction="none")
        return (weight * each).sum() / weight.sum()

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    train(run, model, optimizer, lambda: weighed_events(192), loss, 250)
