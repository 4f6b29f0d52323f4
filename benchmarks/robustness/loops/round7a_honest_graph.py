"""Blind round 7, part a, honest and odd: architectures and graphs."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_faults_tuning import fitted
from benchmarks.robustness.loops.round5_tools import (
    Attention,
    Block,
    Decoder,
    Language,
    apart,
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
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7a_tools import Pair, Stack, adam
from torch import Tensor, nn
from torch.nn import functional as F


class Gated(nn.Module):
    """A block without norms, behind two gates that begin at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed = Attention(32), mlp(32, 64, 32)
        self.gates = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gates[0] * self.attention(x)
        out: Tensor = x + self.gates[1] * self.feed(x)
        return out


@honest("r7-gates-from-zero")
def gates_from_zero(run: Run) -> None:
    """ReZero: six blocks without norms, each behind gates that begin at zero exactly, so that at first no block does
    anything and none of their matrices has a gradient."""
    language = Language(run.draw.randrange(999))
    model = Stack(12, [Gated() for _ in range(6)])
    language_outcome(run, model, language)
    train(run, model, adam(model), lambda: language.rows(12, 24), next_loss, 120)


class Remembering(nn.Module):
    """Attention over a piece of text and what the layer saw of the last piece, by distance; the memory has no graph."""

    def __init__(self, words: int, piece: int = 16) -> None:
        super().__init__()
        self.tokens, self.norm, self.piece = nn.Embedding(words, 32), nn.LayerNorm(32), piece
        self.query, self.both, self.out = nn.Linear(32, 32), nn.Linear(32, 64), nn.Linear(32, 32)
        self.near = nn.Parameter(torch.zeros(2 * piece))
        self.feed, self.head = mlp(32, 64, 32), nn.Sequential(nn.LayerNorm(32), nn.Linear(32, words))
        self.memory: Tensor | None = None

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        seen = x if self.memory is None or len(self.memory) != len(x) else torch.cat([self.memory, x], 1)
        if self.training:
            self.memory = x.detach()
        k, v = self.both(self.norm(seen)).chunk(2, -1)
        back = torch.arange(seen.shape[1])[-x.shape[1] :, None] - torch.arange(seen.shape[1])[None]
        scores = self.query(self.norm(x)) @ k.transpose(1, 2) / 32**0.5 + self.near[back.clamp_min(0)]
        x = x + self.out(scores.masked_fill(back < 0, -1e9).softmax(-1) @ v)
        out: Tensor = self.head(x + self.feed(x))
        return out


@honest("r7-memory-of-the-last-piece")
def memory_of_the_last_piece(run: Run) -> None:
    """Transformer-XL: eight books are read on, sixteen words at a time, and attention also reaches what the layer saw of
    the piece before, without a graph; the model keeps that from call to call, so that a pass depends on the last."""
    language = Language(run.draw.randrange(999))
    model = Remembering(12)
    check = language.rows(96, 17, apart(1))

    def alone() -> Tensor:
        kept, model.memory = model.memory, None
        value = next_loss(model, check)
        model.memory = kept
        return value

    outcome(run, lambda: judged(model, alone))
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    for _ in range(3):
        books, model.memory = language.rows(8, 641), None
        for at in range(0, 640, 16):
            ids, targets = books[:, at : at + 16], books[:, at + 1 : at + 17]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
            loss.backward()
            optimizer.step()
            doctor.step(loss, (ids, targets))
            run.note(loss)


