"""What several tools say of the same 20 faults of a step: python -m benchmarks.fault_tools [TOOL …].

A fault is a wrong kernel (every call of an operation gives 3% more, or the like, below everything that looks on), a
model whose numbers end, or a hand-written backward pass that is wrong. The list was drawn up before any tool was run.
TorchLens is not among limpid's dependencies: install it to have its column.
"""

import argparse
import contextlib
import io
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import limpid

TOKENS = torch.arange(24).view(2, 12) % 20
Change = Callable[[Tensor], object]


class Block(nn.Module):
    """Attention and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm2, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm(x)).unflatten(-1, (6, 8)).transpose(1, 2).chunk(3, 1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Net(nn.Module):
    """Two blocks over tokens; `last` is what a fault of the model puts before the head."""

    def __init__(self, last: nn.Module | None = None) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Embedding(20, 16), nn.ModuleList(Block() for _ in range(2))
        self.last, self.head = last or nn.Identity(), nn.Linear(16, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


class Log(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.log()


class Norm(nn.Module):
    """Without ε, of rows that are equal."""

    def forward(self, x: Tensor) -> Tensor:
        x = x * 0 + 1
        return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)


class Softmax(nn.Module):
    """Without the largest taken away first."""

    def forward(self, x: Tensor) -> Tensor:
        raised = (200 * x).exp()
        return raised / raised.sum(-1, keepdim=True)


class Root(nn.Module):
    """Whose slope at 0 is no number times the zero that comes back."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 0).sqrt() + x


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Square.apply(x)


class Square(torch.autograd.Function):
    """x², whose backward pass gives 4 x in the place of 2 x."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return 4 * context.saved_tensors[0] * gradient


class Kernel(TorchDispatchMode):
    """An operation whose every result is changed, below all that looks on."""

    def __init__(self, operation: str, change: Change) -> None:
        super().__init__()
        self.operation, self.change = operation, change

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if str(func).startswith(f"aten.{self.operation}."):
            self.change(made[0] if isinstance(made, tuple | list) else made)
        return made


def more(result: Tensor) -> object:
    return torch.ops.aten.mul_.Scalar(result, 1.03) if result.is_floating_point() else result  # which no tool sees


def one_entry(result: Tensor) -> object:
    values = result.numpy()
    place = np.unravel_index(abs(values).argmax(), values.shape)
    values[place] *= 1.1
    return result


def rolled(result: Tensor) -> object:
    return torch.ops.aten.copy_.default(result, torch.ops.aten.roll.default(result, [1], [0]))


SDPA = "_scaled_dot_product_flash_attention_for_cpu"
KERNELS: dict[str, tuple[str, Change]] = {
    "gelu": ("gelu", more), "attention": (SDPA, more), "layer norm": ("native_layer_norm", more),
    "linear": ("addmm", more), "one entry of linear": ("addmm", one_entry), "log softmax": ("_log_softmax", more),
    "sum of the residual": ("add", more), "gelu's backward": ("gelu_backward", more),
    "layer norm's backward": ("native_layer_norm_backward", more), "matrix product of the backward": ("mm", more),
    "embedding's backward": ("embedding_dense_backward", more), "AdamW's quotient": ("addcdiv_", more),
    "clipping's product": ("mul_", more), "concatenation": ("cat", rolled),
    "sign of the loss's backward": ("nll_loss_backward", torch.ops.aten.neg_.default),
}  # fmt: skip
MODELS: dict[str, type[nn.Module]] = {
    "logarithm of negative numbers": Log, "norm without ε of equal rows": Norm, "softmax that overflows": Softmax,
    "backward by hand, twice too large": Doubled, "slope of a root at 0": Root,
}  # fmt: skip


def made(fault: str) -> tuple[Net, contextlib.AbstractContextManager[Any]]:
    """A model, and the kernel below it."""
    torch.manual_seed(0)
    net = Net(MODELS[fault]() if fault in MODELS else None)
    return net, Kernel(*KERNELS[fault]) if fault in KERNELS else contextlib.nullcontext()


def step(net: Net, optimizer: torch.optim.Optimizer) -> Tensor:
    loss = functional.cross_entropy(net(TOKENS).flatten(0, 1), TOKENS.flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    optimizer.step()
    return loss


def by_limpid(fault: str) -> str:
    net, kernel = made(fault)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    with kernel, limpid.recording(net, optimizer) as recorded:
        step(net, optimizer)
    found = recorded.verify().document()
    if found.verdict == "beyond rounding":
        wrong = {found.calls[number].operation.split(".")[1] for number in found.wrong}
        right = fault in KERNELS and wrong == {KERNELS[fault][0]}
        return f"named: {', '.join(sorted(wrong))}, {len(found.wrong)} calls" if right else f"accused {sorted(wrong)}"
    if found.verdict == "not the adjoint":
        [wrong] = [one for one in found.adjoints if one.verdict == "not the adjoint"]
        return f"named: {wrong.function} in {wrong.module}, {wrong.ratio} times too large"
    if found.origins:
        ends = [found.calls[number] for number in found.origins]
        return "named: " + ", ".join(f"{one.operation.split('.')[1]} in {one.module} first {one.ended}" for one in ends)
    return "nothing"


def by_anomaly_mode(fault: str) -> str:
    net, kernel = made(fault)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    try:
        with kernel, torch.autograd.set_detect_anomaly(True):
            step(net, optimizer)
    except RuntimeError as error:
        return f"raised: {str(error).splitlines()[0][:70]}"
    return "nothing"


def by_underflow_overflow(fault: str) -> str:
    from transformers.debug_utils import DebugUnderflowOverflow

    net, kernel = made(fault)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    DebugUnderflowOverflow(net)  # whose hooks stay
    said = io.StringIO()
    try:
        with kernel, contextlib.redirect_stdout(said):
            step(net, optimizer)
    except ValueError:
        modules = re.findall(r"^ +(\S+ \w+)$", said.getvalue(), re.MULTILINE)
        return f"raised after {modules[-1]}" if modules else "raised"
    return "nothing"


def by_activations(fault: str) -> str:
    """Outputs of modules against those of a run without the fault, by torch.testing's tolerances."""
    if fault in MODELS:
        return "there is no right run"
    faulty, right = outputs(fault), outputs("none")
    for name, output in faulty.items():
        try:
            torch.testing.assert_close(output, right[name])
        except AssertionError:
            return f"first apart: {name}"
    return "nothing"


