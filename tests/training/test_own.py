"""A user's own objective and batches, from public Python: trained, resumed bit for bit, never replayed without."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import limpid
import small
from limpid.data.batches import MicroBatch
from limpid.errors import CheckpointError, ConfigError
from limpid.objectives import POLICY, Loss, NextToken
from limpid.run import Run
from limpid.training.state import fresh_state
from limpid.training.step import step


@dataclass(frozen=True)
class Focal(NextToken):
    """(1-p)^γ times the surprise. Source: Lin et al. 2017, eq. 4, arXiv:1708.02002."""

    gamma: float = 2.0
    name: ClassVar[str] = "focal"

    def loss(self, models: Mapping, micro: MicroBatch, labels: int, mode: object) -> Loss:
        logits = models[POLICY](torch.as_tensor(micro["tokens"]))
        surprise = F.cross_entropy(logits.flatten(0, 1).float(), torch.as_tensor(micro["targets"]).flatten(),
                                   reduction="none")  # fmt: skip
        value = ((1 - (-surprise).exp()) ** self.gamma * surprise).sum() / labels
        return Loss(value, {"surprise": (surprise.sum() / labels).detach()})


class Counting:
    """Bytes that count up, from a place that the step says."""

    def batch(self, step: int, state: object) -> tuple[MicroBatch, ...]:
        rows = (np.arange(17) + np.array([[step], [7 * step]])) % 256
        return (MicroBatch({"tokens": rows[:, :-1], "targets": rows[:, 1:]}, (step, 7 * step)),)

    def epoch(self, step: int) -> float:
        return step / 256


@pytest.fixture
def config(tmp_path: Path) -> limpid.TrainConfig:
    return small.config(small.corpus(tmp_path / "text"), max_steps=8)


def losses(run: Run) -> list[float]:
    return run.read_metrics().column("loss")[1].tolist()


def test_a_loss_and_rows_of_one_s_own_are_trained_and_resumed(config: limpid.TrainConfig, tmp_path: Path) -> None:
    own = {"objective": Focal(), "batches": Counting()}
    whole = limpid.train(config, str(tmp_path / "whole"), **own)
    part = limpid.train(small.replaced(config, max_steps=4), str(tmp_path / "part"), **own)
    steps, surprise = whole.read_metrics().column("surprise")
    assert steps.tolist() == list(range(1, 9))
    assert all(np.array(losses(whole)) < surprise)
    assert surprise[-1] < surprise[0]
    weights = (whole.checkpoint(8) / "model.safetensors").read_bytes()
    assert limpid.resume(f"{whole}@4", **own) == whole
    assert (whole.checkpoint(8) / "model.safetensors").read_bytes() == weights
    assert limpid.resume(part, 8, **own) == part
    assert len(losses(part)) == 8
    assert whole.checkpoint_steps()[-1] == 8


def test_nothing_goes_on_with_another_loss_or_other_rows(config: limpid.TrainConfig, tmp_path: Path) -> None:
    run = limpid.train(config, str(tmp_path / "run"), objective=Focal())
    for refused in (lambda: limpid.resume(run, 9), lambda: limpid.trace(run, 2)):
        with pytest.raises(CheckpointError, match="begun with 'focal' objective, and would go on with limpid's own"):
            refused()
    with pytest.raises(CheckpointError, match="limpid's own batches, and would go on with 'Counting'"):
        limpid.resume(run, 9, objective=Focal(), batches=Counting())
    text, tokenizer = "the cat", limpid.load(run)[1]
    assert limpid.generate(run, text, max_new_tokens=3)[0].prompt == text
    assert limpid.evaluate(run, text=text * 4).texts[0].text.count == len(tokenizer.encode(text * 4))


@pytest.mark.parametrize(("given", "said"), [({"objective": 3}, "int, which has no name"),
                                             ({"batches": []}, "list, which has no batch")])  # fmt: skip
def test_what_is_none_is_refused(given: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        limpid.train(**given)


def test_a_loop_of_one_s_own_takes_any_optimizer(config: limpid.TrainConfig) -> None:
    """The parts by themselves: state, batches and step are plain objects."""
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=257))
    state, rows = fresh_state(config), Counting()
    state.optimizer = torch.optim.RMSprop(state.model.parameters())
    found = [step(state, rows.batch(number, state), config).loss for number in range(1, 9)]
    assert found[-1] < found[0]
