"""Stretches of tokens that come again, labels of a whole run, and what stands beside a label."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.bench import VOCAB, Decoder

TEXT = torch.randint(4, VOCAB, (1200,), generator=torch.Generator().manual_seed(0))


def of_data(windows: list[Tensor], epochs: int = 1) -> str:
    """The sentences on what a decoder is given of some windows of a text, in batches of eight."""
    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, every=1, say=False) as doctor:
        for ids in torch.stack(windows).repeat(epochs, 1).split(8):
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, ids)
    assert dict(doctor.skipped) == {}
    return "\n".join(line for line in doctor.description.of("data") if "stretches" in line)


def windows_every(places: int) -> list[Tensor]:
    return [TEXT[at : at + 25] for at in range(0, len(TEXT) - 25, places)]


def test_windows_that_do_not_overlap_share_no_stretch() -> None:
    assert of_data(windows_every(25) * 3, 1).startswith(
        "of stretches of 8 tokens 67% had been there before, 0% of them"
    )


def test_windows_a_token_apart_are_told_from_windows_that_come_again() -> None:
    said = of_data(windows_every(1))
    assert "of stretches of 8 tokens 94" in said
    assert ", 100% of them at another place of a row" in said


def test_padding_is_no_stretch_that_comes_again() -> None:
    rows = [torch.cat([TEXT[at : at + 12], torch.zeros(13, dtype=torch.long)]) for at in range(0, 1100, 12)]
    assert " 0% had been there before (" in of_data(rows)


@pytest.mark.parametrize(("order", "said"), [(True, "before it in 9"), (False, "before it in 40%, by chance")])
def test_the_labels_of_a_run_are_counted_and_their_order_told(order: bool, said: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    labels = torch.tensor([0] * 160 + [1] * 80 + [2] * 80)
    labels = labels if order else labels[torch.randperm(320)]
    with limpid.watch(model, optimizer, every=1, say=False) as doctor:
        for y in labels.split(32):
            x = torch.randn(32, 6)
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (x, y))
    lines = doctor.description.of("labels")
    (line,) = [one for one in lines if one.startswith("labels of all batches")]
    assert "0 at " in line
    assert said in line
    row = next(one for one in lines if one.startswith("row 0, "))
    assert "is taught" in row


def test_labels_at_no_fixed_place_are_held_against_the_nearest_inputs() -> None:
    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(2):
            ids = torch.randint(4, VOCAB, (8, 17))
            targets = ids[:, 1:].clone()
            targets[:, ::4] = 3
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (ids[:, :-1], targets))
    (line,) = [one for one in doctor.description.of("labels") if "no fixed place" in one]
    assert "the next in 7" in line
