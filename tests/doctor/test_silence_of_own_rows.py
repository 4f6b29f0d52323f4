"""Rows that are served, hidden, filled up or learned by heart on purpose, beside the mistakes that look like it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import limpid
from doctor.bench import VOCAB, Decoder, mean_loss
from doctor.small_loops import classes, net, watched


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("related", [True, False])
def test_a_guess_is_judged_by_the_weights_of_the_classes(related: bool) -> None:
    """With weights that make classes equal a guess costs ln 3, far above the entropy of their frequencies."""
    weights = 1 / torch.tensor([0.6, 0.3, 0.1])

    def rows() -> tuple[Tensor, Tensor]:
        x, y = classes(64)
        return x + 3 * torch.randn_like(x), y if related else y[torch.randperm(64)]

    loss = lambda m, b: F.cross_entropy(m(b[0]), b[1], weight=weights)  # noqa: E731
    found = watched(net(3, 16, 3), rows, loss, 121)
    assert ("nothing-learned" in found) != related


class Tagger(Decoder):
    """A decoder whose configuration names an end of text."""

    config = {"eos_token_id": 2}  # noqa: RUF012


@pytest.mark.parametrize("hidden", [True, False])
def test_hidden_words_are_no_answers(hidden: bool) -> None:
    """Labels at hidden words, where the inputs hold a mask; or the row's own tokens, without their end."""
    ids = torch.randint(5, VOCAB, (16, 24))
    ids[:, 20:] = 2
    labels = torch.full_like(ids, -100)
    labels[:, 8:20] = ids[:, 8:20]
    seen = ids.clone()
    if hidden:
        seen[:, 8:20] = 3

    def loss(model: nn.Module, given: dict[str, Tensor]) -> Tensor:
        shift = 0 if hidden else 1
        logits = model(given["input_ids"])[:, : 24 - shift]
        return F.cross_entropy(logits.flatten(0, 1), given["labels"][:, shift:].flatten())

    found = watched(Tagger(), lambda: {"input_ids": seen, "labels": labels}, loss, 2)
    assert ("stop-not-learned" in found) != hidden


@pytest.mark.parametrize(("symbols", "declared", "told"), [(12, False, False), (12, True, True), (60, False, True)])
def test_rows_that_end_in_one_symbol(symbols: int, declared: bool, told: bool) -> None:
    """Rows of few symbols may end so: silence after the last note; of many words, or where a table pads, not."""
    model = Decoder()
    if declared:
        model.tokens.padding_idx = 1
    ids = torch.randint(2, symbols, (16, 25))
    for row in range(16):
        ids[row, 10 + row % 8 :] = 1
    optimizer, given = torch.optim.SGD(model.parameters(), 1e-3), (ids[:, :-1], ids[:, 1:])
    with limpid.watch(model, optimizer, say=False) as doctor:
        loss = mean_loss(model, given)
        loss.backward()
        optimizer.step()
        doctor.step(loss, given)
    assert [one.is_said for one in doctor.findings if one.rule == "padding-trained-on"] == [told]


