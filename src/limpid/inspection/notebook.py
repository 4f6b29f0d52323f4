"""An inspection in a notebook: the parts of a logit, the lens, heads, spectra, and the loss around the weights."""

from __future__ import annotations

from limpid.html import curve, folded, table, titled
from limpid.inspection.landscape import Landscape
from limpid.inspection.structure import Structure


def page(structure: Structure, landscape: Landscape | None) -> str:
    """All of it, most of it folded."""
    sample, seen = structure.sample, structure.attribution
    spell = sample.tokenizer.token_text
    parts = sorted(seen.parts, key=lambda part: -abs(part.above_mean))
    logit = (f"logit of {spell(seen.token)!r} after {sample.text[structure.position]!r}: {seen.logit:+.4f} nats, "
             f"{len(parts)} parts")  # fmt: skip
    lens = ((one.name, spell(one.top.token), f"{one.top.probability:.3g}", f"{one.kl:.3f}") for one in structure.lens)
    heads = ((one.block, one.head, f"{one.entropy:.3f}", one.habit or "") for one in structure.heads)
    spectra = (
        (one.name, "×".join(map(str, one.shape)), f"{one.values[0]:.4g}", f"{one.effective_rank:.1f}")
        for one in structure.spectra
    )
    return titled(
        f"{sample.name}: {len(sample.shown)} tokens of {sample.origin}",
        *(table([(note,)]) for note in sample.notes),
        folded(logit, table(((one.name, f"{one.above_mean:+.4f}") for one in parts),
                            ("part", "nats above the mean token"), numbers=(1,))),
        folded("logit lens", table(lens, ("after", "likeliest", "probability", "KL, nats"), numbers=(2, 3))),
        folded("attention", table(heads, ("block", "head", "entropy, nats", "habit"), numbers=(0, 1, 2))),
        folded("singular values", table(spectra, ("matrix", "shape", "largest", "effective rank"), numbers=(1, 2, 3))),
        *([] if landscape is None else [_landscape(landscape)]),
    )  # fmt: skip


def _landscape(landscape: Landscape) -> str:
    sharp, curves = landscape.sharpness, landscape.curves
    facts = [
        ("loss, nats per token", f"{landscape.loss:.4f}"),
        ("largest eigenvalue of the Hessian", f"{sharp.largest:.4g} ± {sharp.largest_within:.1g}"),
        ("smallest", f"{sharp.smallest:.4g} ± {sharp.smallest_within:.1g}"),
        ("gradient noise scale", f"{landscape.noise.scale:.3g} sequences"),
    ]
    at = [float(place) for place in curves.at]
    drawn = (curve(at, [float(value) for value in along], "filter-normalised step", "nats") for along in curves.along)
    return titled("around the weights", table(facts), *drawn)
