"""What enters the first block: twin of `model.Embed`, whose calls take a tenth of a small model's time."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from limpid.maths.operation import Array
from limpid.model.embedding import Embed, sinusoidal
from limpid.model.observe import Observe


class VectorsOf:
    """Looks up the vectors of tokens, and adds those of positions where the model does."""

    def __init__(self, embed: Embed) -> None:
        self.config, self.tokens = embed.config, embed.tokens.weight.detach().numpy()
        self.positions = None if embed.positions is None else embed.positions.weight.detach().numpy()

    def __call__(
        self, tokens: Int[Tensor, "batch 1"], positions: Int[np.ndarray, "*rows 1"], observe: Observe | None
    ) -> Float[Array, "batch d_model"]:
        """An array of the caller's own; raises IndexError beyond the vocabulary."""
        x: Array = self.tokens.take(tokens.numpy(), axis=0)
        added = self._added(positions)
        total = x if added is None else x + added
        if observe is not None:
            observe("embed.tokens", torch.from_numpy(x.copy()))
            if added is not None:
                observe("embed.positions", torch.from_numpy(added))
                observe("embed.sum", torch.from_numpy(total.copy()))
        return total[:, 0]

    def _added(self, positions: Int[np.ndarray, "*rows 1"]) -> Float[Array, "*rows 1 d_model"] | None:
        if self.positions is not None:
            found: Array = self.positions.take(positions, axis=0)
            return found
        if self.config.positions != "sinusoidal":
            return None
        waves = sinusoidal(torch.from_numpy(positions), self.config.d_model, self.config.rotary_base)
        return np.asarray(waves.numpy(), self.tokens.dtype)
