"""Before the first step: a healthy model is let through, each planted fault is named first, nothing is changed."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.bench import LENGTH, VOCAB, Decoder, batch, groups, mean_loss, preflight
from doctor.model_faults import (
    MODEL_FAULTS,
    scaled_before,
    spelled,
)
from limpid.doctor.model_info import ModelInfo


@pytest.mark.parametrize("rotary", [False, True])
def test_a_healthy_model_raises_no_alarm(rotary: bool) -> None:
    assert preflight(Decoder(rotary)) == []


def test_the_examination_changes_nothing() -> None:
    """Random states, modes, gradients, weights and buffers are those of before, to the bit."""
    model = Decoder()
    model.register_buffer("seen", torch.zeros(3))
    model.blocks[0].eval()
    optimizer = torch.optim.AdamW(groups(model), lr=1e-3)
    mean_loss(model, batch(1)).backward()
    weights = copy.deepcopy(model.state_dict())
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    modes = [module.training for module in model.modules()]
    states = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy())  # noqa: NPY002
    with limpid.watch(model, optimizer, say=False) as doctor:
        doctor.preflight(batch(0), loss=mean_loss)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True) if p.grad is not None)
    assert modes == [module.training for module in model.modules()]
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert np.array_equal(states[2], np.random.get_state()[1])  # noqa: NPY002
    assert not optimizer.state


@pytest.mark.parametrize(
    ("break_it", "rule", "rotary"), MODEL_FAULTS, ids=[f"{fault.__name__} {rule}" for fault, rule, _ in MODEL_FAULTS]
)
def test_a_fault_of_the_model_is_named_first(break_it: Callable[[Decoder], None], rule: str, rotary: bool) -> None:
    model = Decoder(rotary)
    break_it(model)
    assert preflight(model)[0] == rule


def test_scores_are_scaled_wherever_the_factor_is_applied() -> None:
    for arrange in (scaled_before, lambda model: spelled(model, 0.25)):
        model = Decoder()
        arrange(model)
        assert preflight(model) == []


def test_a_short_vocabulary_is_told_from_a_long_table_of_positions() -> None:
    model = nn.ModuleDict({"wpe": nn.Embedding(1024, 8), "wte": nn.Embedding(65, 8)})
    assert ModelInfo(model).embedding[0] == "wte"


def ce(scale: float = 1.0, through: Callable[[Any], Any] = lambda z: z, **options: Any) -> Callable[[Any, Any], Any]:
    def loss(model: nn.Module, given: Any) -> Any:
        return scale * F.cross_entropy(through(model(given[0]).flatten(0, 1)), given[1].flatten(), **options)

    return loss


LOSSES = [
    (ce(reduction="sum"), "loss-summed"),
    (ce(through=lambda z: z.softmax(-1)), "softmax-twice"),
    (ce(through=torch.sigmoid), "loss-formula-unusual"),
    (ce(scale=-1.0), "gradient-ascent"),
    (
        lambda model, given: F.nll_loss(model(given[0]).flatten(0, 1).softmax(-1), given[1].flatten()),
        "loss-formula-unusual",
    ),
    (
        lambda model, given: F.cross_entropy(model(given[0]).reshape(len(given[0]), VOCAB, -1), given[1]),
        "loss-formula-unusual",
    ),
]


@pytest.mark.parametrize(("loss", "rule"), LOSSES)
def test_the_formula_of_the_loss_is_read_from_its_gradient(loss: Any, rule: str) -> None:
    assert preflight(Decoder(), loss=loss)[0] == rule


def test_honest_losses_raise_no_alarm() -> None:
    smooth = ce(label_smoothing=0.1)
    twice = ce(through=lambda z: z.log_softmax(-1))  # a second log-softmax changes nothing
    for loss in (smooth, twice):
        assert preflight(Decoder(), loss=loss) == []


def test_predictions_and_targets_that_broadcast() -> None:
    torch.manual_seed(0)
    model, x, y = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(16, 4), torch.randn(16)
    for loss in (
        lambda m, given: F.mse_loss(m(given[0]), given[1]),
        lambda m, given: (m(given[0]) - given[1]).abs().mean(),
    ):
        assert preflight(model, (x, y), loss) == ["loss-broadcast"]
    assert preflight(model, (x, y), lambda m, given: F.mse_loss(m(given[0])[:, 0], given[1])) == []


def test_classes_are_read_like_words() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(32, 4), torch.randint(0, 5, (32,))
    layers = [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5)]
    classify = lambda m, given: F.cross_entropy(m(given[0]), given[1])  # noqa: E731
    assert preflight(nn.Sequential(*layers), (x, y), classify) == []
    assert preflight(nn.Sequential(*layers, nn.Softmax(-1)), (x, y), classify) == ["softmax-twice"]
    many = lambda m, given: F.binary_cross_entropy_with_logits(m(given[0]), F.one_hot(given[1], 5).float())  # noqa: E731
    assert preflight(nn.Sequential(*layers), (x, y), many) == []


class Translator(nn.Module):
    """An encoder's ids beside a decoder's: outputs belong to the second."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = Decoder()

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.decoder(target) + self.decoder.tokens(source).mean() * 0


