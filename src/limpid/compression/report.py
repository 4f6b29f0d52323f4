"""What became of a file, in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from limpid.compression import Compressed


def lines(result: Compressed, file: str) -> Iterator[str | Table]:
    """What is told of a file that was compressed."""
    source = "standard input" if file == "-" else file
    where = "standard output" if result.file is None else str(result.file)
    yield f"{source} → {where}: {result.original:,} → {result.size:,} bytes"
    if not result.original:
        return
    table = Table(box=None, pad_edge=False, show_edge=False)
    for column in ("", "bytes", "bits per byte", ""):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    ideal = result.bits / 8
    over = result.size - result.overhead - ideal
    coding = f"header and end {result.overhead}, coding {over:+,.0f} ({over / max(ideal, 1):+.2%})"
    if result.plain:
        what = "stored as it is" if result.plain == result.original else f"{result.plain:,} bytes stored as they are"
        coding = f"{what}: the model is worse than 8 bits per byte"
    table.add_row("cross-entropy", f"{ideal:,.0f}", f"{result.cross_entropy:.4f}", "the model's loss")
    table.add_row("limpid", f"{result.size:,}", f"{result.bits_per_byte:.4f}", coding)
    for name, size in result.baselines.items():
        ratio = f"{size / result.size:.2f} × limpid"
        table.add_row(name, f"{size:,}", f"{8 * size / result.original:.4f}", ratio)
    yield table
    speed = f"{result.tokens / result.seconds:,.0f} tokens/s" if result.seconds else ""
    yield f"{result.tokens:,} tokens in {result.seconds:.1f} s, {speed}"
