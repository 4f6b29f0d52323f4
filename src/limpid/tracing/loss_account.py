"""The loss accounted for: which formula, over which tokens, with which weight and normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from limpid.maths.loss import NO_LABEL, perplexity
from limpid.tracing.record import Record


@dataclass(frozen=True)
class Label:
    """One token that the model was to predict."""

    text: str
    surprise: float | None  # nats; None where the position has no label


@dataclass(frozen=True)
class LossReport:
    """Where the loss comes from."""

    loss: float  # nats per label, the engine's
    labels: int
    positions: int
    weight: float  # of one label in the loss
    micro_batches: list[dict[str, Any]]
    rows: list[list[Label]]
    surprises: np.ndarray  # of every label, nats

    @property
    def perplexity(self) -> float:
        return perplexity(min(self.loss, 700.0))

    def hardest(self, count: int = 5) -> list[tuple[int, int, Label]]:
        """The most surprising labels: row, position, label."""
        found = [
            (row, position, label)
            for row, labels in enumerate(self.rows)
            for position, label in enumerate(labels)
            if label.surprise is not None
        ]
        return sorted(found, key=lambda item: -(item[2].surprise or 0.0))[:count]


def loss_account(record: Record) -> LossReport:
    """Read the loss off the recorded log-probabilities, label by label; a score has no labels."""
    if "batch/targets" not in record.names:
        return _of_answers(record)
    targets = record.exact("batch/targets")
    log_probabilities = record.stored(record.place("log_probabilities"))
    texts = record.meta["token_texts"]
    labelled = targets != NO_LABEL
    chosen = np.take_along_axis(log_probabilities, np.where(labelled, targets, 0)[..., None], -1)[..., 0]
    surprise = -chosen.astype(np.float64)
    rows = [
        [
            Label(texts[str(target)], float(nats)) if has else Label("", None)
            for target, nats, has in zip(row, nats_row, labelled_row, strict=True)
        ]
        for row, nats_row, labelled_row in zip(targets.tolist(), surprise.tolist(), labelled.tolist(), strict=True)
    ]
    labels = int(labelled.sum())
    return LossReport(
        loss=float(record.exact("fast/loss")),
        labels=labels,
        positions=int(targets.size),
        weight=1 / max(1, labels),
        micro_batches=record.meta["micro_batches"],
        rows=rows,
        surprises=surprise[labelled],
    )


def _of_answers(record: Record) -> LossReport:
    """A loss of whole answers: which tokens they have, none of which is surprising."""
    tokens, texts = record.exact("batch/tokens"), record.meta["token_texts"]
    return LossReport(
        loss=float(record.exact("fast/loss")),
        labels=record.labels,
        positions=int(tokens.size),
        weight=1 / record.labels,
        micro_batches=record.meta["micro_batches"],
        rows=[[Label(texts[str(token)], None) for token in row] for row in tokens.tolist()],
        surprises=np.empty(0),
    )
