"""Decoding: prompts are read once, then each new token costs one position."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.config import Sampling
from limpid.generation.beam import beam_search
from limpid.generation.completion import Completion, Piece, Prompt, encode_prompt, require_room, stops
from limpid.generation.decoder import Decoder
from limpid.generation.detokenize import Detokenizer
from limpid.generation.sampling import next_tokens, row_generator
from limpid.model import Cache, Transformer

if TYPE_CHECKING:
    from limpid.data.tokenizer import Tokenizer

ROWS = 32
"""Prompts continued at once: weights are read once for all of them, until arithmetic takes as long as reading."""
AT_ONCE = 8 * ROWS
"""Prompts that are held at once: for an eighth of their time or less, the last rows have few others beside them."""
SPARE = 256
"""Positions beyond the longest row, so that making room for the next prompts is rare."""


def complete(
    model: Transformer | Decoder, tokenizer: Tokenizer, prompts: Iterable[Prompt], sampling: Sampling
) -> Iterator[Completion]:
    """Continue every prompt, in their order; as many are held at once as decode well together, however many come.

    Raises  DataError for a prompt that is longer than the context, or empty where the tokenizer has no end of text
    """
    decoder, first = Decoder.of(model), 0
    for some in batched(prompts, AT_ONCE):
        if sampling.num_beams > 1:
            yield from (beam_search(decoder, tokenizer, prompt, sampling) for prompt in some)
            continue
        texts = [Detokenizer(tokenizer, (*sampling.stop, *stops(tokenizer, prompt))) for prompt in some]
        pieces = _run(decoder, tokenizer, some, sampling, texts, first)
        finish = {piece.row: piece.finish for piece in pieces if piece.finish}
        for row, (prompt, text) in enumerate(zip(some, texts, strict=True)):
            yield Completion(prompt, text.text, tuple(text.tokens), finish[row], text.end)
        first += len(some)


def stream(
    model: Transformer | Decoder, tokenizer: Tokenizer, prompts: Sequence[Prompt], sampling: Sampling
) -> Iterator[Piece]:
    """Continue every prompt, piece by piece as the text comes."""
    texts = [Detokenizer(tokenizer, (*sampling.stop, *stops(tokenizer, prompt))) for prompt in prompts]
    yield from _run(Decoder.of(model), tokenizer, prompts, sampling, texts)


def batched(prompts: Iterable[Prompt], size: int) -> Iterator[list[Prompt]]:
    """So many at a time, in their order."""
    coming = iter(prompts)
    while some := list(islice(coming, size)):
        yield some


@torch.inference_mode()
def _run(
    model: Decoder,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    texts: list[Detokenizer],
    first: int = 0,
) -> Iterator[Piece]:
    """At most `ROWS` prompts at once; where one ends, the next in line takes its place at once.

    first   the place of the first prompt among all: what is drawn follows from it
    """
    rows = [encode_prompt(model.model, tokenizer, prompt) for prompt in prompts]
    room = [min(sampling.max_new_tokens, model.config.context_length - len(row) + 1) for row in rows]
    generators = [row_generator(sampling.seed, first + row) for row in range(len(rows))]

    def draw(logits: Tensor, live: list[int]) -> list[tuple[int, Piece]]:
        """The next token of each of these rows, and what it adds."""
        repeats = sampling.repetition_penalty != 1
        seen = [torch.tensor(rows[row] + texts[row].tokens) for row in live] if repeats else []
        own = [generators[row] for row in live]
        if not torch.isfinite(logits[:, -1].amax(-1)).all():  # which not a number, or infinity, would be
            raise model.model.diverged()
        chosen = next_tokens(logits[:, -1], seen, sampling, own).tolist()
        pieces = (
            _append(row, token, texts[row], tokenizer, room[row], sampling)
            for row, token in zip(live, chosen, strict=True)
        )
        return list(zip(chosen, pieces, strict=True))

    live, waiting = list(range(min(ROWS, len(rows)))), deque(range(ROWS, len(rows)))
    longest = max(len(row) + more for row, more in zip(rows, room, strict=True))
    inputs, cache = _align(model, [rows[row] for row in live], longest + (SPARE if waiting else 0))
    while live:
        if cache.full:
            cache.trim()
        continuing, following = [], []
        for place, (token, piece) in enumerate(draw(model(inputs, cache, last_only=True), live)):
            while True:
                if piece.text or piece.finish:
                    yield piece
                if piece.finish is None:
                    continuing.append(place)
                    following.append(token)
                if piece.finish is None or not waiting:
                    break
                live[place] = waiting.popleft()
                prompt, own = _align(model, [rows[live[place]]], len(rows[live[place]]))
                [(token, piece)] = draw(model(prompt, own, last_only=True), [live[place]])
                cache.replace(place, own)
        if len(continuing) < len(live):
            live = [live[place] for place in continuing]
            cache.select(torch.tensor(continuing, dtype=torch.int64))
        inputs = torch.tensor(following, dtype=torch.int64)[:, None]


def _append(row: int, token: int, text: Detokenizer, tokenizer: Tokenizer, room: int, sampling: Sampling) -> Piece:
    """Append one token to a row; the piece says whether it was the last."""
    if token in tokenizer.ends:
        text.end = token
        return Piece(row, text.finish(), "end of text")
    new = text.add(token)
    if text.stopped:
        return Piece(row, new, "stop")
    if len(text.tokens) >= room:
        finish = "length" if room == sampling.max_new_tokens else "context"
        new += text.finish()
        return Piece(row, new, "stop" if text.stopped else finish)
    return Piece(row, new)


def _align(model: Decoder, rows: list[list[int]], capacity: int) -> tuple[Tensor, Cache]:
    """Prompts aligned at their ends, and an empty cache for them and what will follow."""
    longest = max(len(row) for row in rows)
    require_room(model.config, len(rows), capacity, model.compute.itemsize)
    padding = torch.tensor([longest - len(row) for row in rows])
    inputs = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    return inputs, Cache(model.config, len(rows), capacity, model.compute, padding if padding.any() else None)
