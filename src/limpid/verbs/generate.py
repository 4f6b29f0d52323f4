"""`limpid generate`: prompts, continued."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from limpid.config import Sampling, WeightFormat
from limpid.config.flags import read
from limpid.config.options import require
from limpid.config.threads import Threads
from limpid.files import LineFile, user_path
from limpid.terminal import say, say_json

if TYPE_CHECKING:
    from limpid.generation import Completion, Decoder
    from limpid.generation.completion import Prompt
    from limpid.loaded import LoadedModel
    from limpid.reporter import Reporter


@dataclass(frozen=True)
class GenerateFlags(Threads):
    """Continue one or more prompts with a run, at its newest checkpoint, or a Hugging Face folder.

    limpid generate last "Once upon a time" --temperature 0.7
    limpid generate last@400 "def main" -n 100 --top-p 0.9 --stop "\\n\\n"
    limpid generate models/qwen --prompts questions.jsonl -o answers.jsonl
    """

    what: str = field(metadata={"positional": "MODEL"})
    """Run, name under runs/, `last`, Hugging Face folder or ORG/NAME; an adapter, or MODEL+ADAPTER."""
    words: tuple[str, ...] = field(default=(), metadata={"positional": "PROMPT"})
    """Texts to continue, all at once; none starts a new document."""
    prompts: str | None = None
    """File of prompts, or - for standard input: lines of text, or JSON lines with prompt, text or messages."""
    weights: WeightFormat = "auto"
    """Format in which matrices are read at each token: fp32, bf16 (twice as fast), int8; auto loses nothing."""
    output: str | None = field(default=None, metadata={"short": "o"})
    """File to write as JSON lines."""
    json: bool = False
    """Print one JSON object per prompt: text, tokens, why it ended."""
    sampling: Sampling = field(default_factory=Sampling)


def verb(argv: Sequence[str]) -> int:
    flags = read("generate", GenerateFlags, argv)
    require(flags.prompts is None or not flags.words, "--prompts reads them from a file: leave the others out")
    from limpid.generation.generation import open_decoder
    from limpid.reporter import Reporter

    alone = len(flags.words) <= 1 and flags.sampling.num_beams == 1 and flags.prompts is None
    with Reporter(flags.json) as reporter, _written(flags) as write:
        opened, decoder = open_decoder(flags.what, flags.weights, reporter)
        if alone and not flags.json and flags.output is None:
            _as_it_comes(flags, decoder, opened)
        else:
            _one_by_one(flags, decoder, opened, write, reporter)
    return 0


def _as_it_comes(flags: GenerateFlags, decoder: Decoder, opened: LoadedModel) -> None:
    """One prompt, its continuation piece by piece."""
    from limpid.generation import stream

    prompt = "".join(flags.words)
    shown = prompt  # with the first piece, as reading it may fail
    for piece in stream(decoder, opened.tokenizer, [prompt], flags.sampling):
        say(shown + piece.text, end="")
        shown = ""
    say(shown)


def _one_by_one(
    flags: GenerateFlags, decoder: Decoder, opened: LoadedModel, write: Callable[[Completion], None], reporter: Reporter
) -> None:
    """Every prompt in its order, each written when it and those before it are done."""
    from limpid.generation import complete
    from limpid.generation.prompt_file import count_lines, read_prompts

    prompts: Iterable[Prompt] = flags.words or ("",)
    total = len(flags.words)
    if flags.prompts is not None:
        prompts, total = read_prompts(flags.prompts), count_lines(flags.prompts) or 0
    for number, completion in enumerate(complete(decoder, opened.tokenizer, prompts, flags.sampling), 1):
        if flags.output is None and not flags.json and total != 1:
            say(f"== {number}{f' of {total}' if total else ''} ==")
        write(completion)
        if flags.output is not None:  # on a terminal the completions themselves say how far it is
            reporter.progress("generating", number, total or None)


@contextlib.contextmanager
def _written(flags: GenerateFlags) -> Iterator[Callable[[Completion], None]]:
    """What writes a completion where it was asked for: a line of JSON to a file or the screen, or text."""
    if flags.output is None:
        yield (lambda one: say_json(one.document())) if flags.json else _say
        return
    file = user_path(flags.output)
    require(not file.exists(), f"{file} exists already: name another --output, or move it away")
    lines = LineFile(file)
    try:
        yield lambda one: lines.write(json.dumps(one.document(), ensure_ascii=False))
    finally:
        lines.close()


def _say(completion: Completion) -> None:
    prompt = completion.prompt if isinstance(completion.prompt, str) else ""
    say(f"{prompt}{completion.text}\n")
