"""Malformed inputs: a valid one, changed where its format has joints, else anywhere in its bytes."""

import json
import random
import struct
from collections.abc import Callable
from typing import Any

STRANGE: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 0.5, -0.0, 1e-320, 2**31, 2**63, 10**30, -(10**30), 1e308,
    float("nan"), float("inf"),
    "", "12", "nonsense", "none", "x" * 5000, "\x1b[2J", "\udfff", "a\nb", "../..", [], {}, [[[]]], [None], {"": 0},
)  # fmt: skip
"""What stands in the place of a value."""
TOML = (
    "", "none", "true", "-1", "0", "1e400", "nan", "-inf", "9223372036854775808", '""', '"none"', "[]", "[[]]", "{}",
    "[1, 'a']", "1979-05-27", '"\\u0000"', "0x10", "'''", "1_000",
)  # fmt: skip
DEEP = 3
Form = Callable[[bytes, random.Random], bytes]


def raw(data: bytes, rng: random.Random) -> bytes:
    """Bits, bytes and stretches changed, left out, doubled, moved."""
    content = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at, size = rng.randrange(len(content) + 1), rng.choice((1, 1, 2, 4, 8, 64))
        how = rng.randrange(6)
        if how == 0 and at < len(content):
            content[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            content[at:at] = rng.randbytes(size)
        elif how == 2:
            del content[at : at + size]
        elif how == 3:
            content[at : at + size] = rng.choice((bytes(size), b"\xff" * size, b"\xf0\x9f", b"\n", b"9" * size))
        elif how == 4:
            content[at:at] = content[at : at + size] * rng.choice((1, 2, 50))
        else:
            del content[at:]
    return bytes(content)


def stretched(data: bytes, rng: random.Random) -> bytes:
    """A few bytes of it, or some that stand between words, so often that what takes their square or more is slow."""
    at = rng.randrange(len(data) + 1)
    few = rng.choice((data[at : at + rng.choice((1, 2, 4, 16))], b" ", b"a", b"1", b"[", b"(", b"\n", b"a ", b"1,"))
    return data[:at] + few * rng.choice((30, 200, 3_000, 20_000)) + data[at:]


def value(plain: Any, rng: random.Random) -> Any:
    """A document with one thing in it changed."""
    if not isinstance(plain, dict | list) or not plain or rng.random() < 0.1:
        if type(plain) in (int, float) and rng.random() < 0.5:
            return rng.choice((plain + 1, -plain, plain * 2, plain // 3, str(plain)[:20], [plain]))
        return rng.choice(STRANGE)
    keys: list[Any] = [*plain] if isinstance(plain, dict) else [*range(len(plain))]
    key, how = rng.choice(keys), rng.randrange(8)
    changed: Any = {**plain} if isinstance(plain, dict) else [*plain]
    if how == 0:
        del changed[key]
    elif how == 1:
        changed[key] = changed[rng.choice(keys)]
    elif how == 2 and isinstance(changed, dict):
        changed[rng.choice((f"{key}x", "", "text", "__proto__"))] = changed.pop(key)
    elif how == 2:
        changed.insert(key, changed[key])
    else:
        changed[key] = value(changed[key], rng)
    return changed


def json_form(data: bytes, rng: random.Random) -> bytes:
    """JSON that is JSON still."""
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError):
        return raw(data, rng)
    for _ in range(rng.choice((1, 1, 1, 2, DEEP))):
        plain = value(plain, rng)
    return json.dumps(plain).encode()


def by_line(form: Form) -> Form:
    """A line of several changed by another form; or lines left out, doubled, exchanged."""

    def changed(data: bytes, rng: random.Random) -> bytes:
        lines = data.split(b"\n")
        at, how = rng.randrange(len(lines)), rng.randrange(10)
        if how == 0:
            del lines[at]
        elif how == 1:
            lines.insert(at, lines[at])
        elif how == 2:
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        else:
            lines[at] = form(lines[at], rng)
        return b"\n".join(lines)

    return changed


def _assignment(line: bytes, rng: random.Random) -> bytes:
    key, _, _ = line.partition(b"=")
    return key + b"= " + rng.choice(TOML).encode() if b"=" in line else raw(line, rng)


def _cells(line: bytes, rng: random.Random) -> bytes:
    cells = line.split(b",")
    cells[rng.randrange(len(cells))] = str(rng.choice(STRANGE)).encode("utf-8", "surrogatepass")
    return b",".join(cells)


json_lines, toml_form, table_form = by_line(json_form), by_line(_assignment), by_line(_cells)


def safetensors_form(data: bytes, rng: random.Random) -> bytes:
    """The header of a safetensors file changed, and its length put right, mostly."""
    size = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else 0
    header, rest = data[8 : 8 + size], data[8 + size :]
    if rng.random() < 0.7:
        header = json_form(header, rng)
        header += b" " * (-len(header) % 8)
    else:
        rest = raw(rest, rng)
    length = len(header) if rng.random() < 0.95 else rng.choice((0, 2**63, len(header) + 1, 10**8))
    return struct.pack("<Q", length) + header + rest


def mutated(data: bytes, form: Form, rng: random.Random) -> bytes:
    """One malformed input."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        data = form(data, rng) if rng.random() < 0.75 else raw(data, rng)
    return data if rng.random() < 0.95 else stretched(data, rng)
