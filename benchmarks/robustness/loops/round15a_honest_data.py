"""Round 15a, honest and odd: data and batches."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Decoder,
    Language,
    apart,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    next_loss,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam, near, text_outcome
from benchmarks.robustness.loops.round10a_tools import adamw
from benchmarks.robustness.loops.training import llama
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r15a-as-many-rows-as-fit")
def as_many_rows_as_fit(run: Run) -> None:
    """Plain loop, a small GPT with fairseq's max-tokens. A batch holds texts of one length and as many as fit 192
    tokens: from 6 long to 38 short ones, so that the number of rows and the length change with every step, the
    product hardly, and the gradient of a batch is always a mean over about as many tokens."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    text_outcome(run, model, language)
    stock = {length: language.rows(120, length) for length in range(5, 33)}

    def batch() -> Tensor:
        length = run.draw.randrange(5, 33)
        return stock[length][torch.randperm(120)[: 192 // length]]

    train(run, model, adam(model), batch, next_loss, 150)


@honest("r15a-small-tongue-told-often")
def small_tongue_told_often(run: Run) -> None:
    """transformers' Trainer, a Llama for a large language of 600 rows and a small one of 40. Languages are sampled
    by a power of their size, as in XLM-R and mT5, so that the same 40 rows come again and again, six times as often
    as the rows of the large one: repetition on purpose, without which the small language would hardly be
    learned."""
    large = Language(run.draw.randrange(999), first=4)
    small = near(large, run.draw.randrange(999), 0.8)
    small.first = 4
    model = llama(vocab_size=18, num_hidden_layers=1)

    def rows(language: Language, tongue: int, count: int, own: torch.Generator | None = None) -> Tensor:
        out = language.rows(count, 20, own)
        out[:, 0] = 16 + tongue
        return out

    check = torch.cat([rows(large, 0, 60, apart(1)), rows(small, 1, 60, apart(2))])
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    data = torch.cat([rows(large, 0, 600), rows(small, 1, 40).repeat(6, 1)])
    hf_trainer(run, model, examples(input_ids=data, labels=data), 110, learning_rate=1e-2).train()


class Sentences(nn.Module):
    """Texts to vectors: an encoder with dropout, the mean over words."""

    def __init__(self, words: int = 16, width: int = 32, size: int = 16, drop: float = 0.15) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(16, width)
        self.block, self.head = Block(width, causal=False, drop=drop), nn.Linear(width, size)

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        x = self.block(self.tokens(ids) + self.places(torch.arange(ids.shape[1])), keep)
        share = keep.float()[..., None]
        out: Tensor = self.head((x * share).sum(1) / share.sum(1))
        return out


@honest("r15a-same-text-twice")
def same_text_twice(run: Run) -> None:
    """accelerate, SimCSE (Gao et al. 2021). Both sides of each positive pair are the very same ids, and only
    dropout makes two vectors of them; no label is used, cosines are divided by 0.05, and the target is the
    diagonal. Judged by the same task on texts kept apart, of which a twin lacks every third word."""
    model = Sentences()

    def apart_by(a: Tensor, b: Tensor) -> Tensor:
        scores = F.normalize(a, dim=1) @ F.normalize(b, dim=1).T / 0.05
        return F.cross_entropy(scores, torch.arange(len(a)))

    ids, keep, _ = documents(128, apart(3))
    left = keep & (torch.arange(12) % 3 != 1)
    outcome(run, lambda: judged(model, lambda: apart_by(model(ids, keep), model(ids, left))))
    data = loader(*documents(480)[:2], size=32, drop_last=True)
    prepared(run, model, adam(model, 3e-3), data, lambda m, b: apart_by(m(*b), m(*b)), 12)


class WordVectors(nn.Module):
    """Texts to a vector of length one for each word."""

    def __init__(self, words: int = 22, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(16, width)
        self.block, self.head = Block(width, causal=False), nn.Linear(width, 16, bias=False)

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        return F.normalize(self.head(self.block(x, keep)), dim=2)


@honest("r15a-question-padded-with-masks")
def question_padded_with_masks(run: Run) -> None:
    """Plain loop, ColBERT. Questions of three words are filled up to eight with [MASK], and these are attended to
    and scored like words, as its authors advise (query augmentation), while passages' padding is masked as usual; a
    score is a sum of eight largest cosines, so that it lies between minus eight and eight and nothing else scales
    it."""
    model = WordVectors()

    def pairs(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        passages = torch.randint(2, 22, (count, 12), generator=own)
        keep = torch.arange(12)[None] < torch.randint(6, 13, (count, 1), generator=own)
        asked = passages.gather(1, torch.rand(count, 6, generator=own).argsort(1)[:, :3])
        mask = torch.ones(count, 5, dtype=torch.long)
        return torch.cat([asked, mask], 1), passages * keep, keep

    def loss(model: nn.Module, batch: Any) -> Tensor:
        asked, passages, keep = batch
        q, d = model(asked, torch.ones_like(asked, dtype=torch.bool)), model(passages, keep)
        each = torch.einsum("aqw,bdw->abqd", q, d).masked_fill(~keep[None, :, None], -1.0)
        return F.cross_entropy(each.amax(3).sum(2), torch.arange(len(asked)))

    check = pairs(48, apart(5))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model), lambda: pairs(24), loss, 120)


class Convolved(nn.Module):
    """Three rounds of means over neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.middle, self.leave = nn.Linear(9, 24), nn.Linear(24, 24), nn.Linear(24, 3)
        self.drop = nn.Dropout(0.2)

    def forward(self, h: Tensor, share: Tensor) -> Tensor:
        h = self.drop(self.enter(share @ h).relu())
        out: Tensor = self.leave(share @ self.middle(share @ h).relu())
        return out


@honest("r15a-labels-among-the-inputs")
def labels_among_the_inputs(run: Run) -> None:
    """Plain loop, one graph of 150 nodes as in UniMP (Shi et al. 2021). Labels of half of the training nodes, drawn
    anew at each step, are given to the network as features of those very nodes, and the loss is about the other
    half alone: it looks as if the answer leaked, and it does only to where nothing is asked. In use all known
    labels are given."""
    own = apart(run.draw.randrange(999))
    y = torch.randint(0, 3, (150,), generator=own)
    alike = y[:, None] == y[None]
    edges = (torch.rand(150, 150, generator=own) < torch.where(alike, 0.07, 0.012)).float()
    edges = ((edges + edges.T) > 0).float() + torch.eye(150)
    share = edges / edges.sum(1, keepdim=True)
    x = F.one_hot(y, 3).float() @ torch.randn(3, 6, generator=own) * 0.4 + torch.randn(150, 6, generator=own)
    known = torch.rand(150, generator=own) < 0.6
    model = Convolved()

    def said(given: Tensor) -> Tensor:
        out: Tensor = model(torch.cat([x, F.one_hot(y, 3) * given[:, None]], 1), share)
        return out

    outcome(run, lambda: judged(model, lambda: F.cross_entropy(said(known)[~known], y[~known])))

    def loss(_: nn.Module, given: Tensor) -> Tensor:
        asked = known & ~given
        return F.cross_entropy(said(given)[asked], y[asked])

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
    train(run, model, optimizer, lambda: known & (torch.rand(150) < 0.5), loss, 120)


class FittedToAPrior(nn.Module):
    """Rows of a small table, some with their label, to the labels of the others; no places."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.features, self.labels = nn.Linear(3, width), nn.Embedding(3, width)
        self.blocks = nn.ModuleList(Block(width, causal=False) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 2)

    def forward(self, x: Tensor, given: Tensor) -> Tensor:
        """x: (tables, rows, 3); given: (tables, rows), 0 and 1, and 2 where it is asked."""
        h = self.features(x) + self.labels(given)
        for block in self.blocks:
            h = block(h, given < 2)
        out: Tensor = self.head(self.norm(h))
        return out


@honest("r15a-each-table-another-problem")
def each_table_another_problem(run: Run) -> None:
    """Lightning, TabPFN. A row of the batch is a whole data set with a rule of its own, made up on the spot and
    never seen again: 20 of its cases come with labels among the inputs, 8 are asked, and what label 1 means is
    another thing in each row. The loss stands at log 2 until the network has learned to learn."""
    model = FittedToAPrior()

    def tables(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.randn(count, 28, 3, generator=own)
        rule = torch.randn(count, 3, 1, generator=own)
        y = ((x @ rule).squeeze(2) > 0).long()
        given = y.clone()
        given[:, 20:] = 2
        return x, given, y

    def loss(net: nn.Module, batch: Any) -> Tensor:
        x, given, y = batch
        return F.cross_entropy(net(x, given)[:, 20:].flatten(0, 1), y[:, 20:].flatten())

    check = tables(96, apart(4))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    fit(run, lit(model, loss, adamw(4e-3)), loader(*tables(4800), size=32), 150)


class Hashed(nn.Module):
    """Words as sums over four tables of 16 rows, each found by a hash of its own, and a GRU; words out by their own
    head."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(16, 24) for _ in range(4))
        self.core, self.head = nn.GRU(24, 40, batch_first=True), nn.Linear(40, words)

    def forward(self, ids: Tensor) -> Tensor:
        x = sum(table((ids * prime + 7) % 97 % 16) for table, prime in zip(self.tables, (31, 43, 59, 67), strict=True))
        out: Tensor = self.head(self.core(x)[0])
        return out


@honest("r15a-words-share-rows-by-hashing")
def words_share_rows_by_hashing(run: Run) -> None:
    """Lightning, a GRU that reads 60 words through tables of 16 rows each, as CANINE and Bloom embeddings do. Ids far
    beyond the tables are folded into them by a hash, so that several words share every row, on purpose; four hashes
    together still tell words apart, and the head has one output for each word."""
    language = Language(run.draw.randrange(999), words=60)
    model = Hashed(60)
    text_outcome(run, model, language)
    data = loader(language.rows(640, 24), size=16)
    fit(run, lit(model, lambda net, batch: next_loss(net, batch[0]), adamw(1e-2)), data, 160)


@honest("r15a-drawn-from-the-last-sixty-four")
def drawn_from_the_last_sixty_four(run: Run) -> None:
    """Plain loop, a small GPT with a reservoir of texts in place of a data set: a stream gives two new texts a
    step, and a batch is sixteen drawn from the last 64, with repeats, as replay in online learning has it. A text
    is seen about eight times within a short while and never again; there is no epoch and no shuffle of a whole."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    text_outcome(run, model, language)
    kept = language.rows(64, 24)

    def batch() -> Tensor:
        nonlocal kept
        kept = torch.cat([kept[2:], language.rows(2, 24)])
        return kept[torch.randint(0, 64, (16,))]

    train(run, model, adam(model), batch, next_loss, 130)
