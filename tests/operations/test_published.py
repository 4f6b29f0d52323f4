"""Wrong kernels that PyTorch's issues tell of: named where they are, and no right one in the same steps."""

import pytest
from benchmarks.published_kernels import ISSUES, Published, accused_without, found

from operations.convolutions import rounds_once


@pytest.mark.parametrize("one", ISSUES, ids=lambda one: str(one.issue))
def test_a_published_fault_is_named_at_its_call(one: Published) -> None:
    named, said = found(one)
    assert named, said
    assert [call for call in accused_without(one) if rounds_once() or "convolution" not in call] == []
