"""Options in an error's words as they are typed: rooms name them as Python does, a user of the shell with dashes."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

from limpid.config.flags import Option, options_of
from limpid.config.options import required


def flags_of(module: ModuleType) -> type[Any]:
    """The dataclass of options that a verb's module defines."""
    return next(
        value
        for name, value in vars(module).items()
        if name.endswith("Flags") and isinstance(value, type) and value.__module__ == module.__name__
    )


def with_dashes(message: str, kind: type[Any]) -> str:
    """An error about an option, with every option of the verb that it names spelled as a flag.

    Errors about options begin with one. Others, about files and models, say what those hold, and stay as they are.
    """
    flags = {option.field.name: option for option in options_of(kind) if "positional" not in option.field.metadata}
    first = re.match(r"\w+(?= )", message)
    if first is None or first[0] not in flags:
        return message
    for name, option in flags.items():
        message = re.sub(_where_named(option), f"--{name.replace('_', '-')}", message)
    return message


def _where_named(option: Option) -> str:
    """Where a message means an option: a word with _ can be nothing else; another one begins it, or has its value."""
    name, kind = option.field.name, required(option.kind)
    word = rf"(?<![\w./='\"-]){name}(?![\w./=-])"
    if "_" in name:
        return word
    values = map(str, get_args(kind) if get_origin(kind) is Literal else ())
    return rf"^{name}(?= )|{word}(?= (?:{'|'.join(map(re.escape, ['is', *values]))})\b)"
