"""A model small enough to follow by hand: 3,456 parameters, one step, no number invented.

One block of two heads and an MLP; learned positions; one layer norm, after the residual around the MLP; no residual
around attention. The weights come from Python's own generator, so that anybody can draw them again. The step is taken
by the mathematics alone and recorded as any other.
"""

from __future__ import annotations

import json
import math
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from limpid.config import ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.config.options import to_dict
from limpid.maths.operation import Array
from limpid.maths.step import Step, step
from limpid.maths.update import Arrays
from limpid.quantities import parameters
from limpid.tracing.record_metadata import VERSION
from limpid.tracing.trace import Trace

WORDS = ("<PAD>", "<BOS>", "<EOS>", "I", "like", "transformers")
TEXT = ("<BOS>", "I", "like", "transformers", "<EOS>")
SEED = 42
EXAMPLES = ("loss", f"embed.tokens.weight[{WORDS.index('<BOS>')}, 0]")
"""Entries that `limpid trace --worked` writes out in full."""
CONFIG = TrainConfig(
    ModelConfig(
        vocab_size=len(WORDS), context_length=len(TEXT), d_model=16, num_layers=1, num_heads=2, d_ff=64,
        norm="layer", norm_placement="after_mlp", attention_residual=False, norm_eps=1e-5, positions="learned",
        mlp="plain", activation="gelu_tanh", mlp_bias=True, tied=False,
    ),
    update=UpdateConfig(
        optimizer="adamw", learning_rate=0.001, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01,
        schedule="constant", warmup_steps=0, max_grad_norm=None,
    ),
    run=RunConfig(max_steps=1, batch_size=1, precision="fp64", seed=SEED),
)  # fmt: skip


def weights() -> Arrays:
    """Every weight, drawn in this order as random.seed(42) and gauss(0, 0.1) give them; norms start at 1 and 0."""
    generator = random.Random(SEED)

    def drawn(*shape: int) -> Array:
        return np.array([generator.gauss(0, 0.1) for _ in range(math.prod(shape))]).reshape(shape)

    shapes = {parameter.name: parameter.shape for parameter in parameters(CONFIG.model)}
    block, d_head, d_model = "blocks.0.", CONFIG.model.sizes.d_head, CONFIG.model.d_model
    found = {name: drawn(*shapes[name]) for name in ("embed.tokens.weight", "embed.positions.weight")}
    for name in ("query", "key", "value"):  # each head's 16 × 8 matrix multiplies from the right
        heads = [drawn(d_model, d_head) for _ in range(CONFIG.model.num_heads)]
        found[f"{block}attention.{name}.weight"] = np.concatenate([head.T for head in heads])
    for name in (
        "attention.output.weight", "mlp.up.weight", "mlp.up.bias", "mlp.output.weight", "mlp.output.bias",
    ):  # fmt: skip
        found[f"{block}{name}"] = drawn(*shapes[f"{block}{name}"])
    found["logits.weight"] = drawn(*shapes["logits.weight"])
    found[f"{block}norm2.weight"], found[f"{block}norm2.bias"] = np.ones(d_model), np.zeros(d_model)
    return {name: found[name] for name in shapes}


def batch() -> Arrays:
    """`<BOS> I like transformers`, each to predict the next."""
    ids = np.array([[WORDS.index(word) for word in TEXT]])
    return {"tokens": ids[:, :-1], "targets": ids[:, 1:]}


def moments() -> Arrays:
    """What AdamW remembers before the first update: nothing."""
    return {f"{kind}/{name}": np.zeros_like(weight) for name, weight in weights().items() for kind in ("m", "v")}


def worked_step() -> Step:
    """Forward, loss, backward, and the first update."""
    return step(weights(), moments(), batch(), CONFIG, 1)


@contextmanager
def opened() -> Iterator[Trace]:
    """The step as a trace, for as long as the block lasts."""
    with tempfile.TemporaryDirectory() as folder:
        yield Trace.open(record(Path(folder) / "worked.safetensors"), on_disk=False)


def record(file: Path) -> Path:
    """Write the step down as docs/record.md says; plain and fast path are the mathematics."""
    from safetensors.numpy import save_file

    before, taken = weights(), worked_step()
    quantities = [link.name for link in taken.chain.links]
    tensors = {
        **{f"before/{name}": array for name, array in (before | moments()).items()},
        **{f"batch/{name}": array for name, array in batch().items()},
        **{f"plain/{name}": taken.chain.values[name] for name in quantities},
        **{f"plain/grad({name})": taken.gradients[name] for name in (*quantities, *before)},
        **{f"fast/grad({name})": taken.gradients[name] for name in before},
        "fast/loss": np.asarray(taken.loss),
        "fast/grad_norm": np.asarray(taken.grad_norm),
        **{f"after/{name}": array for name, array in (taken.parameters | taken.moments).items()},
    }
    save_file({name: np.asarray(array, order="C") for name, array in tensors.items()}, file, {"limpid": _meta(taken)})
    return file


def _meta(taken: Step) -> str:
    labels = len(TEXT) - 1
    return json.dumps(
        {
            "version": VERSION,
            "run": f"the worked model: {' '.join(TEXT[:-1])} → {' '.join(TEXT[1:])}",
            "step": 1,
            "update_number": 1,
            "updated": True,
            "config": to_dict(CONFIG),
            "precision": {"parameters": "fp64", "compute": "fp64"},
            "learning_rate": taken.learning_rate,
            "loss_scale": 1.0,
            "labels": labels,
            "micro_batches": [{"rows": [0], "tokens": labels, "labels": labels, "loss": repr(taken.loss)}],
            "token_texts": {str(token): word for token, word in enumerate(WORDS)},
        }
    )
