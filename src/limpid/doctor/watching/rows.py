"""The rows that are served: repeats, mixture, labels, ids."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from limpid.doctor.checks.ids import out_of_range, wrapped
from limpid.doctor.checks.rows import unlabelled
from limpid.doctor.finding import Finding
from limpid.doctor.step_record import History, StepRecord
from limpid.doctor.watched import Watched
from limpid.doctor.watching.mixture import BINS, border, odd_rows
from limpid.doctor.watching.repeats import RowHistory, hold, repeats


def served(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """Repeats, duplicates, odd rows and borders, from the ids of the step; without them borders of its classes."""
    so_far: RowHistory = history.facts.get("served") or history.facts.setdefault("served", RowHistory())
    given = ids_of(record)
    if not given:
        yield from classes(so_far, record, history)
        return
    hold(so_far, given)
    arrays = [np.asarray(t.detach().cpu(), dtype=np.int64) for t in given]
    hashes = [h for ids in arrays for h in so_far.hashes(ids)]
    history.facts["hashes"] = hashes
    yield from repeats(so_far, hashes, record, history)
    rows = np.concatenate([histograms(ids) for ids in arrays])
    yield from odd_rows(so_far, rows, record, history)
    so_far.histograms.append(rows.sum(0) / max(1, rows.sum()))
    yield from border(so_far, record, history)
    yield from facts_of_ids(watched, so_far, arrays, record)


def classes(so_far: RowHistory, record: StepRecord, history: History) -> Iterator[Finding]:
    """Batches of one class label per row."""
    labels = [m.labels for m in record.micros if m.labels is not None and m.labels.ndim == 1 and not m.labels.is_cuda]
    if not labels:
        return
    counts = histograms(np.asarray(torch.cat(labels), dtype=np.int64)[None])[0]
    so_far.histograms.append(counts / max(1, counts.sum()))
    yield from border(so_far, record, history)


def histograms(ids: np.ndarray) -> np.ndarray:
    """How often each token is in each row, modulo 256."""
    counts = np.bincount((ids % BINS + BINS * np.arange(len(ids))[:, None]).ravel(), minlength=BINS * len(ids))
    return counts.reshape(len(ids), BINS)


def ids_of(record: StepRecord) -> list[Tensor]:
    """Token ids of the step: as told, else as the model was given them."""
    reported = [m.ids for m in record.micros if m.ids is not None]
    tensors = reported or [call.ids for call in record.calls if call.ids is not None]
    if any(t.is_cuda for t in tensors) and not record.sampled:
        return []  # no wait for the device
    return [t for t in tensors if t is not None and t.numel()]


def facts_of_ids(
    watched: Watched, so_far: RowHistory, arrays: list[np.ndarray], record: StepRecord
) -> Iterator[Finding]:
    so_far.largest = max(so_far.largest, max(int(ids.max()) for ids in arrays))
    so_far.tokens += sum(ids.size for ids in arrays)
    table = None if watched.info.embedding is None else int(watched.info.embedding[1].shape[0])
    if table is None:
        return
    for call in record.calls:
        if call.ids is not None and not call.ids.is_cuda:
            yield from out_of_range("inputs", call.ids, table, record.number)
    if so_far.largest < 2**16 <= table or so_far.largest < 2**8 <= table:
        if len(so_far.seen) < 70_000:
            for ids in arrays:
                so_far.seen.update(np.unique(ids).tolist())
        if record.number <= 200:
            yield from wrapped(so_far.largest, so_far.tokens, len(so_far.seen), table, record.number)


def labels(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """Batches without a label; and how many labels each step had."""
    for index, micro in enumerate(record.micros):
        if micro.labels is not None and micro.labels.ndim == 2 and not micro.labels.is_cuda:
            record.labels += int((micro.labels >= 0).sum())
            for finding in unlabelled(micro.labels, record.number, index if len(record.micros) > 1 else None):
                if finding.severity == "fault":
                    yield finding


def below_the_floor(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """A loss that text never seen before does not allow: asked of new rows only, over 10 steps."""
    so_far: RowHistory | None = history.facts.get("served")
    if so_far is None or record.loss is None or not so_far.new_rows:
        history.facts["below"] = 0
        return
    if history.facts.get("next_token_of", 0) < 64 or not so_far.histograms:
        return
    mean = sum(so_far.histograms) / len(so_far.histograms)
    with np.errstate(divide="ignore", invalid="ignore"):
        unigram = float(-np.where(mean > 0, mean * np.log(mean), 0).sum())
    ok = 0 < record.loss < 0.3 * math.log(2) and unigram > 1.5 and so_far.tokens > 4096
    history.facts["below"] = history.facts.get("below", 0) + 1 if ok else 0
    if history.facts["below"] == 10:
        yield Finding(
            rule="loss-below-floor",
            severity="warning",
            step=record.number,
            where="loss",
            says=f"on rows never seen before the loss is {record.loss:.3f} nats per token, below what any text allows "
            f"({0.3 * math.log(2):.2f}): the answer is in the input.",
            cause="targets leak into the inputs: labels not shifted, no causal mask, or a task that copies",
            fix="run the causality and label tests: doctor.preflight(batch)",
            sure=0.7,
            refuted_by="an equally low loss of a model that cannot see ahead",
            evidence={"loss": record.loss, "floor": 0.3 * math.log(2), "unigram_entropy": unigram},
        )


WATCH = [served, labels, below_the_floor]
