"""Steps of a policy: one that has nothing to learn, and one whose gradient is lost; data that is small, or repeated."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import limpid
from doctor.bench import VOCAB, Decoder, batch, groups, rules
from doctor.test_rows import text
from limpid.data.batches import MicroBatch
from limpid.doctor.doctor import Doctor
from limpid.doctor.history import History
from limpid.doctor.micro_batches import micro_batches
from limpid.doctor.rules.rows import duplicated_in_steps, repeats
from limpid.doctor.step_record import StepRecord
from limpid.doctor.watched import Watched
from limpid.objectives import Least, Loss, Most
from limpid.training.step import metrics_of


class Policy(nn.Module):
    """Ratios of a decoder's answers to those that were drawn; `cut` is what is detached."""

    def __init__(self, cut: str = "") -> None:
        super().__init__()
        self.decoder, self.cut = Decoder(), cut
        if cut == "hidden states":
            self.decoder.norm.register_forward_pre_hook(lambda _, given: given[0].detach())

    def loss(self, model: nn.Module, micro: MicroBatch) -> Tensor:
        tokens, targets = (torch.from_numpy(micro[name]) for name in ("tokens", "targets"))
        log_p = self.decoder(tokens).log_softmax(-1).gather(-1, targets[..., None])[..., 0]
        ratio = (log_p + math.log(VOCAB)).exp()  # drawn by one that knows nothing
        if self.cut == "ratio":
            ratio = ratio.detach() + 0 * log_p
        return -(ratio * torch.from_numpy(micro["advantages"] * micro["mask"])).mean()


def drawn(step: int, spread: float, learned: float = 1.0) -> MicroBatch:
    tokens, targets = (tensor.numpy() for tensor in batch(step))
    advantages = np.tile(spread * np.array([-1.0, 1.0], np.float32), len(tokens) // 2)[:, None]
    ones = np.ones(tokens.shape, np.float32)
    return MicroBatch(
        {"tokens": tokens, "targets": targets, "mask": learned * ones, "advantages": advantages * ones},
    )


def watched(policy: Policy, batches: list[MicroBatch]) -> Doctor:
    optimizer = torch.optim.AdamW(groups(policy.decoder), lr=1e-4)
    with limpid.watch(policy.decoder, optimizer, say=False) as doctor:
        for micro in batches:
            loss = policy.loss(policy.decoder, micro)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            doctor.step(loss, [micro])
    assert not doctor.skipped, doctor.skipped
    assert not any("nan" in finding.says for finding in doctor.findings)
    return doctor


@pytest.mark.parametrize(("learned", "says"), [(1.0, "all rewards of every group were equal"), (0.0, "no answer has")])
def test_a_step_with_nothing_to_learn_is_no_fault(learned: float, says: str) -> None:
    doctor = watched(Policy(), [drawn(step, 1.0 - learned, learned) for step in range(12)])
    assert rules(doctor.findings) == []
    (notice,) = (finding for finding in doctor.findings if finding.rule == "nothing-to-learn")
    assert notice.says.startswith(says)


def test_sparse_rewards_at_the_start_hide_no_cut_that_shows_later() -> None:
    sparse = [drawn(step, float(step >= 2)) for step in range(5)]
    assert rules(watched(Policy(), sparse).findings) == []
    assert rules(watched(Policy("hidden states"), sparse).findings) == ["gradient-cut"]


def test_a_gradient_of_zero_where_answers_differ_is_a_fault() -> None:
    assert rules(watched(Policy("ratio"), [drawn(step, 1.0) for step in range(4)]).findings)[0] == (
        "step-without-gradients"
    )


@pytest.mark.parametrize(("cut", "spread", "found"), [("", 0.0, []), ("ratio", 1.0, ["gradient-cut"]), ("", 1.0, [])])
def test_an_examination_tells_them_apart(cut: str, spread: float, found: list[str]) -> None:
    policy = Policy(cut)
    optimizer = torch.optim.AdamW(groups(policy.decoder), lr=1e-4)
    with limpid.watch(policy.decoder, optimizer, say=False) as doctor:
        findings = doctor.preflight([drawn(0, spread)], loss=lambda model, given: policy.loss(model, given[0]))
    assert rules(findings)[:1] == found
    assert (cut == "" and spread == 0) == ("nothing-to-learn" in {finding.rule for finding in findings})


def served(data: np.ndarray, steps: list[list[int]], steps_per_epoch: float | None, **arrays: Any) -> list[str]:
    history, findings = History(), []
    watched = Watched(None, steps_per_epoch=steps_per_epoch)  # type: ignore[arg-type]
    for number, numbers in enumerate(steps, 1):
        micro = MicroBatch({"tokens": data[numbers], "targets": data[numbers], **arrays}, tuple(numbers))
        record = StepRecord(number, micros=micro_batches([micro]))
        history.rows.take(record.token_ids, record.class_labels, record.row_numbers)
        for rule in (repeats, duplicated_in_steps):
            findings += rule(watched, record, history)
    return list(dict.fromkeys(finding.rule for finding in findings))


@pytest.mark.parametrize("records", [1, 3, 16])
def test_rows_repeat_where_the_data_is_smaller_than_a_step(records: int) -> None:
    order = itertools.cycle(range(records))
    steps = [[next(order) for _ in range(16)] for _ in range(30)]
    assert served(text(0, records), steps, records / 16) == []
    assert "batch-repeats" in served(text(0, records), steps, 40.0)  # of 640 records


def test_records_that_read_the_same_are_several() -> None:
    same = np.tile(text(0, 1), (640, 1))
    assert served(same, np.arange(480).reshape(30, 16).tolist(), 40.0) == []
    assert served(same, [list(range(16))] * 4, 40.0) == ["batch-repeats"]


def test_several_updates_on_one_draw_are_no_iterator_made_anew() -> None:
    steps = [list(range(16 * draw, 16 * draw + 16)) for draw in range(3) for _ in range(4)]
    assert served(text(0, 64), steps, 16.0) == ["batch-repeats"]
    assert served(text(0, 64), steps, 16.0, old_log_probabilities=np.zeros((16, 8), np.float32)) == []


def test_equal_answers_to_a_prompt_are_no_rows_read_twice() -> None:
    steps = [[4 * draw] * 4 for draw in range(4)]
    assert served(text(0, 16), steps, 4.0) == ["rows-duplicated"]
    assert served(text(0, 16), steps, 4.0, old_log_probabilities=np.zeros((4, 8), np.float32)) == []


def test_the_least_and_the_most_of_nothing_are_left_out() -> None:
    mesh: Any = SimpleNamespace(joined=lambda values, count: tuple(values))
    none, some = ({"least": Least(torch.tensor(a)), "most": Most(torch.tensor(-a))} for a in (float("inf"), 2.0))
    losses = [Loss(torch.zeros(()), metrics) for metrics in (none, some)]
    assert metrics_of(losses[:1], mesh, 1) == {}
    assert metrics_of(losses, mesh, 2) == {"least": 2.0, "most": -2.0}
