"""Ends, lengths and returns of rows, on rows whose ends are known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import limpid
from doctor.bench import VOCAB, Decoder
from limpid.doctor.description import Description

BEGIN, END, PADDING = 1, 2, 0
LENGTHS = (16, 12, 9, 5)


def padded(left: bool = False) -> tuple[Tensor, Tensor]:
    """Rows of these lengths between two marks, and where they are."""
    ids, mask = torch.full((4, 16), PADDING), torch.zeros(4, 16, dtype=torch.long)
    for row, length in enumerate(LENGTHS):
        place = slice(16 - length, 16) if left else slice(0, length)
        ids[row, place] = torch.cat(
            [torch.tensor([BEGIN]), torch.randint(4, VOCAB, (length - 2,)), torch.tensor([END])]
        )
        mask[row, place] = 1
    return ids, mask


def page(batches: list[dict[str, Tensor]], stop: bool = True) -> Description:
    """Of a decoder that learns the next token of these, the last of each row only where it is to `stop`."""
    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for batch in batches:
            targets = batch["ids"].roll(-1, 1)
            targets[:, -1] = -100
            if "mask" in batch:
                targets = targets.masked_fill(batch["mask"].roll(-1, 1) == 0, -100)
            if not stop:
                targets = targets.masked_fill(targets == END, -100)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch["ids"]).flatten(0, 1), targets.flatten())
            loss.backward()
            optimizer.step()
            doctor.step(loss, batch)
    assert dict(doctor.skipped) == {}
    assert doctor.description is not None
    return doctor.description


def said(batches: list[dict[str, Tensor]], stop: bool = True) -> str:
    return "\n".join(page(batches, stop).of("data"))


def test_ends_and_lengths_of_padded_rows() -> None:
    told = said([dict(zip(("ids", "mask"), padded(), strict=True)) for _ in range(3)])
    mean = sum(LENGTHS) / len(LENGTHS)
    assert (
        f"rows have 5 to 16 tokens that are not padding, mean {mean:.3g}; padded: 3 rows after it; 1 row of 4" in told
    )
    assert "rows begin with 1 (100%); end with 2 (100%); of 12 looked at" in told
    assert "the last token before padding is learned in 4 of 4 rows" in told


def test_padding_before_the_text() -> None:
    told = said([dict(zip(("ids", "mask"), padded(left=True), strict=True)) for _ in range(3)])
    assert "padded: 3 rows before the text" in told
    assert "rows begin with 1 (100%); end with 2 (100%)" in told


def test_padding_without_a_mask() -> None:
    assert "rows have 5 to 16 tokens" in said([{"ids": padded()[0]} for _ in range(3)])


def test_an_end_that_is_not_learned() -> None:
    told = said([dict(zip(("ids", "mask"), padded(), strict=True)) for _ in range(3)], stop=False)
    assert "the last token before padding is learned in 0 of 4 rows" in told


def test_documents_within_rows() -> None:
    def batch() -> dict[str, Tensor]:
        ids = torch.randint(4, VOCAB, (4, 16))
        ids[:, 0], ids[:, 5], ids[:, 9] = BEGIN, BEGIN, BEGIN
        return {"ids": ids}

    assert "token 1 stands within rows 8 times, 2 a row" in said([batch() for _ in range(3)])


def test_tokens_without_marks_are_no_ends() -> None:
    told = said([{"ids": torch.randint(4, VOCAB, (4, 16))} for _ in range(3)])
    assert "looked at" not in told
    assert "padding" not in told


def test_rows_that_come_again() -> None:
    first, second = ({"ids": torch.randint(4, VOCAB, (4, 16))} for _ in range(2))
    assert "a row comes again after 2 steps" in said([first, second, first])


def test_shares_of_two_kinds_of_row() -> None:
    def batch() -> dict[str, Tensor]:
        ids = torch.randint(4, VOCAB, (4, 16))
        ids[:, 0] = torch.tensor([1, 1, 1, 2])
        return {"ids": ids}

    assert "rows begin with 1 (75%), 2 (25%); of 12 looked at" in said([batch() for _ in range(3)])


def test_places_that_begin_anew() -> None:
    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.decoder = Decoder()
            self.place = nn.Embedding(16, VOCAB)

        def forward(self, ids: Tensor, position_ids: Tensor) -> Tensor:
            return self.decoder(ids) + self.place(position_ids)

    torch.manual_seed(0)
    model = Placed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    places = torch.arange(8).repeat(4, 2)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            ids = torch.randint(4, VOCAB, (4, 17))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(ids[:, :-1], position_ids=places).flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            doctor.step(loss)
    assert doctor.description is not None
    assert "position_ids run from 0 to 7 and begin anew within rows 4 times" in doctor.description.of("data")


@pytest.mark.parametrize("masked", [True, False])
def test_a_part_of_the_loss_that_counts_padding(masked: bool) -> None:
    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(2):
            ids, mask = padded()
            said = model(ids)
            targets = ids.roll(-1, 1).masked_fill(mask.roll(-1, 1) == 0, -100)
            targets[:, -1] = -100
            level = said.logsumexp(-1).square()
            loss = F.cross_entropy(said.flatten(0, 1), targets.flatten(), ignore_index=-100)
            loss = loss + 0.01 * (level[mask == 1] if masked else level).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, {"ids": ids, "mask": mask})
    assert dict(doctor.skipped) == {}
    assert doctor.description is not None
    told = "\n".join(doctor.description.of("gradient"))
    assert ("tokens.weight learns by padding: its rows 0 have a gradient" in told) is not masked


def test_rows_of_measured_numbers_beside_several_labels_are_told_apart_by_their_numbers() -> None:
    """A batch by names, as of transformers' Trainer: six numbers, and three classes each."""
    torch.manual_seed(0)
    body, rows = nn.Linear(6, 9), torch.randn(16, 6)

    class Questions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(self.body(x).view(-1, 3), labels.flatten())

    model = Questions()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for step in range(8):
            some = rows[(torch.arange(8) + 8 * step) % 16]
            batch = {"x": some, "labels": torch.stack([some[:, :2].argmax(1), some[:, 2:5].argmax(1)] * 2, 1)[:, :3]}
            loss = model(**batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, batch)
    assert not [what for what, why in doctor.skipped.items() if "0-d tensor" in why]
    assert doctor.description is not None
    assert "rows so far: 24, 16 of them different" in "\n".join(doctor.description.of("data"))


def test_a_batch_whose_numbers_repeat_is_counted_where_those_before_did_not() -> None:
    """As of pictures most of whose numbers are at the ends of their range."""
    torch.manual_seed(0)
    model, rows = nn.Linear(6, 1), torch.randn(16, 6)
    rows[8:] = rows[8:].sign()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for step in range(6):
            some = rows[(torch.arange(8) + 8 * step) % 16]
            loss = model(some).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (some, torch.zeros(8)))
    assert doctor.description is not None
    assert "rows so far: 24, " in "\n".join(doctor.description.of("data"))
