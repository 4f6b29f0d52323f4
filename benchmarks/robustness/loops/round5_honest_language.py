"""Honest and odd: language models, their masks, their batches and their objectives."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Attention,
    Decoder,
    Language,
    apart,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    mlp,
    next_loss,
    outcome,
    tiny_bert,
    tiny_gpt2,
    train,
)
from torch import Tensor, nn
from torch.nn import functional as F


def adamw(model: nn.Module, rate: float = 4e-3) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=rate)


@honest("r5-short-rows-first")
def short_rows_first(run: Run) -> None:
    """A curriculum: rows of six words, then of twelve, then of twenty; the loss jumps where they grow."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    language_outcome(run, model, language)
    at = iter([6] * 30 + [12] * 30 + [20] * 40)
    train(run, model, adamw(model), lambda: language.rows(16, next(at, 20)), next_loss, 90)


@honest("r5-documents-in-one-row")
def documents_in_one_row(run: Run) -> None:
    """Packing: three documents in a row, positions that begin again, and attention that stays inside of a document."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    part = torch.arange(24) // 8
    inside = part[:, None] == part[None]

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, ids: Tensor, where: Tensor) -> Tensor:
            x = model.tokens(ids) + model.places(where)
            block = model.blocks[0]
            normed = block.norm1(x)
            q, k, v = (p.view(*p.shape[:2], 2, -1).transpose(1, 2) for p in block.attention.qkv(normed).chunk(3, -1))
            seen = inside[: ids.shape[1], : ids.shape[1]].tril()
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2)
            x = x + block.attention.out(mixed)
            x = x + block.feed(block.norm2(x))
            out: Tensor = model.head(model.norm(x))
            return out

    packed = Packed()

    def batch(own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        ids = torch.cat([language.rows(8, 8, own) for _ in range(3)], 1)
        labels = ids.roll(-1, 1)
        labels[:, 7::8] = -100
        return ids, (torch.arange(24) % 8).expand(8, -1), labels

    def loss(m: nn.Module, b: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(m(b[0], b[1]).flatten(0, 1), b[2].flatten())

    check = batch(apart(1))
    outcome(run, lambda: judged(packed, lambda: loss(packed, check)))
    train(run, packed, adamw(packed), batch, loss, 80)


@honest("r5-smoothed-labels")
def smoothed_labels(run: Run) -> None:
    """Label smoothing of 0.2 on few classes: the loss cannot come near zero."""
    language = Language(run.draw.randrange(999), words=5, sharp=3)
    model = Decoder(5)
    language_outcome(run, model, language)
    loss = lambda m, r: F.cross_entropy(m(r[:, :-1]).flatten(0, 1), r[:, 1:].flatten(), label_smoothing=0.2)
    train(run, model, adamw(model), lambda: language.rows(16, 20), loss, 70)


@honest("r5-hidden-words")
def hidden_words(run: Run) -> None:
    """A masked language model sees both sides; nine labels in ten are -100, now and then a row has none."""
    language = Language(run.draw.randrange(999), first=1)
    model = Decoder(13)
    for block in model.blocks:
        block.attention.causal = False  # type: ignore[union-attr]

    def batch(own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        rows = language.rows(48, 16, own)
        hidden = torch.rand(rows.shape, generator=own) < 0.1
        return rows.masked_fill(hidden, 0), rows.masked_fill(~hidden, -100)

    loss = lambda m, b: F.cross_entropy(m(b[0]).flatten(0, 1), b[1].flatten())
    check = batch(apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adamw(model), batch, loss, 110)


class Local(nn.Module):
    """Causal attention to the last three places, and to the first one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = Attention(width)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        t = x.shape[1]
        q, k, v = (p.view(len(x), t, 2, -1).transpose(1, 2) for p in self.inner.qkv(x).chunk(3, -1))
        seen = torch.ones(t, t).tril().bool() & (torch.ones(t, t).triu(-2).bool() | (torch.arange(t) == 0))
        out: Tensor = self.inner.out(F.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2).flatten(2))
        return out


