"""One array of a step redone by itself, for whoever looks at this one: its numbers in float64, and each one's bound."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from limpid.maths.muon import Muon
from limpid.maths.schedule import learning_rate
from limpid.maths.step import rule
from limpid.maths.update import clip_scale
from limpid.tracing.comparison import Expected
from limpid.tracing.kernels import kernel_of, newton_schulz
from limpid.tracing.local import (
    compare_piece,
    expected_gradient,
    expected_result,
    input_of,
)
from limpid.tracing.local_backward import Gradients, add_up
from limpid.tracing.names import AROUND
from limpid.tracing.record import Place, Record
from limpid.tracing.segments import cut, segments
from limpid.tracing.sums import Sum
from limpid.tracing.update import Moved


def redone(record: Record, name: str) -> Expected | None:
    """A quantity, grad(NAME), update(NAME), m(NAME) or v(NAME), from the engine's own inputs of what made it.

    None for what nothing made: the batch, parameters before the step, gradients that nothing came to
    """
    around = AROUND.fullmatch(name)
    with np.errstate(all="ignore"):
        if around is None:
            return _value(record, name)
        kind, inner = around.groups()
        return _gradient(record, inner) if kind == "grad" else _update(record, kind, inner)


def _value(record: Record, name: str) -> Expected | None:
    piece = next((one for one in segments(record) if one.name == name and one.makes), None)
    if piece is None:
        return None
    kernel, inputs = kernel_of(record, piece), [input_of(record, piece, one) for one in piece.inputs]
    return expected_result(record, piece, kernel, inputs, kernel.forward(inputs)[0])


def compared_place(record: Record, name: str) -> str:
    """The tensor that a gradient is compared in: on the path that trains, where that formed what it follows from."""
    used = {piece.path for piece in segments(record) if name in piece.inputs}
    places = [f"{path}/grad({name})" for path in ("fast", "plain") if path in used]
    return next((place for place in places if place in record.names), f"fast/grad({name})")


def _gradient(record: Record, name: str) -> Expected | None:
    place = compared_place(record, name)
    path = place.partition("/")[0]
    users = [piece for piece in segments(record) if piece.path == path and name in piece.inputs]
    gradients, sums = Gradients(record, cut(record)), dict[tuple[Place, str], Sum]()
    for piece in users if place in record.names else ():
        add_up(compare_piece(record, replace(piece, makes=False), gradients)[1], gradients, sums)
    total = sums.get((users[0].path, name)) if users else None
    return None if total is None else expected_gradient(record, record.mapped(place), total)[0]


def _update(record: Record, kind: str, name: str) -> Expected | None:
    parameter = next((one for one in record.trained if one.name == name), None)
    if parameter is None or not record.meta["updated"]:
        return None
    config, norm = record.config, float(record.exact("fast/grad_norm"))
    how, rate = rule(config.update, parameter), learning_rate(record.meta["step"], config.run.max_steps, config.update)
    scale = math.nan if math.isnan(norm) else clip_scale(norm, config.update.max_grad_norm)
    if isinstance(how, Muon) and newton_schulz.is_recorded(record, name):
        how = newton_schulz.along_recorded(record, name, how)
    return Moved(record, parameter, how, rate, scale).expected().get(name if kind == "update" else f"{kind}/{name}")
