"""Recording: one step written down so that it can be redone and judged without the engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from limpid.config import TrainConfig
from limpid.config.options import to_dict
from limpid.data.batches import MicroBatch
from limpid.files import file_written_atomically
from limpid.kernel_limits import logits_rows
from limpid.manifest import UNSEALED, seal
from limpid.maths.chain import Outline
from limpid.model import Transformer
from limpid.model.kernels import native_activation, native_attention
from limpid.model.kernels.attention import is_short
from limpid.model.narrow import on_disk
from limpid.objectives import NEXT_TOKEN, POLICY, Objective, to_document
from limpid.quantities import parameters
from limpid.training.precision import NAMES, engine
from limpid.training.state import State
from limpid.training.step import Outcome, backward, step
from limpid.training.tuning.reference import with_old_log_probabilities
from limpid.training.update import observed_products, read_moments

VERSION = 1


def record_step(
    file: Path,
    state: State,
    batch: Sequence[MicroBatch],
    config: TrainConfig,
    *,
    run: str,
    token_text: Callable[[int], str],
    objective: Objective = NEXT_TOKEN,
    replayed: Sequence[Outcome] = (),
) -> Outcome:
    """Take the next step and write to `file` all that it depended on and all that the engine computed.

    The step is taken twice from the same state: on the fast path, whose gradients make the update, and before on the
    plain path, for the quantities that fused kernels never form. docs/record.md lists the tensors. `replayed` are the
    steps that were taken again, from a checkpoint on, to come here.
    """
    state.mesh.require_one("recording a step", "replay the run in one process: `limpid trace RUN --step N`")
    if state.graphs is not None:
        state.graphs.release()  # what is kept of a step takes memory enough
    batch = [with_old_log_probabilities(micro, lambda: state.model, objective) for micro in batch]
    tensors = _parameters(state, "before")
    tensors |= {
        f"before/{role}/{name}": parameter.detach()
        for role, model in state.models.items()
        if role != POLICY
        for name, parameter in model.named_parameters()
    }
    moments = read_moments(state.model, state.optimizer, config.update)
    tensors |= {f"before/{name}": moment.clone() for name, moment in moments.items()}
    tensors |= {f"before/ema/{name}": average.clone() for name, average in state.average.items()}
    tensors |= _batch(batch)
    plain = Observation()
    backward(state, batch, config, objective, "plain", plain.observe)
    fast = Observation()
    with observed_products(state.model, state.optimizer) as products:
        outcome = step(state, batch, config, objective, fast)
    tensors |= products
    tensors |= fast.tensors("fast") | _beside(plain, set(fast.values), batch, objective, config).tensors("plain")
    tensors["fast/loss"] = torch.tensor(outcome.loss, dtype=torch.float64)
    tensors["fast/grad_norm"] = torch.tensor(outcome.grad_norm, dtype=torch.float64)
    tensors |= _parameters(state, "after")
    tensors |= {
        f"after/{name}": moment for name, moment in read_moments(state.model, state.optimizer, config.update).items()
    }
    tensors |= {f"after/ema/{name}": average for name, average in state.average.items()}
    _write(file, tensors, _metadata(state, batch, config, objective, outcome, run, token_text, replayed))
    return outcome


def _parameters(state: State, when: str) -> dict[str, Tensor]:
    return {f"{when}/{name}": on_disk(one.detach().clone()) for name, one in state.model.named_parameters()}


class Observation:
    """Every quantity of the micro-batches, its gradient once backward has passed, and those of the parameters."""

    def __init__(self) -> None:
        self.values: dict[str, list[Tensor]] = {}
        self.bars: dict[str, list[Tensor]] = {}
        self.parameter_bars: dict[str, Tensor] = {}

    def observe(self, name: str, value: Tensor) -> Tensor:
        """Keep a quantity, and its gradient once there is one."""
        self.values.setdefault(name, []).append(value.detach())
        if value.requires_grad:
            value.register_hook(lambda bar: self.bars.setdefault(name, []).append(bar))
        return value

    def only(self, values: set[str], bars: set[str]) -> Observation:
        """Some of the values, and some of the gradients; every dropout's mask."""
        chosen = Observation()
        chosen.values = {n: parts for n, parts in self.values.items() if n in values or n.startswith("kept(")}
        chosen.bars = {n: parts for n, parts in self.bars.items() if n in bars}
        return chosen

    def gradients(self, state: State) -> None:
        """Keep every parameter's gradient, without the loss scale, a power of two."""
        scale = state.scaler.get_scale()
        self.parameter_bars = {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad / scale
            for name, parameter in state.model.named_parameters()
            if parameter.requires_grad
        }

    def tensors(self, path: str) -> dict[str, Tensor]:
        """Micro-batches joined along batch; quantities that have no batch axis once, the loss and its parts summed."""
        kept = {name: parts for name, parts in self.values.items() if name.startswith("kept(")}
        tensors = {f"batch/{name}": torch.cat(parts).to(torch.uint8) for name, parts in kept.items()}
        for name, parts in self.values.items():
            if name not in kept:
                tensors[f"{path}/{name}"] = self._joined(name, parts)
        for name, parts in self.bars.items():
            same = parts[0].ndim == 0  # every micro-batch's share counts alike
            tensors[f"{path}/grad({name})"] = parts[0] if same else self._joined(name, parts, summed=True)
        return tensors | {f"{path}/grad({name})": bar for name, bar in self.parameter_bars.items()}

    @staticmethod
    def _joined(name: str, parts: list[Tensor], *, summed: bool = False) -> Tensor:
        if parts[0].ndim == 0:  # a loss: each micro-batch has its share
            return torch.stack(parts).sum()
        if name == "embed.positions" or name.endswith(".length"):  # the same for every row
            return torch.stack(parts).sum(0) if summed else parts[0]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _beside(
    plain: Observation, formed: set[str], batch: Sequence[MicroBatch], objective: Objective, config: TrainConfig
) -> Observation:
    """What is kept of the plain path: quantities that the fast path does not form, and what they are compared from.

    Those are the inputs of the operation that makes such a quantity; and of each operation that uses it, the other
    inputs and the gradient of the result.
    """
    given = [one.name for one in parameters(config.model)]  # factors, and masks of dropout, change what is formed
    given += [name for name in plain.values if name.startswith("kept(")]
    outline = Outline({name: np.empty(0) for name in given} | dict(batch[0].arrays))
    objective.chain(outline, config.model)
    values: set[str] = set()
    bars: set[str] = set()
    for link in outline.links:
        used = [name for name in link.inputs if outline.made(name) and name not in formed]
        if link.name not in formed or used:
            values.update(link.inputs)
        if link.name not in formed:
            values.add(link.name)
        if link.name not in formed or used:
            bars.add(link.name)
    return plain.only(values, bars)


