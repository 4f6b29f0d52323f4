"""A file's bytes become text: decompressed, decoded, judged by the byte that shows what they are not."""

from __future__ import annotations

import bz2
import codecs
import gzip
import itertools
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import zstandard

from limpid.errors import DataError
from limpid.files import one_line

READ_SIZE = 1 << 20  # bytes read at once
OPENED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
"""Endings of compressed files that the standard library reads."""
COMPRESSED = (*OPENED, ".zst")


class NotText(DataError):
    """A file's bytes are no text."""


class NoText(DataError):
    """A file holds nothing but white space."""


def bytes_of(path: Path, name: str) -> Iterator[bytes]:
    """The bytes of a file, decompressed; raises DataError where it cannot be read."""
    try:
        if path.suffix == ".zst":
            yield from _zstandard(path)
        else:
            with OPENED.get(path.suffix, _opened)(path) as stream:
                yield from iter(lambda: stream.read(READ_SIZE), b"")
    except EOFError as error:
        raise DataError(
            f"{name} is cut short: its {path.suffix} data ends too early; copy or download it again"
        ) from error
    except (OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise DataError(f"cannot read {name}: {error.strerror}; check its permissions or leave it out") from error
        raise DataError(
            f"{name} does not decompress ({one_line(error)}): "
            f"copy or download it again, or drop {path.suffix} from its name if it is not compressed"
        ) from error


def _opened(path: Path) -> IO[bytes]:
    return path.open("rb")


def _zstandard(path: Path) -> Iterator[bytes]:
    """Frame after frame. The library's own stream takes a file that is cut short for a whole one."""
    found, whole = bytearray(), True
    with path.open("rb") as stream:
        while block := stream.read(64):  # little at once: a few bytes may stand for a block of 128 KiB
            while block:
                if whole:
                    frame = zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj()
                found += frame.decompress(block)
                whole = frame.eof
                block = frame.unused_data if whole else b""
            if len(found) >= READ_SIZE:
                yield bytes(found)
                found.clear()
    if not whole:
        raise EOFError
    yield bytes(found)


def decoded(blocks: Iterator[bytes], name: str) -> Iterator[str]:
    """Text of blocks of UTF-8, without a byte-order mark."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    position = 0  # bytes decoded
    for block in itertools.chain(blocks, [b""]):
        waiting = decoder.getstate()[0]
        if (nul := block.find(b"\0")) >= 0:
            raise NotText(
                f"{name} is not text: byte {position + len(waiting) + nul} is NUL; "
                "leave it out, or save it as UTF-8 if an editor wrote it as UTF-16"
            )
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            offset = position + error.start
            raise NotText(
                f"{name} is not UTF-8: byte {offset} is 0x{error.object[error.start]:02x} ({error.reason}); "
                "leave it out, or convert it, for example with iconv -t UTF-8"
            ) from error
        yield text.removeprefix("\ufeff") if position == 0 else text
        position += len(waiting) + len(block) - len(decoder.getstate()[0])
