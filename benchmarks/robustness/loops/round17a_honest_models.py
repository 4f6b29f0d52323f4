"""Round 17a, honest and odd: models and layers."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Attention,
    Block,
    Language,
    apart,
    examples,
    hf_trainer,
    judged,
    mlp,
    next_loss,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss
from benchmarks.robustness.loops.round7b_tools import adam, text_outcome
from benchmarks.robustness.loops.round10a_tools import plain
from benchmarks.robustness.loops.training import llama, next_token
from torch import Tensor, nn
from torch.nn import functional as F


class AnyWords(nn.Module):
    """A small GPT without a table of words: each row draws vectors for its words, for reading and for saying."""

    def __init__(self, words: int, width: int = 32, length: int = 24) -> None:
        super().__init__()
        self.words, self.places = words, nn.Parameter(1.5 * torch.randn(length, width))
        self.blocks, self.norm = nn.ModuleList(Block(width) for _ in range(2)), nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        drawn = torch.randn(len(ids), self.words, self.places.shape[1])
        h = drawn.gather(1, ids[..., None].expand(-1, -1, drawn.shape[2])) + self.places[: ids.shape[1]]
        for block in self.blocks:
            h = block(h)
        out: Tensor = self.norm(h) @ drawn.transpose(1, 2) / math.sqrt(drawn.shape[2])
        return out


def refrains(count: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 24) four times the same six words, one word in twenty another one."""
    rows = torch.randint(0, 12, (count, 6), generator=own).repeat(1, 4)
    other = torch.rand(rows.shape, generator=own) < 0.05
    return torch.where(other, torch.randint(0, 12, rows.shape, generator=own), rows)


@honest("r17a-vectors-of-words-drawn-for-each-row")
def vectors_of_words_drawn_for_each_row(run: Run) -> None:
    """Plain loop, a lexinvariant GPT (Huang et al. 2023). No word has a vector that is learned: every row of every
    pass draws vectors for its words from a normal distribution, and the head is the same draw, so that two passes over
    one row say different numbers and no word means anything beyond its row; what can be learned is how a text refers
    to itself."""
    model = AnyWords(12)
    check = refrains(128, apart(1))
    outcome(run, lambda: judged(model, lambda: next_loss(model, check)))
    plain(run, model, lambda: refrains(24), lambda rows: next_loss(model, rows), 320, rate=1e-2)


