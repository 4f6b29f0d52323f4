"""Round 8, part a, innocent changes of encoders: of pictures, of texts, of a graph."""

import math

import torch
from benchmarks.robustness.loops.case import Run, innocent
from benchmarks.robustness.loops.round5_tools import (
    Block,
    apart,
    class_outcome,
    documents,
    endless,
    fit,
    judged,
    lit,
    loader,
    mlp,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round8a_parts import Neighbours, citations, heads_of
from benchmarks.robustness.loops.round8a_tools import adam, reseeded, told
from torch import Tensor, nn
from torch.nn import functional as F


class Patches(nn.Module):
    """A small ViT whose patches go through a convolution, or through a matrix after they are cut out."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        turn = nn.Conv2d(1, 32, 2, stride=2)
        self.turn: nn.Module = turn
        if cut:
            self.turn = nn.utils.skip_init(nn.Linear, 4, 32)
            with torch.no_grad():
                self.turn.weight.copy_(turn.weight.flatten(1))
                self.turn.bias.copy_(turn.bias)  # type: ignore[arg-type]
        self.cut, self.places = cut, nn.Parameter(torch.randn(16, 32) / 4)
        self.block, self.head = Block(32, causal=False), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.cut:
            pieces = x.unfold(2, 2, 2).unfold(3, 2, 2)  # (rows, 1, 4, 4, 2, 2)
            x = self.turn(torch.einsum("bchwij->bhwcij", pieces).flatten(3).flatten(1, 2))
        else:
            x = self.turn(x).flatten(2).transpose(1, 2)
        out: Tensor = self.head(self.block(x + self.places).mean(1))
        return out


@innocent("r8-patches-by-unfold")
def patches_by_unfold(run: Run, changed: bool) -> None:
    """Plain ViT. Patches went through a convolution as wide as its stride; now they are cut out by unfold and go through
    a matrix with the same numbers, whose weight has another shape."""
    seed = run.draw.randrange(999)
    train, check = pictures(320, seed, own=apart(seed + 1)), pictures(192, seed, own=apart(seed + 2))
    model = Patches(changed)
    class_outcome(run, model, check)
    batches = endless(loader(*train))
    told(run, model, lambda: next(batches), lambda b: F.cross_entropy(model(b[0]), b[1]), 120)


class Dropping(nn.Module):
    """Attention over texts with dropout of its weights, by a module or within SDPA."""

    def __init__(self, fused: bool, width: int = 32) -> None:
        super().__init__()
        self.fused, self.drop = fused, nn.Dropout(0.1)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        q, k, v = (heads_of(part, 2) for part in self.qkv(x).chunk(3, -1))
        seen = keep[:, None, None]
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, seen, self.drop.p if self.training else 0.0)
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            mixed = self.drop(scores.masked_fill(~seen, -math.inf).softmax(-1)) @ v
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Sorter(nn.Module):
    """A classifier of texts with that attention."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.tokens, self.attention, self.norm = nn.Embedding(16, 32), Dropping(fused), nn.LayerNorm(32)
        self.feed, self.head = mlp(32, 64, 32, act=nn.GELU), nn.Linear(32, 3)

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        x = self.tokens(ids)
        x = x + self.attention(self.norm(x), keep)
        share = keep.float()[..., None]
        out: Tensor = self.head(((x + self.feed(x)) * share).sum(1) / share.sum(1))
        return out


@innocent("r8-dropout-within-sdpa")
def dropout_within_sdpa(run: Run, changed: bool) -> None:
    """Lightning, an encoder of texts. Attention's weights were dropped by a module, and are by SDPA's dropout_p, which
    may draw other random numbers; a bool mask is handed over in place of a fill with -inf. Another seed."""
    own = apart(run.draw.randrange(999))
    train, check = documents(400, own), documents(256, own)
    reseeded(changed)
    model = Sorter(changed)
    class_outcome(run, model, check)
    fit(run, lit(model, lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2]), adam), loader(*train), 150)


class Averaged(nn.Module):
    """The same layers over the graph as a matrix, each row divided by its sum."""

    def __init__(self, of: Neighbours) -> None:
        super().__init__()
        self.own1, self.near1, self.own2, self.near2 = of.own1, of.near1, of.own2, of.near2

    def forward(self, x: Tensor, graph: Tensor) -> Tensor:
        x = (self.own1(x) + self.near1(graph @ x)).relu()
        out: Tensor = self.own2(x) + self.near2(graph @ x)
        return out


@innocent("r8-neighbours-by-a-matrix")
def neighbours_by_a_matrix(run: Run, changed: bool) -> None:
    """A graph network over papers. Means of neighbours were made by index_add along a list of edges, and are products
    with a sparse matrix whose rows sum to one; the batch holds that matrix in place of the list."""
    x, y, pairs = citations(run.draw.randrange(999))
    edges, taught = torch.cat([pairs, pairs.flip(0)], 1), torch.rand(len(x), generator=apart(3)) < 0.4
    plain = Neighbours()
    graph = torch.zeros(len(x), len(x)).index_put((edges[1], edges[0]), torch.ones(edges.shape[1]), accumulate=True)
    graph = (graph / graph.sum(1, keepdim=True).clamp(min=1)).to_sparse()
    model, batch = (Averaged(plain), (x, graph)) if changed else (plain, (x, edges))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(*batch)[~taught], y[~taught])))
    told(run, model, lambda: batch, lambda b: F.cross_entropy(model(*b)[taught], y[taught]), 60)
