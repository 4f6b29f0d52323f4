"""Planned against measured memory of training, in more sizes than the tests have time for.

Measured: the peak of all tensors in one step, from PyTorch's profiler on a processor. With `process`: what the process
holds beside them, which is Python and PyTorch, and what the C library's heap keeps of tensors that were freed.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from limpid.machine import process_peak
from limpid.planning import engine_memory
from limpid.planning.figure import shown
from planning.measured import configured, peak_bytes

SIZES = (
    {"d_model": 192, "num_layers": 4, "num_heads": 6, "context_length": 128, "batch_size": 16, "vocab_size": 2048},
    {"d_model": 384, "num_layers": 6, "num_heads": 6, "context_length": 256, "batch_size": 8, "vocab_size": 4096},
    {"d_model": 512, "num_layers": 8, "num_heads": 8, "context_length": 512, "batch_size": 2, "vocab_size": 8192},
    {"d_model": 512, "num_layers": 8, "num_heads": 8, "context_length": 1024, "batch_size": 1, "vocab_size": 8192},
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("tensors", "process"), default="tensors")
    {"tensors": tensors, "process": process}[parser.parse_args().what]()


def tensors() -> None:
    """The peak of all tensors in one step."""
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


def process() -> None:
    """The peak of the process in two steps, each size in a child of its own."""
    started = process_peak() or 0
    print(f"Python, PyTorch and limpid: {shown(started, 'bytes')}")
    print(f"{'rows':>6} {'tensors, planned':>18} {'process':>10}   more, over planned tensors", flush=True)
    for rows in (8, 16, 32, 64):
        size = {"d_model": 256, "num_layers": 6, "num_heads": 8, "context_length": 256, "vocab_size": 2048}
        config = configured(**size, batch_size=rows)
        planned = engine_memory.total_bytes(config)
        if (child := os.fork()) == 0:
            peak_bytes(config)
            held = process_peak() or 0
            print(
                f"{rows:>6} {shown(planned, 'bytes'):>18} {shown(held, 'bytes'):>10}   {(held - started) / planned:.2f}"
            )
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
