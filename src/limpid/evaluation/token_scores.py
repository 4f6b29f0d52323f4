"""Every token scored by the prediction before it: loss, entropy, probability of the likeliest token."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from limpid.evaluation.windows import Window
from limpid.model import Cache, Transformer
from limpid.objectives.losses import log_probabilities

Array = np.ndarray

LOGITS = 1 << 24
"""Logits that exist at once, numbers: the memory of a batch."""
POSITIONS = 1 << 12
"""Positions of a batch: enough for full speed."""
POOL = 16
"""Batches whose rows are sorted by length together, so that few positions are padding."""
PART = 128
"""Rows of logits that are scored at a time: they stay in the cache."""


class TokenScores(NamedTuple):
    """Scores of each scored token, (token,) each."""

    loss: Array  # -ln p(token), nats
    entropy: Array  # of the prediction, nats
    confidence: Array  # probability of the likeliest token
    hit: Array  # 1 where the likeliest token came
    brier: Array  # Σ (p - [came])², over the vocabulary; 0 … 2


def score_windows(
    model: Transformer, rows: Iterable[Window], advance: Callable[[int], None] | None = None
) -> Iterator[TokenScores]:
    """The scores of each window, window by window. `advance` is called with how many tokens were scored since.

    Raises  CheckpointError when the model's logits are not numbers
    """
    rows = iter(rows)
    positions = min(POSITIONS, max(1, LOGITS // model.config.vocab_size))
    while pool := _pool(rows, POOL * positions):
        order = sorted(range(len(pool)), key=lambda i: (pool[i].length, pool[i].scored))
        results: list[TokenScores | None] = [None] * len(pool)
        for batch in _batches(order, pool, positions):
            for place, scores in zip(batch, _score_batch(model, [pool[i] for i in batch]), strict=True):
                results[place] = scores
            if advance is not None:
                advance(sum(pool[i].scored for i in batch))
        yield from (scores for scores in results if scores is not None)


def _pool(rows: Iterator[Window], positions: int) -> list[Window]:
    pool: list[Window] = []
    seen = 0
    for row in rows:
        pool.append(row)
        seen += row.length
        if seen >= positions:
            break
    return pool


def _batches(order: list[int], pool: list[Window], positions: int) -> Iterator[list[int]]:
    """Rows of about the same length, about `positions` together."""
    batch: list[int] = []
    for i in order:
        if batch and (len(batch) + 1) * pool[i].length > positions:
            yield batch
            batch = []
        batch.append(i)
    yield batch


@torch.inference_mode()
def _score_batch(model: Transformer, rows: list[Window]) -> list[TokenScores]:
    """Rows are filled up at their ends, which nothing before sees. Unscored beginnings get no logits but their last."""
    length, first = max(row.length for row in rows), min(row.unscored for row in rows)
    tokens = torch.zeros(len(rows), length + 1, dtype=torch.int64)
    for place, row in enumerate(rows):
        tokens[place, : row.length + 1] = torch.from_numpy(row.tokens)
    model.require_known(int(tokens.max()))
    where = model.embed.tokens.weight.device
    tokens = tokens.to(where)
    at_once = max(1, LOGITS // (model.config.vocab_size * len(rows)))
    if first == 0 and length <= at_once:
        parts = [_score_logits(model, model(tokens[:, :-1]), tokens[:, 1:])]
    else:
        cache = Cache(model.config, len(rows), length, model.compute, None, where)
        if first:
            model(tokens[:, :first], cache, last_only=True)
        borders = [*range(first, length, at_once), length]
        parts = [
            _score_logits(model, model(tokens[:, begin:end], cache), tokens[:, begin + 1 : end + 1])
            for begin, end in itertools.pairwise(borders)
        ]
    stacked = torch.cat(parts, dim=-1).cpu().numpy()  # (quantity, row, position)
    slices = (slice(row.unscored - first, row.length - first) for row in rows)
    return [TokenScores(*stacked[:, place, part].copy()) for place, part in enumerate(slices)]


def _score_logits(
    model: Transformer, logits: Float[Tensor, "row position vocab"], targets: Int[Tensor, "row position"]
) -> Float[Tensor, "quantity row position"]:
    """The fields of `TokenScores`, some rows of logits at a time."""
    flat = zip(logits.flatten(0, 1).split(PART), targets.reshape(-1, 1).split(PART), strict=True)
    results = torch.cat([_score_part(z, target) for z, target in flat], dim=1)
    if not torch.isfinite(results[1]).all():
        raise model.diverged()
    return results.unflatten(1, targets.shape)


def _score_part(z: Float[Tensor, "row vocab"], target: Int[Tensor, "row 1"]) -> Float[Tensor, "quantity row"]:
    log_p = log_probabilities(z)
    p = log_p.exp()
    log_target = log_p.gather(1, target)[:, 0]
    confidence, guess = p.max(-1)
    entropy = -torch.einsum("rv,rv->r", p, log_p.clamp_min(torch.finfo(log_p.dtype).min))
    brier = 1 - 2 * log_target.exp() + torch.einsum("rv,rv->r", p, p)
    hit = (guess == target[:, 0]).to(p.dtype)
    return torch.stack([-log_target, entropy, confidence, hit, brier]).float()
