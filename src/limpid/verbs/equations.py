"""`limpid equations`: the catalogue of every equation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from limpid.config.flags import read
from limpid.config.threads import Threads
from limpid.terminal import say_json


@dataclass(frozen=True)
class EquationsFlags(Threads):
    """Every equation of the mathematics, generated from the code that computes it.

    limpid equations softmax                   those with this word
    limpid equations --branch probability
    """

    words: tuple[str, ...] = field(default=(), metadata={"positional": "WORD"})
    """A name shows one equation in full; other words search names, purposes and sources."""
    branch: str | None = None
    """Only of one branch: linear algebra, probability, calculus, optimisation, information theory."""
    stage: str | None = None
    """Only of one stage of the step: embedding, norm, attention, mlp, logits, loss, backward, update, …"""
    paper: str | None = None
    """Only from sources that hold this text."""
    measure: bool = False
    """Compute now: finite differences, PyTorch, and the published numbers that each reproduces."""
    errata: bool = False
    """Where well-known texts are wrong or loose, with the numbers that show it."""
    json: bool = False
    """Print one JSON document."""


def verb(argv: Sequence[str]) -> int:
    flags = read("equations", EquationsFlags, argv)
    from limpid.equations.catalogue import chosen
    from limpid.equations.errata import errata

    filtered = flags.words or flags.branch or flags.stage or flags.paper
    found = () if flags.errata and not filtered else chosen(flags.words, flags.branch, flags.stage, flags.paper)
    corrections = errata() if flags.errata else ()
    if flags.json:
        from limpid.equations.show import document

        say_json(document(found, flags.measure, corrections))
        return 0
    from limpid.console import Console
    from limpid.equations.show import tell

    return 0 if tell(found, flags.measure, corrections, Console()) else 1
