"""Beam search: several continuations grow side by side, and the likeliest for its length wins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from limpid.config import Sampling
from limpid.generation.completion import Completion, Prompt, encode_prompt, require_room, stops
from limpid.generation.decoder import Decoder
from limpid.generation.detokenize import Detokenizer
from limpid.generation.sampling import penalised
from limpid.generation.watermark import greened

if TYPE_CHECKING:
    from limpid.data.tokenizer import Tokenizer


@torch.inference_mode()
def beam_search(model: Decoder, tokenizer: Tokenizer, prompt: Prompt, sampling: Sampling) -> Completion:
    """The best of `num_beams` continuations by log-probability divided by length to the power of length_penalty.

    The search ends when no running beam, at its present length, could still beat the worst of as many finished ones,
    which is what transformers' `generate` does. Source: Wu et al. 2016, section 7, arXiv:1609.08144.
    """
    prompt_tokens = encode_prompt(model.model, tokenizer, prompt)
    room = min(sampling.max_new_tokens, model.config.context_length - len(prompt_tokens) + 1)
    beams = sampling.num_beams
    require_room(model.config, beams, len(prompt_tokens) + room, model.compute.itemsize)
    cache = model.cache(1, len(prompt_tokens) + room)
    inputs = torch.tensor([prompt_tokens])
    running: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, room + 1):
        logits = model(inputs, cache, last_only=True)[:, -1].float()
        if not torch.isfinite(logits.amax(-1)).all():
            raise model.model.diverged()
        scores = logits.log_softmax(-1)
        seen = [torch.tensor(prompt_tokens + tokens) for _, tokens in running]
        scores = greened(penalised(scores, seen, sampling.repetition_penalty), seen, sampling)
        scores = scores + torch.tensor([score for score, _ in running])[:, None]
        best, places = scores.flatten().topk(min(2 * beams, scores.numel()))
        following: list[tuple[float, list[int], int]] = []
        for rank, (score, place) in enumerate(zip(best.tolist(), places.tolist(), strict=True)):
            beam, token = divmod(place, scores.shape[-1])
            tokens = [*running[beam][1], token]
            if token in tokenizer.ends or length == room:
                if rank < beams:
                    finished.append((score / length**sampling.length_penalty, tokens))
            elif len(following) < beams:
                following.append((score, tokens, beam))
        finished = sorted(finished, key=lambda item: -item[0])[:beams]
        if not following or _search_is_over(finished, following[0][0] / length**sampling.length_penalty, beams):
            break
        cache.select(torch.tensor([beam for _, _, beam in following]))
        running = [(score, tokens) for score, tokens, _ in following]
        inputs = torch.tensor([tokens[-1:] for _, tokens in running])
    return _completion(prompt, finished[0][1], tokenizer, sampling, room)


def _search_is_over(finished: list[tuple[float, list[int]]], best_running: float, beams: int) -> bool:
    """Whether as many beams are finished as were asked for, and none that runs is better than the worst of them."""
    return len(finished) == beams and best_running <= finished[-1][0]


def _completion(prompt: Prompt, tokens: list[int], tokenizer: Tokenizer, sampling: Sampling, room: int) -> Completion:
    text = Detokenizer(tokenizer, (*sampling.stop, *stops(tokenizer, prompt)))
    finish = "length" if room == sampling.max_new_tokens else "context"
    for token in tokens:
        if token in tokenizer.ends:
            finish = "end of text"
            break
        text.add(token)
        if text.stopped:
            break
    text.finish()
    return Completion(prompt, text.text, tuple(text.tokens), "stop" if text.stopped else finish)
