"""A range coder driven by the model's predictions: chunks of bytes to frames and back.

The range coder is constriction's (Bamler 2022, arXiv:2201.01741), after Pasco 1976 and Martin 1979: a token of
probability p narrows the interval by p, so all of them together need Σ -log₂ p bits and at most two words of 32 more.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import constriction
import numpy as np

from limpid.compression.container import CODED, PLAIN, Frame
from limpid.compression.lossless_tokenizer import LosslessTokenizer, Segment
from limpid.compression.predictor import Predictor
from limpid.errors import DataError

CHUNK = 1 << 18
"""Bytes of the original per frame, at most."""
STOP, TOKENS, BYTES = 0, 1, 2
"""What a segment is; STOP ends a frame."""
REPORT_EVERY = 64
"""Tokens between reports of progress."""
KIND = constriction.stream.model.Uniform(3)
LENGTH = constriction.stream.model.Uniform(32)  # bits of a count
BYTE = constriction.stream.model.Uniform(256)
WORD = np.dtype("<u4")

Encoder = Any  # constriction's classes carry no types
Decoder = Any


def chunks(stream: BinaryIO) -> Iterator[bytes]:
    """The stream in parts that end with a line, or at least with a character."""
    waiting = b""
    while True:
        part = stream.read(CHUNK - len(waiting))
        waiting += part
        if part and len(waiting) < CHUNK:
            continue
        if not part:
            if waiting:
                yield waiting
            return
        cut = waiting.rfind(b"\n", CHUNK // 2) + 1 or _character_end(waiting)
        yield waiting[:cut]
        waiting = waiting[cut:]


def _character_end(content: bytes) -> int:
    """How many bytes are whole characters of UTF-8, if they are any."""
    for back in range(1, 4):
        if content[-back] >= 0xC0:  # the first byte of a character of several
            return len(content) - back
        if content[-back] < 0x80:
            break
    return len(content)


class Compressor:
    """Turns chunks into frames, and counts what they should have cost."""

    def __init__(
        self, predictor: Predictor, tokenizer: LosslessTokenizer, advance: Callable[[int], None] | None = None
    ) -> None:
        self.predictor, self.tokenizer, self.advance = predictor, tokenizer, advance
        self.bits = 0.0  # Σ -log₂ p of the model's tokens, and 8 for each byte that no token stands for
        self.tokens = 0
        self.plain = 0  # bytes of chunks that are stored as they are

    def frame(self, content: bytes) -> Frame:
        """The chunk, coded; or as it is, where that is shorter."""
        coded = self.coded(content)
        if len(coded.payload) < len(content):
            return coded
        self.predictor.reset()  # the decompressor does not read these tokens
        self.plain += len(content)
        return Frame(PLAIN, len(content), coded.check, content)

    def coded(self, content: bytes) -> Frame:
        """The chunk by the model's predictions, however long that is."""
        encoder = constriction.stream.queue.RangeEncoder()
        for segment in self.tokenizer.segments(content):
            self.bits += self._segment(encoder, segment)
        encoder.encode(STOP, KIND)
        payload = encoder.get_compressed().astype(WORD).tobytes()
        return Frame(CODED, len(content), zlib.crc32(content), payload)

    def _segment(self, encoder: Encoder, segment: Segment) -> float:
        """Code one segment; returns the bits that it should cost."""
        encoder.encode(BYTES if isinstance(segment, bytes) else TOKENS, KIND)
        _encode_count(encoder, len(segment))
        if isinstance(segment, bytes):
            encoder.encode(np.frombuffer(segment, np.uint8).astype(np.int32), BYTE)
            return 8.0 * len(segment)
        bits = 0.0
        for token in segment:
            weights = self.predictor.weights()
            encoder.encode(token, _model(weights))
            bits -= math.log2(max(float(weights[token]), 1e-45) / float(weights.sum(dtype=np.float64)))
            self.predictor.append(token)
            self.tokens += 1
            if self.advance is not None and self.tokens % REPORT_EVERY == 0:
                self.advance(self.tokens)
        return bits


class Decompressor:
    """Turns frames into chunks."""

    def __init__(
        self, predictor: Predictor, tokenizer: LosslessTokenizer, advance: Callable[[int], None] | None = None
    ) -> None:
        self.predictor, self.tokenizer, self.advance = predictor, tokenizer, advance
        self.tokens = 0

    def content(self, frame: Frame) -> bytes:
        """The chunk that a frame stands for.

        Raises  DataError when it is not what was compressed: this machine predicts differently
        """
        try:
            content = frame.payload if frame.kind == PLAIN else self._decoded(frame)
        except (ValueError, KeyError, UnicodeEncodeError, AssertionError) as error:
            raise DataError(PREDICTIONS_DIFFER) from error
        if len(content) != frame.size or zlib.crc32(content) != frame.check:
            raise DataError(PREDICTIONS_DIFFER)
        if frame.kind == PLAIN:
            self.predictor.reset()
        return content

    def _decoded(self, frame: Frame) -> bytes:
        if len(frame.payload) % WORD.itemsize:
            raise ValueError("not whole words")
        decoder = constriction.stream.queue.RangeDecoder(np.frombuffer(frame.payload, WORD).astype(np.uint32))
        content = bytearray()
        while (kind := decoder.decode(KIND)) != STOP:
            count = _decode_count(decoder)
            if len(content) > frame.size or count > 4 * frame.size:
                raise ValueError("more bytes than the original has")
            if kind == BYTES:
                content += np.asarray(decoder.decode(BYTE, count)).astype(np.uint8).tobytes()
            else:
                content += self.tokenizer.bytes_of([self._token(decoder) for _ in range(count)])
        return bytes(content)

    def _token(self, decoder: Decoder) -> int:
        token = int(decoder.decode(_model(self.predictor.weights())))
        self.predictor.append(token)
        self.tokens += 1
        if self.advance is not None and self.tokens % REPORT_EVERY == 0:
            self.advance(self.tokens)
        return token


PREDICTIONS_DIFFER = (
    "the model's predictions on this machine are not those that the file was compressed with: decompress with the "
    "version of limpid that compressed it, and if that is this one, on the machine that did"
)


def _model(weights: np.ndarray) -> Any:
    """Probabilities as whole multiples of 2⁻²⁴, none 0, from the same bits always the same."""
    return constriction.stream.model.Categorical(weights, lazy=True, perfect=False)


def _encode_count(encoder: Encoder, count: int) -> None:
    """A positive number: how many bits it has, then those below its first."""
    length = count.bit_length() - 1
    encoder.encode(length, LENGTH)
    if length:
        encoder.encode(count - (1 << length), constriction.stream.model.Uniform(1 << length))


def _decode_count(decoder: Decoder) -> int:
    length = int(decoder.decode(LENGTH))
    if length > 24:
        raise ValueError("a count of more than 24 bits")
    return (1 << length) + (int(decoder.decode(constriction.stream.model.Uniform(1 << length))) if length else 0)
