"""How long a command takes to answer: fresh interpreters, in turn with one that imports nothing.

python benchmarks/startup.py
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from rich.console import Console
from rich.table import Table

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "limpid --help": ["-c", "import sys; from limpid.cli import main; sys.exit(main(['--help']))"],
    "limpid train --help": ["-c", "import sys; from limpid.cli import main; sys.exit(main(['train', '--help']))"],
    "import limpid": ["-c", "import limpid"],
}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(11):
        for name, arguments in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
            seconds[name].append(time.perf_counter() - start)
    table = Table("command", "ms, median of 11", "fastest … slowest")
    for name, taken in seconds.items():
        table.add_row(name, f"{1e3 * statistics.median(taken):.0f}", f"{1e3 * min(taken):.0f} … {1e3 * max(taken):.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
