"""Batches that depend on the state are stored with their step: resumed and replayed steps see the very same."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from limpid.config import ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.data.batches import MicroBatch
from limpid.errors import CheckpointError
from limpid.run import Run
from limpid.training import checkpoint
from limpid.training.state import State, fresh_state
from limpid.training.step import step
from limpid.training.stored_batches import StoredBatches, read_batch, write_batch

CONFIG = TrainConfig(
    ModelConfig(vocab_size=23, d_model=16, num_layers=1, num_heads=2, context_length=12),
    update=UpdateConfig(warmup_steps=1),
    run=RunConfig(precision="fp32", max_steps=6, batch_size=2),
)


class Rollouts:
    """Continuations that the model itself draws, and that nobody could draw again: from a generator without a seed."""

    def __init__(self) -> None:
        self.generator = torch.Generator()
        self.generator.seed()

    def batch(self, number: int, state: State) -> tuple[MicroBatch, ...]:
        tokens = torch.full((2, 1), number)
        with torch.no_grad():
            for _ in range(8):
                p = state.model(tokens)[:, -1].softmax(-1)
                tokens = torch.cat([tokens, torch.multinomial(p, 1, generator=self.generator)], 1)
        reward = np.linspace(0, 1, 2)
        arrays = {"tokens": tokens[:, :-1].numpy(), "targets": tokens[:, 1:].numpy(), "rewards": reward}
        return (MicroBatch(arrays, (number,)),)

    def epoch(self, number: int) -> float:
        return float(number)


def test_a_run_of_rollouts_resumes_bit_for_bit(tmp_path: Path) -> None:
    state, run = fresh_state(CONFIG), Run(tmp_path)
    source = StoredBatches(Rollouts(), tmp_path / "batches")
    losses = []
    for number in range(1, 6):
        losses.append(step(state, source.batch(number, state), CONFIG).loss)
        if number == 2:
            checkpoint.save(run, state, CONFIG, "data")
    resumed, again = fresh_state(CONFIG), StoredBatches(Rollouts(), tmp_path / "batches")
    checkpoint.load(run, 2, resumed, CONFIG)
    assert [step(resumed, again.batch(number, resumed), CONFIG).loss for number in range(3, 6)] == losses[2:]
    for one, other in zip(state.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_every_array_comes_back_as_it_was(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    batch = [
        MicroBatch({"tokens": rng.integers(0, 9, (2, 3)), "mask": rng.random((2, 3)) < 0.5}, (1, 4)),
        MicroBatch({"tokens": rng.integers(0, 9, (1, 3)), "rewards": rng.random(1).astype(np.float32)}),
    ]
    write_batch(tmp_path / "batch", batch)
    for one, other in zip(batch, read_batch(tmp_path / "batch"), strict=True):
        assert one.rows == other.rows
        assert one.arrays.keys() == other.arrays.keys()
        for name in one.arrays:
            assert one[name].dtype == other[name].dtype
            assert np.array_equal(one[name], other[name])


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-9],
        lambda content: content.replace(b"rows", b"cows"),
        lambda content: content[:-1] + b"\x01",
        lambda content: b"\xff" * 100,
    ],
)
def test_a_damaged_batch_says_what_to_do(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    file = tmp_path / "000003.safetensors"
    write_batch(file, [MicroBatch({"tokens": np.zeros((2, 3), np.int64)})])
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(CheckpointError, match=r"is no stored batch .* delete it to draw it anew"):
        read_batch(file)


def test_an_array_that_is_missing_is_named() -> None:
    from limpid.errors import DataError

    micro = MicroBatch({"tokens": np.zeros((2, 3), np.int64)})
    with pytest.raises(DataError, match="the batch holds tokens, but no 'rewards', which the objective asks for"):
        micro["rewards"]