@honest("r5-window-and-sink")
def window_and_sink(run: Run) -> None:
    """Sparse attention: a window of three places and a sink at the first."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    model.blocks[0].attention = Local(32)
    language_outcome(run, model, language)
    train(run, model, adamw(model), lambda: language.rows(12, 24), next_loss, 80)


@honest("r5-recomputed-blocks")
def recomputed_blocks(run: Run) -> None:
    """Gradient checkpointing, not reentrant: every block runs twice in a step."""
    from torch.utils.checkpoint import checkpoint

    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2, drop=0.1)
    for block in model.blocks:
        inside = block.forward
        block.forward = lambda x, keep=None, f=inside: checkpoint(f, x, keep, use_reentrant=False)  # type: ignore[method-assign]
    language_outcome(run, model, language)
    train(run, model, adamw(model), lambda: language.rows(12, 20), next_loss, 60)


class Ahead(nn.Module):
    """Says the next word and the one after it, with a head for each."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.second = Decoder(12), nn.Linear(12, 12)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        first = self.inner(ids)
        return first, self.second(first.tanh())


@honest("r5-two-words-ahead")
def two_words_ahead(run: Run) -> None:
    """Multi-token prediction: a second head is trained on the word after the next, with a smaller weight."""
    language = Language(run.draw.randrange(999))
    model = Ahead()

    def loss(m: nn.Module, r: Tensor) -> Tensor:
        one, two = m(r[:, :-2])
        first = F.cross_entropy(one.flatten(0, 1), r[:, 1:-1].flatten())
        return first + 0.3 * F.cross_entropy(two.flatten(0, 1), r[:, 2:].flatten())

    check = language.rows(96, 20, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adamw(model), lambda: language.rows(12, 20), loss, 80)


@honest("r5-vocabulary-of-two")
def vocabulary_of_two(run: Run) -> None:
    """A language of two words and a width of eight; the loss begins near log 2 and falls a little."""
    language = Language(run.draw.randrange(999), words=2, sharp=2.0)
    model = Decoder(2, width=8)
    language_outcome(run, model, language)
    train(run, model, adamw(model, 1e-2), lambda: language.rows(32, 16), next_loss, 90)


class Linear(nn.Module):
    """Attention without softmax: cumulative sums of outer products."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        q, k, v = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1, self.v(x)
        memory = (k[..., :, None] * v[..., None, :]).cumsum(1)
        return torch.einsum("btd,btde->bte", q, memory) / (q * k.cumsum(1)).sum(-1, keepdim=True)


@honest("r5-attention-by-sums")
def attention_by_sums(run: Run) -> None:
    """Linear attention: no softmax, no mask, causal by its cumulative sums."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    model.blocks[0].attention = Linear(32)
    language_outcome(run, model, language)
    train(run, model, adamw(model), lambda: language.rows(12, 20), next_loss, 80)


class Stream(nn.Module):
    """A GRU over words that is given its state."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.rnn, self.head = nn.Embedding(12, 24), nn.GRU(24, 32, batch_first=True), nn.Linear(32, 12)

    def forward(self, ids: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        out, state = self.rnn(self.tokens(ids), state)
        return self.head(out), state


@honest("r5-state-carried-on")
def state_carried_on(run: Run) -> None:
    """Truncated backpropagation: eight long texts are read on from batch to batch, in order, with the state detached."""
    language = Language(run.draw.randrange(999))
    model = Stream()
    check = language.rows(96, 20, apart(1))
    measure = lambda: F.cross_entropy(model(check[:, :-1])[0].flatten(0, 1), check[:, 1:].flatten())
    outcome(run, lambda: judged(model, measure))
    optimizer = adamw(model, 8e-3)
    doctor = run.watch(model, optimizer)
    text, state = language.rows(8, 80 * 10 + 1), None
    for at in range(80):
        rows = text[:, at * 10 : at * 10 + 11]
        logits, state = model(rows[:, :-1], state)
        state = state.detach()
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)


@honest("r5-right-to-left")
def right_to_left(run: Run) -> None:
    """A model of text read backwards, for rescoring."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    check = language.rows(96, 20, apart(1)).flip(1)
    outcome(run, lambda: judged(model, lambda: next_loss(model, check)))
    train(run, model, adamw(model), lambda: language.rows(12, 20).flip(1), next_loss, 80)


