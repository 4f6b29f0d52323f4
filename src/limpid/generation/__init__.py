"""A model continues text: sampling, beam search, chat, and the decoder that makes them fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpid.config import Sampling as Sampling
from limpid.generation.completion import Completion as Completion
from limpid.generation.decode import complete as complete
from limpid.generation.decode import stream as stream
from limpid.generation.decoder import Decoder as Decoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from limpid.data.tokenizer import Tokenizer
    from limpid.model import Transformer


def continue_text(model: Transformer, tokenizer: Tokenizer, prompt: str | tuple[int, ...], seed: int) -> str:
    """A sample as the training loop prints it."""
    return next(complete(model, tokenizer, [prompt], Sampling(max_new_tokens=100, seed=seed))).text


def answers(
    model: Transformer, tokenizer: Tokenizer, prompts: Sequence[tuple[int, ...]], sampling: Sampling
) -> list[Completion]:
    """What a model says to prompts that are tokens already, as tuning on its own answers asks."""
    return list(complete(model, tokenizer, prompts, sampling))