def test_a_decoder_is_taught_its_own_next_token() -> None:
    x, y = batch(0)
    loss = lambda m, given: F.cross_entropy(m(batch(1)[0], given[0]).flatten(0, 1), given[1].flatten())  # noqa: E731
    assert preflight(Translator(), (x, y), loss) == []


def test_an_attention_mask_that_hides_the_text() -> None:
    x, y = padded()

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.decoder = Decoder()

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return self.decoder(input_ids)

    def loss(model: nn.Module, given: Any) -> torch.Tensor:
        return F.cross_entropy(model(given["input_ids"], given["attention_mask"]).flatten(0, 1), targets.flatten())

    targets = y.masked_fill(x == 0, -100)
    for hidden, found in ((x != 0, []), (x == 0, ["attention-mask-inverted"])):
        assert preflight(Masked(), {"input_ids": x, "attention_mask": hidden.long()}, loss)[:1] == found


def shifted(offset: int) -> Any:
    ids = torch.cat([batch(0)[0], batch(0)[1][:, -1:]], 1)
    first, last = max(0, -offset), ids.shape[1] - max(1, offset)
    return ids[:, first:last], ids[:, first + offset : last + offset].clone()


@pytest.mark.parametrize(
    ("offset", "rule"), [(0, "labels-not-shifted"), (2, "labels-misaligned"), (-1, "labels-misaligned")]
)
def test_what_each_position_is_taught(offset: int, rule: str) -> None:
    assert preflight(Decoder(), shifted(offset))[0] == rule


def test_targets_of_another_row() -> None:
    x, y = batch(0)
    assert preflight(Decoder(), (x, y.roll(1, 0)))[0] == "targets-unrelated"


def padded() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = batch(0)
    x, y = x.clamp(min=1), y.clamp(min=1)
    for row in range(len(x)):
        end = LENGTH // 2 + row
        x[row, end:], y[row, end - 1 :] = 0, 0
    return x, y


def test_padding_among_the_labels_and_ends_that_are_never_learned() -> None:
    x, y = padded()
    assert preflight(Decoder(), (x, y))[0] == "padding-trained-on"
    assert preflight(Decoder(), (x, y.masked_fill(y == 0, -100))) == ["end-never-a-label"]
    learned = y.masked_fill(x == 0, -100)  # the end is a label, what follows is not
    assert preflight(Decoder(), (x, learned)) == []


def test_ids_beyond_the_vocabulary_are_told_though_the_model_crashes() -> None:
    x, y = batch(0)
    x[0, 0] = VOCAB
    model = Decoder()
    with limpid.watch(model, torch.optim.AdamW(groups(model)), say=False) as doctor:
        assert doctor.preflight((x, y), loss=mean_loss)[0].rule == "ids-out-of-range"


