"""Compiled models under a recording, honest and faulty: python -m benchmarks.compiled_regions [--faults 60].

Honest: architectures of benchmarks.architectures, compiled as a whole by Inductor, in fp32 and under bf16 autocast.
Faulty: an architecture drawn by the seed, compiled by a backend that runs PyTorch's own operations but for one that
computes of the forward or backward graph: its result is 3% too large, or its largest entry 10%, in fp32. The rule,
written down before the first run:

- no honest region is accused, and 95 of 100 in fp32 are compared;
- of faults that move the loss, or the gradient of a weight that is no noise, by a thousandth of its size at least,
  against the model as it was written, 95 of 100 are found; what is found of those that move less is counted by itself.
"""

import argparse
import contextlib
import random
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import transformers
from benchmarks.architectures import ALL
from functorch.compile import make_boxed_func
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd

import limpid
from limpid.adjoints.aten import DRAWN, short_name
from limpid.operations.exact import MOVED
from limpid.operations.region import Region, Verdict

MOVES, NOISE = 1e-3, 1e-4
"""Of the loss or a gradient; of the largest gradient, below which one is rounding, as of a key's bias."""


class Fault:
    """A backend of torch.compile that spoils one operation of the forward or backward graph."""

    def __init__(self, draw: random.Random | None) -> None:
        self.draw, self.said = draw, ""
        self.phase = "" if draw is None else draw.choice(("forward", "backward"))
        self.backend = aot_autograd(fw_compiler=self.compiler("forward"), bw_compiler=self.compiler("backward"))

    def compiler(self, phase: str) -> Callable[[fx.GraphModule, Any], Any]:
        def compiled(graph: fx.GraphModule, _: Any) -> Any:
            nodes = [node for node in graph.graph.nodes if node.op == "call_function" and _computes(node)]
            if self.draw is not None and phase == self.phase and not self.said and nodes:
                node, kind = self.draw.choice(nodes), self.draw.choice((scaled, one_entry))
                self.said = f"{short_name(node.target)} of the {phase} pass, {kind.__name__}"
                with graph.graph.inserting_after(node):
                    other = graph.graph.call_function(kind, (node,))
                node.replace_all_uses_with(other, delete_user_cb=lambda user: user is not other)
                graph.recompile()
            return make_boxed_func(graph.forward)

        return compiled


def scaled(x: Tensor) -> Tensor:
    return x * 1.03


def one_entry(x: Tensor) -> Tensor:
    made, largest = x.clone(memory_format=torch.contiguous_format), x.detach().abs().argmax()
    made.view(-1)[largest] *= 1.1
    return made


def _computes(node: fx.Node) -> bool:
    name = short_name(node.target) if isinstance(node.target, torch._ops.OpOverload) else "view"
    made = node.meta.get("val")
    is_one = isinstance(made, Tensor) and made.is_floating_point() and made.numel() > 0
    return is_one and name not in MOVED and name not in DRAWN


def compiled(name: str, seed: int, backend: Any) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """An architecture that is compiled as a whole, and its loss."""
    torch._dynamo.reset()
    torch.manual_seed(seed)
    model, loss_of = ALL[name]()
    loss_of(model.eval())  # which some write to their configurations, and would be compiled anew for
    model.compile(backend=backend)
    return model, loss_of


def effect(model: nn.Module, loss_of: Callable[[nn.Module], Tensor]) -> float:
    """By how much compiled code moves the loss, or a weight's gradient that is no noise, as a share of its size."""
    weights = [one for one in model.parameters() if one.requires_grad]

    def numbers() -> list[Tensor | None]:
        loss = loss_of(model)
        return [loss.detach(), *torch.autograd.grad(loss, weights, allow_unused=True)]

    came = numbers()
    with torch.compiler.set_stance("force_eager"):
        right = numbers()
    pairs = [(a, b) for a, b in zip(came, right, strict=True) if a is not None and b is not None]
    least = NOISE * max(float(b.norm()) for _, b in pairs[1:])
    return max(float((a - b).norm() / b.norm()) for a, b in pairs if b.norm() > least)


def seen(model: nn.Module, loss_of: Callable[[nn.Module], Tensor], autocast: bool) -> list[Region]:
    """What is said of a forward pass."""
    with limpid.recording(model) as step, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss_of(model)
    return step.verify().regions


def main() -> None:
    """Print a row for each case, and how many keep the rule."""
    parser = argparse.ArgumentParser(description="Compiled models under a recording, honest and faulty.")
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--honest", type=int, default=len(ALL), help="architectures, drawn by the seed")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    draw, honest, faulty = random.Random(given.seed), Counter[tuple[str, str]](), Counter[str]()
    for name in draw.sample(list(ALL), given.honest):
        for autocast in (False, True):
            with contextlib.suppress(RuntimeError):
                for one in seen(*compiled(name, given.seed, "inductor"), autocast):
                    form = "autocast" if autocast else "fp32"
                    print(f"honest | {name} | {form} | {one.verdict} | {one.said}", flush=True)
                    honest[form, str(one.verdict)] += 1
    while faulty.total() < given.faults:
        name, fault = draw.choice(list(ALL)), Fault(draw)
        model, loss_of = compiled(name, given.seed, fault.backend)
        moved = effect(model, loss_of)
        found = seen(model, loss_of, False)
        if not fault.said:
            continue
        is_found = any(one.verdict is Verdict.OTHER for one in found)
        kind = ("moves " if moved >= MOVES else "hardly moves ") + ("found" if is_found else "missed")
        faulty[kind] += 1
        print(
            f"faulty | {name} | {fault.said} | {moved:.1e} | {kind} | {'; '.join(one.said for one in found)}",
            flush=True,
        )
    print(dict(honest), dict(faulty))


if __name__ == "__main__":
    main()
