"""`limpid completion`: a script that makes a shell complete verbs, options and files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import Literal

import limpid.verbs as verbs_room
from limpid.config.flags import make_parser, read
from limpid.config.spelling import flags_of
from limpid.errors import ConfigError


@dataclass(frozen=True)
class CompletionFlags:
    """Print what makes a shell complete limpid's verbs, options and files.

    limpid completion bash >> ~/.bash_completion
    limpid completion zsh > ~/.zfunc/_limpid         a folder of fpath
    """

    shell: Literal["bash", "zsh", "tcsh"] = field(metadata={"positional": "SHELL"})
    """bash, zsh or tcsh."""


def verb(argv: Sequence[str]) -> int:
    flags = read("completion", CompletionFlags, argv)
    try:
        import shtab
    except ImportError as error:
        raise ConfigError("completion needs the shtab package: pip install 'limpid[completion]'") from error
    from limpid.terminal import say

    parser = command()
    for action in actions(parser):
        if action.metavar in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    say(shtab.complete(parser, flags.shell), file=sys.stdout)
    return 0


FILES = ("FILE", "PATH", "RUN", "RUNS", "MODEL", "TEXT", "OUTPUT", "WHAT", "NAME|FILE", "A", "B")
"""Words of help texts that a file or folder may stand for."""


def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Options and arguments of a parser and of those below it."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from actions(below)


def command() -> argparse.ArgumentParser:
    """One parser of the whole command line."""
    whole = argparse.ArgumentParser("limpid")
    verbs = whole.add_subparsers()
    for name in sorted(module.name for module in iter_modules(verbs_room.__path__) if "_" not in module.name):
        module = import_module(f"limpid.verbs.{name}")
        kind = flags_of(module)
        purpose = (kind.__doc__ or name).partition("\n")[0]
        verbs.add_parser(name, help=purpose, parents=[make_parser(name, kind)], add_help=False)
    return whole
