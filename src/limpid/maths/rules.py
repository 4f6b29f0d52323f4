"""Which rule moves which parameter."""

from __future__ import annotations

from limpid.config import UpdateConfig
from limpid.errors import ConfigError
from limpid.maths.muon import Muon
from limpid.maths.update import SGD, Adam, AdamW, Momentum, UpdateRule
from limpid.quantities import Parameter


def rule(update: UpdateConfig, parameter: Parameter) -> UpdateRule:
    """The update rule that a configuration asks for; muon is for matrices inside blocks, AdamW then moves the rest."""
    match update.optimizer:
        case "sgd":
            return SGD(update.weight_decay)
        case "momentum":
            return Momentum(update.weight_decay, update.beta1)
        case "adam":
            return Adam(update.weight_decay, update.beta1, update.beta2, update.eps)
        case "muon" if parameter.hidden:
            return Muon(update.weight_decay)
        case "adamw" | "muon":
            return AdamW(update.weight_decay, update.beta1, update.beta2, update.eps)
    raise ConfigError(f"optimizer is {update.optimizer!r}: choose one of adamw, muon, adam, momentum, sgd")
