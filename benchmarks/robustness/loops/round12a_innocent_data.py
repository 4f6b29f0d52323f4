"""Round 12, part a, loops that are right though rows, labels or inputs look odd, each rewritten without harm."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, innocent
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    apart,
    class_outcome,
    documents,
    endless,
    examples,
    hf_trainer,
    judged,
    loader,
    mlp,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round9a_tools import BOS, EOS, bert, llama, other_seed, word_tokenizer
from benchmarks.robustness.loops.round10a_tools import plain
from torch import Tensor, nn
from torch.nn import functional as F


class TwoHeads(nn.Module):
    """A BERT, a topic and a tone; a row has the label of one of them, and -100 for the other."""

    def __init__(self, by_index: bool) -> None:
        super().__init__()
        self.by_index, self.body = by_index, bert("BertModel", add_pooling_layer=False)
        self.topic, self.tone = nn.Linear(32, 3), nn.Linear(32, 2)

    def part(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.by_index:
            has = (labels >= 0).nonzero().squeeze(1)
            return F.cross_entropy(logits[has], labels[has])
        return F.cross_entropy(logits, labels, ignore_index=-100)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, topic: Tensor, tone: Tensor) -> dict[str, Tensor]:
        state = self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        share = attention_mask[..., None].float()
        mean = (state * share).sum(1) / share.sum(1)
        return {"loss": self.part(self.topic(mean), topic) + self.part(self.tone(mean), tone)}


@innocent("r12a-each-head-its-own-rows")
def each_head_its_own_rows(run: Run, changed: bool) -> None:
    """transformers' Trainer, BERT with two heads, each of which has labels for half of the rows. The others were
    ignored by their -100, and are left out by an index."""
    own = apart(run.draw.randrange(999))

    def rows(count: int) -> dict[str, Tensor]:
        ids, mask, topic = documents(count, own)
        loud = torch.randint(0, 2, (count,), generator=own)
        ids[:, 0] = torch.where(loud == 1, 1 + ids[:, 0] % 7, 8 + ids[:, 0] % 7)
        first = torch.rand(count, generator=own) < 0.5
        labels = {"topic": topic.masked_fill(~first, -100), "tone": loud.masked_fill(first, -100)}
        return {"input_ids": ids, "attention_mask": mask.long()} | labels

    train, check = rows(480), rows(192)
    model = TwoHeads(by_index=changed)
    outcome(run, lambda: judged(model, lambda: model(**check)["loss"]))
    more = {"label_names": ["topic", "tone"], "learning_rate": 2e-3}
    hf_trainer(run, model, examples(**train), 120, **more).train()


@innocent("r12a-four-pauses-before-the-answer")
def four_pauses_before_the_answer(run: Run, changed: bool) -> None:
    """TRL's SFTTrainer, Llama that is given four <pause> tokens to think on before it answers; they are read and not
    taught. Rows were put together as tensors, and are now by the datasets library's map."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    own = apart(run.draw.randrange(999))
    table = 4 + torch.randperm(12, generator=own)
    asked = torch.randint(4, 16, (528, 6), generator=own)
    one, said = torch.ones(528, 1, dtype=torch.long), table[asked - 4]
    ids = torch.cat([BOS * one, asked, 16 * one.expand(-1, 4), said, EOS * one], 1)
    mask = torch.tensor([0] * 11 + [1] * 7)

    def joined(row: dict[str, Any]) -> dict[str, Any]:
        words = [BOS, *row["asked"], *[16] * 4, *row["said"], EOS]
        return {"input_ids": words, "completion_mask": mask.tolist()}

    if changed:
        table_of_rows = Dataset.from_dict({"asked": asked[:400].tolist(), "said": said[:400].tolist()})
        data = table_of_rows.map(joined, remove_columns=["asked", "said"])
    else:
        data = Dataset.from_dict({"input_ids": ids[:400].tolist(), "completion_mask": mask.expand(400, 18).tolist()})
    check, labels = ids[400:], ids[400:].masked_fill(mask == 0, -100)
    model = llama(17)
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=labels).loss))
    tokenizer = word_tokenizer(17)
    tokenizer.pad_token = "<pad>"
    options = {"kind": SFTConfig, "max_length": None, "completion_only_loss": True}
    hf_trainer(run, model, data, 150, SFTTrainer, more={"processing_class": tokenizer}, **options).train()


@innocent("r12a-words-in-any-order")
def words_in_any_order(run: Run, changed: bool) -> None:
    """Plain loop, an encoder of topics that reads the words of each text in a new order every time, on purpose. They
    were shuffled row by row, and are now by sorting random numbers. Another seed."""
    own = apart(run.draw.randrange(999))
    train, check = documents(480, own), documents(192, own)
    other_seed(changed)
    model = Classifier()
    class_outcome(run, model, check)
    rows = endless(loader(*train))

    def batch() -> tuple[Tensor, ...]:
        ids, keep, y = next(rows)
        if changed:
            order = torch.rand(ids.shape).masked_fill(~keep, 2.0).argsort(1)
            return ids.gather(1, order), keep, y
        ids = ids.clone()
        for row, size in zip(ids, keep.sum(1).tolist(), strict=True):
            row[:size] = row[torch.randperm(size)]
        return ids, keep, y

    plain(run, model, batch, lambda b: F.cross_entropy(model(b[0], b[1]), b[2]), 150)


class Codes(nn.Module):
    """A learned code for each picture, and a decoder of codes."""

    def __init__(self, count: int, width: int = 8) -> None:
        super().__init__()
        self.codes, self.decoder = nn.Embedding(count, width), mlp(width, 64, 64, act=nn.GELU)

    def forward(self, index: Tensor) -> tuple[Tensor, Tensor]:
        code = self.codes(index)
        return self.decoder(code), code


@innocent("r12a-a-code-for-each-picture")
def a_code_for_each_picture(run: Run, changed: bool) -> None:
    """Plain loop, a decoder without an encoder: the input is a picture's number, whose code is learned with the
    decoder. The squared error was a mean of squares, and is mse_loss."""
    seed = run.draw.randrange(999)
    shots = pictures(256, seed, own=apart(seed + 1))[0].flatten(1)
    model = Codes(256)

    def loss(index: Tensor) -> Tensor:
        said, code = model(index)
        error = F.mse_loss(said, shots[index]) if changed else (said - shots[index]).square().mean()
        return error + 1e-3 * code.square().mean()

    everything = torch.arange(256)
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(everything)[0], shots)))
    plain(run, model, lambda: torch.randperm(256)[:32], loss, 300, rate=1e-2)
