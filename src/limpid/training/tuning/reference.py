"""What a frozen model gives to answers: the reference that preferences and policies are held near to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from limpid.config import ModelConfig, TrainConfig
from limpid.data.batches import MicroBatch
from limpid.errors import ConfigError
from limpid.model import Transformer
from limpid.model.linear import LowRankLinear
from limpid.model.observe import FAST
from limpid.model.weights import load_weights, read_weights
from limpid.objectives.answers import scores_of
from limpid.objectives.losses import scored
from limpid.objectives.objective import Objective
from limpid.objectives.policy import OLD, Policy
from limpid.run import Run
from limpid.source import Checkpoint, find_model
from limpid.training.precision import arithmetic
from limpid.training.state import State, set_weights

Array = np.ndarray


class Reference:
    """The model that the tuned one started from, or another one; of a run with low-rank factors, its base alone.

    It is loaded when it is first asked, from the run's first checkpoint, and stays as it is.
    """

    def __init__(self, run: Run, config: TrainConfig, named: str | None, asked: str = "reference") -> None:
        """`named` is another model, by the option that is called `asked`."""
        self.run, self.config, self.named, self.asked = run, config, named, asked
        self.model: Transformer | None = None

    def token_log_probabilities(
        self, micro: MicroBatch, state: State, temperature: float = 1.0
    ) -> Float32[Array, "answer position"]:
        """Of every target of a micro-batch, in nats; 0 where there is none."""
        if self.named is None and self.base_is_start:
            with without_factors(state.model):
                return predicted_by_policy(state, micro, temperature)["log_probabilities"]
        if self.model is None:
            self.model = self._loaded(state.mesh.device)
        return predicted(self.model, micro, temperature)["log_probabilities"]

    @cached_property
    def base_is_start(self) -> bool:
        """Whether the run trains factors that began as no change: then its base is the model that it started from."""
        if not self.config.model.lora_rank:
            return False
        begun = read_weights(Checkpoint(self.run, 0), self.config.model)
        return not any(tensor.any() for name, tensor in begun.items() if ".lora_b." in name)

    def _loaded(self, device: torch.device) -> Transformer:
        if self.named is not None:
            sizes, weights = load_weights(find_model(self.named))
            require_same_vocabulary(f"--{self.asked} {self.named}", sizes.vocab_size, self.config.model.vocab_size)
            return frozen(replace(sizes, dropout=0.0, lora_dropout=0.0), weights, self.config, device)
        return policy_at_start(self.run, self.config, device)


def frozen(sizes: ModelConfig, weights: Mapping[str, Tensor], config: TrainConfig, device: torch.device) -> Transformer:
    """A model that is asked and never trained, in the arithmetic of the run."""
    formats = arithmetic(config.run.precision)
    model = Transformer(sizes, formats.compute).to(formats.parameters)
    set_weights(model, weights)
    return model.requires_grad_(False).to(device).eval()


def require_same_vocabulary(what: str, theirs: int, ours: int) -> None:
    """Raise ConfigError for a reference or teacher that reads other tokens."""
    if theirs != ours:
        raise ConfigError(
            f"{what} has a vocabulary of {theirs:,} tokens, the tuned model one of {ours:,}: their "
            "probabilities cannot be compared; name a model with the same tokenizer"
        )


@contextmanager
def without_factors(model: Transformer) -> Iterator[None]:
    """The base of a model with low-rank factors, for as long as the block lasts: nothing is copied."""
    adapted = [module for module in model.modules() if isinstance(module, LowRankLinear)]
    try:
        for module in adapted:
            module.active = False
        yield
    finally:
        for module in adapted:
            module.active = True


def predicted_by_policy(
    state: State, micro: MicroBatch, temperature: float = 1.0
) -> dict[str, Float32[Array, "answer position"]]:
    """What `predicted` says of the model that is trained, on every process that has a part of it."""
    if state.pipeline is None:
        with state.mesh.unsharded_at_most(state.model):
            return predicted(state.model, micro, temperature)
    with without_dropout(state.model), torch.enable_grad():
        (found,) = state.pipeline.forward([micro], lambda model, micro: predicted(model, micro, temperature))
    return found


def with_old_log_probabilities(micro: MicroBatch, drew: Callable[[], Transformer], objective: Objective) -> MicroBatch:
    """The batch with what the policy that drew it gives to it, which training itself need not ask: see `Policy`."""
    if not isinstance(objective, Policy) or OLD in micro.arrays:
        return micro
    old = predicted(drew(), micro, objective.temperature)["log_probabilities"]
    return replace(micro, arrays={**micro.arrays, OLD: old})


def policy_at_start(run: Run, config: TrainConfig, device: torch.device) -> Transformer:
    """The model of a run before its first step, which is asked and never trained."""
    sizes = replace(config.model, dropout=0.0, lora_dropout=0.0)
    return frozen(sizes, read_weights(Checkpoint(run, 0), config.model), config, device)


def predicted(
    model: Transformer, micro: MicroBatch, temperature: float = 1.0
) -> dict[str, Float32[Array, "answer position"]]:
    """What a model gives to every target of a micro-batch, in nats, 0 where there is none; and, where it has a value
    function, the value before each. Without dropout.

    By the kernels that training runs, which other shapes and passes without a gradient do not: so that the ratio to
    what the step computes is exactly 1 as long as no parameter has moved.
    """
    with without_dropout(model), torch.enable_grad():
        tokens, targets = (torch.as_tensor(micro[name]).to(model.device) for name in ("tokens", "targets"))
        hidden = model(tokens, form_logits=False)
        found = {"log_probabilities": scores_of(hidden, targets, FAST, temperature).log_probabilities}
        if hidden.value_matrix is not None:
            found["values"] = scored(hidden.stream, hidden.value_matrix)
    return {name: tensor.detach().float().cpu().numpy() for name, tensor in found.items()}


@contextmanager
def without_dropout(model: Transformer) -> Iterator[None]:
    """A model as it trains, but for dropout."""
    was = model.training
    model.train(not model.config.drops)
    try:
        yield
    finally:
        model.train(was)
