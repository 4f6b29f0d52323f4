"""`limpid chat`: a conversation with a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from limpid.config import Sampling
from limpid.config.flags import read
from limpid.config.threads import Threads
from limpid.files import standard_input
from limpid.terminal import say
from limpid.verbs.generate import decoder


@dataclass(frozen=True)
class ChatFlags(Threads):
    """Talk to a model.

    limpid chat last --temperature 0.7
    limpid chat models/llama --weights int8 --stop "User:"
    """

    what: str = field(metadata={"positional": "MODEL"})
    """Run, name under runs/, `last`, or Hugging Face folder."""
    sampling: Sampling = field(default_factory=Sampling)


def verb(argv: Sequence[str]) -> int:
    flags = read("chat", ChatFlags, argv)
    from limpid.generation.chat import chat as converse

    prompt = "> " if standard_input().isatty() else ""  # before the model is loaded
    model, tokenizer = decoder(flags.what)
    converse(model, tokenizer, flags.sampling, lambda: input(prompt), lambda text: say(text, end=""))
    return 0
