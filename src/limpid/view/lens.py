"""The logit lens of a recorded step as the page is sent it: some positions of one row, every block."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

from limpid.data.tokenizer import Tokenizer
from limpid.errors import LimpidError
from limpid.quantities import NO_LABEL
from limpid.source import RecordedStep
from limpid.tracing import Trace
from limpid.tracing.lens import LensLayer, at_once, has_lens, logit_lens
from limpid.view.answers import Refused
from limpid.view.documents.lens import LensCell, LensRow, LensToken, LensView

MOST = 64
"""Positions that are sent at once."""


def lens_view(trace: Trace, row: int, first: int, count: int = MOST) -> LensView:
    """So many positions of a row from the first on, as many as are read out at once.

    Raises  Refused for a step without logits, and for a place that it does not have
    """
    record = trace.record
    if not has_lens(record):
        raise Refused("the step forms no logits of rows of tokens: there is nothing to read out", 404)
    rows, positions = record.shape("batch/tokens")
    if not (row < rows and first < positions):
        raise Refused(f"the step has {rows} rows of {positions} tokens: there is no position {first} in row {row}", 404)
    count = max(1, min(count, MOST, at_once(record), positions - first))
    try:
        layers = logit_lens(record, row, first, count)
    except KeyError as error:
        raise Refused(f"the residual stream {error} was not recorded", 404) from error
    text = Texts(trace)
    targets = [NO_LABEL] * count
    if "batch/targets" in record.names:
        targets = record.mapped("batch/targets")[row, first : first + count].tolist()
    return LensView(
        row,
        first,
        positions,
        tuple(None if one == NO_LABEL else text.of(one) for one in targets),
        tuple(_row(layer, text) for layer in layers),
    )


class Texts:
    """The text of any token: by the run's tokenizer, else as far as the step itself says it."""

    def __init__(self, trace: Trace) -> None:
        run = RecordedStep(trace.record.path).run
        self.known = trace.record.meta["token_texts"]
        file = None if run is None else run.tokenizer_file
        self.tokenizer = None if file is None or not file.is_file() else _tokenizer(file, file.stat().st_mtime_ns)

    def of(self, token: int) -> str:
        found = self.known.get(str(token))
        if found is None and self.tokenizer is not None:
            found = self.tokenizer.token_text(token)
        return f"<{token}>" if found is None else str(found)


@lru_cache(maxsize=4)
def _tokenizer(file: Path, written: int) -> Tokenizer | None:
    try:
        return Tokenizer.load(file)
    except LimpidError:
        return None


def _row(layer: LensLayer, text: Texts) -> LensRow:
    places = zip(layer.likeliest, layer.probability, layer.target, layer.rank, layer.kl, strict=True)
    cells = tuple(
        LensCell(
            tuple(LensToken(int(one), text.of(int(one)), float(p)) for one, p in zip(tokens, shares, strict=True)),
            None if math.isnan(target) and not rank else float(target),
            int(rank) or None,
            float(kl),
        )
        for tokens, shares, target, rank, kl in places
    )
    return LensRow(layer.name, layer.title, cells)
