"""`limpid compress`: a file of any bytes, compressed by a model's predictions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from limpid.config import WeightFormat
from limpid.config.flags import read
from limpid.config.threads import Threads

if TYPE_CHECKING:
    from limpid.reporter import Reporter


@dataclass(frozen=True)
class CompressFlags(Threads):
    """Compress a file of any bytes with a model's predictions: a token of probability p costs -log₂ p bits.

    The original comes back bit for bit on a processor of the same kind, with the same model. Size beside the
    cross-entropy, and beside gzip, xz and zstd, is reported.

    limpid compress last book.txt              writes book.txt.limpid
    cat log | limpid compress last - > log.limpid
    """

    what: str = field(metadata={"positional": "MODEL"})
    """Run, name under runs/, `last`, Hugging Face folder or ORG/NAME; an adapter, or MODEL+ADAPTER."""
    file: str = field(default="-", metadata={"positional": "FILE"})
    """File to compress; - for standard input."""
    output: str | None = field(default=None, metadata={"short": "o"})
    """File to write, - for standard output; FILE.limpid when left out."""
    weights: WeightFormat = "auto"
    """Format in which matrices are read: fp32, bf16 (faster), int8; recorded in the file; auto loses nothing."""
    force: bool = field(default=False, metadata={"short": "f"})
    """Replace a file that exists."""
    json: bool = False
    """Print one JSON object."""


def verb(argv: Sequence[str]) -> int:
    flags = read("compress", CompressFlags, argv)
    from limpid.compression.files import compress
    from limpid.compression.report import lines

    with reporter_beside(flags.file, flags.output, flags.json) as reporter:
        result = compress(
            flags.what, flags.file, flags.output, weights=flags.weights, force=flags.force, reporter=reporter
        )
        reporter.document(result.document())
        for line in lines(result, flags.file):
            reporter.line(line)
    return 0


def reporter_beside(file: str, output: str | None, as_json: bool) -> Reporter:
    """A reporter that leaves standard output to the bytes, where they go there."""
    from limpid.console import Console
    from limpid.reporter import Reporter

    is_taken = output == "-" or (output is None and file == "-")
    return Reporter(as_json, Console(file=sys.stderr if is_taken else sys.stdout))
