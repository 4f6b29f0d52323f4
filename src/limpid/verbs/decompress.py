"""`limpid decompress`: a compressed file, back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from limpid.config.flags import read
from limpid.config.threads import Threads


@dataclass(frozen=True)
class DecompressFlags(Threads):
    """Give back a file that limpid compressed.

    limpid decompress book.txt.limpid
    """

    file: str = field(default="-", metadata={"positional": "FILE"})
    """File to decompress; - for standard input."""
    model: str | None = None
    """The model that it was compressed with; the one that the file names when left out."""
    output: str | None = field(default=None, metadata={"short": "o"})
    """File to write, - for standard output; FILE without .limpid when left out."""
    force: bool = field(default=False, metadata={"short": "f"})
    """Replace a file that exists."""
    json: bool = False
    """Print one JSON object."""


def verb(argv: Sequence[str]) -> int:
    flags = read("decompress", DecompressFlags, argv)
    from limpid.compression.files import decompress
    from limpid.verbs.compress import reporter_beside

    with reporter_beside(flags.file, flags.output, flags.json) as reporter:
        given = decompress(flags.file, flags.output, model=flags.model, force=flags.force, reporter=reporter)
        reporter.document(given.document())
        source = "standard input" if flags.file == "-" else flags.file
        where = "standard output" if given.file is None else str(given.file)
        reporter.line(f"{source} → {where}: {given.bytes:,} bytes, as they were")
    return 0
