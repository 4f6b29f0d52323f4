"""A conversation with a model: turns are text, and the oldest give way when the context is full."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from limpid.config import Sampling
from limpid.data.conversation import MODEL, USER, turn
from limpid.errors import DataError
from limpid.generation.completion import encode_prompt
from limpid.generation.decode import stream
from limpid.generation.decoder import Decoder
from limpid.model import Transformer

if TYPE_CHECKING:
    from limpid.data.tokenizer import Tokenizer

HELP = "/reset starts anew, /exit or Ctrl-D ends"


def chat(
    model: Transformer | Decoder,
    tokenizer: Tokenizer,
    sampling: Sampling,
    read: Callable[[], str],
    write: Callable[[str], None],
) -> None:
    """Talk until the user leaves. `read` returns a line or raises EOFError; `write` prints without a line break."""
    write(f"{HELP}\n")
    decoder = Decoder.of(model)
    turns: list[str] = []
    sampling = replace(sampling, stop=(*sampling.stop, f"\n{USER}:"))
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
        turns.append(f"{turn(USER, message)}\n{MODEL}:")  # the blank after it is the answer's: " Yes" is one token
        try:
            dropped = _make_room(turns, decoder, tokenizer, sampling)
        except DataError as error:  # a line that is too long, or no text, costs itself and not the conversation
            turns.pop()
            write(f"({error})\n")
            continue
        if dropped:
            write(f"(the context is full: the oldest {dropped} turns are forgotten)\n" if dropped > 1 else
                  "(the context is full: the oldest turn is forgotten)\n")  # fmt: skip
        answer = ""
        for piece in stream(decoder, tokenizer, ["\n".join(turns)], sampling):
            write(piece.text if answer else piece.text.lstrip())
            answer += piece.text
        write("\n")
        turns[-1] += f" {answer.strip()}"


def _make_room(turns: list[str], model: Decoder, tokenizer: Tokenizer, sampling: Sampling) -> int:
    """Forget the oldest turns until an answer of a quarter of the context fits; returns how many.

    Raises  DataError for a turn that does not fit by itself, or is no text
    """
    encode_prompt(model.model, tokenizer, turns[-1])
    context = model.config.context_length
    answer = min(sampling.max_new_tokens, max(1, context // 4))
    dropped = 0
    while len(turns) > 1 and len(tokenizer.encode("\n".join(turns))) + answer > context:
        turns.pop(0)
        dropped += 1
    return dropped