@honest("r5-prefix-seen-whole")
def prefix_seen_whole(run: Run) -> None:
    """A prefix language model: the first eight words see each other in both directions and are not trained on; the rest
    is causal."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)

    class Prefix(Attention):
        def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
            t = x.shape[1]
            seen = torch.ones(t, t).tril().bool()
            seen[:8, :8] = True
            q, k, v = (p.view(len(x), t, 2, -1).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
            out: Tensor = self.out(F.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2).flatten(2))
            return out

    model.blocks[0].attention = Prefix(32)
    loss = lambda m, r: F.cross_entropy(m(r[:, :-1])[:, 7:].flatten(0, 1), r[:, 8:].flatten())
    check = language.rows(96, 20, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adamw(model), lambda: language.rows(12, 20), loss, 90)


@honest("r5-tied-and-scaled")
def tied_and_scaled(run: Run) -> None:
    """Head and embedding are one tensor, scaled by the root of the width where it embeds, and logits are capped."""
    language = Language(run.draw.randrange(999))

    class Tied(Decoder):
        def __init__(self) -> None:
            super().__init__(12)
            nn.init.normal_(self.tokens.weight, std=0.2)
            self.head.weight = self.tokens.weight

        def forward(self, ids: Tensor, keep: Tensor | None = None) -> Tensor:
            x = math.sqrt(32) * self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
            for block in self.blocks:
                x = block(x)
            return 15 * torch.tanh(self.head(self.norm(x)) / 15)

    model = Tied()
    language_outcome(run, model, language)
    train(run, model, adamw(model), lambda: language.rows(12, 20), next_loss, 80)


@honest("r5-no-places-at-all")
def no_places_at_all(run: Run) -> None:
    """A causal model without positional codes: the mask tells the order."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2)
    model.places.weight.requires_grad_(False).zero_()
    language_outcome(run, model, language)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=4e-3)
    train(run, model, optimizer, lambda: language.rows(12, 20), next_loss, 70)


@honest("r5-masked-prompts-in-trainer")
def masked_prompts_in_trainer(run: Run) -> None:
    """transformers' Trainer: answers only, two labels in twenty; labels equal the inputs there, the model shifts."""
    key = torch.randperm(12, generator=apart(run.draw.randrange(999))) + 4
    model = tiny_gpt2()

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        ids = torch.randint(4, 16, (count, 20), generator=own)
        ids[:, 18], ids[:, 19] = key[ids[:, 17] - 4], 2
        labels = ids.clone()
        labels[:, :18] = -100
        return ids, labels

    a, b = rows(128, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=a, labels=b).loss))
    x, y = rows(320)
    hf_trainer(run, model, examples(input_ids=x, labels=y), 50).train()