def outputs(fault: str) -> dict[str, Tensor]:
    """What each module gives, in the order in which they end."""
    net, kernel = made(fault)
    held: dict[str, Tensor] = {}
    for name, module in net.named_modules():
        module.register_forward_hook(lambda _m, _i, out, name=name: held.__setitem__(name, out.detach().clone()))
    with kernel, torch.no_grad():
        net(TOKENS)
    return held


def by_torchlens(fault: str) -> str:
    import torchlens

    net, kernel = made(fault)
    with kernel, contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            found = torchlens.validation.validate_forward_pass(net, [TOKENS], random_seed=0)
        except Exception as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"
    return "nothing" if found else "not valid"


TOOLS: dict[str, Callable[[str], str]] = {
    "limpid": by_limpid, "TorchLens": by_torchlens, "outputs beside a right run": by_activations,
    "anomaly mode": by_anomaly_mode, "DebugUnderflowOverflow": by_underflow_overflow,
}  # fmt: skip


def rows(tools: list[str]) -> Iterator[str]:
    """What each tool says of each fault, and of a step without one."""
    for fault in [*KERNELS, *MODELS, "no fault"]:
        said = []
        for tool in tools:
            try:
                said.append(TOOLS[tool](fault))
            except ImportError:
                said.append("not installed")
        yield f"| {fault} | {' | '.join(said)} |"


def main() -> None:
    """Print a row for each fault."""
    parser = argparse.ArgumentParser(description="What several tools say of the same 20 faults.")
    parser.add_argument("tools", nargs="*", metavar="TOOL", default=list(TOOLS))
    tools = parser.parse_args().tools
    warnings.filterwarnings("ignore")
    print(f"| fault | {' | '.join(tools)} |\n|{'---|' * (len(tools) + 1)}")
    for row in rows(tools):
        print(row, flush=True)


if __name__ == "__main__":
    main()
