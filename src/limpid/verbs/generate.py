"""`limpid generate`: prompts, continued."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from limpid.config import Sampling, WeightFormat
from limpid.config.flags import read
from limpid.config.threads import Threads
from limpid.terminal import say, say_json

if TYPE_CHECKING:
    from limpid.data.tokenizer import Tokenizer
    from limpid.generation import Decoder


@dataclass(frozen=True)
class GenerateFlags(Threads):
    """Continue one or more prompts with a run, at its newest checkpoint, or a Hugging Face folder.

    limpid generate last "Once upon a time" --temperature 0.7
    limpid generate last@400 "def main" -n 100 --top-p 0.9 --stop "\\n\\n"
    """

    what: str = field(metadata={"positional": "MODEL"})
    """Run, name under runs/, `last`, or Hugging Face folder."""
    prompts: tuple[str, ...] = field(default=(), metadata={"positional": "PROMPT"})
    """Texts to continue, all at once; none starts a new document."""
    weights: WeightFormat = "auto"
    """Format in which matrices are read at each token: fp32, bf16 (twice as fast), int8; auto loses nothing."""
    json: bool = False
    """Print one JSON object per prompt: text, tokens, why it ended."""
    sampling: Sampling = field(default_factory=Sampling)


def verb(argv: Sequence[str]) -> int:
    flags = read("generate", GenerateFlags, argv)
    from limpid.generation import generate as complete
    from limpid.generation import stream

    model, tokenizer = decoder(flags.what, flags.weights)
    prompts = flags.prompts or ("",)
    if flags.json:
        for prompt, made in zip(prompts, complete(model, tokenizer, prompts, flags.sampling), strict=True):
            say_json({"prompt": prompt, "text": made.text, "tokens": made.tokens, "finish": made.finish})
        return 0
    if len(prompts) == 1 and flags.sampling.num_beams == 1:
        shown = prompts[0]  # with the first piece, as reading it may fail
        for piece in stream(model, tokenizer, prompts, flags.sampling):
            say(shown + piece.text, end="")
            shown = ""
        say(shown)
        return 0
    for prompt, made in zip(prompts, complete(model, tokenizer, prompts, flags.sampling), strict=True):
        say(f"{prompt}{made.text}\n")
    return 0


def decoder(what: str, weights: WeightFormat = "auto") -> tuple[Decoder, Tokenizer]:
    """A model ready to decode, and its tokenizer; a bar says that the first call on a machine compiles."""
    from limpid.data.tokenizer import load_tokenizer
    from limpid.generation import Decoder
    from limpid.model.weights import load_model
    from limpid.reporter import Reporter
    from limpid.source import find_model

    source = find_model(what)
    tokenizer, model = load_tokenizer(source), load_model(source)
    with Reporter() as reporter:
        reporter.progress("preparing to decode (compiled once per machine, some seconds)", 0)
        return Decoder(model, weights), tokenizer
