"""Documents scored by a model, token by token, and where in the text the tokens lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int64, Real

from limpid.errors import DataError
from limpid.evaluation.blocks import Blocks, blocks_of, totals
from limpid.evaluation.token_scores import TokenScores, score_windows
from limpid.evaluation.windows import Windows
from limpid.loaded import LoadedModel
from limpid.reporter import Reporter

Array = np.ndarray


@dataclass(frozen=True)
class ScoredText:
    """Every scored token of all documents, one after the other."""

    model: LoadedModel
    windows: Windows
    scores: TokenScores
    ends: Int64[Array, " token"]  # in bytes of the whole text
    sizes: Int64[Array, " token"]  # in bytes
    documents: Int64[Array, " document"]  # ends, in bytes of the whole text
    tokens: int  # scored or not

    @property
    def count(self) -> int:
        return len(self.ends)

    @property
    def bytes(self) -> int:
        """Bytes of the scored tokens."""
        return int(self.sizes.sum())

    @property
    def losses(self) -> Float[Array, " token"]:
        """-ln p of each scored token, nats."""
        return self.scores.loss.astype(np.float64)

    def blocks(self) -> Blocks | None:
        """Blocks for intervals of the metrics per token; None when the text is too short."""
        return blocks_of(self.ends, self.documents, self.losses - self.losses.mean())

    def totals(self, blocks: Blocks, *values: Real[Array, " token"]) -> Float[Array, "block quantity"]:
        """Sums over each block."""
        return totals(self.ends, self.sizes, np.stack([np.asarray(v, np.float64) for v in values], 1), blocks)


def encode_documents(model: LoadedModel, documents: Sequence[str], reporter: Reporter) -> list[tuple[Array, Array]]:
    """Each document's tokens, and the bytes that each stands for."""
    encoded = []
    for number, text in enumerate(documents, 1):
        ids, sizes = model.tokenizer.encode_with_sizes(text)
        encoded.append((np.array(ids, np.int64), np.array(sizes, np.int64)))
        reporter.progress("tokenizing", number, len(documents))
    return encoded


def score_text(
    model: LoadedModel, documents: Sequence[tuple[Array, Array]], windows: Windows, reporter: Reporter
) -> ScoredText:
    """Score the documents.

    Raises  DataError when no token can be scored; CheckpointError when the model's logits are not numbers
    """
    rows = [(number, window) for number, (ids, _) in enumerate(documents) for window in windows.of(ids)]
    total = sum(window.scored for _, window in rows)
    if not total:
        raise DataError("the text has no token with another before it: give a longer text")
    done, what = 0, f"reading with {model.name}"

    def advance(count: int) -> None:
        nonlocal done
        done += count
        reporter.progress(what, done, total)

    reporter.progress(what, 0, total)
    scores = list(score_windows(model.transformer, (window for _, window in rows), advance))
    lengths = np.array([int(sizes.sum()) for _, sizes in documents])
    starts = np.cumsum(lengths) - lengths
    ends, sizes = [], []
    places = [start + np.cumsum(sizes) for start, (_, sizes) in zip(starts, documents, strict=True)]
    for number, window in rows:
        scored = slice(window.place, window.place + window.scored)
        sizes.append(documents[number][1][scored])
        ends.append(places[number][scored])
    return ScoredText(
        model,
        windows,
        TokenScores(*(np.concatenate(parts) for parts in zip(*scores, strict=True))),
        np.concatenate(ends),
        np.concatenate(sizes),
        np.cumsum(lengths),
        sum(len(ids) for ids, _ in documents),
    )
