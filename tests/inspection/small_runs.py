"""Small models of every shape, and a small run, to look into."""

from pathlib import Path

import numpy as np
import torch
from matplotlib.image import imread
from recorded import SMALL
from recorded import VARIANTS as COMMON

from limpid.config import ModelConfig
from limpid.inspection.forward_pass import cast_model
from limpid.model import Transformer, initialise

VARIANTS: dict[str, dict] = COMMON | {
    "norms after, without bias": {"norm_placement": "post", "positions": "none", "tied": False},
    "one norm, one residual": {"norm_placement": "after_mlp", "attention_residual": False},
}


def model(variant: str = "llama", seed: int = 3, **sizes) -> Transformer:
    """A model in float64 whose every parameter, gains and biases too, is random."""
    found = initialise(Transformer(ModelConfig(**(SMALL | VARIANTS[variant] | sizes))), seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in found.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return cast_model(found, torch.float64)


def tokens(rows: int = 1, length: int = 9, vocab: int = 29, seed: int = 4) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, vocab, (rows, length)))


def is_blank(file: Path) -> bool:
    """Whether a picture has one colour only."""
    pixels = imread(file)
    return bool((pixels == pixels[:1, :1]).all())
