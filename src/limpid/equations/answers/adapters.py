"""Published numbers of parameters that adapters learn."""

from __future__ import annotations

from collections.abc import Sequence
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


@kind("lora.trainable_params")
def _trainable(x: Inputs) -> int:
    """Of the same matrices in every block, each given by its inputs and outputs."""
    return int(x["n_layers"]) * _factors(x["matrices"], x["rank"])


@kind("lora.trainable_params_list")
def _several(x: Inputs) -> Any:
    return [_trainable(case) for case in x["cases"]]


@kind("lora.count_and_percent")
@kind("lora.count_with_saved_modules")
def _share(x: Inputs) -> Any:
    """As peft prints them: modules that are trained whole are copies, beside those that they stand for."""
    return _counted(_trainable(x) + x.get("saved_modules", 0), x["base"])


@kind("lora.mlp_with_saved_head")
def _mlp(x: Inputs) -> Any:
    inputs, outputs = x["head"]
    return _counted(_factors(x["layers"], x["rank"]) + inputs * outputs + outputs, x["base"])


def _factors(matrices: Sequence[Sequence[int]], rank: int) -> int:
    return sum(adapters.low_rank(inputs, outputs, rank) for inputs, outputs in matrices)


def _counted(trainable: int, base: int) -> dict[str, float]:
    return {"trainable": trainable, "all": base + trainable, "percent": 100 * trainable / (base + trainable)}
