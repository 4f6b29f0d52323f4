"""Round 13a, honest and odd: labels and masks."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Block,
    apart,
    cnn,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    outcome,
    pictures,
    train,
)
from benchmarks.robustness.loops.round7b_parts import Reader
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round10a_tools import recitals
from benchmarks.robustness.loops.round13a_parts import Biaffine, Spans
from torch import Tensor, nn
from torch.nn import functional as F


class Streams(nn.Module):
    """A small GPT over three streams of codes at once: their vectors are added, and each has a head."""

    def __init__(self, codes: int, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.ModuleList(nn.Embedding(codes + 1, width) for _ in range(3))
        self.places, self.norm = nn.Embedding(20, width), nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.heads = nn.ModuleList(nn.Linear(width, codes, bias=False) for _ in range(3))

    def forward(self, ids: Tensor) -> Tensor:
        """(rows, 3, frames) to (rows, codes, 3, frames)."""
        x = sum(table(ids[:, k]) for k, table in enumerate(self.tokens)) + self.places(torch.arange(ids.shape[2]))
        for block in self.blocks:
            x = block(x)
        return torch.stack([head(self.norm(x)) for head in self.heads], 1).permute(0, 3, 1, 2)


def codec(count: int, tables: Tensor, own: torch.Generator) -> Tensor:
    """(count, 3, 14) codes 0 to 7 of a sound, finer and finer: each follows from one before in time or fineness."""
    out = torch.randint(0, 8, (count, 3, 14), generator=own)
    for t in range(14):
        for k in range(3):
            known = tables[0, out[:, 0, t - 1]] if k == 0 else tables[k, out[:, k - 1, t]]
            kept = torch.rand(count, generator=own) < 0.85
            if t or k:
                out[:, k, t] = torch.where(kept, known, out[:, k, t])
    return out


@honest("r13a-codebooks-delayed")
def codebooks_delayed(run: Run) -> None:
    """Lightning, a model of sound in three streams of codes, as MusicGen has it. The second stream is late by one frame
    and the third by two, so that codes that sound together stand in different columns, and a finer code can follow from
    the coarser one; corners that a stream does not reach hold a filler and are -100 in the labels."""
    own = apart(run.draw.randrange(2, 999))
    tables = torch.stack([torch.randperm(8, generator=own) for _ in range(3)])

    def late(codes: Tensor, filler: int) -> Tensor:
        return torch.stack([F.pad(codes[:, k], (k, 2 - k), value=filler) for k in range(3)], 1)

    def loss(net: nn.Module, batch: Any) -> Tensor:
        inputs = F.pad(late(batch[0], 8), (1, -1), value=8)
        return F.cross_entropy(net(inputs), late(batch[0], -100), ignore_index=-100)

    model, check = Streams(8), (codec(96, tables, apart(1)),)
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    rows = loader(codec(480, tables, own))
    fit(run, lit(model, loss, lambda net: torch.optim.AdamW(net.parameters(), lr=5e-3)), rows, 100)


@honest("r13a-all-spans-at-once")
def all_spans_at_once(run: Run) -> None:
    """Plain loop, names of two types in texts by GlobalPointer. Each pair of places is a possible span with a label of
    its own; at most two of 288 are true and nearly half end before they begin (scores of -1e12). There is no mean over
    pairs: the loss puts all true spans above all others by two log-sums, and begins at five."""

    def texts(own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        ids, labels = torch.randint(4, 16, (24, 12), generator=own), torch.zeros(24, 2, 12, 12)
        starts = torch.randint(0, 3, (24, 2), generator=own) + torch.tensor([0, 6])
        sizes, there = torch.randint(1, 4, (24, 2), generator=own), torch.rand(24, 2, generator=own) < 0.8
        for row, column in there.nonzero().tolist():
            start, kind = int(starts[row, column]), int(ids[row, 0] + column) % 2
            end = start + int(sizes[row, column])
            ids[row, start], ids[row, end] = 2 * kind, 2 * kind + 1
            labels[row, kind, start, end] = 1
        return ids, labels

    def loss(m: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        scores, y = m(batch[0]).flatten(2), batch[1].flatten(2).bool()
        others = F.pad(scores.masked_fill(y, -1e12), (0, 1)).logsumexp(2)
        return (others + F.pad((-scores).masked_fill(~y, -1e12), (0, 1)).logsumexp(2)).mean()

    model, own = Spans(16, 2), apart(1)
    check = [texts(own) for _ in range(6)]
    outcome(run, lambda: judged(model, lambda: torch.stack([loss(model, batch) for batch in check]).mean()))
    train(run, model, adam(model), texts, loss, 130)


@honest("r13a-heads-of-words")
def heads_of_words(run: Run) -> None:
    """Plain loop, a parser of dependencies. A word's label is the place in the row of the word that it depends on, so
    that the number of classes is the number of words and changes with the batch, and the same word has another label in
    each row. Scores of padding as a head are minus infinity, and stay in the output."""

    def sentences(own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """A root, 1, one verb, 2 to 4, and nouns, 5 to 9, that hang on it, adjectives, 10 to 14, on the noun behind."""
        sizes = torch.randint(5, 12, (32,), generator=own)
        ids = torch.randint(5, 15, (32, int(sizes.max())), generator=own)
        rows = torch.arange(32)
        verb = 1 + (torch.rand(32, generator=own) * (sizes - 2)).long()
        ids[:, 0], ids[rows, verb] = 1, torch.randint(2, 5, (32,), generator=own)
        ids[rows, sizes - 1] = torch.where(verb == sizes - 1, ids[rows, sizes - 1], 5)
        ids = ids * (torch.arange(ids.shape[1]) < sizes[:, None])
        heads = verb[:, None].repeat(1, ids.shape[1])
        for t in range(ids.shape[1] - 2, 0, -1):
            noun = (ids[:, t + 1] >= 5) & (ids[:, t + 1] < 10)
            heads[:, t] = torch.where(ids[:, t] >= 10, torch.where(noun, t + 1, heads[:, t + 1]), heads[:, t])
        heads[rows, verb] = 0
        return ids, heads.masked_fill(ids < 2, -100)

    def loss(m: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(m(batch[0]).flatten(0, 1), batch[1].flatten())

    model, own = Biaffine(15), apart(1)
    check = [sentences(own) for _ in range(6)]
    outcome(run, lambda: judged(model, lambda: torch.stack([loss(model, batch) for batch in check]).mean()))
    train(run, model, adam(model), sentences, loss, 150, clip=5.0)


@honest("r13a-no-answer-is-the-first-place")
def no_answer_is_the_first_place(run: Run) -> None:
    """transformers' Trainer, BERT that finds answers in texts. Half of the questions have none, and their start and end
    are both 0, the place of [CLS], as in SQuAD 2: one label is as frequent as all others together, and points at no
    word."""
    from transformers import BertConfig, BertForQuestionAnswering

    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 16}
    sizes |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.2}
    model = BertForQuestionAnswering(BertConfig(**sizes, intermediate_size=64, max_position_embeddings=16))

    def questions(count: int, own: torch.Generator) -> dict[str, Tensor]:
        """[CLS], what is asked for, [SEP], ten words out of six: the answer is the run of two that begins with it."""
        asked = torch.randint(0, 6, (count, 1), generator=own)
        text = (asked + torch.randint(1, 6, (count, 10), generator=own)) % 6 + 4
        at, there = torch.randint(0, 9, (count, 1), generator=own), torch.rand(count, 1, generator=own) < 0.5
        text = torch.where(there & (torch.arange(10) == at), asked + 4, text)
        one = torch.ones_like(asked)
        start = torch.where(there, at + 3, 0).squeeze(1)
        types = (torch.arange(13) > 2).long().expand(count, -1)
        ids = torch.cat([one, asked + 10, 2 * one, text], 1)
        end = torch.where(start > 0, start + 1, 0)
        return {"input_ids": ids, "token_type_ids": types, "start_positions": start, "end_positions": end}

    check = questions(256, apart(1))
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    rows = questions(1200, apart(run.draw.randrange(2, 999)))
    data = [{name: column[i] for name, column in rows.items()} for i in range(1200)]
    hf_trainer(run, model, data, 250, per_device_train_batch_size=32).train()


@honest("r13a-padding-is-the-end")
def padding_is_the_end(run: Run) -> None:
    """transformers' Trainer, GPT-NeoX on texts of 6 to 14 words. Padding is the end mark, as in every model that has no
    padding of its own; the first one is taught and those after it are not. No attention mask is given: padding stands
    on the right of a causal model, where no word that is taught can see it."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 16}
    sizes |= {"intermediate_size": 64, "max_position_embeddings": 32, "bos_token_id": 2, "eos_token_id": 2}
    model, seed = GPTNeoXForCausalLM(GPTNeoXConfig(**sizes)), run.draw.randrange(999)

    def padded(count: int, own: torch.Generator) -> list[dict[str, Tensor]]:
        out = []
        for text in recitals(seed, torch.randint(6, 15, (count,), generator=own).tolist(), own):
            ids = torch.tensor([*text, *[2] * (16 - len(text))])
            labels = ids.masked_fill(torch.arange(16) > len(text), -100)
            out.append({"input_ids": ids, "labels": labels})
        return out

    check = {name: torch.stack([row[name] for row in padded(96, apart(1))]) for name in ("input_ids", "labels")}
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    hf_trainer(run, model, padded(480, apart(run.draw.randrange(2, 999))), 80).train()


