"""Batches of examples: padded rows, and an order that is a function of seed and step."""

import json
from pathlib import Path

import numpy as np
import pytest

from data.tuning.templates import CHATML, talk
from limpid.config import DataConfig
from limpid.data.tuning.example_split import ExampleSplit
from limpid.data.tuning.examples import Wanted, prepare_examples
from limpid.data.tuning.rows import Order, positions, rows_of, spread

PAD = 256


@pytest.fixture
def pairs(tmp_path: Path) -> ExampleSplit:
    records = [
        {"prompt": talk("q"), "chosen": talk("", "y" * (n + 1))[1:], "rejected": talk("", "n")[1:]} for n in range(8)
    ]
    (tmp_path / "x.json").write_text(json.dumps(records))
    data = DataConfig(paths=(str(tmp_path / "x.json"),))
    return prepare_examples(Wanted(data, "pairs", CHATML.tokenizer(), 60, 0)).train


def test_rows_are_the_answers_with_the_next_tokens_as_targets(pairs: ExampleSplit) -> None:
    batch = rows_of(pairs, [2, 0], PAD)
    tokens, targets, mask = batch["tokens"], batch["targets"], batch["mask"]
    assert tokens.shape == targets.shape == mask.shape == (4, positions(pairs, [2, 0]))
    for row, number in enumerate((4, 5, 0, 1)):  # chosen, rejected, chosen, rejected
        answer = pairs.answer(number)
        inputs = len(answer.tokens) - 1
        assert tokens[row, :inputs].tolist() == answer.tokens[:-1].tolist()
        assert (tokens[row, inputs:] == PAD).all()
        assert targets[row][mask[row] > 0].tolist() == answer.tokens[answer.learned].tolist()
        assert mask[row, :inputs].tolist() == answer.learned[1:].tolist()
    assert (targets[mask == 0] == -100).all()
    wider = rows_of(pairs, [0], PAD, length=50)
    assert np.array_equal(wider["targets"][:, : tokens.shape[1]], targets[2:])
    assert (wider["targets"][:, tokens.shape[1] :] == -100).all()


@pytest.mark.parametrize("grouped", [False, True])
def test_an_epoch_takes_every_record_once_whatever_step_is_asked_first(grouped: bool) -> None:
    lengths = np.random.default_rng(0).integers(1, 1000, 240)
    order = Order(lengths, 3, 2, seed=7, group_by_length=grouped)
    steps = [order.step(step) for step in range(1, 81)]
    assert sorted(np.concatenate(steps[:40], axis=None).tolist()) == list(range(240))
    assert [step.tolist() for step in steps[:40]] != [step.tolist() for step in steps[40:]]
    assert np.array_equal(Order(lengths, 3, 2, seed=7, group_by_length=grouped).step(53), steps[52])
    assert order.epoch(40) == 1


def test_grouping_by_length_leaves_less_padding() -> None:
    lengths = np.random.default_rng(0).integers(1, 1000, 2000)

    def padding(grouped: bool) -> float:
        order = Order(lengths, 8, 1, 0, grouped)
        taken = [lengths[order.step(step)] for step in range(1, 101)]
        return 1 - sum(one.sum() for one in taken) / sum(one.max() * one.size for one in taken)

    assert padding(True) < padding(False) / 5


def test_records_to_validate_on_are_spread_over_all() -> None:
    assert spread(10, 4).tolist() == [0, 2, 5, 7]
    assert spread(3, 9).tolist() == [0, 1, 2]
    assert spread(0, 4).tolist() == []
