"""Layers whose arguments their documentation does not mean so, each beside its honest twin and uses that look alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.small_loops import net, watched


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def spoken(model: nn.Module, batch: Callable[[], Any], rule: str, loss: Any = None) -> bool:
    """Whether a rule speaks of a plain loop, as worse than a notice."""

    def by_class(model: nn.Module, given: Any) -> Tensor:
        return F.cross_entropy(model(*given[:-1]), given[-1])

    return rule in watched(model, batch, loss or by_class, rules=[rule])


def series(rows: int = 6, length: int = 10) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, length, 4), torch.randint(0, 3, (rows,))


class Reads(nn.Module):
    """A classifier of sequences by one layer that reads them."""

    def __init__(self, kind: Callable[[], nn.Module], axis: int = 1, before: Any = None) -> None:
        super().__init__()
        self.reads, self.head, self.axis, self.before = kind(), nn.Linear(8, 3), axis, before

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.before is None else self.before(x)
        out = self.reads(x, x, x) if isinstance(self.reads, nn.MultiheadAttention) else self.reads(x)
        return self.head(out[0].select(self.axis, -1))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_read_along_the_sequence(kind: Any) -> None:
    rule = "batch-axis-as-time"
    assert spoken(Reads(lambda: kind(4, 8)), series, rule)
    assert not spoken(Reads(lambda: kind(4, 8, batch_first=True)), series, rule)

    def steps_first() -> tuple[Tensor, Tensor]:
        x, y = series()
        return x.transpose(0, 1), y

    assert not spoken(Reads(lambda: kind(4, 8), axis=0), steps_first, rule)
    turned = Reads(lambda: kind(4, 8, batch_first=True), axis=0, before=lambda x: x.transpose(0, 1))
    assert spoken(turned, series, rule)  # a transposition too many
    assert not spoken(Reads(lambda: kind(4, 8), axis=0, before=lambda x: x.transpose(0, 1)), series, rule)


def test_attention_reads_along_the_sequence() -> None:
    def wide() -> tuple[Tensor, Tensor]:
        return torch.randn(6, 10, 8), torch.randint(0, 3, (6,))

    rule = "batch-axis-as-time"
    assert spoken(Reads(lambda: nn.MultiheadAttention(8, 2)), wide, rule)
    assert not spoken(Reads(lambda: nn.MultiheadAttention(8, 2, batch_first=True)), wide, rule)

    class Both(nn.Module):
        """Attention among the columns of a table, and among its rows, on purpose."""

        def __init__(self) -> None:
            super().__init__()
            self.columns, self.rows = nn.MultiheadAttention(8, 2, batch_first=True), nn.MultiheadAttention(8, 2)
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.columns(x, x, x)[0]
            return self.head((x + self.rows(x, x, x)[0]).mean(1))

    assert not spoken(Both(), wide, rule)


class Attends(nn.Module):
    """Attention with a mask, by the function or by the module."""

    def __init__(self, mask: Any, module: bool) -> None:
        super().__init__()
        self.qkv, self.heads, self.head = (
            nn.Linear(8, 24),
            nn.MultiheadAttention(8, 2, batch_first=True),
            nn.Linear(8, 3),
        )
        self.mask, self.module = mask, module

    def forward(self, x: Tensor) -> Tensor:
        if self.module:
            return self.head(self.heads(x, x, x, attn_mask=self.mask)[0].mean(1))
        query, key, value = self.qkv(x)[:, None].chunk(3, -1)
        return self.head(F.scaled_dot_product_attention(query, key, value, attn_mask=self.mask)[:, 0].mean(1))


@pytest.mark.parametrize("module", [True, False])
def test_a_mask_of_numbers_is_added(module: bool) -> None:
    def wide() -> tuple[Tensor, Tensor]:
        return torch.randn(6, 5, 8), torch.randint(0, 3, (6,))

    rule, ones = "mask-is-added", torch.ones(5, 5).tril()
    assert spoken(Attends(ones, module), wide, rule)
    hidden = torch.zeros(5, 5).masked_fill(ones == 0, -torch.inf)
    distances = -(torch.arange(5)[:, None] - torch.arange(5)).abs().float()
    near = nn.Parameter(ones)  # a bias that is learned
    for honest in (ones.bool() if not module else ~ones.bool(), hidden, distances, near, torch.zeros(5, 5)):
        assert not spoken(Attends(honest, module), wide, rule)


class Encoder(nn.Module):
    """An encoder that is told where padding is."""

    def __init__(self, ids: bool, inverted: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8, padding_idx=0) if ids else nn.Linear(8, 8)
        self.layer, self.head = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 3)
        self.ids, self.inverted = ids, inverted

    def forward(self, x: Tensor) -> Tensor:
        padding = x == 0 if self.ids else (x == 0).all(-1)
        mask = ~padding if self.inverted else padding
        return self.head(self.layer(self.embed(x), src_key_padding_mask=mask).mean(1))


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("left", [True, False])
def test_a_padding_mask_hides_the_padding(ids: bool, left: bool) -> None:
    def batch() -> tuple[Tensor, Tensor]:
        x = torch.randint(1, 20, (6, 9)) if ids else torch.randn(6, 9, 8)
        for i, row in enumerate(x):
            row[: i + 1 if left else 0] = 0
            row[0 if left else 8 - i :] = row[0 if left else 8 - i :] * (1 if left else 0)
        return x, torch.randint(0, 3, (6,))

    assert spoken(Encoder(ids, True), batch, "attention-mask-inverted")
    assert not spoken(Encoder(ids, False), batch, "attention-mask-inverted")


class Translates(nn.Module):
    """An encoder whose states a decoder begins with."""

    def __init__(self, exchanged: bool) -> None:
        super().__init__()
        self.reads, self.says, self.head = (
            nn.LSTM(4, 8, batch_first=True),
            nn.LSTM(4, 8, batch_first=True),
            nn.Linear(8, 3),
        )
        self.exchanged = exchanged

    def forward(self, x: Tensor) -> Tensor:
        _, (h, c) = self.reads(x)
        return self.head(self.says(x, (c, h) if self.exchanged else (h, c))[0][:, -1])


@pytest.mark.parametrize("exchanged", [True, False])
def test_states_are_handed_on_in_their_order(exchanged: bool) -> None:
    assert spoken(Translates(exchanged), series, "states-exchanged") == exchanged


class Weighs(nn.Module):
    """A mean of the steps, weighted by a softmax over an axis."""

    def __init__(self, dim: int | None) -> None:
        super().__init__()
        self.score, self.value, self.softmax = nn.Linear(4, 1), nn.Linear(4, 3), nn.Softmax(dim=dim)

    def forward(self, x: Tensor) -> Tensor:
        return (self.softmax(self.score(x)) * self.value(x)).sum(1)


@pytest.mark.parametrize("dim", [None, 1, 0])
def test_a_softmax_says_over_what(dim: int | None) -> None:
    assert spoken(Weighs(dim), series, "softmax-over-rows") == (dim is None)  # one over the rows may be meant


def test_dropout_stands_before_a_layer() -> None:
    def batch() -> tuple[Tensor, Tensor]:
        return torch.randn(16, 4), torch.randint(0, 3, (16,))

    rule = "dropout-before-loss"
    assert spoken(nn.Sequential(net(4, 8, 3), nn.Dropout(0.3)), batch, rule)
    assert not spoken(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3)), batch, rule)
    head = nn.Linear(8, 3)
    trunk = nn.Sequential(
        nn.Linear(4, 8), nn.Dropout(0.3)
    )  # what is watched ends in dropout, and another layer follows
    assert not spoken(trunk, batch, rule, lambda m, b: F.cross_entropy(head(m(b[0])), b[1]))


class Looks(nn.Module):
    """Points of a picture that are learned."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.points, self.head = nn.Parameter(scale * (2 * torch.rand(5, 2) - 1)), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        grid = self.points.expand(len(x), 1, 5, 2)
        return self.head(F.grid_sample(x, grid, align_corners=True)[:, 0, 0])


