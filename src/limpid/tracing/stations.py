"""The stations of a step: where each quantity belongs, in every room and on every page."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Literal

Station = Literal["embedding", "norm", "attention", "mlp", "logits", "loss", "backward", "update"]


def station(name: str) -> Station:
    """The station that computes a quantity, or uses a parameter."""
    if name.startswith("embed."):
        return "embedding"
    place = name.split(".", 2)[2] if name.startswith("blocks.") else name
    if place.startswith(("norm", "final_norm")):
        return "norm"
    if place.startswith(("attention", "residual1")):
        return "attention"
    if place.startswith(("mlp", "residual2")):
        return "mlp"
    return "logits" if place.startswith("logits") else "loss"


def block(name: str) -> int | None:
    """The block of a quantity or parameter; None outside the blocks."""
    return int(name.split(".")[1]) if name.startswith("blocks.") else None


def stage(name: str) -> tuple[Station, int | None]:
    """The station as one tells a step: a norm belongs to what it normalises for."""
    own, at = station(name), block(name)
    if own != "norm":
        return own, at
    if at is None:
        return "logits", None
    return ("attention" if name.endswith("norm1") else "mlp"), at


def title(own: Station, at: int | None) -> str:
    """block 0 attention, or the station's name outside the blocks."""
    return own if at is None else f"block {at} {own}"


def stages(names: Iterable[str]) -> list[tuple[Station, int | None, list[str]]]:
    """Quantities in order, gathered by stage."""
    return [(own, at, list(group)) for (own, at), group in groupby(names, stage)]
