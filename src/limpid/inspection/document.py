"""What was measured, as plain values for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from limpid.inspection.activations import attention_document
from limpid.inspection.gradient_flow import GradientFlow
from limpid.inspection.landscape import Landscape
from limpid.inspection.logit_attribution import LensLayer, TokenRank
from limpid.inspection.structure import Structure
from limpid.inspection.weights import Spectrum
from limpid.jsonable import jsonable

Plain = dict[str, Any]


def document(structure: Structure, landscape: Landscape | None, seconds: float) -> Plain:
    """All of it; numbers that are not finite are spelled as float() reads them."""
    sample = structure.sample
    plain = {
        "model": sample.name,
        "step": sample.step,
        "text": {"origin": sample.origin, "tokens": list(sample.shown), "spelled": sample.text},
        "notes": list(sample.notes),
        "logit_attribution": _attribution(structure),
        "logit_lens": [_layer(layer, structure) for layer in structure.lens],
        "attention": {
            "heads": [asdict(head) | {"habit": head.habit} for head in structure.heads],
            "maps": attention_document(structure.seen, sample.model.config.num_layers, sample.text),
        },
        "singular_values": [_spectrum(spectrum) for spectrum in structure.spectra],
        "neurons": {
            "positions": structure.neuron_positions,
            "blocks": [asdict(block) | {"dead": list(block.dead), "share": block.share} for block in structure.neurons],
        },
        "embedding_neighbours": None if structure.neighbours is None else asdict(structure.neighbours),
        "landscape": None if landscape is None else _landscape(landscape),
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


def _attribution(structure: Structure) -> Plain:
    spelled = structure.sample.tokenizer.token_text(structure.attribution.token)
    return asdict(structure.attribution) | {"spelled": spelled, "error": structure.attribution.error}


def _layer(layer: LensLayer, structure: Structure) -> Plain:
    spell = structure.sample.tokenizer.token_text

    def guess(one: TokenRank | None) -> Plain | None:
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


def _landscape(landscape: Landscape) -> Plain:
    at, density = landscape.sharpness.density()
    return {
        "loss": landscape.loss,
        "rows": landscape.rows,
        "length": landscape.length,
        "parameters": landscape.parameters,
        "seed": landscape.seed,
        "sharpness": {
            "largest": landscape.sharpness.largest,
            "largest_within": landscape.sharpness.largest_within,
            "smallest": landscape.sharpness.smallest,
            "smallest_within": landscape.sharpness.smallest_within,
            "mean": landscape.sharpness.mean,
            "stable_rate": landscape.sharpness.stable_rate,
            "lanczos_steps": landscape.sharpness.steps,
            "ritz_values": [run.values for run in landscape.sharpness.runs],
            "ritz_weights": [run.weights for run in landscape.sharpness.runs],
            "density": {"eigenvalue": at, "density": density},
        },
        "curves": asdict(landscape.curves),
        "noise": asdict(landscape.noise),
        "clipping": asdict(landscape.clipping) | {"after": landscape.clipping.after},
        "gradient_flow": [_flow(flow) for flow in (landscape.gradient, *landscape.variants, *landscape.fresh)],
    }


def _flow(flow: GradientFlow) -> Plain:
    return {"name": flow.name, "gains": flow.gains, "mean": flow.mean, "later": flow.later, "verdict": flow.verdict}
