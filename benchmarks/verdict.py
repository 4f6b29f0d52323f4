"""Which faults of fused kernels a trace finds, and how small they may be; and that honest kernels are never accused.

Every result of every kernel, forward and backward, is multiplied by 1 + fault, in a model of one block. Found means
that a check of a recorded step fails; pinned, that no other quantity than the kernel's own is accused.

    python benchmarks/verdict.py            the table
    python benchmarks/verdict.py honest 200 so many random configurations without any fault
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "trace"))
from planted import RESULTS, disagreements, pinned, planted, times
from recorded import VARIANTS, configuration, record

SIZES = (0.03, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)
PRECISIONS = ("fp32", "bf16", "fp16")


def smallest(folder: Path, name: str, precision: str) -> str:
    """The smallest fault of `SIZES` that is found and pinned, with all larger ones."""
    result, least = RESULTS[name], "none"
    config = configuration(result.variant, precision)
    config = replace(config, model=replace(config.model, num_layers=1))
    for size in SIZES:
        with planted(result, times(1 + size)):
            found = disagreements(record(folder, config, before=0))
        if not pinned(result, found):
            break
        least = f"{size:.4%}".rstrip("0").rstrip(".%") + "%"
    return least


def honest(folder: Path, count: int, console: Console) -> int:
    """How many of so many random configurations were accused."""
    rng, accused = np.random.default_rng(0), 0
    for number in range(count):
        variant, precision = str(rng.choice(list(VARIANTS))), str(rng.choice(PRECISIONS))
        config = configuration(variant, precision, int(rng.integers(1, 3)))
        layers, recomputed = int(rng.integers(1, 3)), ("off", "on")[int(rng.integers(2))]
        windowed = config.model.windowed_blocks and (layers - 1,)
        model = replace(
            config.model, num_layers=layers, windowed_blocks=windowed, init_std=float(rng.choice([0.02, 0.1, 0.3, 0.6]))
        )
        run = replace(config.run, seed=number, gradient_checkpointing=recomputed)
        found = disagreements(record(folder, replace(config, model=model, run=run), before=int(rng.integers(0, 3))))
        if found:
            accused += 1
            console.print(f"{number}: {variant}, {precision}: {found[:5]}", markup=False)
    console.print(f"{accused} of {count} healthy configurations accused")
    return accused


def main() -> int:
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[1:2] == ["honest"]:
            return honest(Path(folder), int(sys.argv[2]), console) > 0
        table = Table("kernel: result", *PRECISIONS, title="the smallest fault found and pinned")
        for name in RESULTS:
            table.add_row(name, *(smallest(Path(folder), name, precision) for precision in PRECISIONS))
        console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
