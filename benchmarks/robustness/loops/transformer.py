"""A small transformer and a classifier, as people write them."""

from dataclasses import replace
from typing import Any

import torch
from benchmarks.robustness.loops.attention import Attention, Shape, norm_of
from torch import Tensor, nn
from torch.nn import functional as F


class Counting(nn.Module):
    """Passes its input on, and counts: a user's module with a memory of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            self.calls += 1
        return x


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.width, 4 * shape.width, bias=shape.bias)
        self.down = nn.Linear(4 * shape.width, shape.width, bias=shape.bias)
        self.relu = shape.slip in ("dead-relu", "honest-relu")

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)
        out: Tensor = self.down(hidden.relu() if self.relu else F.gelu(hidden))
        return out


class Experts(nn.Module):
    """The best two of a few MLPs for every token, and the load-balancing loss of Switch."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.router = nn.Linear(shape.width, shape.experts, bias=False)
        self.experts = nn.ModuleList(MLP(shape) for _ in range(shape.experts))
        self.balance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        probabilities = self.router(x).softmax(-1)
        weights, chosen = probabilities.topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        used = F.one_hot(chosen, len(self.experts)).sum(-2).float()
        self.balance = len(self.experts) * (used.mean((0, 1)) / 2 * probabilities.mean((0, 1))).sum()
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            share = (weights * (chosen == index)).sum(-1)
            rows = share > 0
            if rows.any():
                out[rows] = out[rows] + share[rows].unsqueeze(-1) * expert(x[rows])
        return out


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.norm_1, self.norm_2 = norm_of(shape), norm_of(shape)
        self.attention = Attention(shape)
        self.mlp: nn.Module = Experts(shape) if shape.experts else MLP(shape)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        if self.shape.slip == "no-residual":
            x = self.attention(self.norm_1(x), positions, mask)
            out: Tensor = self.mlp(self.norm_2(x))
            return out
        keep = 1.0
        if self.training and self.shape.drop_path:
            keep = float(torch.rand(()) >= self.shape.drop_path) / (1 - self.shape.drop_path)
        x = x + keep * self.dropout(self.attention(self.norm_1(x), positions, mask))
        return x + keep * self.dropout(self.mlp(self.norm_2(x)))


class Transformer(nn.Module):
    """Logits of the next token, or of each token where `causal` is off."""

    def __init__(self, shape: Shape | None = None, **options: Any) -> None:
        super().__init__()
        self.shape = shape = replace(shape or Shape(), **options)
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        if shape.positions == "learned":
            self.positions = nn.Embedding(shape.length, shape.width)
        self.counting = Counting()
        blocks = [Block(shape) for _ in range(shape.layers)]
        if shape.slip == "python-list":
            self.blocks: Any = blocks
        else:
            self.blocks = nn.ModuleList(blocks)
        self.norm = norm_of(shape)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.apply(self.initialise)
        for block in blocks:
            block.apply(self.initialise)
        if shape.tied:
            self.head.weight = self.embedding.weight

    def initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.shape.init)
            if self.shape.slip == "constant-init" and isinstance(module, nn.Linear):
                nn.init.constant_(module.weight, 0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if self.shape.slip == "dead-relu" and isinstance(module, MLP):
            nn.init.constant_(module.up.bias, -8.0)

    def hidden(
        self,
        ids: Tensor | None,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        embedded: Tensor | None = None,
    ) -> Tensor:
        x = self.embedding(ids) if embedded is None else embedded
        if positions is None:
            positions = torch.arange(x.shape[1]).expand(x.shape[0], -1)
        if self.shape.slip == "positions-all-zero":
            positions = torch.zeros_like(positions)
        if self.shape.positions == "learned":
            x = x + self.positions(positions)
        x = self.counting(x)
        for block in self.blocks:
            if self.shape.checkpoint and self.training:
                x = torch.utils.checkpoint.checkpoint(block, x, positions, mask, use_reentrant=False)
            else:
                x = block(x, positions, mask)
        out: Tensor = self.norm(x)
        return out

    def forward(self, ids: Tensor, mask: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        hidden = self.hidden(ids, mask, positions)
        if self.shape.slip == "hidden-detached":
            hidden = hidden.detach()
        logits: Tensor = self.head(hidden)
        return logits


class Classifier(nn.Module):
    """A trunk, a pooled hidden state, a linear head."""

    def __init__(self, classes: int = 4, pool: str = "mean", **options: Any) -> None:
        super().__init__()
        self.trunk = Transformer(causal=options.pop("causal", False), **options)
        self.trunk.head = nn.Identity()  # type: ignore[assignment]
        self.pool = pool
        self.classes = nn.Linear(self.trunk.shape.width, classes)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = self.trunk.hidden(ids, None if mask is None else mask.bool())
        if self.pool == "very-last":
            pooled = hidden[:, -1]
        elif mask is None:
            pooled = hidden.mean(1)
        elif self.pool == "last":
            pooled = hidden[torch.arange(len(ids)), mask.sum(1) - 1]
        else:
            pooled = (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        out: Tensor = self.classes(pooled)
        return out


def moved(model: nn.Module) -> Tensor:
    """All the model's weights in one row, as float64."""
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])
