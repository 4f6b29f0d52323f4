"""The file: a header that names the model, frames that each stand for some bytes, an end. docs/compressed.md."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from limpid.config import WeightFormat
from limpid.errors import DataError

MAGIC = b"\x89limpid\n"
VERSION = 1
FORMATS: tuple[WeightFormat, ...] = ("auto", "fp32", "bf16", "int8")
END, CODED, PLAIN = 0, 1, 2
"""Kinds of frames: the end, coded by the model, bytes as they are."""
LONGEST = 1 << 26
"""Bytes that a frame can hold, so that a damaged length asks for no more memory."""


@dataclass(frozen=True)
class Header:
    """What is needed to open the file."""

    model: bytes  # 16: hash of weights, sizes and tokenizer
    probe: bytes  # 8: hash of predictions on the machine that compressed
    weights: WeightFormat
    name: str  # what the model was called there


@dataclass(frozen=True)
class Frame:
    """Some bytes of the original."""

    kind: int
    size: int  # bytes of the original
    check: int  # CRC-32 of the original
    payload: bytes


def write_header(stream: BinaryIO, header: Header) -> int:
    """Returns the number of bytes written."""
    name = header.name.encode()[:255].decode(errors="ignore").encode()
    fixed = struct.pack("<BB", VERSION, FORMATS.index(header.weights))
    return stream.write(MAGIC + fixed + header.model + header.probe + bytes([len(name)]) + name)


def read_header(stream: BinaryIO, where: str) -> Header:
    """Raises  DataError when this is no compressed file, or of another version"""
    if _read(stream, len(MAGIC), where, begun=False) != MAGIC:
        raise DataError(f"{where} was not made by limpid compress: give a file that was")
    version, weights = _read(stream, 2, where)
    if version != VERSION or weights >= len(FORMATS):
        raise DataError(f"{where} has format version {version}; this limpid reads {VERSION}: use a newer limpid")
    model, probe = _read(stream, 16, where), _read(stream, 8, where)
    name = _read(stream, _read(stream, 1, where)[0], where)
    return Header(model, probe, FORMATS[weights], name.decode(errors="replace"))


def write_frame(stream: BinaryIO, frame: Frame) -> int:
    """Returns the number of bytes written."""
    lengths = struct.pack("<BII", frame.kind, frame.size, len(frame.payload))
    checks = struct.pack("<II", frame.check, zlib.crc32(lengths + frame.payload))
    return stream.write(lengths + checks + frame.payload)


def write_end(stream: BinaryIO, total: int, digest: bytes) -> int:
    """Length and hash of the whole original; returns the number of bytes written."""
    return stream.write(struct.pack("<BQ", END, total) + digest)


def frames(stream: BinaryIO, where: str) -> Iterator[Frame | tuple[int, bytes]]:
    """Every frame, then length and hash of the whole.

    Raises  DataError when the file is cut short, damaged, or goes on after its end
    """
    while (kind := _read(stream, 1, where)[0]) in (CODED, PLAIN):
        lengths = bytes([kind]) + _read(stream, 8, where)
        size, length = struct.unpack("<xII", lengths)
        check, own = struct.unpack("<II", _read(stream, 8, where))
        payload = _read(stream, length, where) if max(length, size) <= LONGEST else b""
        if zlib.crc32(lengths + payload) != own:
            raise DataError(f"{where} is damaged: a frame does not match its checksum; copy it again")
        yield Frame(kind, size, check, payload)
    if kind != END:
        raise DataError(f"{where} is damaged: there is no frame of kind {kind}; copy it again")
    (total,) = struct.unpack("<Q", _read(stream, 8, where))
    digest = _read(stream, digest_of_all().digest_size, where)
    if stream.read(1):
        raise DataError(f"{where} goes on after its end: it was damaged, or something was added; copy it again")
    yield total, digest


def digest_of_all() -> hashlib.blake2b:
    """The hash of the whole original, still empty."""
    return hashlib.blake2b(digest_size=8)


def _read(stream: BinaryIO, count: int, where: str, begun: bool = True) -> bytes:
    """Read exactly `count` bytes.

    Raises  DataError when the stream ends before
    """
    parts = bytearray()
    while len(parts) < count and (part := stream.read(count - len(parts))):
        parts += part
    if len(parts) < count and begun:
        raise DataError(f"{where} is cut short: copy it again")
    return bytes(parts)
