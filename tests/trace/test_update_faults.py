"""A fault in the update of one parameter is found among all that are moved with it, and pinned to its number."""

from dataclasses import replace
from pathlib import Path

import pytest
from planted import FAULTS
from planted_update import PLACES, RESULTS, blamed, disagreements, planted
from recorded import configuration, record


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(("rule", "result"), RESULTS)
def test_every_fault_of_an_update_is_found_and_pinned(rule: str, result: str, precision: str, tmp_path: Path) -> None:
    config = configuration("llama", precision, rule=rule)
    config = replace(config, model=replace(config.model, num_layers=1))
    with planted(rule, result, {place: FAULTS[fault] for fault, place in PLACES.items()}):
        found = disagreements(record(tmp_path, config, before=1))
    assert sorted(found) == sorted(blamed(result, place) for place in PLACES.values())
