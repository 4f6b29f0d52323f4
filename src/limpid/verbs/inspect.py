"""`limpid inspect`: structure inside a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from limpid.config.flags import read
from limpid.config.threads import Threads
from limpid.files import user_path


@dataclass(frozen=True)
class InspectFlags(Threads):
    """Structure inside a trained model, on one text; with --landscape, the curvature of its loss.

    limpid inspect last --text "the cat sat on the" --token " mat"
    limpid inspect last --landscape
    """

    what: str = field(default="last", metadata={"positional": "MODEL"})
    """Run, name under runs/, `last`, or Hugging Face folder (with --text)."""
    text: str | None = None
    """The text to look at; the start of a run's held-out text when left out."""
    position: int = -1
    """Whose next-token logit is taken apart: 0 is the first position, -1 the last."""
    token: str | None = None
    """Which token's logit; the likeliest when left out."""
    word: tuple[str, ...] = ()
    """One: its neighbours in the embedding. Three, a b c: what is to c as b is to a."""
    landscape: bool = False
    """Sharpness, spectrum, loss curves and surface, gradient noise, and what keeps gradients alive; takes longer."""
    output: str | None = None
    """Folder for pictures and inspect.json; inspect/ inside a run, MODEL-inspect under runs/ otherwise."""
    json: bool = False
    """Print everything as one JSON document."""


def verb(argv: Sequence[str]) -> int:
    flags = read("inspect", InspectFlags, argv)
    from limpid.inspection import inspect_model
    from limpid.reporter import Reporter

    with Reporter(flags.json) as reporter:
        return inspect_model(
            flags.what,
            text=flags.text,
            position=flags.position,
            token=flags.token,
            word=flags.word,
            output=None if flags.output is None else user_path(flags.output),
            landscape=flags.landscape,
            reporter=reporter,
        )
