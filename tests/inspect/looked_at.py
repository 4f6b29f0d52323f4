"""Small models of every shape, and a small run, to look into."""

from pathlib import Path

import numpy as np
import pytest
import torch

from limpid.config import ModelConfig
from limpid.inspect.watch import in_format
from limpid.model import Transformer, initialise

SMALL = {
    "vocab_size": 29, "context_length": 11, "d_model": 12, "num_layers": 2, "num_heads": 3, "d_ff": 17,
    "init_std": 0.3,
}  # fmt: skip
VARIANTS: dict[str, dict] = {
    "llama": {},
    "shared keys in a window": {
        "num_heads": 6, "d_head": 2, "num_kv_heads": 2, "attention_window": 3, "windowed_blocks": (1,),
    },
    "gpt-2": {
        "norm": "layer", "positions": "learned", "mlp": "plain", "activation": "gelu_tanh",
        "attention_bias": True, "attention_output_bias": True, "mlp_bias": True,
    },
    "the paper's": {
        "norm": "layer", "norm_placement": "post", "positions": "sinusoidal", "mlp": "plain", "activation": "relu",
        "attention_output_bias": True,
    },
    "norms after, without bias": {"norm_placement": "post", "positions": "none", "tied": False},
    "qwen3": {"qk_norm": True, "tied": False, "d_head": 6, "num_kv_heads": 1},
    "squared relu, nowhere": {"positions": "none", "mlp": "plain", "activation": "relu2", "num_kv_heads": 1},
    "dropout": {"dropout": 0.3, "positions": "learned", "norm": "layer"},
}  # fmt: skip


def model(variant: str = "llama", seed: int = 3, **sizes) -> Transformer:
    """A model in float64 whose every parameter, gains and biases too, is random."""
    found = initialise(Transformer(ModelConfig(**(SMALL | VARIANTS[variant] | sizes))), seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in found.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return in_format(found, torch.float64)


def tokens(rows: int = 1, length: int = 9, vocab: int = 29, seed: int = 4) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, vocab, (rows, length)))


def is_blank(file: Path) -> bool:
    """Whether a picture has one colour only."""
    pixels = pytest.importorskip("matplotlib.image").imread(file)
    return bool((pixels == pixels[:1, :1]).all())
