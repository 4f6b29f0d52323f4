"""Names that are right answers for whole kinds of bugs."""

from __future__ import annotations

MOVED = ("*.weight (update)",)
REMEMBERED = ("m(*) (update)", "v(*) (update)")
RATE = ("learning_rate (update)", "schedule", "rate")
BATCH = ("batch", "batches", "targets", "rows", "row", "windows", "epoch")
REPLAY = ("replay", "replayed", "replays", "resumed", "checkpoint", "metrics", "state", "moments")
FROM_THE_LOSS = tuple(f"{name} (backward)" for name in ("loss", "log_probabilities", "logits", "final_norm"))
"""The loss's gradient, wherever it first shows."""
