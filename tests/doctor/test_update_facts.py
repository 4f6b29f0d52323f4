"""Facts of updates: what each number is given, however groups are put together."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from limpid.doctor import update_facts
from limpid.doctor.model_info import ModelInfo
from limpid.doctor.step_record import StepRecord
from limpid.doctor.watched import Watched


def facts(groups: Any, **settings: Any) -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5))
    optimizer = torch.optim.AdamW(groups(model), **settings)
    watched, record = Watched(ModelInfo(model), [optimizer], []), StepRecord(1)
    record.group_rates = {index: group["lr"] for index, group in watched.groups}
    found = (*update_facts.of_settings(watched), *update_facts.of_rates(watched, record))
    return {fact.name: fact.value for fact in found}


def test_groups_are_not_counted() -> None:
    one = facts(lambda model: model.parameters(), lr=1e-3)
    each = facts(lambda model: [{"params": [p]} for p in model.parameters()], lr=1e-3)
    assert one == each
    assert one["weight_decay"] == "0.01"


def test_rates_are_the_same_however_they_are_given() -> None:
    by_group = facts(lambda model: [{"params": list(model.parameters()), "lr": 1e-3}], lr=1.0)
    assert by_group[update_facts.USED] == facts(lambda model: model.parameters(), lr=1e-3)[update_facts.USED] == 0.001


def test_a_setting_of_some_is_told_with_how_many() -> None:
    found = facts(lambda model: [
        {"params": [p for p in model.parameters() if p.ndim > 1]},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ], lr=1e-3)  # fmt: skip
    assert found["weight_decay"] == "0 on 15; 0.01 on 30"


def test_what_is_frozen_has_no_settings() -> None:
    def frozen(model: nn.Module) -> Any:
        model[1].requires_grad_(False)  # type: ignore[index]
        return [{"params": model[0].parameters()}, {"params": model[1].parameters(), "weight_decay": 0.5}]  # type: ignore[index]

    assert facts(frozen, lr=1e-3)["weight_decay"] == "0.01"
