"""Prompts continued, or conversations answered, by a model that is named or lies in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limpid.config import Sampling, WeightFormat
from limpid.config.arguments import checked
from limpid.config.options import from_dict, shown
from limpid.data.conversation import asked_of_assistant
from limpid.errors import ConfigError
from limpid.generation.completion import Completion, Prompt
from limpid.generation.decode import complete
from limpid.generation.decoder import Decoder
from limpid.html import table, titled
from limpid.loaded import LoadedModel, open_model
from limpid.reporter import SILENT, Reporter
from limpid.run import Run

if TYPE_CHECKING:
    from limpid.data.tokenizer import Tokenizer
    from limpid.model import Transformer


@dataclass(frozen=True, repr=False)
class Generation:
    """What a model made of some prompts, in their order."""

    model: str
    completions: tuple[Completion, ...]

    def __len__(self) -> int:
        return len(self.completions)

    def __iter__(self) -> Iterator[Completion]:
        return iter(self.completions)

    def __getitem__(self, place: int) -> Completion:
        return self.completions[place]

    @property
    def text(self) -> str:
        """What was added to the first prompt."""
        return self.completions[0].text

    @property
    def texts(self) -> tuple[str, ...]:
        """What was added to each prompt."""
        return tuple(one.text for one in self.completions)

    def __repr__(self) -> str:
        others = f", and {len(self) - 1:,} more" if len(self) > 1 else ""
        return f"Generation({self.model}: {shown(self.text)}{others})"

    def _repr_html_(self) -> str:
        rows = ((_asked(one.prompt), one.text, one.finish) for one in self.completions)
        return titled(self.model, table(rows, ("prompt", "continuation", "ended by")))

    def document(self) -> list[dict[str, Any]]:
        """As plain values, an entry per prompt: the lines of `limpid generate --json`."""
        return [one.document() for one in self.completions]


@checked
def generate(
    what: str | Path | Run | tuple[Transformer, Tokenizer],
    prompts: str | Sequence[Any] = "",
    *,
    weights: WeightFormat = "auto",
    reporter: Reporter = SILENT,
    **sampling: Any,
) -> Generation:
    """Continue texts, or answer conversations, all at once.

    what      run, RUN@STEP, Hugging Face folder, or a model and its tokenizer
    prompts   a text, several, a conversation (messages with role and content), or several; "" starts a new document
    weights   format in which matrices are read; narrower ones are faster, auto loses nothing
    sampling  of `limpid generate --help`, as in generate("last", "def ", temperature=0.7, max_new_tokens=50)
    Raises    DataError for a prompt that is longer than the context
    """
    asked, how = prompts_of(prompts), from_dict(Sampling, sampling)
    opened, decoder = open_decoder(what, weights, reporter)
    made = []
    for completion in complete(decoder, opened.tokenizer, asked, how):
        made.append(completion)
        reporter.progress("generating", len(made), len(asked))
    reporter.close()
    return Generation(opened.title, tuple(made))


def open_decoder(
    what: str | Path | Run | tuple[Transformer, Tokenizer], weights: WeightFormat = "auto", reporter: Reporter = SILENT
) -> tuple[LoadedModel, Decoder]:
    """A model, and its weights laid out to decode; a bar says that the first call on a machine compiles."""
    reporter.progress("loading the model", 0)
    opened = open_model(what)
    reporter.progress("preparing to decode (compiled once per machine, some seconds)", 0)
    decoder = Decoder(opened.transformer, weights)
    reporter.close()
    return opened, decoder


def prompts_of(asked: str | Sequence[Any]) -> tuple[Prompt, ...]:
    """Texts and conversations, each of which may come alone.

    Raises  ConfigError, DataError for what is neither
    """
    if isinstance(asked, str):
        return (asked,)
    if asked and all(isinstance(one, Mapping) for one in asked):
        return (asked_of_assistant(asked, "prompts"),)
    prompts = tuple(one if isinstance(one, str) else _conversation(one) for one in asked)
    if not prompts:
        raise ConfigError("prompts is empty: give a text or a conversation")
    return prompts


def _conversation(asked: Any) -> Prompt:
    if not isinstance(asked, list | tuple) or not asked:
        raise ConfigError(f"prompts holds {shown(asked)}: expected text, or a list of messages with role and content")
    return asked_of_assistant(asked, "prompts")


def _asked(prompt: Prompt) -> str:
    return str(prompt[-1]["content"]) if isinstance(prompt, list) else str(prompt)
