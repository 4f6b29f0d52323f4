"""Wrong kernels that PyTorch's issues tell of: named where they are, and no right one in the same steps."""

import pytest
from benchmarks.published_kernels import ISSUES, Published, accused_without, found


@pytest.mark.parametrize("one", ISSUES, ids=lambda one: str(one.issue))
def test_a_published_fault_is_named_at_its_call(one: Published) -> None:
    named, said = found(one)
    assert named, said
    assert accused_without(one) == []
