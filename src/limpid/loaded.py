"""A model with its tokenizer: opened from whatever a user can name, or as it lies in memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from limpid.data.tokenizer import Tokenizer
from limpid.data.tokenizer_folder import load_tokenizer
from limpid.model import Transformer
from limpid.model.export import Conversation
from limpid.model.weights import load_model
from limpid.run import Run
from limpid.source import Adapted, Checkpoint, Source, find_model

Head = Literal["vocabulary", "any"]
Opened = tuple[Transformer, Tokenizer]
"""A model in memory, as `limpid.load` returns it."""


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, with its tokenizer."""

    name: str
    transformer: Transformer
    tokenizer: Tokenizer
    run: Run | None = None
    step: int | None = None
    described: str | None = None
    """The name with what else there is to say of it, such as after which step it is."""

    @property
    def title(self) -> str:
        """The name as a report shows it."""
        return self.described or self.name

    @property
    def start(self) -> int | None:
        """Id of the token that every document starts with."""
        return self.tokenizer.start

    @property
    def device(self) -> str:
        """Where its weights lie: cpu or cuda."""
        return self.transformer.embed.tokens.weight.device.type


def conversation_of(tokenizer: Tokenizer) -> Conversation | None:
    """How a tokenizer begins, ends and converses, where that was said beside its own file."""
    if not tokenizer.has_settings:
        return None
    template = tokenizer.chat_template
    text = None if template is None else template.text
    return Conversation(tokenizer.start, tuple(sorted(tokenizer.ends)), tokenizer.words, text)


def open_model(what: str | Path | Source | Opened, head: Head = "vocabulary") -> LoadedModel:
    """A checkpoint of a run, the newest unless it is named, a Hugging Face folder or name, or one in memory.

    Raises  CheckpointError when there is no such model, or it predicts no token where that is asked of it
    """
    opened = _opened(what)
    if head == "vocabulary":
        opened.transformer.require_vocabulary()
    return opened


def _opened(what: str | Path | Source | Opened) -> LoadedModel:
    if isinstance(what, tuple):
        transformer, tokenizer = what
        return LoadedModel(Path(transformer.title).name, transformer.eval(), tokenizer)
    source = find_model(what)
    tokenizer, transformer = load_tokenizer(source), load_model(source)
    base = source.base if isinstance(source, Adapted) else source
    if isinstance(base, Checkpoint):
        return LoadedModel(source.name, transformer, tokenizer, base.run, base.step, source.title)
    return LoadedModel(source.name, transformer, tokenizer, described=source.title)
