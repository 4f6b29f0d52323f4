"""Decoding: prompts are read once, then each new token costs one position."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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
READ_AT_ONCE = 8
"""Prompts in line that are read together: one alone keeps a processor's units waiting for its weights."""
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
        looks_back = sampling.repetition_penalty != 1 or sampling.watermark is not None
        seen = [torch.tensor(rows[row] + texts[row].tokens) for row in live] if looks_back else []
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
    require_room(model.config, len(live), longest, model.compute.itemsize)
    logits, cache = _read(model, [rows[row] for row in live], longest + (SPARE if waiting else 0))
    ahead = _ReadAhead(model)
    while live:
        continuing: dict[int, int] = {}  # the next token at each place
        for place, (token, piece) in enumerate(draw(logits, live)):
            while True:
                if piece.text or piece.finish:
                    yield piece
                if piece.finish is None:
                    continuing[place] = token
                if piece.finish is None or not waiting:
                    break
                prompt, other, at = ahead.read([rows[row] for row in waiting])
                live[place] = waiting.popleft()
                [(token, piece)] = draw(prompt, [live[place]])
                cache.replace(place, other, at)
        if len(continuing) < len(live):
            order = cache.keep(list(continuing))
            live, continuing = [live[place] for place in order], {place: continuing[place] for place in order}
        if live:
            if cache.full:
                cache.trim()
            logits = model(torch.tensor([*continuing.values()], dtype=torch.int64)[:, None], cache, last_only=True)


@dataclass
class _ReadAhead:
    """Prompts that wait for a place: some are read at once, and each of them but once."""

    model: Decoder
    read_prompts: dict[tuple[int, ...], int] = field(default_factory=dict)  # of those that are held, by place
    logits: Tensor | None = None
    cache: Cache | None = None

    def read(self, waiting: Sequence[list[int]]) -> tuple[Tensor, Cache, int]:
        """Logits of the first one in line, and where its keys and values are."""
        first = tuple(waiting[0])
        if first not in self.read_prompts:
            some = list(islice(dict.fromkeys(map(tuple, waiting)), READ_AT_ONCE))
            self.read_prompts = {prompt: place for place, prompt in enumerate(some)}
            self.logits, self.cache = _read(self.model, some, max(map(len, some)))
        assert self.logits is not None
        assert self.cache is not None
        place = self.read_prompts[first]
        return self.logits[place : place + 1], self.cache, place


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


def _read(model: Decoder, rows: Sequence[Sequence[int]], capacity: int) -> tuple[Tensor, Cache]:
    """Logits after each prompt, and its keys and values, aligned at their ends; equal prompts are read once."""
    distinct = {prompt: place for place, prompt in enumerate(dict.fromkeys(map(tuple, rows)))}
    longest = max(map(len, distinct))
    padding = torch.tensor([longest - len(prompt) for prompt in distinct])
    inputs = torch.tensor([[0] * (longest - len(prompt)) + [*prompt] for prompt in distinct])
    cache = model.cache(len(distinct), capacity, padding if padding.any() else None)
    logits = model(inputs, cache, last_only=True)
    if len(distinct) < len(rows):
        places = torch.tensor([distinct[tuple(row)] for row in rows])
        cache.select(places)
        logits = logits[places]
    return logits, cache
