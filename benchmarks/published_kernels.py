"""Wrong kernels that PyTorch's issues tell of, re-enacted in a training step: python -m benchmarks.published_kernels.

Each row is an issue of github.com/pytorch/pytorch whose text says what the kernel computed. One of them is in the build
that limpid is pinned to; the others are planted below everything that looks on, at the calls that meet the issue's
condition. The list was drawn up before any of it was run.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import limpid

Made = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
ATEN = torch.ops.aten


@dataclass(frozen=True)
class Published:
    """One issue: what was wrong, the operation, a step that meets it, and what the kernel gave there."""

    issue: int
    said: str
    operation: str
    take: Callable[[], tuple[nn.Module, Callable[[], Any], torch.optim.Optimizer | None]]
    wrong: Made | None = None  # None of what is as it is in this build; gives None where the condition is not met


class Kernel(TorchDispatchMode):
    """A kernel that is wrong where the issue says so."""

    def __init__(self, operation: str, wrong: Made) -> None:
        super().__init__()
        self.operation, self.wrong, self.met = operation, wrong, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if str(func).startswith(f"aten.{self.operation}."):
            made = self.wrong(func, args, kwargs)
            if made is not None:
                self.met += 1
                return made
        return func(*args, **kwargs)


class Net(nn.Module):
    """A layer, a function, a mean."""

    def __init__(self, function: Callable[["Net", Tensor], Tensor], width: int = 8) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(width, width), function
        self.weight = nn.Parameter(torch.randn(width, width) / 3)

    def forward(self, x: Tensor) -> Tensor:
        return (self.function(self, self.layer(x)).float() ** 2).mean()


def with_layer(
    function: Callable[[Net, Tensor], Tensor], shape: tuple[int, ...] = (8, 8), form: torch.dtype = torch.float32
) -> Any:
    """A step of a model with a function behind its first layer."""

    def take() -> Any:
        torch.manual_seed(0)
        net = Net(function, shape[-1]).to(form)
        x = torch.randn(shape).to(form)
        return net, lambda: net(x).backward(), torch.optim.SGD(net.parameters(), lr=0.1)

    return take


def fused_sgd() -> Any:
    net = nn.Linear(64, 1, bias=False).bfloat16()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0, fused=True)
    return net, lambda: net(torch.ones(1, 64, dtype=torch.bfloat16)).sum().backward(), optimizer


def transposed_parameter() -> Any:
    net = Net(lambda net, x: x @ net.weight)
    net.weight = nn.Parameter(torch.randn(8, 8).t())
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, foreach=False)
    return net, lambda: net(torch.randn(4, 8)).backward(), optimizer


def as_if_contiguous(tensor: Tensor) -> Tensor:
    """What lies in memory from where a tensor begins."""
    strides = torch.empty(tensor.shape).stride()
    return tensor.as_strided(tensor.shape, strides, tensor.storage_offset())


def left_in_a_copy(func: Any, args: Any, kwargs: Any) -> Any:
    return None if args[0].is_contiguous() else args[0]


def without_padding(func: Any, args: Any, kwargs: Any) -> Any:
    gradient, x, kernel, stride, padding, *rest = args
    if padding == [0, 0]:
        return None
    wide = functional.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    return func(gradient, wide, kernel, stride, [0, 0], *rest)[..., : x.shape[-2], : x.shape[-1]].clone()


def full_windows(func: Any, args: Any, kwargs: Any) -> Any:
    gradient, x, kernel, stride, padding, ceil, count, _ = args
    return func(gradient, x, kernel, stride, padding, ceil, count, kernel[0] * kernel[1]) if ceil else None


def weight_from_memory(func: Any, args: Any, kwargs: Any) -> Any:
    return None if args[1].is_contiguous() else func(args[0], as_if_contiguous(args[1]).clone(), *args[2:], **kwargs)


def second_group_zero(func: Any, args: Any, kwargs: Any) -> Any:
    made = func(*args, **kwargs)
    made[:, made.shape[1] // 2 :] = 0
    return made


def first_tap_alone(func: Any, args: Any, kwargs: Any) -> Any:
    if args[0].dtype != torch.bfloat16:
        return None
    alone = torch.zeros_like(args[1])
    alone[..., 0, 0] = args[1][..., 0, 0]
    return func(args[0], alone, *args[2:], **kwargs)


def zeros_of_views(func: Any, args: Any, kwargs: Any) -> Any:
    return None if args[0].is_contiguous() else torch.zeros_like(args[0])


def earlier_rows_of_the_mask(func: Any, args: Any, kwargs: Any) -> Any:
    mask = kwargs["attn_mask"]
    half = mask.shape[-2] // 2
    return func(*args, **kwargs | {"attn_mask": torch.cat([mask[..., :half, :], mask[..., :half, :]], -2)})


def rows_without_gaps(func: Any, args: Any, kwargs: Any) -> Any:
    bias, x, weight = args
    if weight.stride(1) == weight.shape[0]:
        return None
    return func(bias, x, weight.as_strided(weight.shape, (1, weight.shape[0])).clone(), **kwargs)


def one_counted_twice(func: Any, args: Any, kwargs: Any) -> Any:
    made = func(*args, **kwargs)
    made[1:] /= 1 + made[1:, :1]
    return made


def sum_before_difference(func: Any, args: Any, kwargs: Any) -> Any:
    most = args[0].amax(-1, keepdim=True)
    return args[0] - (most + (args[0] - most).exp().sum(-1, keepdim=True).log())


def nan_of_an_ignored_row(func: Any, args: Any, kwargs: Any) -> Any:
    made, total = func(*args, **kwargs)
    made[(args[1] == args[4]).nonzero()[0]] = torch.nan
    return made, total


def added_in_16_bits(func: Any, args: Any, kwargs: Any) -> Any:
    a, b = args[-2:]
    if a.dtype != torch.bfloat16:
        return None
    start = args[0].clone() if len(args) == 3 else a.new_zeros(a.shape[0], b.shape[1])
    for place in range(a.shape[1]):
        start = start + (a[:, place] * b[place] if b.dim() == 1 else a[:, place, None] * b[place])
    return start


def other_alpha(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs | {"alpha": 0.1}) if kwargs.get("alpha") == 0.2 else None


def added_by_each_thread(func: Any, args: Any, kwargs: Any) -> Any:
    if args[0].numel() <= 90 * 90:
        return None
    for _ in range(2):
        func(*args, **kwargs)
    return func(*args, **kwargs)


def zero_gradient(func: Any, args: Any, kwargs: Any) -> Any:
    return None if torch._C._current_autograd_node() is None else torch.zeros_like(args[0])


def nan_of_infinities(func: Any, args: Any, kwargs: Any) -> Any:
    made = func(*args, **kwargs)
    return made.masked_fill_(made.isinf(), torch.nan) if made.isinf().any() else None


def source_from_memory(func: Any, args: Any, kwargs: Any) -> Any:
    if not isinstance(args[3], Tensor) or args[3].is_contiguous():
        return None
    return func(*args[:3], as_if_contiguous(args[3]).clone(), **kwargs)


def row_dropped(func: Any, args: Any, kwargs: Any) -> Any:
    made = func(*args, **kwargs)
    made[-1] = 0
    return made


def pooled(net: Net, x: Tensor, **given: Any) -> Tensor:
    return functional.avg_pool2d(x.view(1, 2, 4, 8), **given)


def attention(net: Net, x: Tensor) -> Tensor:
    heads = x.view(1, 2, 8, 8)
    return functional.scaled_dot_product_attention(heads, heads, heads, torch.ones(8, 8).tril().log().view(1, 1, 8, 8))


def ignoring(net: Net, x: Tensor) -> Tensor:
    labels = torch.tensor([1, -1, 2, -1, 0, 3, 4, 5])
    return functional.nll_loss(x.log_softmax(-1), labels, ignore_index=-1, reduction="none")


def in_place(net: Net, x: Tensor) -> Tensor:
    total = torch.zeros_like(x)
    total += x
    return total


def with_infinity(net: Net, x: Tensor) -> Tensor:
    infinite = torch.zeros_like(x)
    infinite[3, 1] = torch.inf
    return (infinite @ net.weight.detach().abs().add(1)).isfinite() * x


def bag(net: Net, x: Tensor) -> Tensor:
    places = torch.tensor([0, 7], dtype=torch.int32)
    return functional.embedding_bag(places, net.weight, torch.tensor([0], dtype=torch.int32), mode="max") + x


BF16, SDPA = torch.bfloat16, "_scaled_dot_product_flash_attention_for_cpu"
ISSUES = [
    Published(191763, "fused SGD leaves out 16-bit parameters that fill a register (this build)", "_fused_sgd_",
              fused_sgd),
    Published(118115, "addcdiv_ of a transposed parameter, on MPS", "addcdiv_", transposed_parameter, left_in_a_copy),
    Published(188344, "avg_pool2d's backward, channels last, forgets its padding", "avg_pool2d_backward",
              with_layer(lambda net, x: pooled(net, x, kernel_size=2, stride=1, padding=1)), without_padding),
    Published(198119, "avg_pool2d's backward, compiled, divides by the full window", "avg_pool2d_backward",
              with_layer(lambda net, x: pooled(net, x, kernel_size=3, stride=2, ceil_mode=True)), full_windows),
    Published(192212, "conv2d reads a sliced weight as if it lay in a row, on MPS", "convolution",
              with_layer(lambda net, x: functional.conv2d(x.view(1, 4, 4, 4), net.weight.view(2, 4, 2, 2, 2)[:, :, 1])),
              weight_from_memory),
    Published(19912, "grouped convolution gives 0 in its second group", "convolution",
              with_layer(lambda net, x: functional.conv2d(x.view(1, 4, 4, 4), net.weight.view(16, 2, 1, 2), groups=2)),
              second_group_zero),
    Published(163347, "convolution in bfloat16 counts its first tap alone", "convolution",
              with_layer(lambda net, x: functional.conv2d(x.view(1, 4, 4, 4), net.weight.view(4, 4, 2, 2)), form=BF16),
              first_tap_alone),
    Published(131736, "softplus of a moved axis gives 0, on MPS", "softplus",
              with_layer(lambda net, x: functional.softplus(x.moveaxis(0, 1))), zeros_of_views),
    Published(187227, "attention reads the mask of an earlier row past 2^32 entries", SDPA,
              with_layer(attention, (16, 8)), earlier_rows_of_the_mask),
    Published(161640, "linear reads a weight of every second row as if it had no gaps, on MPS", "addmm",
              with_layer(lambda net, x: functional.linear(x, net.weight[::2], net.layer.bias[::2])), rows_without_gaps),
    Published(143644, "softmax in float64 over 517 entries does not sum to 1", "_softmax",
              with_layer(lambda net, x: x.softmax(-1), (3, 517), torch.float64), one_counted_twice),
    Published(38839, "log_softmax of large numbers is rounded to whole ones", "_log_softmax",
              with_layer(lambda net, x: (x - 1e7).log_softmax(-1)), sum_before_difference),
    Published(20406, "nll_loss gives nan for an ignored row", "nll_loss_forward", with_layer(ignoring),
              nan_of_an_ignored_row),
    Published(83863, "products of bfloat16 are added up in bfloat16", "mm",
              with_layer(lambda net, x: x.t() @ x, (1024, 8), BF16), added_in_16_bits),
    Published(147860, "addmv in bfloat16 adds up in bfloat16", "addmv",
              with_layer(lambda net, x: torch.addmv(x[0], net.weight, x[1]), (2, 256), BF16), added_in_16_bits),
    Published(136299, "baddbmm with β = 0 does not look at α", "baddbmm",
              with_layer(lambda net, x: torch.baddbmm(x[None], x[None], net.weight[None], beta=0, alpha=0.2)),
              other_alpha),
    Published(1730, "an addition in place is made by each of three threads", "add_",
              with_layer(in_place, (91, 91)), added_by_each_thread),
    Published(182012, "diagonal_scatter's backward, compiled, gives 0", "diagonal_scatter",
              with_layer(lambda net, x: torch.diagonal_scatter(x, net.weight[0])), zero_gradient),
    Published(180164, "slice_scatter's backward, compiled, gives 0", "slice_scatter",
              with_layer(lambda net, x: torch.slice_scatter(x, net.weight[:, :6], 1, 0, 6)), zero_gradient),
    Published(171034, "a product of infinities in bfloat16 gives nan", "mm", with_layer(with_infinity, form=BF16),
              nan_of_infinities),
    Published(175191, "scatter reads a transposed source in the order of memory", "scatter",
              with_layer(lambda net, x: x.scatter(0, torch.arange(64).view(8, 8) % 8, net.weight.t())),
              source_from_memory),
    Published(188467, "embedding_bag's backward, largest, drops the gradient of a far row",
              "_embedding_bag_backward", with_layer(bag), row_dropped),
]  # fmt: skip
"""Those of the first results of searches for silently wrong kernels whose text says what was computed."""


def found(one: Published) -> tuple[bool, str]:
    """Whether the first call that is accused is the wrong one, and what is said."""
    model, step, optimizer = one.take()
    kernel = Kernel(one.operation, one.wrong or (lambda *_: None))
    with kernel, limpid.recording(model, optimizer) as recorded:
        step()
        if optimizer is not None:
            optimizer.step()
    report = recorded.verify()
    if one.wrong is not None and not kernel.met:
        return False, "the step does not meet it"
    wrong = [call.operation.split(".")[1] for call in report.wrong]
    others = sorted(set(wrong) - {one.operation})
    if wrong:
        return wrong[0] == one.operation, f"{report.wrong[0]}{f'; {others} too' if others else ''}"
    unchecked = [call.why for call in report.unchecked if call.operation.split(".")[1] == one.operation]
    return False, f"not checked: {unchecked[0]}" if unchecked else "nothing"


def accused_without(one: Published) -> list[str]:
    """What is accused in the same step with right kernels."""
    model, step, optimizer = one.take()
    with limpid.recording(model, optimizer) as recorded:
        step()
        if optimizer is not None and one.wrong is not None:
            optimizer.step()
    return [call.operation for call in recorded.verify().wrong]


def main() -> None:
    """Print a row for each issue."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    count = 0
    print("| issue | kernel | found | what is said |\n|---|---|---|---|")
    for one in ISSUES:
        right, said = found(one)
        without = accused_without(one)
        count += right and not without
        print(f"| {one.issue} | {one.said} | {'✓' if right else '–'} | {said} |{without or ''}", flush=True)
    print(f"{count} of {len(ISSUES)} found at their calls, nothing accused in the same steps without them")


if __name__ == "__main__":
    main()