def test_a_number_beyond_the_classes_may_be_what_the_loss_ignores() -> None:
    x, y = batch(0)
    y[:, ::2] = VOCAB + 7
    model = Decoder()
    optimizer = torch.optim.AdamW(groups(model))

    def loss(model: nn.Module, given: Any) -> Tensor:
        return F.cross_entropy(model(given[0]).flatten(0, 1), given[1].flatten(), ignore_index=VOCAB + 7)

    with limpid.watch(model, optimizer, say=False) as doctor:
        found = doctor.preflight((x, y), loss=loss)
        value = loss(model, (x, y))
        value.backward()
        optimizer.step()
        doctor.step(value, (x, y))
        assert "ids-out-of-range" not in {one.rule for one in (*found, *doctor.findings)}
    y[0, 1] = VOCAB + 8
    with limpid.watch(model, optimizer, say=False) as doctor, pytest.raises(IndexError):
        loss(model, (x, y))
    assert [one.rule for one in doctor.findings] == ["ids-out-of-range"]


def test_what_the_optimizer_holds() -> None:
    model = Decoder()
    assert preflight(model, optimizer=torch.optim.AdamW(model.blocks.parameters()))[0] == "parameters-not-in-optimizer"
    optimizer = torch.optim.AdamW(groups(model), lr=1e-3)
    model.head = nn.Linear(32, VOCAB, bias=False)
    assert preflight(model, optimizer=optimizer)[0] == "optimizer-holds-strangers"


def test_settings_of_the_optimizer() -> None:
    model = Decoder()
    adamw = torch.optim.AdamW
    assert preflight(model, optimizer=adamw(groups(model), lr=1e-3, eps=1e-1))[0] == "epsilon-dominates"
    decay = adamw(model.parameters(), lr=1e-2, weight_decay=0.3)
    assert preflight(model, optimizer=decay, total_steps=300)[0] == "decay-on-gains"
    assert preflight(model, optimizer=adamw(groups(model), lr=0.1))[0] == "learning-rate-too-high"
    assert preflight(model, optimizer=adamw(groups(model), lr=1e-3, betas=(0.999, 0.9))) == ["betas-swapped"]
    groups_ = [{**group, "weight_decay": 100.0 * bool(group["weight_decay"])} for group in groups(model)]
    assert preflight(model, optimizer=adamw(groups_, lr=1e-3)) == ["decay-too-strong"]
    half = Decoder().bfloat16()
    found = preflight(half, optimizer=adamw(groups(half), lr=1e-5), loss=ce())
    assert found[0] == "updates-lost-to-rounding"


def test_a_schedule_is_run_to_its_end() -> None:
    model = Decoder()
    optimizer = torch.optim.AdamW(groups(model), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 1000))
    with limpid.watch(model, optimizer, scheduler=schedule, say=False) as doctor:
        found = doctor.preflight(batch(0), loss=mean_loss, total_steps=100)
        assert [f.rule for f in found if f.is_said] == ["schedule-never-peaks"]
    assert schedule.last_epoch == 0


def test_a_schedule_that_may_be_one_of_epochs_is_only_noted() -> None:
    model = Decoder()
    optimizer = torch.optim.AdamW(groups(model), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    with limpid.watch(model, optimizer, scheduler=schedule, say=False) as doctor:
        found = doctor.preflight(batch(0), loss=mean_loss, total_steps=100)
    assert ("schedule-ends-early", "notice") in [(f.rule, f.severity) for f in found]


def test_weights_that_were_to_be_loaded() -> None:
    assert preflight(Decoder(), pretrained=True)[0] == "weights-not-loaded"
    assert preflight(Decoder(), pretrained=False) == []


def test_a_loss_that_no_parameter_can_change() -> None:
    detached = lambda model, given: mean_loss(model, given).detach()  # noqa: E731
    assert preflight(Decoder(), loss=detached)[0] == "gradient-cut"
