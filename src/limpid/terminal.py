"""What may reach a terminal: text without anything that would command it, and command lines that a shell reads back."""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
from typing import IO, Any

COMMANDING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 and C1 controls but newline and tab, which ANSI sequences begin with; marks that turn the direction of writing;
halves of surrogate pairs, which no encoding holds. Source: ECMA-48, section 5; UAX #9, section 2."""
PICTURES = 0x2400
"""Unicode's pictures of the C0 controls begin here: ␛ for escape."""
DELETE = 0x7F


def printable(text: str) -> str:
    """The text with a visible sign, one column wide, for every character that would command a terminal."""
    return COMMANDING.sub(_picture, text)


def on_one_line(text: str) -> str:
    """The text with a visible sign for line breaks too."""
    return printable(text).replace("\n", "\u240a")


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(PICTURES + code) if code < ord(" ") else "\u2421" if code == DELETE else "\ufffd"


def say(text: str = "", end: str = "\n", file: IO[str] | None = None) -> None:
    """Print text, on standard output when no file is given."""
    print(printable(text), end=end, flush=True, file=file)


def say_json(value: Any, file: IO[str] | None = None) -> None:
    """Print a value as one line of JSON, which reads back exactly: what would command a terminal is written \\uXXXX."""
    out = file or sys.stdout
    ascii_only = not (getattr(out, "encoding", None) or "utf-8").lower().startswith("utf")
    document = json.dumps(value, ensure_ascii=ascii_only)
    print(COMMANDING.sub(lambda found: f"\\u{ord(found[0]):04x}", document), flush=True, file=out)


def counted(number: int, noun: str) -> str:
    """A number of things: 1 layer, 2 layers."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def command(*words: object) -> str:
    """A command line that a shell reads as these words."""
    return shlex.join(map(str, words))


def take_any_text() -> None:
    """Let standard streams hold every text: what their encoding lacks is written escaped, or read as it came."""
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
