"""Planned against measured memory of training, in more sizes than the tests have time for.

Measured: the peak of all tensors in one step, from PyTorch's profiler on a processor.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from limpid.plan import engine_memory
from limpid.plan.figure import shown
from plan.measured import configured, peak_bytes

SIZES = (
    {"d_model": 192, "num_layers": 4, "num_heads": 6, "context_length": 128, "batch_size": 16, "vocab_size": 2048},
    {"d_model": 384, "num_layers": 6, "num_heads": 6, "context_length": 256, "batch_size": 8, "vocab_size": 4096},
    {"d_model": 512, "num_layers": 8, "num_heads": 8, "context_length": 512, "batch_size": 2, "vocab_size": 8192},
    {"d_model": 512, "num_layers": 8, "num_heads": 8, "context_length": 1024, "batch_size": 1, "vocab_size": 8192},
)


def main() -> None:
    print(f"{'configuration':56} {'planned':>10} {'measured':>10}   off")
    for size in SIZES:
        for precision in ("fp32", "bf16"):
            for accumulation in (1, 2):
                config = configured(**size, precision=precision, gradient_accumulation_steps=accumulation)
                planned = next(one.value for one in engine_memory.figures(config) if one.name == "memory.total")
                measured = peak_bytes(config)
                rows = f"{size['batch_size']} × {size['context_length']} tokens"
                name = (f"{size['num_layers']} × {size['d_model']}, {rows}, "
                        f"{precision}, {accumulation} micro-batches")  # fmt: skip
                off = 100 * (planned / measured - 1)
                print(
                    f"{name:56} {shown(planned, 'bytes'):>10} {shown(measured, 'bytes'):>10}   {off:+.2f} %", flush=True
                )


if __name__ == "__main__":
    main()
