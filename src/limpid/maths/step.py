"""One training step as mathematics: forward, loss, backward, clip, update. Read it beside training/step.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from limpid import quantities
from limpid.config import ModelConfig, TrainConfig, UpdateConfig
from limpid.config.arguments import checked
from limpid.errors import ConfigError
from limpid.maths.chain import Chain
from limpid.maths.loss import next_token_loss
from limpid.maths.muon import Muon
from limpid.maths.operation import Array
from limpid.maths.schedule import learning_rate
from limpid.maths.transformer import transformer
from limpid.maths.update import SGD, Adam, AdamW, Arrays, Momentum, UpdateInput, UpdateRule, clip
from limpid.quantities import Parameter, update_rule


@dataclass(frozen=True)
class Step:
    """Everything one step computed."""

    chain: Chain  # every quantity
    loss: float  # nats per label
    gradients: Arrays  # of every quantity and parameter, before clipping
    grad_norm: float  # of the parameters' gradients, before clipping
    learning_rate: float
    parameters: Arrays  # after the update
    moments: Arrays  # after the update: m/NAME, v/NAME


ChainLoss = Callable[[Chain, ModelConfig], str]
"""Computes a loss in a chain that holds the parameters and the batch; returns its name."""


def forward(chain: Chain, config: ModelConfig) -> str:
    """Every quantity from the tokens to the next-token loss; returns the loss's name."""
    return next_token_loss(chain, transformer(chain, config))


@checked
def step(
    parameters: Mapping[str, Array],
    moments: Mapping[str, Array],
    batch: Mapping[str, Array],
    config: TrainConfig,
    number: int,
    objective: ChainLoss = forward,
) -> Step:
    """Update `number` (1 is the first) of a run.

    batch  tokens and targets, (batch, position), and the mask kept(NAME) of every dropout
    """
    chain = Chain({**parameters, **batch})
    loss = objective(chain, config.model)
    gradients = chain.backward(loss)
    trained = [parameter.name for parameter in quantities.trained_parameters(config)]
    clipped, norm = clip({name: gradients[name] for name in trained}, config.update.max_grad_norm)
    rate = learning_rate(number, config.run.max_steps, config.update)
    new_parameters, new_moments = update(parameters, clipped, moments, config, rate, number)
    return Step(chain, float(chain.values[loss]), gradients, norm, rate, new_parameters, new_moments)


def update(
    parameters: Mapping[str, Array],
    gradients: Arrays,
    moments: Mapping[str, Array],
    config: TrainConfig,
    rate: float,
    number: int,
) -> tuple[Arrays, Arrays]:
    """Every parameter and its moments after update `number`, each by its own rule."""
    new_parameters, new_moments = dict(parameters), {}
    for learned in quantities.trained_parameters(config):
        name, how = learned.name, rule(config.update, learned)
        remembered = {kind: moments[f"{kind}/{name}"] for kind in how.moments}
        moved, memory = how.apply(
            UpdateInput(parameters[name], gradients[name], remembered, rate, number, learned.decayed)
        )
        new_parameters[name] = moved
        new_moments.update({f"{kind}/{name}": array for kind, array in memory.items()})
    return new_parameters, new_moments


@checked
def rule(update: UpdateConfig, parameter: Parameter) -> UpdateRule:
    """The update rule that a configuration asks for; muon is for matrices inside blocks, AdamW then moves the rest."""
    match update_rule(update.optimizer, parameter):
        case "sgd":
            return SGD(update.weight_decay)
        case "momentum" if update.beta1 == 0:  # nothing is remembered, and PyTorch keeps no buffer
            return SGD(update.weight_decay)
        case "momentum":
            return Momentum(update.weight_decay, update.beta1)
        case "adam":
            return Adam(update.weight_decay, update.beta1, update.beta2, update.eps)
        case "muon":
            return Muon(update.weight_decay)
        case "adamw":
            return AdamW(update.weight_decay, update.beta1, update.beta2, update.eps)
    raise ConfigError(f"optimizer is {update.optimizer!r}: choose one of adamw, muon, adam, momentum, sgd")
