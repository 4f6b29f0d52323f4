"""Published numbers of parameters that adapters learn."""

from __future__ import annotations

from typing import Any

from limpid.equations.answers.kinds import Inputs, kind
from limpid.planning import adapters
from limpid.planning.architecture import Architecture, architecture


def _model(x: Inputs) -> Architecture:
    """What counting takes: the vocabulary is none of an adapter's business."""
    return architecture(**{"vocab_size": 1, "d_ff": 1, **x["model"]})


@kind("adapters.lora")
def _lora(x: Inputs) -> Any:
    return [adapters.lora(_model(x), rank, x["targets"]) for rank in x["ranks"]]


@kind("adapters.ia3")
def _ia3(x: Inputs) -> Any:
    return adapters.ia3(_model(x))


@kind("adapters.prefix")
def _prefix(x: Inputs) -> Any:
    return adapters.prefix(_model(x), x["tokens"])


@kind("adapters.prompt")
def _prompt(x: Inputs) -> Any:
    return adapters.prompt(_model(x), x["tokens"])


@kind("adapters.p_tuning")
def _p_tuning(x: Inputs) -> Any:
    return adapters.p_tuning(_model(x), x["tokens"], x["hidden"])
