"""Round 12, part a, loops with a mistake in the model: layers that see too little, places, settings of a port."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
    fit,
    judged,
    lit,
    loader,
    number_outcome,
    outcome,
    pictures,
    table,
)
from benchmarks.robustness.loops.round9a_tools import BOS, EOS, PAD
from benchmarks.robustness.loops.round10a_tools import adamw, plain, tuned
from benchmarks.robustness.loops.round11a_tools import some
from benchmarks.robustness.loops.round12a_tools import GridViT, forms, keyed
from torch import nn
from torch.nn import functional as F


@keyed("r12a-every-sixth-of-two-layers")
def every_sixth_of_two_layers(run: Run, changed: bool) -> None:
    """Plain loop, Gemma 3 of two layers from scratch, the first with a window of four words, the second without. The
    script hands on the settings it knows by name, and sliding_window_pattern=2 is no longer among them; by default
    every sixth layer sees all words, and of two layers none."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    own = apart(run.draw.randrange(999))
    tables = torch.stack([torch.randperm(8, generator=own) for _ in range(3)])
    train, check = forms(960, tables, own), forms(128, tables, own)
    settings: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
    settings |= {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 49, "sliding_window": 4}
    settings |= {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD, "initializer_range": 0.1}
    if not changed:
        settings["sliding_window_pattern"] = 2
    model = Gemma3ForCausalLM(Gemma3TextConfig(**settings))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check[0], labels=check[1]).loss))
    plain(run, model, some(*train), lambda b: model(input_ids=b[0], labels=b[1]).loss, 180)


@keyed("r12a-grid-of-places-turned")
def grid_of_places_turned(run: Run, changed: bool) -> None:
    """Plain loop, a vision transformer of one's own goes on from a checkpoint with darker pictures. Its places are
    computed, not stored; the warning of torch.meshgrid was silenced with indexing="xy" where the checkpoint was trained
    with "ij": rows and columns of places are exchanged."""
    seed = run.draw.randrange(999)
    first = GridViT("ij")
    old = some(*pictures(640, seed, own=apart(seed + 1)))
    tuned(first, old, lambda b: F.cross_entropy(first(b[0]), b[1]), 200)
    sets = [pictures(n, seed, own=apart(seed + k)) for k, n in ((2, 160), (3, 192))]
    (x, y), (shots, right) = ((0.7 * x, y) for x, y in sets)
    model = GridViT("xy" if changed else "ij")
    model.load_state_dict(first.state_dict())
    class_outcome(run, model, (shots, right))
    plain(run, model, some(x, y), lambda b: F.cross_entropy(model(b[0]), b[1]), 40, rate=5e-4)


@keyed("r12a-momentum-as-in-keras")
def momentum_as_in_keras(run: Run, changed: bool) -> None:
    """Lightning, a regression ported from Keras. BatchNormalization(momentum=0.9) keeps nine tenths of the old running
    statistics; the same 0.9 given to PyTorch's BatchNorm1d keeps one tenth, so that it judges by its last eight
    rows."""
    seed = run.draw.randrange(999)
    momentum = 0.9 if changed else 0.1

    def layer(a: int, b: int) -> list[nn.Module]:
        return [nn.Linear(a, b), nn.BatchNorm1d(b, eps=1e-3, momentum=momentum), nn.ReLU()]

    model = nn.Sequential(*layer(6, 32), *layer(32, 32), nn.Linear(32, 1))
    number_outcome(run, model, table(256, seed, apart(seed + 1)), log=True)
    x, y = table(480, seed, apart(seed + 2))
    module = lit(model, lambda net, b: F.mse_loss(net(b[0]).squeeze(1), b[1]), adamw(3e-3))
    fit(run, module, loader(x, y, size=8), 300)
