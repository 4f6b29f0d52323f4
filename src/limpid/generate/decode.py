"""Decoding: prompts are read once, then each new token costs one position."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.config import Sampling
from limpid.errors import DataError
from limpid.generate.sampling import next_tokens
from limpid.generate.text import Text
from limpid.model import Cache, Decoder, Transformer

if TYPE_CHECKING:
    from limpid.data.tokenizer import Tokenizer

ROWS = 32
"""Prompts continued at once: weights are read once for all of them, until arithmetic takes as long as reading."""
SPARE = 256
"""Positions beyond the longest row, so that making room for the next prompts is rare."""


@dataclass(frozen=True)
class Completion:
    """What a model made of one prompt."""

    text: str
    tokens: tuple[int, ...]
    finish: str  # stop, length, end of text, context


@dataclass(frozen=True)
class Piece:
    """Some more text of one row."""

    row: int
    text: str
    finish: str | None = None  # set on the last piece of a row


def generate(
    model: Transformer | Decoder, tokenizer: Tokenizer, prompts: Sequence[str], sampling: Sampling
) -> list[Completion]:
    """Continue every prompt, all at once; a `Decoder`, made once, saves its making at every call.

    Raises  DataError for a prompt that is longer than the context, or empty where the tokenizer has no end of text
    """
    model = Decoder.of(model)
    if sampling.num_beams > 1:
        from limpid.generate.beam import beam_search

        return [beam_search(model, tokenizer, prompt, sampling) for prompt in prompts]
    texts = [Text(tokenizer, sampling.stop) for _ in prompts]
    finish = {piece.row: piece.finish for piece in _run(model, tokenizer, prompts, sampling, texts) if piece.finish}
    return [Completion(text.text, tuple(text.tokens), finish[row] or "") for row, text in enumerate(texts)]


def stream(
    model: Transformer | Decoder, tokenizer: Tokenizer, prompts: Sequence[str], sampling: Sampling
) -> Iterator[Piece]:
    """The same, piece by piece as the text comes."""
    yield from _run(Decoder.of(model), tokenizer, prompts, sampling, [Text(tokenizer, sampling.stop) for _ in prompts])


def encoded(model: Decoder, tokenizer: Tokenizer, prompt: str) -> list[int]:
    """A prompt's tokens; an empty one starts a new document."""
    tokens = tokenizer.encode(prompt)
    if not tokens:
        if tokenizer.end_of_text is None:
            raise DataError(
                "the prompt is empty, and the tokenizer has no end-of-text token to start from: give a prompt"
            )
        tokens = [tokenizer.end_of_text]
    context = model.config.context_length
    if len(tokens) > context:
        raise DataError(f"the prompt has {len(tokens)} tokens, the model's context holds {context}: shorten the prompt")
    if max(tokens) >= model.config.vocab_size:
        raise DataError(
            f"token {max(tokens)} of the prompt lies outside the model's vocabulary of {model.config.vocab_size}: "
            "tokenizer and model do not belong together"
        )
    return tokens


@torch.inference_mode()
def _run(
    model: Decoder, tokenizer: Tokenizer, prompts: Sequence[str], sampling: Sampling, texts: list[Text]
) -> Iterator[Piece]:
    """At most `ROWS` prompts at once; where one ends, the next in line takes its place at once."""
    rows = [encoded(model, tokenizer, prompt) for prompt in prompts]
    room = [min(sampling.max_new_tokens, model.config.context_length - len(row) + 1) for row in rows]
    generators = [torch.Generator().manual_seed(sampling.seed + row) for row in range(len(rows))]

    def drawn(logits: Tensor, live: list[int]) -> list[tuple[int, Piece]]:
        """The next token of each of these rows, and what it adds."""
        repeats = sampling.repetition_penalty != 1
        seen = [torch.tensor(rows[row] + texts[row].tokens) for row in live] if repeats else []
        chosen = next_tokens(logits[:, -1], seen, sampling, [generators[row] for row in live]).tolist()
        pieces = (
            _taken(row, token, texts[row], tokenizer, room[row], sampling)
            for row, token in zip(live, chosen, strict=True)
        )
        return list(zip(chosen, pieces, strict=True))

    live, waiting = list(range(min(ROWS, len(rows)))), deque(range(ROWS, len(rows)))
    longest = max(len(row) + more for row, more in zip(rows, room, strict=True))
    inputs, cache = _aligned(model, [rows[row] for row in live], longest + (SPARE if waiting else 0))
    while live:
        if cache.full:
            cache.trim()
        going_on, following = [], []
        for place, (token, piece) in enumerate(drawn(model(inputs, cache, last_only=True), live)):
            while True:
                if piece.text or piece.finish:
                    yield piece
                if piece.finish is None:
                    going_on.append(place)
                    following.append(token)
                if piece.finish is None or not waiting:
                    break
                live[place] = waiting.popleft()
                prompt, own = _aligned(model, [rows[live[place]]], len(rows[live[place]]))
                [(token, piece)] = drawn(model(prompt, own, last_only=True), [live[place]])
                cache.replace(place, own)
        if len(going_on) < len(live):
            live = [live[place] for place in going_on]
            cache.select(torch.tensor(going_on, dtype=torch.int64))
        inputs = torch.tensor(following, dtype=torch.int64)[:, None]


def _taken(row: int, token: int, text: Text, tokenizer: Tokenizer, room: int, sampling: Sampling) -> Piece:
    """One more token of one row, and whether it was the last."""
    if token == tokenizer.end_of_text:
        return Piece(row, text.finish(), "end of text")
    new = text.add(token)
    if text.stopped:
        return Piece(row, new, "stop")
    if len(text.tokens) >= room:
        finish = "length" if room == sampling.max_new_tokens else "context"
        new += text.finish()
        return Piece(row, new, "stop" if text.stopped else finish)
    return Piece(row, new)


def _aligned(model: Decoder, rows: list[list[int]], capacity: int) -> tuple[Tensor, Cache]:
    """Prompts aligned at their ends, and an empty cache for them and what will follow."""
    longest = max(len(row) for row in rows)
    padding = torch.tensor([longest - len(row) for row in rows])
    inputs = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    return inputs, Cache(model.config, len(rows), capacity, model.compute, padding if padding.any() else None)
