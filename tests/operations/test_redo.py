"""An operation held against NumPy, however large its result."""

import numpy as np
import pytest
import torch

from limpid.operations.redo import redo


@pytest.mark.parametrize("place", [(0, 0), (299, 1), (612, 399)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_one_wrong_entry_of_a_large_result_is_named(place: tuple[int, int], dtype: torch.dtype) -> None:
    x = torch.randn(613, 400, dtype=dtype, generator=torch.Generator().manual_seed(0))
    made = torch.exp(x)
    made[place] *= 1.001
    worst = redo(torch.ops.aten.exp.default, {"self": x.numpy()}, made, {}, False).worst
    assert worst is not None
    assert worst.share > 1
    assert worst.place[:2] == place
    assert worst.engine == pytest.approx(np.real(made[place].item()) if len(worst.place) == 2 else worst.engine)


def test_a_large_honest_result_is_within_its_bound() -> None:
    x = torch.randn(613, 400, generator=torch.Generator().manual_seed(1))
    worst = redo(torch.ops.aten.exp.default, {"self": x.numpy()}, torch.exp(x), {}, False).worst
    assert worst is not None
    assert 0 < worst.share < 1
