"""Wrong kernels that PyTorch's issues tell of: named where they are, and no right one in the same steps."""

import pytest
import torch
from benchmarks.published_kernels import ISSUES, Published, accused_without, found


@pytest.mark.parametrize("one", ISSUES, ids=lambda one: str(one.issue))
def test_a_published_fault_is_named_at_its_call(one: Published) -> None:
    named, said = found(one)
    assert named, said
    others = accused_without(one)
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):  # whose own convolutions add up in bfloat16
        others = [call for call in others if "convolution" not in call]
    assert others == []
