"""The model that a run starts from: what the run takes over of its configuration, and its weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from limpid.config import ModelConfig, TrainConfig
from limpid.config.effect import CHOSEN_ANEW
from limpid.config.tuning import head_of
from limpid.errors import CheckpointError, ConfigError
from limpid.model.convert import dropout_of
from limpid.model.linear import begun_magnitudes
from limpid.model.narrow import narrowed
from limpid.model.peft_files import load_adapter
from limpid.model.pissa import principal
from limpid.model.weights import load_weights, value_function
from limpid.quantities import parameters
from limpid.reporter import Reporter
from limpid.source import Adapted, Model, ModelFolder, find_model
from limpid.training import average
from limpid.training.state import State, set_weights


@dataclass(frozen=True)
class Initial:
    """A model that was trained before."""

    source: Model
    model: ModelConfig
    weights: Mapping[str, Tensor]
    factors: Mapping[str, Any]
    """Options of low-rank factors that it brings, and that go on being trained."""

    @classmethod
    def of(cls, what: str, asked: ModelConfig) -> Initial:
        """The model that --init-from names.

        An adapter's own factors go on being trained, unless new ones are asked for, which are trained over it added in.
        Raises  CheckpointError for what is no model; ConfigError for an adapter that does not fit its base
        """
        try:
            source = find_model(what)
        except CheckpointError as error:
            raise CheckpointError(f"--init-from {what}: {error}") from error
        if not isinstance(source, Adapted) or asked.lora_rank:
            return cls(source, *load_weights(source), {})
        model, weights = load_weights(source.base)
        try:
            factors, trained = load_adapter(source.path, model, str(source.base)).trainable(model)
        except ConfigError as error:
            raise ConfigError(f"--init-from {source}: {error}") from error
        return cls(source, model, weights | trained, factors)

    def adopted(self, config: TrainConfig, reporter: Reporter) -> TrainConfig:
        """The configuration of a run that continues it: its sizes, its tokenizer, a context it can hold."""
        dropout = dropout_of(self.source.path) if isinstance(self.source, ModelFolder) else self.model.dropout
        if config.model.dropout != dropout:
            reporter.line(
                f"{self.source} has dropout {dropout:g}, this run {config.model.dropout:g}: --dropout sets it"
            )
        model = self.model
        if config.model.positions != "learned" and model.positions != "learned":
            context = min(config.model.context_length, model.context_length)
            model = dataclasses.replace(model, context_length=context)
        asked = config.model.head if config.tune is None else head_of(config.tune)
        kept = {name: getattr(config.model, name) for name in CHOSEN_ANEW}
        model = dataclasses.replace(model, head="score" if model.head == "score" else asked, **kept)
        if self.factors:
            model = dataclasses.replace(model, **self.factors)
            dropped = f", their input dropped by {model.lora_dropout:g}" if model.lora_dropout else ""
            reporter.line(f"the factors of {self.source}, of rank {model.lora_rank}, go on being trained{dropped}")
        return dataclasses.replace(
            config,
            model=model,
            data=dataclasses.replace(config.data, tokenizer=str(self.source.tokenizer_file)),
            run=dataclasses.replace(config.run, init_from=str(self.source)),  # `last` is another run tomorrow
        )

    def give(self, state: State, config: TrainConfig) -> None:
        """Set the weights of a fresh state."""
        weights = dict(self.weights) | value_function(self.source)
        weights = principal(config.model, weights) if config.model.init_lora_weights == "pissa" else weights
        weights = narrowed(config.model, weights)
        weights |= begun_magnitudes(config.model, weights)
        known = {parameter.name for parameter in parameters(config.model)}  # factors and a new head begin here
        set_weights(state.model, {name: tensor for name, tensor in weights.items() if name in known})
        state.average = average.begun(state.model, config.update)