def _batch(batch: Sequence[MicroBatch]) -> dict[str, Tensor]:
    return {f"batch/{name}": torch.cat([torch.as_tensor(micro[name]) for micro in batch]) for name in batch[0].arrays}


def _metadata(
    state: State,
    batch: Sequence[MicroBatch],
    config: TrainConfig,
    objective: Objective,
    outcome: Outcome,
    run: str,
    token_text: Callable[[int], str],
    replayed: Sequence[Outcome],
) -> dict[str, object]:
    ids = [micro[name] for micro in batch for name in ("tokens", "targets") if name in micro.arrays]
    tokens = sorted({int(token) for array in ids for token in array.flat})
    first = next(state.model.parameters())
    return {
        "version": VERSION,
        "run": run,
        "step": outcome.number,
        "update_number": state.updates if outcome.updated else state.updates + 1,
        "updated": outcome.updated,
        "config": to_dict(config),
        "objective": to_document(objective),
        "precision": {"parameters": NAMES[first.dtype], "compute": NAMES[state.model.compute]},
        "learning_rate": outcome.learning_rate,
        "loss_scale": outcome.loss_scale,
        "labels": sum(outcome.labels),
        "micro_batches": [
            {"rows": list(micro.rows), "tokens": micro.size, "labels": labels, "loss": repr(loss)}
            for micro, labels, loss in zip(batch, outcome.labels, outcome.micro_losses, strict=True)
        ],
        "token_texts": {str(token): token_text(token) for token in tokens if token >= 0},
        "kernels": _kernels(state.model, batch),
        "replayed": [
            {
                "step": one.number,
                "loss": repr(one.loss),
                "grad_norm": repr(one.grad_norm),
                "loss_scale": one.loss_scale,
                "updated": one.updated,
            }
            for one in replayed
        ],
        "threads": torch.get_num_threads(),
        "processes": state.mesh.world,
        **engine(state.mesh.device),
    }


def _kernels(model: Transformer, batch: Sequence[MicroBatch]) -> dict[str, object]:
    """Which of several ways the fast path went: their roundings differ."""
    positions = batch[0]["tokens"].shape[1] if "tokens" in batch[0].arrays else model.config.context_length
    config, device, compute = model.config, model.device, model.compute
    attention = "short" if is_short(positions, compute, device) else "pytorch"
    if native_attention.serves(device.type, compute, config.sizes.d_head):
        attention = "native"
    if config.dropout:
        attention = "plain"
    own = native_activation.serves(device.type, compute, config.sizes.d_ff, config.activation)
    return {
        "attention": attention,
        "activation": "native" if own else "pytorch",
        "blocks": "eager" if model.compiled is None else "compiled",
        "logits_rows": logits_rows(config.vocab_size, compute.itemsize, device.type),
    }


def _write(file: Path, tensors: dict[str, Tensor], metadata: dict[str, object]) -> None:
    """One safetensors file, whole or absent."""
    with file_written_atomically(file) as temporary:
        save_file(_apart(tensors), temporary, metadata={"limpid": json.dumps(metadata), **UNSEALED})
        seal(temporary)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each in memory of its own, which the format asks for: only what lies in another's is copied."""
    found: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        dense = tensor.detach().cpu().contiguous()
        place = dense.untyped_storage().data_ptr()
        found[name] = dense.clone() if place in taken else dense
        taken.add(place)
    return found