@pytest.mark.parametrize("scale", [100.0, 1.0, 1.5])
def test_points_lie_in_the_picture(scale: float) -> None:
    def batch() -> tuple[Tensor, Tensor]:
        return torch.randn(6, 1, 8, 8), torch.randint(0, 3, (6,))

    assert spoken(Looks(scale), batch, "grid-outside-picture") == (scale == 100.0)


class Fused(nn.Module):
    """Attention of two heads by the function, with the axes of heads and positions as given."""

    def __init__(self, turned: bool, keys: int = 0, causal: bool = False) -> None:
        super().__init__()
        self.qkv, self.head, self.turned = nn.Linear(8, 24), nn.Linear(8, 3), turned
        self.before, self.causal = nn.Parameter(torch.randn(1, keys, 2, 4)), causal

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (2, 4)) for part in self.qkv(x).chunk(3, -1))
        more = self.before.expand(len(x), -1, -1, -1)
        parts = [query, torch.cat([more, key], 1), torch.cat([more, value], 1)]
        parts = [part.transpose(1, 2) for part in parts] if self.turned else parts
        out = F.scaled_dot_product_attention(*parts, is_causal=self.causal)
        out = out.transpose(1, 2) if self.turned else out
        return self.head(out.flatten(-2).mean(1))


