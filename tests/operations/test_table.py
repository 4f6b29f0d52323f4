"""Operations that few models are made of: honest ones pass, and faults planted in each are found at their calls."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import limpid
from limpid.operations import Report
from limpid.operations.call import Check
from operations.test_planted import Planted

LINE, PICTURE, VOLUME = ((2, 3, 9), (2, 3, 8, 8), (2, 3, 6, 6, 6))
TARGET = torch.randn(7, 5, generator=torch.Generator().manual_seed(3))
LABELS = torch.tensor([0, 4, 2, 2, 1, 3, 0])
PLACES = torch.tensor([0, 2, 2, 1, 0, 3, 3])
MATRIX = (7, 5)


def pooled(x: Tensor) -> Tensor:
    made, indices = functional.max_pool2d(x, 2, return_indices=True)
    return functional.max_pool2d(x, 3, 2, 1, ceil_mode=True).mean() + functional.max_unpool2d(made, indices, [2, 2])


WORDS, BAGS = torch.tensor([0, 2, 6, 2, 1, 1, 5, 4, 3]), torch.tensor([0, 3, 3, 7])


def at_grid(x: Tensor, **how: Any) -> Tensor:
    shape = (2, *(5, 6, 4)[: x.ndim - 2], x.ndim - 2)
    places = (torch.rand(shape, generator=torch.Generator().manual_seed(4)) * 2.6 - 1.3).requires_grad_()
    return functional.grid_sample(x, places, **how)


CALLS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "mirrored edges": (PICTURE, lambda x: functional.pad(x, (2, 1, 3, 0), mode="reflect")),
    "repeated edges": (VOLUME, lambda x: functional.pad(x, (2, 1, 3, 0, 1, 1), mode="replicate")),
    "nearest": (LINE, lambda x: functional.interpolate(x, 14)),
    "nearest of a volume": (VOLUME, lambda x: functional.interpolate(x, scale_factor=1.5)),
    "nearest by the middle": (PICTURE, lambda x: functional.interpolate(x, 5, mode="nearest-exact")),
    "linear": (LINE, lambda x: functional.interpolate(x, 14, mode="linear")),
    "trilinear": (VOLUME, lambda x: functional.interpolate(x, 7, mode="trilinear", align_corners=True)),
    "cubic": (PICTURE, lambda x: functional.interpolate(x, (11, 5), mode="bicubic")),
    "largest": (PICTURE, pooled),
    "largest of a volume": (VOLUME, lambda x: functional.max_pool3d(x, 3, 2, 1, ceil_mode=True)),
    "largest of windows": (PICTURE, lambda x: functional.adaptive_max_pool2d(x, (3, 5))),
    "mean": (PICTURE, lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)),
    "mean of a volume": (VOLUME, lambda x: functional.avg_pool3d(x, 3, 2, divisor_override=5)),
    "mean of windows": (VOLUME, lambda x: functional.adaptive_avg_pool3d(x, (4, 3, 5))),
    "columns": (PICTURE, lambda x: functional.fold(functional.unfold(x, 3, 1, 1, 2) * 2, (8, 8), 3, 1, 1, 2)),
    "smooth": (MATRIX, lambda x: functional.smooth_l1_loss(x, TARGET, beta=0.5)),
    "huber": (MATRIX, lambda x: functional.huber_loss(x, TARGET, delta=0.5)),
    "soft margin": (MATRIX, lambda x: functional.soft_margin_loss(x, TARGET.sign())),
    "margins": (MATRIX, lambda x: functional.multi_margin_loss(x, LABELS, p=2)),
    "of two": (MATRIX, lambda x: functional.binary_cross_entropy(x.sigmoid() / 2, TARGET.sigmoid())),
    "learned slope": (MATRIX, lambda x: functional.prelu(x, torch.full((5,), 0.3, requires_grad=True))),
    "bends": (MATRIX, lambda x: functional.celu(x) + functional.mish(x) + functional.hardswish(x)
              + functional.hardsigmoid(x) + functional.softshrink(x)),
    "functions": (MATRIX, lambda x: x.asinh() + x.tanh().atanh() + x.tanh().erfinv() + x.sinc() + x.tan()
                  + (x.abs() + 1).digamma() + torch.special.i1(x) + torch.xlogy(x, x.abs() + 1)),
    "so far": (MATRIX, lambda x: x.cumprod(0) + x.detach().logcumsumexp(1) + x.cummax(0).values),
    "to the same place": (MATRIX, lambda x: TARGET[:4].scatter_reduce(0, PLACES[:, None].expand(7, 5), x, "mean")),
    "products to a place": (MATRIX, lambda x: TARGET[:4].index_reduce(0, PLACES, x.detach(), "prod") + x[:4]),
    "distances": (MATRIX, lambda x: torch.cdist(x.detach(), TARGET, p=1.0) + x.sum()),
    "bags": (MATRIX, lambda x: functional.embedding_bag(WORDS, x, BAGS, mode="sum", padding_idx=2)),
    "means of bags": (MATRIX, lambda x: functional.embedding_bag(WORDS, x, BAGS, mode="mean")),
    "largest of bags": (MATRIX, lambda x: functional.embedding_bag(WORDS, x, BAGS, mode="max")),
    "weighed bags": (MATRIX, lambda x: functional.embedding_bag(
        WORDS, x, BAGS, mode="sum", per_sample_weights=torch.linspace(0.5, 2, 9, requires_grad=True))),
    **{
        f"a grid, {mode}, {padding}, {align}": (PICTURE, partial(at_grid, mode=mode, padding_mode=padding,
                                                                 align_corners=align))
        for mode in ("bilinear", "nearest", "bicubic") for padding in ("zeros", "border", "reflection")
        for align in (False, True)
    },
    **{
        f"a volume's grid, {mode}, {padding}, {align}": (VOLUME, partial(at_grid, mode=mode, padding_mode=padding,
                                                                         align_corners=align))
        for mode in ("bilinear", "nearest") for padding in ("zeros", "border", "reflection") for align in (False, True)
    },
    "pseudo-inverse": (MATRIX, torch.linalg.pinv),
    "diagonals": (MATRIX, lambda x: torch.diag_embed(x).diagonal(1, -2, -1) + x[:, 1:] * x.median(0).values[1:]),
}  # fmt: skip


def recorded_of(name: str, planted: Planted) -> Report:
    shape, call = CALLS[name]
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
    weights = torch.randn(100_000, generator=torch.Generator().manual_seed(2))
    with planted, limpid.recording(nn.Identity()) as recorded:
        made = call(values)
        made.backward(weights[: made.numel()].reshape(made.shape))
    return recorded.verify()


@pytest.mark.parametrize("how", ["scaled", "one entry"])
@pytest.mark.parametrize("name", CALLS)
def test_honest_operations_pass_and_planted_faults_do_not(name: str, how: str) -> None:
    honest = recorded_of(name, Planted(set(), how))
    assert not honest.wrong, str(honest.wrong[0])
    assert not honest.unchecked, str(honest.unchecked[0])
    places: dict[str, int] = {}
    for call in honest.calls:
        worst = call.worst
        if call.check is Check.REDONE and call.dtype == "float32" and worst is not None and abs(worst.expected) > 1e-30:
            places.setdefault(call.operation, call.number)
    for number in places.values():  # one at a time: what follows may depend on it
        wrong = recorded_of(name, Planted({number}, how)).wrong
        assert [call.number for call in wrong] == [number]
