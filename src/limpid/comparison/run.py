"""A variant, run over a batch: our engine on each of its paths, several processes, and transformers' model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from limpid.comparison import huggingface, processes, trl
from limpid.comparison.first_step import FirstStep
from limpid.comparison.observed import Observed
from limpid.comparison.variant import Tokens, Variant
from limpid.data.batches import MicroBatch
from limpid.errors import ConfigError
from limpid.generation import Decoder
from limpid.maths.operation import Array
from limpid.maths.rounding import FORMATS
from limpid.model import Transformer
from limpid.model.cache import Cache
from limpid.model.linear import merge
from limpid.model.observe import FAST, Mode
from limpid.objectives import POLICY
from limpid.objectives.losses import log_probabilities
from limpid.training.precision import FORMATS as DTYPES
from limpid.training.precision import NAMES
from limpid.training.record import Observation

Path = Callable[[Variant, Observed, Tokens, Tokens, bool], None]
"""Runs a variant over tokens and targets, with or without a backward pass, and records what can be observed."""


def run(
    variant: Variant,
    tokens: Int[Array, "batch position"],
    targets: Int[Array, "batch position"],
    *,
    backward: bool,
    step: FirstStep | None = None,
) -> Observed:
    """Everything that can be observed of this variant; of a step of tuning, where one is given.

    Raises  ConfigError for a path that this machine or this batch does not allow
    """
    weights = {name: tensor.detach().double() for name, tensor in variant.weights.items()}
    if variant.adapter is not None:
        weights = variant.adapter.merged(weights)
    way = (
        f"{variant.parallel.processes} processes as {variant.parallel}" if variant.path == "processes" else variant.path
    )
    read = "" if variant.weights_read == "auto" else f", matrices as {variant.weights_read}"
    exact = {name: tensor.numpy() for name, tensor in weights.items()}
    seen = Observed(variant.label, f"{way}, {variant.precision}{read}", exact, tokens, targets)
    if step is not None:
        seen.objective = step.objective
        seen.given = {name: step.micro[name] for name in step.objective.fields if name not in ("tokens", "targets")}
    seen.roundings = 1 if variant.adapter is None else 3  # the adapter's product and sum are rounded too
    seen.roundings *= 2 * variant.parallel.tensor - 1  # each part of a product, and their sums
    kept = torch.promote_types(DTYPES[variant.precision], torch.float32)
    seen.compute, seen.kept = FORMATS[variant.precision], FORMATS[NAMES[kept]]
    seen.summed = seen.kept
    RUNNERS[variant.path](variant, seen, torch.from_numpy(tokens), torch.from_numpy(targets), backward)
    return seen


def plain(variant: Variant, seen: Observed, tokens: Tokens, targets: Tokens, backward: bool) -> None:
    """Our engine on the path that forms every quantity."""
    model, observation = variant.model(), Observation()
    loss = loss_of(model, seen, Mode("plain", observation.observe))
    if backward:
        loss.backward()
    for name, parts in observation.values.items():
        seen.record(name, parts[0])
    for name, bars in observation.bars.items():
        seen.gradients[name] = bars[0].double().numpy()
    seen.record_parameter_gradients(model)


def fast(variant: Variant, seen: Observed, tokens: Tokens, targets: Tokens, backward: bool) -> None:
    """Our engine as it trains: fused, most quantities never formed."""
    _record_ends(seen, variant.model(), tokens, targets, backward)


def compiled(variant: Variant, seen: Observed, tokens: Tokens, targets: Tokens, backward: bool) -> None:
    """Our engine with its blocks compiled, as long runs train."""
    model = variant.model().train()
    model.compile_blocks()
    try:
        _record_ends(seen, model, tokens, targets, backward)
    except Exception as error:  # the compiler's own, of many kinds
        line = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise ConfigError(f"{variant.label} cannot be compiled on this machine: {line}") from error


def cached(variant: Variant, seen: Observed, tokens: Tokens, targets: Tokens, backward: bool) -> None:
    """Our engine fed one position at a time, keys and values kept."""
    _record_positions(seen, variant.model(), tokens)


def sampler(variant: Variant, seen: Observed, tokens: Tokens, targets: Tokens, backward: bool) -> None:
    """The decoder that samples: every position through compiled code, whose kernels are redone one by one."""
    model = variant.model()
    decoder = Decoder(model, variant.weights_read)
    seen.compute = FORMATS[NAMES[decoder.compute]]  # that of the weights, where the model computes in 16 bits
    cache = _record_positions(seen, decoder, tokens)
    if decoder.position_decoder is not None:
        from limpid.comparison.decoder import check_kernels

        _, merged = merge(variant.config, dict(model.named_parameters()))
        learned = {name: tensor.detach().double().numpy() for name, tensor in merged.items()}
        seen.kernels = check_kernels(variant.config, seen, learned, decoder.position_decoder, cache)
        if variant.weights_read != "auto":
            read = decoder.position_decoder.matrices()
            seen.parameters |= {name: matrix for name, matrix in read.items() if name in seen.parameters}


RUNNERS: dict[str, Path] = {
    "plain": plain,
    "fast": fast,
    "compiled": compiled,
    "cached": cached,
    "sampler": sampler,
    "transformers": huggingface.run,
    "processes": processes.run,
    "trl": trl.run,
}


def loss_of(model: Transformer, seen: Observed, mode: Mode = FAST) -> Tensor:
    """The loss that the batch is for."""
    arrays = {"tokens": seen.tokens, "targets": seen.targets, **seen.given}
    micro = MicroBatch({name: arrays[name] for name in seen.objective.fields})
    return seen.objective.loss({POLICY: model}, micro, seen.objective.labels(micro), mode).value


def _record_ends(seen: Observed, model: Transformer, tokens: Tokens, targets: Tokens, backward: bool) -> None:
    """Logits, loss and parameter gradients of a path that shows no more."""
    loss = loss_of(model, seen)
    if model.score is None:
        seen.record("logits", model(tokens))
    seen.record("loss", loss)
    if backward:
        loss.backward()
        seen.record_parameter_gradients(model)


def _record_positions(seen: Observed, model: Transformer | Decoder, tokens: Tokens) -> Cache:
    """Everything that a path forms which takes one position after the other; returns its keys and values."""
    cache = Cache(model.config, len(tokens), tokens.shape[1], model.compute, None)
    parts: dict[str, list[Tensor]] = {}

    def observe(name: str, value: Tensor) -> Tensor:
        parts.setdefault(name, []).append(value)
        return value

    with torch.no_grad():
        for place in range(tokens.shape[1]):
            model(tokens[:, place : place + 1], cache, observe=observe)
    for name, values in parts.items():
        seen.record(name, torch.cat(values, 0 if name == "embed.positions" else 1))
    seen.record("log_probabilities", log_probabilities(torch.cat(parts["logits"], 1)))
    return cache
