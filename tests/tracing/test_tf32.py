"""Steps whose matrix products take less than all of float32: recorded as such, and bounded as such."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import configuration, record
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from limpid.tracing import verify_step
from limpid.tracing.record import Record
from limpid.tracing.verify import StepReport

PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm)


class Tf32(TorchDispatchMode):
    """Cuts every factor of a product to 10 bits behind the first, as a graphics processor does."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in PRODUCTS:
            *added, a, b = args
            args = (*added, cut(a), cut(b))
        return func(*args, **(kwargs or {}))


def cut(x: Tensor) -> Tensor:
    return (x.contiguous().view(torch.int32) & -(1 << 13)).view(torch.float32)


@contextmanager
def told(precision: str) -> Iterator[None]:
    before = torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.mkldnn.matmul.fp32_precision = precision
    try:
        yield
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before


@pytest.mark.parametrize("variant", ["llama", "gpt-2", "qwen3"])
def test_a_step_in_tf32_is_within_its_bound_and_beyond_that_of_float32(variant: str, tmp_path: Path) -> None:
    with told("tf32"), Tf32():
        file = record(tmp_path, configuration(variant, "fp32"), before=0)
    assert Record(file).meta["fp32_products"] == "tf32"
    step = verify_step(file)
    assert wrong(step) == []
    assert all("products take tf32 of float32" in one.arithmetic for one in step.quantities)
    with told("ieee"), Tf32():
        file = record(tmp_path, configuration(variant, "fp32"), before=0)
    assert wrong(verify_step(file))


def wrong(step: StepReport) -> list[tuple[str, str, float]]:
    return [(check.name, check.kind, check.worst) for check in step.checks() if not check.holds]
