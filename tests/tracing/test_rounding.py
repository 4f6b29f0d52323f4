"""Who made the rounding error of a recorded step's loss: what its operations add up to is what is measured."""

from pathlib import Path

import pytest
from recorded import VARIANTS, configuration, record

from limpid.tracing import Trace


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_rounding_errors_of_operations_add_up_to_that_of_the_loss(tmp_path: Path, variant: str, precision: str) -> None:
    found = Trace.open(record(tmp_path, configuration(variant, precision, accumulation=1))).error_of_loss()
    assert found.measured is not None
    assert found.remainder is not None
    assert found.cancels or abs(found.remainder) <= 0.1 * abs(found.measured), str(found)
    assert "block 0 attention" in {one.name for one in found.by_module}


def test_each_quantity_says_what_its_rounding_added(tmp_path: Path) -> None:
    trace = Trace.open(record(tmp_path, configuration("llama", "bf16", accumulation=2)))
    errors = [one.error for one in trace.step.quantities if one.error is not None]
    assert trace.error_of_loss().total == pytest.approx(sum(errors)) == trace.step.loss.error
    assert all(one.error is None for one in trace.step.quantities if one.path == "plain")