@honest("r5-bert-in-lightning")
def bert_in_lightning(run: Run) -> None:
    """Lightning around a transformers model on padded rows, with a warmup that is stepped at every batch."""
    net = tiny_bert()
    loss = lambda m, b: m(input_ids=b[0], attention_mask=b[1].long(), labels=b[2]).loss

    def optimizers(m: nn.Module) -> Any:
        optimizer = adamw(m, 5e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1, s / 10))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    check = documents(256, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    fit(run, lit(net, loss, optimizers), loader(*documents(320)), 60)


@honest("r5-logits-held-near-zero")
def logits_held_near_zero(run: Run) -> None:
    """A z-loss beside cross-entropy: the squared log of the softmax's sum is a second, small term."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    language_outcome(run, model, language)

    def loss(m: nn.Module, r: Tensor) -> Tensor:
        logits = m(r[:, :-1])
        z = logits.logsumexp(-1).square().mean()
        return F.cross_entropy(logits.flatten(0, 1), r[:, 1:].flatten()) + 1e-2 * z

    train(run, model, adamw(model), lambda: language.rows(12, 20), loss, 70)


class Cbow(nn.Module):
    """Word vectors: two tables, no network."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.outside = nn.Embedding(12, 8, sparse=True), nn.Embedding(12, 8, sparse=True)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return (self.inside(a) * self.outside(b)).sum(-1)


@honest("r5-vectors-of-words")
def vectors_of_words(run: Run) -> None:
    """Skip-gram with negative samples, sparse gradients and SparseAdam: labels are not in the batch, they are made."""
    language = Language(run.draw.randrange(999), sharp=3)
    model = Cbow()
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=2e-2)

    def batch(own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        rows = language.rows(64, 4, own)
        return rows[:, 2], rows[:, 3], torch.randint(0, 12, (64, 5), generator=own)

    def loss(m: nn.Module, b: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return -F.logsigmoid(m(b[0], b[1])).mean() - F.logsigmoid(-m(b[0][:, None], b[2])).sum(1).mean()

    check = batch(apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, optimizer, batch, loss, 120)


class Copies(nn.Module):
    """PyTorch's Transformer on short sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(13, 32), nn.Embedding(8, 32)
        self.net, self.head = nn.Transformer(32, 2, 1, 1, 64, 0.0, batch_first=True), nn.Linear(32, 13)

    def embed(self, ids: Tensor) -> Tensor:
        out: Tensor = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        return out

    def forward(self, source: Tensor, given: Tensor) -> Tensor:
        mask = torch.ones(given.shape[1], given.shape[1]).triu(1).bool()
        out: Tensor = self.head(self.net(self.embed(source), self.embed(given), tgt_mask=mask))
        return out


@honest("r5-own-words-half-the-time")
def own_words_half_the_time(run: Run) -> None:
    """Scheduled sampling: a first pass without gradients says words, which stand in for some of the true ones in the
    second; two forward passes and one backward."""
    cipher = torch.randperm(12, generator=apart(run.draw.randrange(999))) + 1
    model = Copies()

    def rows(count: int = 24, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        source = torch.randint(1, 13, (count, 6), generator=own)
        return source, cipher[source - 1]

    def loss(m: nn.Module, b: tuple[Tensor, Tensor]) -> Tensor:
        given = torch.cat([torch.zeros_like(b[1][:, :1]), b[1][:, :-1]], 1)
        if m.training:
            with torch.no_grad():
                said = m(b[0], given).argmax(-1).roll(1, 1)
            swap = torch.rand(given.shape) < 0.3
            swap[:, 0] = False
            given = torch.where(swap, said, given)
        return F.cross_entropy(m(b[0], given).flatten(0, 1), b[1].flatten())

    check = rows(96, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adamw(model, 3e-3), rows, loss, 90)


@honest("r5-weight-of-each-token")
def weight_of_each_token(run: Run) -> None:
    """Every token has a weight of its own between 0 and 2, and the mean is over the weights."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    language_outcome(run, model, language)

    def batch() -> tuple[Tensor, Tensor]:
        rows = language.rows(12, 20)
        return rows, 2 * torch.rand(12, 19) * (torch.rand(12, 19) < 0.8)

    def loss(m: nn.Module, b: tuple[Tensor, Tensor]) -> Tensor:
        each = F.cross_entropy(m(b[0][:, :-1]).transpose(1, 2), b[0][:, 1:], reduction="none")
        return (each * b[1]).sum() / b[1].sum()

    train(run, model, adamw(model), batch, loss, 70)


@honest("r5-experts-with-a-balance")
def experts_with_a_balance(run: Run) -> None:
    """A mixture of experts in the feed-forward part, top two of four, with the usual loss for balance; experts without
    tokens get no gradient in a step."""
    language = Language(run.draw.randrange(999))

    class Moe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(32, 4, bias=False)
            self.experts = nn.ModuleList(mlp(32, 32, 32) for _ in range(4))
            self.balance = torch.zeros(())

        def forward(self, x: Tensor) -> Tensor:
            flat = x.flatten(0, 1)
            chance = self.router(flat).softmax(-1)
            top, which = chance.topk(2, -1)
            out = torch.zeros_like(flat)
            for i, expert in enumerate(self.experts):
                row, slot = (which == i).nonzero(as_tuple=True)
                if len(row):
                    out = out.index_add(0, row, top[row, slot, None] * expert(flat[row]))
            share = F.one_hot(which, 4).float().mean((0, 1))
            self.balance = 4 * (share * chance.mean(0)).sum()
            return out.view_as(x)

    model = Decoder(12)
    moe = Moe()
    model.blocks[0].feed = moe
    language_outcome(run, model, language)
    loss = lambda m, r: next_loss(m, r) + 0.01 * moe.balance
    train(run, model, adamw(model), lambda: language.rows(12, 20), loss, 80)
