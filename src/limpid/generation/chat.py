"""A conversation with a model: in the form that it was taught, or as text; the oldest turns give way to new ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from limpid.config import Sampling
from limpid.errors import DataError
from limpid.generation.completion import encode_prompt
from limpid.generation.decode import stream
from limpid.generation.decoder import Decoder
from limpid.model import Transformer

if TYPE_CHECKING:
    from limpid.data.tokenizer import Tokenizer

Messages = list[dict[str, Any]]
HELP = "/reset starts anew, /exit or Ctrl-D ends"


def chat(
    model: Transformer | Decoder,
    tokenizer: Tokenizer,
    sampling: Sampling,
    read: Callable[[], str],
    write: Callable[[str], None],
    system: str | None = None,
) -> None:
    """Talk until the user leaves. `read` returns a line or raises EOFError; `write` prints without a line break.

    system   what the model is told before anything else, and is never forgotten
    """
    write(f"{HELP}\n")
    decoder = Decoder.of(model)
    head: Messages = [] if system is None else [{"role": "system", "content": system}]
    turns: Messages = []
    while True:
        try:
            message = read().strip()
        except EOFError:
            write("\n")
            return
        if message == "/exit":
            return
        if message == "/reset":
            turns.clear()
            write("(a new conversation)\n")
            continue
        if message.startswith("/"):
            write(f"({message.split()[0]} is no command: {HELP})\n")
            continue
        if not message:
            continue
        turns.append({"role": "user", "content": message})
        try:
            dropped = _make_room(head, turns, decoder, tokenizer, sampling)
        except DataError as error:  # a line that is too long, or no text, costs itself and not the conversation
            turns.pop()
            write(f"({error})\n")
            continue
        if dropped:
            write(f"(the context is full: the oldest {dropped} turns are forgotten)\n" if dropped > 1 else
                  "(the context is full: the oldest turn is forgotten)\n")  # fmt: skip
        answer = ""
        for piece in stream(decoder, tokenizer, [head + turns], sampling):
            write(piece.text if answer else piece.text.lstrip())
            answer += piece.text
        write("\n")
        turns.append({"role": "assistant", "content": answer.strip()})


def _make_room(head: Messages, turns: Messages, model: Decoder, tokenizer: Tokenizer, sampling: Sampling) -> int:
    """Forget the oldest turns, each with its answer, until an answer of a quarter of the context fits; how many.

    Raises  DataError for a turn that does not fit by itself, or is no text
    """
    encode_prompt(model.model, tokenizer, head + turns[-1:])
    context = model.config.context_length
    answer = min(sampling.max_new_tokens, max(1, context // 4))
    dropped = 0
    while len(turns) > 1 and _tokens(head + turns, model, tokenizer) + answer > context:
        del turns[:2]
        dropped += 1
    return dropped


def _tokens(messages: Messages, model: Decoder, tokenizer: Tokenizer) -> int:
    """Tokens of a conversation; more than the context holds where it does not fit."""
    try:
        return len(encode_prompt(model.model, tokenizer, messages))
    except DataError:
        return model.config.context_length + 1