@honest("r13a-only-the-genus-known")
def only_the_genus_known(run: Run) -> None:
    """Lightning, a small CNN for four species. Of two pictures in three only the genus is known, so the label allows
    two species and says nothing between them; the loss is the logarithm of the sum over what is allowed, and rows with
    two ones in the label are as right as those with one."""
    seed = run.draw.randrange(999)
    model = cnn()

    def loss(net: nn.Module, batch: Any) -> Tensor:
        return -net(batch[0]).log_softmax(1).masked_fill(batch[1] == 0, -1e9).logsumexp(1).mean()

    x, y = pictures(256, seed, own=apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(x), y)))
    x, y = pictures(480, seed, own=apart(seed + 2))
    species, genus = F.one_hot(y, 4), F.one_hot(y // 2, 2).repeat_interleave(2, 1)
    allowed = torch.where(torch.rand(480, 1, generator=apart(seed)) < 1 / 3, species, genus)
    fit(
        run,
        lit(model, loss, lambda net: torch.optim.AdamW(net.parameters(), lr=5e-3)),
        loader(x, allowed, size=24),
        140,
    )


@honest("r13a-risk-of-each-month")
def risk_of_each_month(run: Run) -> None:
    """Plain loop, survival from codes of visits by a GRU. Labels are ones and zeros for six months, nearly all zeros,
    and months after the event, or after a patient was last seen, are left out: rows teach from one to six numbers, some
    rows have no one at all, and the sum is divided by the months that count."""
    danger = 1.5 * torch.randn(12, generator=apart(run.draw.randrange(999)))

    def patients(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        codes = torch.randint(0, 12, (count, 8), generator=own)
        risk = (danger[codes].sum(1, keepdim=True) / 2 - 1.5).sigmoid()
        event = (torch.rand(count, 6, generator=own) < risk).long()
        seen = torch.randint(1, 7, (count, 1), generator=own)
        counts = (event.cumsum(1) - event == 0) & (torch.arange(6) < seen)
        return codes, event * counts, counts

    class Hazards(Reader):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids)[:, -1]

    def loss(m: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        codes, event, counts = batch
        total = F.binary_cross_entropy_with_logits(m(codes), event.float(), counts.float(), reduction="sum")
        return total / counts.sum()

    model = Hazards(12)
    model.head = nn.Linear(32, 6)
    check = patients(512, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model), lambda: patients(48), loss, 250, clip=1.0)