class ByHash(nn.Module):
    """A feed-forward part for each of four sets of words; a fixed random table says which one a word has."""

    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.block = Attention(width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.experts = nn.ModuleList(mlp(width, 48, width) for _ in range(4))
        self.register_buffer("expert_of", torch.randint(0, 4, (words,), generator=apart(5)))

    def forward(self, h: Tensor, ids: Tensor) -> Tensor:
        h = h + self.block(self.norm1(h))
        normed, out = self.norm2(h), torch.zeros_like(h)
        chosen = self.expert_of[ids]  # type: ignore[index]
        for index, expert in enumerate(self.experts):
            at = chosen == index
            out[at] = expert(normed[at])
        return h + out


class HashedGPT(nn.Module):
    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(48, width)
        self.layers = nn.ModuleList(ByHash(words, width) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for layer in self.layers:
            h = layer(h, ids)
        out: Tensor = self.head(self.norm(h))
        return out


@honest("r17a-experts-chosen-by-a-hash")
def experts_chosen_by_a_hash(run: Run) -> None:
    """Plain loop, a small GPT with hash layers (Roller et al. 2021). Which of four experts a word goes to is a fixed
    random table of its id, drawn before training: nothing routes, nothing is balanced, the same words go to the same
    expert for ever whatever stands around them, and one expert has twice as many words as another."""
    language = Language(run.draw.randrange(999))
    model = HashedGPT(12)
    text_outcome(run, model, language)
    plain(run, model, lambda: language.rows(12, 24), lambda rows: next_loss(model, rows), 170)


class OneForBoth(nn.Module):
    """Attention whose keys are its queries, at unit length; a word looks at itself only where there is nobody else."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qk, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        b, t, d = x.shape
        q, v = (part(x).view(b, t, self.heads, -1).transpose(1, 2) for part in (self.qk, self.v))
        scores = q @ F.normalize(q, dim=-1).transpose(-1, -2) / math.sqrt(d / self.heads)
        scores = scores.masked_fill(torch.eye(t, dtype=torch.bool), -1e5)
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -1e9)
        out: Tensor = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
        return out


class Shared(nn.Module):
    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(48, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        for block in self.blocks:
            block.attention = OneForBoth(width)  # type: ignore[assignment]
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            h = block(h)
        out: Tensor = self.head(self.norm(h))
        return out


@honest("r17a-looks-at-all-but-itself")
def looks_at_all_but_itself(run: Run) -> None:
    """transformers' Trainer, a causal model with Reformer's shared queries and keys (Kitaev et al. 2020). There is one
    projection for both, and keys have unit length, so that each word would look most of all at itself: this is masked
    out, by -1e5 and not by infinity, since the first word has nobody else and must look at itself after all."""
    language = Language(run.draw.randrange(999))
    model = WithLoss(Shared(12), next_token)
    text_outcome(run, model.net, language)
    rows = language.rows(480, 24)
    data = examples(x=rows[:, :-1], labels=rows[:, 1:])
    hf_trainer(run, model, data, 130, lr_scheduler_type="linear", warmup_steps=10).train()


class Dropped(nn.Module):
    """An LSTM whose recurrent matrix loses entries anew in each pass; kept for the loss: its states, with and without
    dropout."""

    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.core = nn.Embedding(words, width), nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, words)
        self.head.weight = self.tokens.weight
        self.states = self.dropped = torch.zeros(())

    def forward(self, ids: Tensor) -> Tensor:
        keep = F.dropout(torch.ones(self.tokens.num_embeddings, 1), 0.05, self.training)
        x = self.tokens(ids) * keep[ids]
        recurrent = F.dropout(self.core.weight_hh_l0, 0.3, self.training)
        weights = [self.core.weight_ih_l0, recurrent, self.core.bias_ih_l0, self.core.bias_hh_l0]
        zeros = torch.zeros(1, len(ids), self.core.hidden_size)
        self.states = torch.lstm(x, [zeros, zeros], weights, True, 1, 0.0, self.training, False, True)[0]
        same_for_all_words = F.dropout(torch.ones(len(ids), 1, self.core.hidden_size), 0.15, self.training)
        self.dropped = self.states * same_for_all_words
        out: Tensor = self.head(self.dropped)
        return out


@honest("r17a-a-third-of-the-recurrence-missing")
def a_third_of_the_recurrence_missing(run: Run) -> None:
    """Plain loop, an LSTM with DropConnect and penalties on its activity, as fast.ai trains language models (Merity et
    al. 2017). In each pass three in ten entries of the recurrent matrix are zero, a twentieth of all words is gone
    from the whole batch, and to the loss come the states' size and their change from word to word, none of which is
    there in use."""
    language = Language(run.draw.randrange(999))
    model = Dropped(12)
    text_outcome(run, model, language)

    def loss(model: Any, rows: Tensor) -> Tensor:
        value = next_loss(model, rows)
        change = model.states[:, 1:] - model.states[:, :-1]
        return value + 0.1 * model.dropped.square().mean() + 0.05 * change.square().mean()

    train(run, model, adam(model, 1e-2), lambda: language.rows(16, 24), loss, 160, clip=0.4)


class Bent(nn.Module):
    """A tanh of one learned steepness in a norm's place."""

    def __init__(self, width: int, steep: float) -> None:
        super().__init__()
        self.steep = nn.Parameter(torch.tensor(steep))
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return (self.steep * x).tanh() * self.weight + self.bias


@honest("r17a-no-norm-in-the-whole-model")
def no_norm_in_the_whole_model(run: Run) -> None:
    """transformers' Trainer, a Llama with dynamic tanh in place of all norms (Zhu et al. 2025). Nothing in the model
    is normalised: each norm is a tanh of the state times one learned number, which bends large entries towards one and
    knows neither mean nor size; states grow freely from layer to layer, and the vectors of words are multiplied by a
    number too."""
    language = Language(run.draw.randrange(999), first=4)
    model = llama(vocab_size=16)
    for layer in model.model.layers:
        layer.input_layernorm, layer.post_attention_layernorm = Bent(32, 0.8), Bent(32, 0.2)
    model.model.norm = Bent(32, 0.2)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(math.sqrt(32))
    check = language.rows(96, 20, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    rows = language.rows(480, 20)
    data = examples(input_ids=rows, labels=rows)
    hf_trainer(run, model, data, 200, learning_rate=8e-3, lr_scheduler_type="cosine", warmup_steps=10).train()
