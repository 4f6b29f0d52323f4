"""Blind round 7, part a, honest and odd: numerics and precision."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_faults_tuning import fitted
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Decoder,
    Language,
    apart,
    examples,
    hf_trainer,
    judged,
    language_outcome,
    loader,
    next_loss,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7a_tools import Recurrent, adam
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r7-masters-in-single-precision")
def masters_in_single_precision(run: Run) -> None:
    """A language model is bfloat16 throughout, and the optimizer has none of its parameters: it has copies in float32,
    which get the gradients by hand, and from which the model's weights are rounded anew after each step."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12).bfloat16()
    masters = [p.detach().float().clone() for p in model.parameters()]

    def loss(m: nn.Module, rows: Tensor) -> Tensor:
        return F.cross_entropy(m(rows[:, :-1]).float().flatten(0, 1), rows[:, 1:].flatten())

    check = language.rows(96, 24, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    optimizer = torch.optim.AdamW(masters, lr=2e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(120):
        rows = language.rows(16, 24)
        model.zero_grad()
        value = loss(model, rows)
        value.backward()
        for weight, master in zip(model.parameters(), masters, strict=True):
            master.grad = weight.grad.float()  # type: ignore[union-attr]
        optimizer.step()
        with torch.no_grad():
            for weight, master in zip(model.parameters(), masters, strict=True):
                weight.copy_(master)
        doctor.step(value, rows)
        run.note(value)


class FourBits(nn.Module):
    """A frozen matrix in four bits, a scale for every sixteen weights, and two trained factors beside it."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        groups = linear.weight.detach().view(-1, 16)
        scale = groups.abs().amax(1, keepdim=True) / 7
        self.register_buffer("scale", scale)
        self.register_buffer("codes", (groups / scale).round().to(torch.int8))
        self.register_buffer("bias", linear.bias.detach().clone())
        self.shape = linear.weight.shape
        self.down = nn.Parameter(torch.randn(4, self.shape[1]) / self.shape[1] ** 0.5)
        self.up = nn.Parameter(torch.zeros(self.shape[0], 4))

    def forward(self, x: Tensor) -> Tensor:
        weight = (self.codes * self.scale).view(self.shape)
        return F.linear(x, weight, self.bias) + 2 * (x @ self.down.T) @ self.up.T


@honest("r7-four-bit-body-with-factors")
def four_bit_body_with_factors(run: Run) -> None:
    """Low-rank factors beside matrices kept in four bits, as QLoRA has it: the matrices are integers in buffers and
    unpacked in every pass, one factor is zero at first, embeddings, norms and head are frozen."""
    seed = run.draw.randrange(999)
    language = Language(seed)
    model = Decoder(12, layers=2)
    fitted(model, lambda: language.rows(16, 24), next_loss, 110)
    language.one = language.one + 1.2 * torch.randn(12, 12, generator=apart(seed + 1))
    model.zero_grad()
    model.requires_grad_(False)
    for block in model.blocks:
        block.attention.qkv, block.attention.out = FourBits(block.attention.qkv), FourBits(block.attention.out)  # type: ignore
        block.feed[0], block.feed[2] = FourBits(block.feed[0]), FourBits(block.feed[2])  # type: ignore
    language_outcome(run, model, language)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=5e-3)
    train(run, model, optimizer, lambda: language.rows(16, 24), next_loss, 80)


class ToEight(torch.autograd.Function):
    """Through eight-bit floats: four bits of exponent forward, five backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        return (x * scale).clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype) / scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        scale = 1024 / gradient.abs().max().clamp_min(1e-12)
        return (gradient * scale).to(torch.float8_e5m2).to(gradient.dtype) / scale, None


class Eight(nn.Module):
    """A linear layer whose inputs and weights are eight-bit floats, scaled by the largest of the last four batches."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.register_buffer("largest", torch.full((4,), 4.0))

    def forward(self, x: Tensor) -> Tensor:
        scale = 448 / self.largest.max()
        if self.training:
            self.largest = torch.cat([self.largest[1:], x.detach().abs().max()[None]])
        weight = ToEight.apply(self.weight, 448 / self.weight.detach().abs().max())
        return F.linear(ToEight.apply(x, scale), weight, self.bias)


@honest("r7-eight-bit-products")
def eight_bit_products(run: Run) -> None:
    """accelerate. Products of matrices in eight-bit floats, imitated: values are rounded to three bits of mantissa
    forward and gradients to two backward, with a scale from the batches before, which is kept in buffers."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2)
    for block in model.blocks:
        block.attention.qkv, block.attention.out = Eight(block.attention.qkv), Eight(block.attention.out)  # type: ignore
        block.feed[0], block.feed[2] = Eight(block.feed[0]), Eight(block.feed[2])  # type: ignore
    language_outcome(run, model, language)
    prepared(run, model, adam(model, 4e-3), loader(language.rows(480, 24)), lambda m, b: next_loss(m, b[0]), 4)


class Sentence(nn.Module):
    """Words to a vector of length one."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.block, self.out = nn.Embedding(16, 32), Block(32, causal=False), nn.Linear(32, 24)

    def forward(self, ids: Tensor) -> Tensor:
        keep = ids > 0
        h = self.block(self.tokens(ids), keep) * keep[..., None]
        return F.normalize(self.out(h.sum(1) / keep.sum(1, keepdim=True)), dim=1)


@honest("r7-gradients-kept-at-the-vectors")
def gradients_kept_at_the_vectors(run: Run) -> None:
    """Contrastive learning with a batch too large for one graph: vectors of 48 pairs are made in pieces without a graph,
    the loss is differentiated for the vectors alone, and then each piece is run again and given its part; what goes
    backward through the network is not the loss that is reported."""
    model = Sentence()

    def views(count: int = 48, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        rows = torch.randint(1, 16, (count, 12), generator=own)
        lost = [torch.rand(rows.shape, generator=own) < 0.3 for _ in range(2)]
        for drop in lost:
            drop[:, 0] = False
        return rows.masked_fill(lost[0], 0), rows.masked_fill(lost[1], 0)

    def contrast(a: Tensor, b: Tensor) -> Tensor:
        return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a)))

    check = views(96, apart(1))
    outcome(run, lambda: judged(model, lambda: contrast(model(check[0]), model(check[1]))))
    optimizer = adam(model, 3e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(70):
        pair = views()
        pieces = [piece for side in pair for piece in side.split(12)]
        with torch.no_grad():
            vectors = torch.cat([model(piece) for piece in pieces])
        vectors.requires_grad_()
        loss = contrast(*vectors.chunk(2))
        (kept,) = torch.autograd.grad(loss, vectors)
        optimizer.zero_grad()
        for piece, gradient in zip(pieces, kept.split(12), strict=True):
            (model(piece) * gradient).sum().backward()
        optimizer.step()
        doctor.step(loss, pair)
        run.note(loss)


class InPieces(nn.Module):
    """A small GPT that returns its loss alone; logits exist for a quarter of the tokens at a time, and twice."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Decoder(12, layers=2)

    def piece(self, h: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.net.head(self.net.norm(h)).float(), labels, reduction="sum")

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        rows = input_ids
        h = self.net.tokens(rows[:, :-1]) + self.net.places(torch.arange(rows.shape[1] - 1))
        for block in self.net.blocks:
            h = block(h)
        hidden, wanted = h.flatten(0, 1).chunk(4), rows[:, 1:].flatten().chunk(4)
        again = torch.utils.checkpoint.checkpoint
        parts = [again(self.piece, a, b, use_reentrant=False) for a, b in zip(hidden, wanted, strict=True)]
        return {"loss": torch.stack(parts).sum() / wanted[0].numel() / 4}


@honest("r7-loss-in-four-pieces")
def loss_in_four_pieces(run: Run) -> None:
    """transformers' Trainer. Logits of all tokens would not fit: the loss is summed over four pieces, each of which is
    checkpointed, so that the head runs eight times in a step, and the model's output has no logits."""
    language = Language(run.draw.randrange(999))
    net = InPieces()
    check = language.rows(96, 25, apart(1))
    outcome(run, lambda: judged(net, lambda: net(check)["loss"]))
    rows = language.rows(400, 25)
    hf_trainer(run, net, examples(input_ids=rows, labels=rows), 90).train()


@honest("r7-loss-times-a-thousand")
def loss_times_a_thousand(run: Run) -> None:
    """A fixed loss scale by hand: backward starts from 1024 times the loss, gradients are divided by 1024 before they are
    clipped; the loss that is reported is the plain one."""
    language = Language(run.draw.randrange(999))
    model = Recurrent(12)
    language_outcome(run, model, language)
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    for _ in range(100):
        rows = language.rows(16, 24)
        optimizer.zero_grad()
        loss = next_loss(model, rows)
        (1024 * loss).backward()
        for parameter in model.parameters():
            parameter.grad.div_(1024)  # type: ignore[union-attr]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)


class Ball(nn.Module):
    """Points in a ball whose edge is infinitely far; how far two of them are apart."""

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Embedding(63, 4)
        nn.init.uniform_(self.points.weight, -1e-2, 1e-2)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        x, y = self.points(a), self.points(b)
        room = (1 - x.square().sum(-1)) * (1 - y.square().sum(-1))
        return torch.arccosh(1 + 2 * (x - y).square().sum(-1) / room + 1e-6)


@honest("r7-tree-in-a-ball")
def tree_in_a_ball(run: Run) -> None:
    """A tree of 63 nodes in hyperbolic space: gradients are rescaled by the ball's metric before plain SGD at a rate near
    one, points that leave the ball are put back, and the first rate is a tenth, so that directions settle."""
    child = torch.arange(1, 63)
    shuffled = torch.randperm(63, generator=apart(run.draw.randrange(999)))
    mates = torch.stack([shuffled[child], shuffled[(child - 1) // 2]], 1)
    model = Ball()

    def loss(m: nn.Module, pairs: Tensor, own: torch.Generator | None = None) -> Tensor:
        others = torch.randint(0, 63, (len(pairs), 8), generator=own)
        candidates = torch.cat([pairs[:, 1:], torch.where(others == pairs[:, :1], (others + 1) % 63, others)], 1)
        return F.cross_entropy(-m(pairs[:, :1], candidates), torch.zeros(len(pairs), dtype=torch.long))

    outcome(run, lambda: judged(model, lambda: loss(model, mates, apart(3))))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    doctor = run.watch(model, optimizer)
    for step in range(240):
        optimizer.param_groups[0]["lr"] = 0.5 if step < 30 else 5.0
        pairs = mates[torch.randint(0, 62, (24,))]
        optimizer.zero_grad()
        value = loss(model, pairs)
        value.backward()
        weight = model.points.weight
        with torch.no_grad():
            weight.grad.mul_((1 - weight.square().sum(1, keepdim=True)).square() / 4)  # type: ignore[union-attr]
            optimizer.step()
            size = weight.norm(dim=1, keepdim=True)
            weight.copy_(torch.where(size > 0.97, 0.97 * weight / size, weight))
        doctor.step(value, pairs)
        run.note(value)