def wide() -> tuple[Tensor, Tensor]:
    return torch.randn(6, 10, 8), torch.randint(0, 3, (6,))


def test_heads_stand_before_positions() -> None:
    assert spoken(Fused(False), wide, "heads-as-positions")
    assert not spoken(Fused(True), wide, "heads-as-positions")

    class Among(nn.Module):
        """Attention among the agents of each step, on purpose: (row, step, agent, width)."""

        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.scaled_dot_product_attention(x, x, x).mean((1, 2)))

    def agents() -> tuple[Tensor, Tensor]:
        return torch.randn(6, 10, 5, 4), torch.randint(0, 3, (6,))

    assert not spoken(Among(), agents, "heads-as-positions")


def test_a_causal_attention_to_more_keys_than_queries() -> None:
    rule = "causal-from-the-first-key"
    assert spoken(Fused(True, keys=3, causal=True), wide, rule)
    assert not spoken(Fused(True, keys=3), wide, rule)
    assert not spoken(Fused(True, causal=True), wide, rule)


class Packed(nn.Module):
    """Sequences of several lengths, and what is read of each."""

    def __init__(self, read: str) -> None:
        super().__init__()
        self.reads, self.head, self.read = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 3), read

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, state = self.reads(packed)
        out, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        if self.read == "last":
            return self.head(out[:, -1])
        if self.read == "own last":
            return self.head(out[torch.arange(len(x)), lengths - 1])
        return self.head(state[0] if self.read == "state" else out.mean(1))


@pytest.mark.parametrize("read", ["last", "own last", "state", "mean"])
def test_what_is_read_of_packed_sequences(read: str) -> None:
    def batch() -> tuple[Tensor, Tensor, Tensor]:
        return torch.randn(6, 9, 4), torch.tensor([9, 4, 6, 9, 3, 5]), torch.randint(0, 3, (6,))

    assert spoken(Packed(read), batch, "read-behind-the-end") == (read == "last")


@pytest.mark.parametrize(("eps", "scale", "found"), [(0.1, 0.01, True), (0.1, 3.0, False), (1e-5, 1e-4, False)])
@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm, nn.BatchNorm1d])
def test_the_epsilon_of_a_norm_is_small(kind: Any, eps: float, scale: float, found: bool) -> None:
    def batch() -> tuple[Tensor, Tensor]:
        return scale * torch.randn(16, 8), torch.randint(0, 3, (16,))

    model = nn.Sequential(kind(8, eps=eps), nn.Linear(8, 3))
    assert spoken(model, batch, "norm-epsilon-dominates") == found


class Everything(nn.Module):
    """Every layer that is looked at, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.reads, self.attends = nn.LSTM(8, 8, batch_first=True), nn.MultiheadAttention(8, 2, 0.1, batch_first=True)
        self.norm, self.drop, self.head = nn.LayerNorm(8, eps=0.1), nn.Dropout(0.2), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.drop(self.reads(x)[0]))
        x = x + self.attends(x, x, x, key_padding_mask=torch.zeros(x.shape[:2], dtype=torch.bool))[0]
        x = x + F.scaled_dot_product_attention(x, x, x, torch.ones(10, 10).tril())
        return self.drop(self.head(x.mean(1)))


def test_looking_changes_nothing() -> None:
    def trained(look: bool) -> list[Tensor]:
        torch.manual_seed(1)
        model = Everything()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        doctor = limpid.watch(model, optimizer, say=False, examine=False) if look else None
        for _ in range(12):
            x, y = wide()
            optimizer.zero_grad()
            loss = F.nll_loss(model(x), y)
            loss.backward()
            optimizer.step()
            if doctor is not None:
                doctor.step(loss, (x, y))
        if doctor is not None:
            doctor.close()
            assert {"mask-is-added", "probabilities-to-loss"} <= {one.rule for one in doctor.findings}
        return [*(p.detach() for p in model.parameters()), torch.rand(1)]

    assert all(torch.equal(a, b) for a, b in zip(trained(True), trained(False), strict=True))
