"""An evaluation as plain values, for JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from limpid.planning import parameter_count

if TYPE_CHECKING:
    from limpid.evaluation.evaluation import Evaluation, TextResult

PRECISION = "fp32"
"""In which every model is scored, wherever it computes."""


def document(evaluation: Evaluation) -> dict[str, Any]:
    """All of it as plain values."""
    return {
        "models": [
            {"name": s.name, "step": s.step, "parameters": parameter_count(s.transformer.config)}
            for s in evaluation.models
        ],
        "text": evaluation.origin or None,
        "confidence": evaluation.config.confidence,
        "notes": list(evaluation.notes),
        "texts": [_plain_result(result) for result in evaluation.texts],
        "difference": _plain_difference(evaluation),
        "tasks": [
            {"results": [result.as_dict() for result in results], "difference": between}
            for results, between in zip(evaluation.tasks, _plain_between(evaluation), strict=True)
        ],
        "records": None if evaluation.records is None else evaluation.records.as_dict(),
    }


def _plain_between(evaluation: Evaluation) -> list[dict[str, Any] | None]:
    if not evaluation.task_differences:
        return [None] * len(evaluation.tasks)
    return [
        {unit: {k: v for k, v in d.as_dict().items() if not math.isnan(v)} for unit, d in between.items()}
        for between in evaluation.task_differences
    ]


def _plain_result(result: TextResult) -> dict[str, Any]:
    text, calibration = result.text, result.calibration
    windows = text.windows
    return {
        "model": text.model.name,
        "device": text.model.device,
        "precision": PRECISION,
        "tokens": text.tokens,
        "scored": text.count,
        "bytes": text.bytes,
        "documents": len(text.documents),
        "convention": windows.convention,
        "context": windows.context,
        "stride": windows.stride,
        "blocks": None if result.blocks is None else {"count": len(result.blocks), "of": result.blocks.unit},
        "metrics": {metric.name.replace(" ", "_"): metric.as_dict() for metric in result.metrics},
        "watermark": None if result.watermark is None else result.watermark.document(),
        "calibration": {
            "error": calibration.error,
            "chance": calibration.chance,
            "corrected": None if calibration.corrected is None else calibration.corrected.as_dict(),
            "bins": [vars(b) for b in calibration.bins],
        },
    }


def _plain_difference(evaluation: Evaluation) -> dict[str, Any] | None:
    if evaluation.difference is None:
        return None
    own = evaluation.difference
    return {
        "unit": "bits per byte",
        **({"value": own.value} if own.estimate is None else own.estimate.as_dict()),
        "significant": own.significant,
        "sentence": own.sentence(),
    }
