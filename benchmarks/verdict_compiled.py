"""Which faults inside compiled blocks a trace finds: compiled once per format, every fault in the compiled code.

At several places inside a block an array, or its gradient, is multiplied by a tensor of ones that the compiled code is
given like any other; a fault is written into that tensor. Found means that a check of a recorded step fails; placed,
that nothing outside of the block is accused.

    python benchmarks/verdict_compiled.py      takes minutes, most of them the compiler's
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "tracing"))
from planted import FAULTS, disagreements
from recorded import configuration, record

import limpid.model.attention
import limpid.model.mlp
import limpid.model.norm

HEADS, STREAM, WIDE = (4, 3, 11, 4), (4, 11, 12), (4, 11, 17)
SHAPES = {
    "attention: mixed": HEADS, "attention: query": HEADS, "attention: key": HEADS, "attention: value": HEADS,
    "RMS norm": STREAM, "RMS norm: stream": STREAM, "gate: silu": WIDE, "gate: gate": WIDE,
}  # fmt: skip
"""What each place holds, in a llama of one block: (batch, head, position, d_head), or (batch, position, width)."""
FACTORS = {name: torch.ones(shape) for name, shape in SHAPES.items()}
ONE = torch.ones(())


class Multiplied(torch.autograd.Function):
    """Multiply an array on the way forward, its gradient on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Tensor, backward: Tensor) -> Tensor:
        ctx.save_for_backward(backward)
        return (x * forward).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, bar: Tensor) -> tuple[Tensor, None, None]:
        return (bar * ctx.saved_tensors[0]).to(bar.dtype), None, None


def plant() -> None:
    """Put every place where a fault may be written into the model."""
    attention, norm, silu = (
        limpid.model.attention.short_attention, limpid.model.norm.rms_norm, limpid.model.mlp.ACTIVATIONS["silu"]
    )  # fmt: skip

    def faulty_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        heads = [Multiplied.apply(x, ONE, FACTORS[f"attention: {name}"])
                 for name, x in (("query", query), ("key", key), ("value", value))]  # fmt: skip
        return Multiplied.apply(attention(*heads, mask), FACTORS["attention: mixed"], ONE)

    def faulty_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if not torch.compiler.is_compiling():
            return norm(x, weight, eps)
        return Multiplied.apply(norm(Multiplied.apply(x, ONE, FACTORS["RMS norm: stream"]), weight, eps),
                                FACTORS["RMS norm"], ONE)  # fmt: skip

    def faulty_silu(x: Tensor) -> Tensor:
        return Multiplied.apply(silu(Multiplied.apply(x, ONE, FACTORS["gate: gate"])), FACTORS["gate: silu"], ONE)

    limpid.model.attention.short_attention = faulty_attention
    limpid.model.norm.rms_norm = faulty_norm
    limpid.model.mlp.ACTIVATIONS["silu"] = lambda x: faulty_silu(x) if torch.compiler.is_compiling() else silu(x)


def found(folder: Path, precision: str) -> list[str]:
    config = configuration("llama", precision)
    config = replace(config, model=replace(config.model, num_layers=1), run=replace(config.run, compile="on"))
    return disagreements(record(folder, config, before=0))


def outcome(names: list[str]) -> str:
    if not names:
        return "-"
    return "found" if all(name.startswith(("blocks.0.", "embed.")) for name in names) else f"elsewhere: {names}"


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    plant()
    console = Console(width=160)
    with tempfile.TemporaryDirectory() as folder:
        for precision in ("fp32", "bf16", "fp16"):
            honest = found(Path(folder), precision)
            table = Table("inside the block", *FAULTS, title=f"{precision}; without a fault accused: {honest}")
            for name, factor in FACTORS.items():
                cells = []
                for fault in FAULTS.values():
                    drawn = torch.randn(factor.shape, generator=torch.Generator().manual_seed(0))
                    factor.copy_(fault(drawn) / drawn)
                    cells.append(outcome(found(Path(folder), precision)))
                    factor.fill_(1.0)
                table.add_row(name, *cells)
            console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
