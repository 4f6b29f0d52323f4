"""Which faults of fused kernels a trace finds, and how small they may be; and that honest kernels are never accused.

Every result of every kernel, forward and backward, is multiplied by 1 + fault, in a model of one block. Found means
that a check of a recorded step fails; pinned, that no other quantity than the kernel's own is accused.

    python benchmarks/verdict.py            the table
    python benchmarks/verdict.py honest 200 so many random configurations without any fault; a seed to begin with and a
                                            number of processes may follow
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from honest import honest
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "trace"))
from planted import RESULTS, disagreements, pinned, planted, times
from recorded import configuration, record

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


def main() -> int:
    console = Console()
    if sys.argv[1:2] == ["honest"]:
        count, first, processes = (*map(int, sys.argv[2:5]), *(0, 1)[len(sys.argv) - 3 :])
        return honest(first, count, console, processes) > 0
    with tempfile.TemporaryDirectory() as folder:
        table = Table("kernel: result", *PRECISIONS, title="the smallest fault found and pinned")
        for name in RESULTS:
            table.add_row(name, *(smallest(Path(folder), name, precision) for precision in PRECISIONS))
        console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
