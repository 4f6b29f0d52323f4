"""Where in a recorded step the doctor's findings point: a station, an array of it, an entry."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from limpid.doctor.finding import Finding
from limpid.tracing import Trace
from limpid.tracing.names import AROUND, bare
from limpid.tracing.stations import stage, title
from limpid.view.documents.step import PlacedFinding

WORDS = {
    "loss": "loss", "labels": "targets", "inputs": "tokens", "logits": "logits", "attention": "blocks.0.attention",
    "gradient of the logits": "grad(logits)", "batch": "tokens", "rows": "tokens", "data": "tokens",
}  # fmt: skip
"""What a finding calls parts of a step that have other names here."""
OF_UPDATE = (
    "optimizer", "weight decay", "learning rate", "schedule", "gradients", "gradient norm", "scaler", "loss scale",
    "every parameter group", "parameter group", "all parameters",
)  # fmt: skip
ROW = re.compile(r"(?:batch )?rows? (?P<row>\d+)(?:, position (?P<position>\d+))?")
TOKEN = re.compile(r"token (?P<token>\d+)")


def located(trace: Trace, findings: Sequence[Finding]) -> tuple[PlacedFinding, ...]:
    """Findings that point into this step, in the order of the step; each once, as it was found nearest to this step."""
    names, step = trace.names(), int(trace.record.meta["step"])
    found: dict[tuple[str, str], PlacedFinding] = {}
    for number, finding in enumerate(findings):
        place = _place(trace, names, finding.where)
        if place is None:
            continue
        key = finding.rule, finding.where
        placed = PlacedFinding(number, finding, *place)
        if key not in found or _away(finding, step) < _away(found[key].finding, step):
            found[key] = placed
    order = {name: at for at, name in enumerate(names)}
    return tuple(sorted(found.values(), key=lambda one: order.get(bare(one.name or ""), len(order))))


def _away(finding: Finding, step: int) -> int:
    """How many steps before or after this one; what was found before the first step is found at 0."""
    return abs((finding.step or 0) - step)


def _place(trace: Trace, names: list[str], where: str) -> tuple[str, str | None, tuple[int, ...]] | None:
    """Station, array and index of an entry, as far as the finding names them; None for what is not of a step."""
    row, token = ROW.match(where), TOKEN.fullmatch(where)
    if row is not None and "tokens" in names:
        index = (int(row["row"]), int(row["position"] or 0))
        return _title("tokens"), "tokens", _inside(trace, "tokens", index)
    if token is not None:
        return (
            _title("embed.tokens"),
            "embed.tokens.weight",
            _inside(trace, "embed.tokens.weight", (int(token["token"]), 0)),
        )
    if any(where == word or where.startswith(f"{word} ") for word in OF_UPDATE):
        return "update", None, ()
    name = WORDS.get(where, where)
    around = AROUND.fullmatch(name)
    inner = around[2] if around else name
    if inner in names:
        return _title(inner), name, ()
    within = [one for one in names if one.startswith(f"{inner}.")]
    return (_title(_station_of(within)), None, ()) if within else None


def _station_of(names: Iterable[str]) -> str:
    """The first quantity of a module that is not the norm before it."""
    found = list(names)
    return next((one for one in found if not one.endswith(("norm1", "norm2"))), found[0])


def _inside(trace: Trace, name: str, index: tuple[int, ...]) -> tuple[int, ...]:
    shape = trace.record.shape(trace.tensor(name)[1])
    return index if len(shape) == len(index) and all(i < size for i, size in zip(index, shape, strict=True)) else ()


def _title(name: str) -> str:
    """The station as the page calls it."""
    return "embedding" if name == "tokens" else title(*stage(name))
