"""What the model makes of some prompts while it trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from limpid.data.tokenizer import Tokenizer
from limpid.data.tuning.examples import Examples
from limpid.metrics import Sample
from limpid.model import Transformer
from limpid.training.start import Training

Sampler = Callable[[Transformer, Tokenizer, str | tuple[int, ...], int], str]
"""Continue a prompt, text or tokens, with a model, by a seed."""
SAMPLED = 2
"""Prompts of records that samples answer."""


def samples(training: Training, sampler: Sampler) -> list[Sample]:
    """What the model makes of each sample prompt now.

    Raises  CheckpointError when it has no form that the sampler takes
    """
    every, state = training.config.run, training.state

    def draw(model: Transformer) -> list[Sample]:
        tokenizer, prompts = training.tokens.tokenizer, asked_of(training)
        texts = [sampler(model.eval(), tokenizer, prompt, every.seed) for prompt in prompts]
        asked = [prompt if isinstance(prompt, str) else tokenizer.decode(prompt) for prompt in prompts]
        return [Sample(state.step, prompt, text) for prompt, text in zip(asked, texts, strict=True)]

    return state.by_one(draw)


def asked_of(training: Training) -> Sequence[str | tuple[int, ...]]:
    """What samples continue: the prompts that were given; else, of a run on records, the first ones held out."""
    data, given = training.tokens, training.config.run.sample_prompt
    if training.config.model.head == "score":
        return ()
    if not isinstance(data, Examples) or given != type(training.config.run).sample_prompt:
        return given
    split = data.validation if data.validation.records else data.train
    return [split.prompt(record) for record in range(min(SAMPLED, split.records))]
