"""Compression of any file by a model's predictions: a token of probability p costs -log₂ p bits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from limpid.config import WeightFormat
from limpid.errors import CheckpointError
from limpid.html import table, titled
from limpid.reporter import SILENT, Reporter

if TYPE_CHECKING:
    from limpid.compression.container import Header
    from limpid.data.tokenizer import Tokenizer
    from limpid.model import Transformer


@dataclass(frozen=True, repr=False)
class Compressed:
    """What a file became."""

    model: str
    original: int  # bytes
    size: int  # bytes of the compressed file, all of it
    overhead: int  # of these, bytes that an empty file needs too: header and end
    bits: float  # Σ -log₂ p: the model's cross-entropy of the whole; 8 for each byte that no token stands for
    plain: int  # bytes of parts that are stored as they are, since the model needs more than 8 bits per byte there
    tokens: int
    seconds: float
    baselines: dict[str, int]  # bytes by other compressors
    file: Path | None = None  # the compressed one; None for a stream

    @property
    def bits_per_byte(self) -> float:
        return 8 * self.size / self.original if self.original else 0.0

    @property
    def cross_entropy(self) -> float:
        """Bits per byte."""
        return self.bits / self.original if self.original else 0.0

    def __repr__(self) -> str:
        return f"Compressed({self.original:,} → {self.size:,} bytes, {self.bits_per_byte:.4f} bits per byte)"

    def _repr_html_(self) -> str:
        sizes = {"cross-entropy": self.bits / 8, "limpid": self.size, **self.baselines}
        rows = ((name, f"{size:,.0f}", f"{8 * size / max(1, self.original):.4f}") for name, size in sizes.items())
        title = f"{self.original:,} bytes, {self.tokens:,} tokens of {self.model}"
        return titled(title, table(rows, ("", "bytes", "bits per byte"), numbers=(1, 2)))

    def document(self) -> dict[str, Any]:
        """As plain values: what `limpid compress --json` prints."""
        return {
            "model": self.model,
            "file": None if self.file is None else str(self.file),
            "bytes": self.original,
            "compressed": self.size,
            "header_and_end": self.overhead,
            "bits_per_byte": self.bits_per_byte,
            "cross_entropy_bits_per_byte": self.cross_entropy,
            "stored_as_they_are": self.plain,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens / self.seconds if self.seconds else None,
            "baselines": self.baselines,
        }


@dataclass(frozen=True)
class Decompressed:
    """A file that was given back."""

    model: str
    bytes: int
    file: Path | None  # None for standard output

    def document(self) -> dict[str, Any]:
        """As plain values: what `limpid decompress --json` prints."""
        return {"file": None if self.file is None else str(self.file), "bytes": self.bytes, "model": self.model}


def compress_stream(
    model: Transformer,
    tokenizer: Tokenizer,
    start: int | None,
    source: BinaryIO,
    target: BinaryIO,
    *,
    name: str,
    weights: WeightFormat = "auto",
    compare: bool = True,
    reporter: Reporter = SILENT,
    expected: int | None = None,
) -> Compressed:
    """Compress a stream of any bytes, part by part; memory stays near one part.

    start     token that stands before the text
    weights   format in which matrices are read; narrower ones are faster, and recorded in the file
    compare   also measure what gzip, xz and zstd make of it
    expected  bytes to come, for the report
    """
    import time

    from limpid.compression.baselines import Baselines
    from limpid.compression.coder import Compressor, chunks
    from limpid.compression.container import Header, digest_of_all, write_end, write_frame, write_header
    from limpid.compression.lossless_tokenizer import LosslessTokenizer
    from limpid.compression.predictor import Predictor, model_hash

    predictor = Predictor(model, start, weights)
    header = Header(model_hash(model, tokenizer, start), predictor.probe(), weights, name)
    size = overhead = write_header(target, header)
    start_time, total, digest, baselines = time.perf_counter(), 0, digest_of_all(), Baselines() if compare else None
    per_token = 4.0  # bytes, a first guess for the bar

    def advance(tokens: int) -> None:
        reporter.progress("compressing", min(int(tokens * per_token), expected or 2**62), expected)

    compressor = Compressor(predictor, LosslessTokenizer(tokenizer), advance)
    for content in chunks(source):
        size += write_frame(target, compressor.frame(content))
        total += len(content)
        digest.update(content)
        if baselines is not None:
            baselines.add(content)
        per_token = total / max(1, compressor.tokens)
        advance(compressor.tokens)
    end = write_end(target, total, digest.digest())
    seconds = time.perf_counter() - start_time
    return Compressed(
        name, total, size + end, overhead + end, compressor.bits, compressor.plain, compressor.tokens, seconds,
        {} if baselines is None else baselines.finish(),
    )  # fmt: skip


def decompress_stream(
    model: Transformer,
    tokenizer: Tokenizer,
    start: int | None,
    source: BinaryIO,
    target: BinaryIO,
    *,
    where: str,
    header: Header | None = None,
    reporter: Reporter = SILENT,
) -> int:
    """Give back what was compressed; returns its length in bytes. A header that was read already is given.

    Raises  CheckpointError for another model, or a machine that predicts differently; DataError for a damaged file
    """
    from limpid.compression.coder import PREDICTIONS_DIFFER, Decompressor
    from limpid.compression.container import Frame, digest_of_all, frames, read_header
    from limpid.compression.lossless_tokenizer import LosslessTokenizer
    from limpid.compression.predictor import Predictor, model_hash
    from limpid.errors import DataError

    header = header or read_header(source, where)
    own = model_hash(model, tokenizer, start)
    if own != header.model:
        raise CheckpointError(
            f"{where} was compressed with another model: {header.name}, {header.model.hex()[:12]}, but this one is "
            f"{own.hex()[:12]}; give that one with --model"
        )
    predictor = Predictor(model, start, header.weights)
    if predictor.probe() != header.probe:
        raise CheckpointError(f"{where}: {PREDICTIONS_DIFFER}")
    total, digest, decompressor = 0, digest_of_all(), Decompressor(predictor, LosslessTokenizer(tokenizer))
    for part in frames(source, where):
        if isinstance(part, Frame):
            content = decompressor.content(part)
            target.write(content)
            digest.update(content)
            total += len(content)
            reporter.progress("decompressing", total, None)
        elif part != (total, digest.digest()):
            raise DataError(f"{where} is damaged: the whole does not match its checksum; copy it again")
    return total
