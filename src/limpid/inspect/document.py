"""Everything that was found as plain values, for JSON."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from limpid.inspect.jacobians import Path as Way
from limpid.inspect.landscape import Landscape
from limpid.inspect.lens import Guess, Layer
from limpid.inspect.maps import page_data
from limpid.inspect.spectra import Spectrum
from limpid.inspect.structure import Structure
from limpid.jsonable import jsonable

Plain = dict[str, Any]


def document(found: Structure, around: Landscape | None, seconds: float) -> Plain:
    """All of it; numbers that are not finite are spelled as float() reads them."""
    subject = found.subject
    plain = {
        "model": subject.name,
        "step": subject.step,
        "text": {"origin": subject.origin, "tokens": list(subject.shown), "spelled": subject.text},
        "notes": list(subject.notes),
        "writes": _writes(found),
        "lens": [_layer(layer, found) for layer in found.lens],
        "attention": {
            "heads": [asdict(head) | {"habit": head.habit} for head in found.heads],
            "maps": page_data(found.seen, subject.model.config.num_layers, subject.text),
        },
        "spectra": [_spectrum(spectrum) for spectrum in found.spectra],
        "units": {
            "positions": found.unit_positions,
            "blocks": [asdict(block) | {"dead": list(block.dead), "share": block.share} for block in found.units],
        },
        "words": None if found.words is None else asdict(found.words),
        "landscape": None if around is None else _landscape(around),
        "pictures": _names(found.pictures) + ([] if around is None else _names(around.pictures)),
        "seconds": round(seconds, 3),
    }
    whole: Plain = jsonable(_as_lists(plain))
    return whole


def _as_lists(value: Any) -> Any:
    """Tuples and arrays as lists, all the way down."""
    if isinstance(value, dict):
        return {key: _as_lists(inner) for key, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return [_as_lists(inner) for inner in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def _names(pictures: tuple[Path, ...]) -> list[str]:
    return [picture.name for picture in pictures]


def _writes(found: Structure) -> Plain:
    spelled = found.subject.tokenizer.token_text(found.writes.token)
    return asdict(found.writes) | {"spelled": spelled, "off": found.writes.off}


def _layer(layer: Layer, found: Structure) -> Plain:
    spell = found.subject.tokenizer.token_text

    def guess(one: Guess | None) -> Plain | None:
        return None if one is None else asdict(one) | {"spelled": spell(one.token)}

    named = {"top": guess(layer.top), "final": guess(layer.final), "next": guess(layer.next)}
    return asdict(layer) | named | {"tops_spelled": [spell(token) for token in layer.tops]}


def _spectrum(spectrum: Spectrum) -> Plain:
    return {
        "name": spectrum.name,
        "shape": spectrum.shape,
        "largest": float(spectrum.values[0]),
        "smallest": float(spectrum.values[-1]),
        "effective_rank": spectrum.effective_rank,
        "stable_rank": spectrum.stable_rank,
        "rank_for_90_percent": spectrum.rank_needed,
        "quarter_rank": spectrum.quarter,
        "quarter_rank_error": spectrum.quarter_error,
        "values": [float(f"{value:.6g}") for value in spectrum.values],
    }


def _landscape(around: Landscape) -> Plain:
    at, density = around.sharpness.density()
    return {
        "loss": around.loss,
        "rows": around.rows,
        "length": around.length,
        "parameters": around.parameters,
        "seed": around.seed,
        "sharpness": {
            "largest": around.sharpness.largest,
            "largest_within": around.sharpness.largest_within,
            "smallest": around.sharpness.smallest,
            "smallest_within": around.sharpness.smallest_within,
            "mean": around.sharpness.mean,
            "stable_rate": around.sharpness.stable_rate,
            "lanczos_steps": around.sharpness.steps,
            "ritz_values": [run.values for run in around.sharpness.runs],
            "ritz_weights": [run.weights for run in around.sharpness.runs],
            "density": {"eigenvalue": at, "density": density},
        },
        "curves": asdict(around.curves),
        "noise": asdict(around.noise),
        "clipping": asdict(around.clipping) | {"after": around.clipping.after},
        "gains": [_way(way) for way in (around.gradient, *around.ways, *around.fresh)],
    }


def _way(way: Way) -> Plain:
    return {"name": way.name, "gains": way.gains, "mean": way.mean, "later": way.later, "verdict": way.verdict}
