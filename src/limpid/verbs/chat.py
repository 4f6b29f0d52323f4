"""`limpid chat`: a conversation with a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from limpid.config import Sampling, WeightFormat
from limpid.config.flags import read
from limpid.config.threads import Threads
from limpid.files import standard_input
from limpid.terminal import say


@dataclass(frozen=True)
class ChatFlags(Threads):
    """Talk to a model.

    limpid chat last --temperature 0.7
    limpid chat models/llama --weights int8 --stop "User:"
    """

    what: str = field(metadata={"positional": "MODEL"})
    """Run, name under runs/, `last`, Hugging Face folder or ORG/NAME; an adapter, or MODEL+ADAPTER."""
    system: str | None = None
    """What the model is told before anything else."""
    weights: WeightFormat = "auto"
    """Format in which matrices are read at each token: fp32, bf16 (twice as fast), int8; auto loses nothing."""
    sampling: Sampling = field(default_factory=Sampling)


def verb(argv: Sequence[str]) -> int:
    flags = read("chat", ChatFlags, argv)
    from limpid.generation.chat import chat as converse
    from limpid.generation.generation import open_decoder
    from limpid.reporter import Reporter

    prompt = "> " if standard_input().isatty() else ""  # before the model is loaded
    with Reporter() as reporter:
        opened, decoder = open_decoder(flags.what, flags.weights, reporter)
    converse(
        decoder, opened.tokenizer, flags.sampling, lambda: input(prompt), lambda text: say(text, end=""), flags.system
    )
    return 0