class AnyOrder(nn.Module):
    """Words of a row in a given order, each with its own place and the place of the one to be said next."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.here, self.there = nn.Embedding(13, 32), nn.Embedding(17, 32), nn.Embedding(16, 32)
        self.blocks = nn.Sequential(Block(32), Block(32))
        self.head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 12))

    def forward(self, rows: Tensor, order: Tensor) -> Tensor:
        words, places = F.pad(rows[:, :-1], (1, 0), value=12), F.pad(order[:, :-1], (1, 0), value=16)
        out: Tensor = self.head(self.blocks(self.tokens(words) + self.here(places) + self.there(order)))
        return out


@honest("r7-order-drawn-for-each-row")
def order_drawn_for_each_row(run: Run) -> None:
    """Lightning. Each row's words are said in an order drawn anew, so that the model can fill any gap later; what stands
    later in the row is often known already, and the loss of the same row is another one each time."""
    language = Language(run.draw.randrange(999), words=12, sharp=2.5)
    net = AnyOrder()

    def loss(m: nn.Module, b: Any, own: torch.Generator | None = None) -> Tensor:
        order = torch.rand(len(b[0]), 16, generator=own).argsort(1)
        rows = b[0].gather(1, order)
        return F.cross_entropy(m(rows, order).flatten(0, 1), rows.flatten())

    check = language.rows(128, 16, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, (check,), apart(2))))
    fit(run, lit(net, loss, lambda m: adam(m, 5e-3)), loader(language.rows(640, 16)), 150)


@honest("r7-recomputed-from-the-output")
def recomputed_from_the_output(run: Run) -> None:
    """accelerate, a reversible language model: forward keeps nothing for backward, which works each layer's inputs out of
    its outputs and runs its parts again, in an autograd Function of its own."""
    language = Language(run.draw.randrange(999))
    model = Stack(12, [Pair(), Pair()])
    language_outcome(run, model, language)
    prepared(run, model, adam(model), loader(language.rows(480, 24)), lambda m, b: next_loss(m, b[0]), 4)


class Sphere(nn.Module):
    """A small GPT whose states and rows of weights have length one; steps between states have learned sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(12, 32), nn.Embedding(48, 32)
        self.parts = nn.ModuleList([Attention(32), mlp(32, 96, 32, act=nn.SiLU), Attention(32), mlp(32, 96, 32)])
        self.sizes = nn.Parameter(torch.full((4, 32), 0.3))
        self.head, self.sharp = nn.Linear(32, 12, bias=False), nn.Parameter(torch.full((12,), 8.0))

    def forward(self, ids: Tensor) -> Tensor:
        x = F.normalize(self.tokens(ids) + self.places(torch.arange(ids.shape[1])), dim=-1)
        for part, size in zip(self.parts, self.sizes, strict=True):
            x = F.normalize(x + size * (F.normalize(part(x), dim=-1) - x), dim=-1)
        out: Tensor = self.sharp * self.head(x)
        return out

    @torch.no_grad()
    def back_to_the_sphere(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                module.weight.copy_(F.normalize(module.weight, dim=1))


@honest("r7-weights-on-a-sphere")
def weights_on_a_sphere(run: Run) -> None:
    """nGPT: every row of every matrix is set back to length one after each update, by hand; there are no norms with
    gains, no weight decay and no warmup."""
    language = Language(run.draw.randrange(999))
    model = Sphere()
    model.back_to_the_sphere()
    language_outcome(run, model, language)
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    for _ in range(120):
        rows = language.rows(16, 24)
        optimizer.zero_grad()
        loss = next_loss(model, rows)
        loss.backward()
        optimizer.step()
        model.back_to_the_sphere()
        doctor.step(loss, rows)
        run.note(loss)


class Dictionary(nn.Module):
    """Ninety-six directions, of which six at a time make up a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(32))
        self.encode, self.directions = nn.Linear(32, 96), nn.Parameter(F.normalize(torch.randn(96, 32), dim=1))
        self.register_buffer("silent", torch.zeros(96, dtype=torch.long))
        with torch.no_grad():
            self.encode.weight.copy_(self.directions)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.encode(x - self.shift)
        top = scores.topk(6, -1)
        used = torch.zeros_like(scores).scatter(1, top.indices, top.values.relu())
        if self.training:
            self.silent = torch.where((used > 0).any(0), 0, self.silent + 1)
        rest = x - (used @ self.directions + self.shift)
        asleep = scores.masked_fill(self.silent < 20, 0).relu() @ self.directions
        return rest, rest.detach() - asleep


@honest("r7-sparse-dictionary")
def sparse_dictionary(run: Run) -> None:
    """A sparse autoencoder reads a frozen language model: six of 96 directions make up each hidden state, directions are
    set back to length one after each step, and those long unused learn from what the others leave, by a small loss."""
    language = Language(run.draw.randrange(999))
    reader, model = Decoder(12), Dictionary()
    fitted(reader, lambda: language.rows(16, 24), next_loss, 60)

    def states(count: int = 16, own: torch.Generator | None = None) -> Tensor:
        rows = language.rows(count, 24, own)
        with torch.no_grad():
            return reader.blocks[0](reader.tokens(rows) + reader.places(torch.arange(24))).flatten(0, 1)

    check = states(64, apart(1))
    outcome(run, lambda: judged(model, lambda: model(check)[0].square().mean() / check.var()))
    optimizer = adam(model, 3e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(120):
        x = states()
        optimizer.zero_grad()
        rest, spare = model(x)
        loss = rest.square().mean() + 0.03 * spare.square().mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.directions.copy_(F.normalize(model.directions, dim=1))
        doctor.step(loss, x)
        run.note(loss)


class Exits(nn.Module):
    """Three blocks, and a head behind each."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(12, 32), nn.Embedding(32, 32)
        self.blocks = nn.ModuleList(Block(32) for _ in range(3))
        self.heads = nn.ModuleList(nn.Linear(32, 12) for _ in range(3))

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        x, loss = self.tokens(input_ids) + self.places(torch.arange(input_ids.shape[1])), torch.zeros(())
        for number, (block, head) in enumerate(zip(self.blocks, self.heads, strict=True)):
            x = block(x)
            logits = head(x)
            if labels is not None:
                loss = loss + (number + 1) / 6 * F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


@honest("r7-an-exit-at-each-layer")
def exit_at_each_layer(run: Run) -> None:
    """transformers' Trainer. Every block has a head of its own, and all are taught the next word, the later ones with
    more weight, so that in use one can stop early."""
    language = Language(run.draw.randrange(999))
    net, check = Exits(), language.rows(96, 24, apart(1))
    outcome(run, lambda: judged(net, lambda: next_loss(lambda ids: net(ids)["logits"], check)))  # type: ignore[arg-type]
    rows = language.rows(480, 24)
    hf_trainer(run, net, examples(input_ids=rows, labels=rows), 100).train()