class Dropping(Decoder):
    """A decoder with dropout before its head."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.3)
        self.norm = nn.Sequential(self.norm, self.drop)  # type: ignore[assignment]


@pytest.mark.parametrize("agree", [True, False])
def test_rows_that_go_through_twice(agree: bool) -> None:
    """R-Drop in one pass: the divergence between the two is a part of the loss; or rows that are simply there twice."""

    def rows() -> tuple[Tensor, Tensor]:
        ids = torch.randint(0, VOCAB, (8, 17)).repeat(2, 1)
        return ids[:, :-1], ids[:, 1:]

    def loss(model: nn.Module, given: Any) -> Tensor:
        logits = model(given[0])
        p, q = logits.log_softmax(-1).flatten(0, 1).chunk(2)
        apart = F.kl_div(p, q, reduction="batchmean", log_target=True)
        return F.cross_entropy(logits.flatten(0, 1), given[1].flatten()) + (apart if agree else 0)

    assert ("rows-duplicated" in watched(Dropping(), rows, loss, 5)) != agree


@pytest.mark.parametrize("taught", [True, False])
def test_copies_that_fill_a_batch_up(taught: bool) -> None:
    """Half of each batch are copies of its first row, with labels or without."""
    labels_of_copies = slice(None) if taught else -100

    def rows() -> dict[str, Tensor]:
        ids = torch.randint(0, VOCAB, (8, 16))
        ids = torch.cat([ids, ids[:1].expand(8, -1)])
        labels = ids.clone()
        if not taught:
            labels[8:] = labels_of_copies
        return {"input_ids": ids, "labels": labels}

    def loss(model: nn.Module, given: dict[str, Tensor]) -> Tensor:
        logits = model(given["input_ids"])[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), given["labels"][:, 1:].flatten())

    assert ("rows-duplicated" in watched(Decoder(), rows, loss, 5)) == taught


@pytest.mark.parametrize("rows", [8, 64])
def test_a_loader_whose_rows_are_all_there_are(rows: int) -> None:
    """Eight rows learned by heart from a loader, in one order; or the loader of 64 is begun anew at each step."""
    data = TensorDataset(torch.randint(0, VOCAB, (rows, 17)))
    loader: DataLoader[Any] = DataLoader(data, 8)

    def first() -> tuple[Tensor, Tensor]:
        (ids,) = next(iter(loader))
        return ids[:, :-1], ids[:, 1:]

    assert ("batch-repeats" in watched(Decoder(), first, mean_loss, 5)) == (rows > 8)


def test_few_rows_that_are_shuffled_at_each_step_are_all_there_are() -> None:
    ids = torch.randint(0, VOCAB, (8, 17))

    def shuffled() -> tuple[Tensor, Tensor]:
        some = ids[torch.randperm(8)]
        return some[:, :-1], some[:, 1:]

    assert watched(Decoder(), shuffled, mean_loss, 6) == []


@pytest.mark.parametrize("rewarded", [True, False])
def test_several_updates_on_what_a_policy_did(rewarded: bool) -> None:
    def passes() -> Any:
        for _ in range(4):
            ids = torch.randint(0, VOCAB, (8, 12))
            advantages = torch.randn(8, 12)
            for _ in range(4):
                yield {"input_ids": ids.clone()} | ({"advantages": advantages.clone()} if rewarded else {})

    given = passes()

    def loss(model: nn.Module, rows: dict[str, Tensor]) -> Tensor:
        return -(model(rows["input_ids"]).log_softmax(-1)[..., 0] * torch.ones(8, 12)).mean()

    found = watched(Decoder(), lambda: next(given), loss, 16)
    assert ("batch-repeats" in found) != rewarded


class Graphs(nn.Module):
    """Kinds of nodes, joined by edges, to one of two classes for each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.message, self.head = nn.Embedding(3, 16), nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, kinds: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
        x = self.kinds(kinds)
        x = x + torch.zeros_like(x).index_add(0, edges[1], self.message(x)[edges[0]]).relu()
        return self.head(torch.zeros(int(graph.max()) + 1, 16).index_add(0, graph, x))


def test_edges_are_no_ids_of_the_table_of_nodes() -> None:
    """Two rows of whole numbers, up to the number of nodes."""
    graph = torch.arange(8).repeat_interleave(6)

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        kinds = torch.randint(0, 3, (48,))
        edges = torch.arange(8)[:, None] * 6 + torch.randint(0, 6, (2, 8, 10))
        return kinds, edges.flatten(1), (kinds.view(8, 6) == 0).sum(1).gt(1).long()

    def loss(model: nn.Module, given: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(given[0], given[1], graph), given[2])

    assert watched(Graphs(), batch, loss, 12) == []


@pytest.mark.parametrize("related", [True, False])
def test_a_guess_among_more_classes_than_a_batch_has_rows(related: bool) -> None:
    centres = 4 * torch.randn(12, 4)

    def rows() -> tuple[Tensor, Tensor]:
        y = torch.randint(0, 12, (6,))
        return centres[y] + torch.randn(6, 4), y if related else torch.randint(0, 12, (6,))

    found = watched(net(4, 16, 12), rows, lambda m, b: F.cross_entropy(m(b[0]), b[1]), 421)
    assert ("nothing-learned" in found) != related
