"""Which faults of fused kernels a trace finds, and how small they may be; and that honest kernels are never accused.

Every result of every kernel, forward and backward, is multiplied by 1 + fault, in a model of one block; so is every
result of an update and of a kernel of the decoder. Found means that a check fails; pinned, that no other quantity than
the kernel's own is accused.

    python benchmarks/verdict.py kernels [WORDS]   of a step; of those alone whose name begins with WORDS
    python benchmarks/verdict.py updates           of one matrix, by every rule
    python benchmarks/verdict.py decoder           of one position at a time, matrices read in every format
    python benchmarks/verdict.py honest 200        so many random configurations without any fault; a seed to begin with
                                                   and a number of processes may follow
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from honest import honest
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "tracing"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "comparison"))
import planted_update
import test_decoder_faults as decoder
from planted import RESULTS, SAMPLED_RESULTS, disagreements, pinned, planted, times
from recorded import configuration, record

import limpid.model.kernels.attention

SIZES = (0.03, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)
PRECISIONS = ("fp32", "bf16", "fp16")
WEIGHTS = ("fp32", "bf16", "int8")


def smallest(found_and_pinned: Callable[[float], bool]) -> str:
    """The smallest fault of `SIZES` that is found and pinned, with all larger ones."""
    least = "none"
    for size in SIZES:
        if not found_and_pinned(size):
            break
        least = f"{100 * size:g}%"
    return least


@contextmanager
def attention_up_to(positions: int) -> Iterator[None]:
    """Beyond so many positions PyTorch's own attention runs."""
    with pytest.MonkeyPatch.context() as model:
        model.setattr(limpid.model.kernels.attention, "materialised_positions", lambda itemsize: positions)
        yield


def of_kernel(folder: Path, name: str, precision: str) -> str:
    result = (RESULTS | SAMPLED_RESULTS)[name]
    config = configuration(result.variant, precision)
    config = replace(config, model=replace(config.model, num_layers=1))

    def tried(size: float) -> bool:
        with planted(result, times(1 + size)), attention_up_to(1 if name in SAMPLED_RESULTS else 512):
            return pinned(result, disagreements(record(folder, config, before=0)))

    return smallest(tried)


def of_update(folder: Path, rule: str, result: str) -> str:
    config = configuration("llama", "fp32", rule=rule)
    config = replace(config, model=replace(config.model, num_layers=1))
    name = "blocks.0.mlp.up.weight"

    def tried(size: float) -> bool:
        with planted_update.planted(rule, result, {name: times(1 + size)}):
            found = planted_update.disagreements(record(folder, config, before=2))
        return bool(found) and {planted_update.parameter(number) for number in found} == {name}

    return smallest(tried)


def of_decoder(name: str, weights_read: str) -> str:
    result = decoder.RESULTS[name]

    def tried(size: float) -> bool:
        with decoder.planted(result, times(1 + size)):
            found = decoder.wrong(decoder.observed(decoder.model(), weights_read=weights_read))
        return bool(found) and all(one.endswith(result.blamed) for one in found)

    return smallest(tried)


def tables(folder: Path, what: str, words: str) -> Table:
    if what == "updates":
        table = Table("update: result", "any format")
        for rule, result in planted_update.RESULTS:
            table.add_row(f"{rule}: {result}", of_update(folder, rule, result))
    elif what == "decoder":
        table = Table("decoder: result", *WEIGHTS)
        for name in decoder.RESULTS:
            table.add_row(name, *(of_decoder(name, weights_read) for weights_read in WEIGHTS))
    else:
        table = Table("kernel: result", *PRECISIONS)
        for name in RESULTS | SAMPLED_RESULTS:
            if name.startswith(words):
                table.add_row(name, *(of_kernel(folder, name, precision) for precision in PRECISIONS))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kernels", "updates", "decoder", "honest"))
    parser.add_argument("rest", nargs="*", help="the WORDS, or how many, the first seed, processes")
    given, console = parser.parse_args(), Console()
    if given.what == "honest":
        count, first, processes = (*map(int, given.rest), *(200, 0, 1)[len(given.rest) :])
        return honest(first, count, console, processes) > 0
    with tempfile.TemporaryDirectory() as folder:
        console.print(tables(Path(folder), given.what, " ".join(given.rest)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
