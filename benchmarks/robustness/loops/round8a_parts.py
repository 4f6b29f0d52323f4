"""Networks and tasks that changed loops with a mistake and without share."""

import torch
from benchmarks.robustness.loops.round5_tools import Block, apart, mlp
from torch import Tensor, nn
from torch.nn import functional as F


def heads_of(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class Body(nn.Module):
    """A GPT around an attention that is given; without `places` it has no other sense of order."""

    def __init__(self, words: int, attentions: list[nn.Module], width: int = 32, places: bool = True) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(48, width) if places else None
        self.attentions = nn.ModuleList(attentions)
        self.feeds = nn.ModuleList(mlp(width, 2 * width, width, act=nn.GELU) for _ in attentions)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * len(attentions) + 1))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        if self.places is not None:
            x = x + self.places(torch.arange(ids.shape[1]))
        for i, (attention, feed) in enumerate(zip(self.attentions, self.feeds, strict=True)):
            x = x + attention(self.norms[2 * i](x))
            x = x + feed(self.norms[2 * i + 1](x))
        out: Tensor = self.head(self.norms[-1](x))
        return out


class TwoTowers(nn.Module):
    """Pictures and captions, each as a direction."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.patches, self.places = nn.Linear(16, 32), nn.Parameter(torch.randn(4, 32) / 4)
        self.tokens, self.order = nn.Embedding(words, 32), nn.Parameter(torch.randn(6, 32) / 4)
        self.seeing, self.reading = Block(32, causal=False), Block(32, causal=False)
        self.picture, self.caption = nn.Linear(32, 16), nn.Linear(32, 16)

    def forward(self, pictures: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.seeing(self.patches(pictures) + self.places).mean(1)
        read = self.reading(self.tokens(ids) + self.order).mean(1)
        return F.normalize(self.picture(seen), dim=-1), F.normalize(self.caption(read), dim=-1)


class Album:
    """Pictures of one of five things before one of five grounds, and captions of six words that name both."""

    def __init__(self, seed: int) -> None:
        self.things, self.grounds = (torch.randn(5, 4, 16, generator=apart(seed + k)) for k in (0, 1))

    def draw(self, count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """(count, 4, 16) pictures in patches and (2 * count, 6) captions, two of each picture, one after the other."""
        cells = torch.randperm(25, generator=own)[:count]  # no two alike in a batch
        thing, ground = cells // 5, cells % 5
        seen = self.things[thing] + self.grounds[ground]
        seen = seen + 0.5 * torch.randn(seen.shape, generator=own)
        ids = torch.randint(10, 20, (count, 2, 6), generator=own)
        ids[..., 1], ids[..., 4] = thing[:, None], 5 + ground[:, None]
        return seen, ids.flatten(0, 1)


class Neighbours(nn.Module):
    """Two layers, each of the node itself and of the mean of its neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.own1, self.near1 = nn.Linear(8, 32), nn.Linear(8, 32, bias=False)
        self.own2, self.near2 = nn.Linear(32, 4), nn.Linear(32, 4, bias=False)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = (self.own1(x) + self.near1(mean_of_neighbours(x, edges))).relu()
        out: Tensor = self.own2(x) + self.near2(mean_of_neighbours(x, edges))
        return out


def mean_of_neighbours(x: Tensor, edges: Tensor) -> Tensor:
    total = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
    return total / torch.bincount(edges[1], minlength=len(x)).clamp(min=1)[:, None]


def citations(seed: int, nodes: int = 240) -> tuple[Tensor, Tensor, Tensor]:
    """Papers of four subjects with noisy features, and who cites whom, mostly within the subject: each pair once."""
    own = apart(seed)
    y = torch.randint(0, 4, (nodes,), generator=own)
    x = 0.5 * torch.randn(4, 8, generator=own)[y] + torch.randn(nodes, 8, generator=own)
    chance = torch.where(y[:, None] == y[None], 0.05, 0.006)
    return x, y, (torch.rand(nodes, nodes, generator=own) < chance).triu(1).nonzero().T
