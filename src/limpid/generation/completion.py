"""What decoding takes and gives: a prompt's tokens, pieces of text as they come, a whole completion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from limpid.config import ModelConfig
from limpid.config.options import shown
from limpid.data.conversation import MODEL, USER, conversation_text
from limpid.errors import ConfigError, DataError
from limpid.machine import total_memory
from limpid.model.transformer import Transformer

if TYPE_CHECKING:
    from limpid.data.tokenizer import Tokenizer


Prompt = str | list[dict[str, Any]] | tuple[int, ...]
"""A text to continue, a conversation to answer (messages with role and content), or tokens as they are."""


@dataclass(frozen=True, repr=False)
class Completion:
    """What a model made of one prompt."""

    prompt: Prompt
    text: str
    tokens: tuple[int, ...]
    finish: str  # stop, length, end of text, context
    end: int | None = None  # the token that ended it, which is not among `tokens`

    def __repr__(self) -> str:
        return f"Completion({shown(self.text)}, {len(self.tokens)} tokens, ended by {self.finish})"

    def document(self) -> dict[str, Any]:
        """As plain values: a line of `limpid generate --json`."""
        asked = "messages" if isinstance(self.prompt, list) else "prompt"
        return {asked: self.prompt, "text": self.text, "tokens": list(self.tokens), "finish": self.finish}


@dataclass(frozen=True)
class Piece:
    """Some more text of one row."""

    row: int
    text: str
    finish: str | None = None  # set on the last piece of a row


def require_room(config: ModelConfig, rows: int, positions: int, entry_bytes: int) -> None:
    """Raise ConfigError when keys and values of so many rows and positions take more memory than the machine has."""
    entries = config.num_layers * config.sizes.num_kv_heads * config.sizes.d_head * rows * positions
    needed, limit = 2 * entries * entry_bytes, total_memory()
    if needed > limit:
        raise ConfigError(
            f"keys and values of {rows:,} rows and {positions:,} positions take {needed / 1e9:,.1f} GB, and there are "
            f"{limit / 1e9:,.1f} GB here: ask for fewer beams, prompts or --max-new-tokens"
        )


def encode_prompt(model: Transformer, tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    """A prompt's tokens; an empty text starts a new document.

    Raises  DataError for a prompt that is longer than the context, or empty where the tokenizer has no first token
    """
    if isinstance(prompt, tuple):
        tokens = list(prompt)
    elif isinstance(prompt, str):
        tokens = tokenizer.encode_prompt(prompt)
    elif tokenizer.chat_template is not None:
        tokens = tokenizer.encode_chat(prompt)
    else:  # the blank after the last word is the answer's: " Yes" is one token
        tokens = tokenizer.encode_prompt(f"{conversation_text(prompt, 'the prompt')}\n{MODEL}:")
    if not tokens:
        if tokenizer.start is None:
            raise DataError(
                "the prompt is empty, and the tokenizer has no end-of-text token to start from: give a prompt"
            )
        tokens = [tokenizer.start]
    context = model.config.context_length
    if len(tokens) > context:
        what = "the conversation" if isinstance(prompt, list) else f"the prompt {shown(prompt)}"
        raise DataError(f"{what} has {len(tokens)} tokens, the model's context holds {context}: shorten it")
    model.require_known(max(tokens))
    return tokens


def stops(tokenizer: Tokenizer, prompt: Prompt) -> tuple[str, ...]:
    """Text that ends an answer where the model has no token for it: the other's next turn."""
    return (f"\n{USER}:",) if isinstance(prompt, list) and tokenizer.chat_template is None else ()
