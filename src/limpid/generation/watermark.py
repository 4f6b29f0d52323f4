"""A watermark: tokens that are green after the one before are made likelier, and counted by who has the key.

Which tokens are green is drawn as transformers draws it ("lefthash", one token of context), so that its
WatermarkDetector finds what was written here, and `detect` what was written there.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from limpid.config import Sampling
from limpid.config.arguments import checked
from limpid.config.sampling import GAMMA, WatermarkGamma, WatermarkKey
from limpid.errors import ConfigError
from limpid.maths.foundations import green_z


def green_tokens(key: int, previous: int, gamma: float, vocab_size: int) -> Int64[Tensor, " listed"]:
    """The tokens that are green after another one.

    Source: Kirchenbauer et al. 2023, algorithm 2, arXiv:2301.10226, with the draw of transformers
    Raises  ConfigError where so small a vocabulary has no green token or no other
    """
    size = int(gamma * vocab_size)
    if not 0 < size < vocab_size:
        raise ConfigError(f"watermark_gamma is {gamma:g}: of {vocab_size} tokens {size} would be green; take another")
    generator = torch.Generator().manual_seed(key * previous)
    return torch.randperm(vocab_size, generator=generator)[:size]


def greened(
    logits: Float[Tensor, "batch vocab"], seen: Sequence[Int64[Tensor, "_"]], sampling: Sampling
) -> Float[Tensor, "batch vocab"]:
    """Raise what is green after each row's last token; the last rule, so that no token comes back that another took."""
    if sampling.watermark is None:
        return logits
    logits, vocab = logits.clone(), logits.shape[-1]
    for row, tokens in enumerate(seen):
        green = green_tokens(sampling.watermark, int(tokens[-1]), sampling.watermark_gamma, vocab)
        logits[row, green.to(logits.device)] += sampling.watermark_delta
    return logits


@dataclass(frozen=True)
class Detection:
    """How green a text is."""

    green: int
    counted: int
    """Pairs of a token and the one before, each pair once."""
    gamma: float
    """Share of the vocabulary that is green: how many of the pairs would be by chance."""
    z: float
    """Standard deviations above chance."""
    p: float
    """Probability that chance makes as many green or more, by the binomial distribution."""

    def __str__(self) -> str:
        chance = self.gamma * self.counted
        found = f"{self.green:,} of {self.counted:,} pairs are green, by chance {chance:,.1f}"
        return f"{found}: z {self.z:.2f}, p {self.p:.2g}"

    def document(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@checked
def detect(tokens: Sequence[int], vocab_size: int, key: WatermarkKey, gamma: WatermarkGamma = GAMMA) -> Detection:
    """How green a text is: the evidence that it was written with this key.

    Each pair of neighbours counts once: it is green or red each time that it comes, so that a repeated pair says
    nothing new, and counted often it would make a verdict of chance.

    tokens      ids of a text, such as those of a completion
    vocab_size  of the model's logits
    Raises      ConfigError without two tokens, or where so small a vocabulary has no green token or no other
    """
    return detect_all([tokens], vocab_size, key, gamma)


def detect_all(texts: Iterable[Sequence[int]], vocab_size: int, key: int, gamma: float) -> Detection:
    """The same of several texts together; no pair reaches from one to the next."""
    from scipy.special import bdtrc

    after: dict[int, set[int]] = defaultdict(set)
    for tokens in texts:
        for previous, token in itertools.pairwise(map(int, tokens)):
            after[previous].add(token)
    counted = sum(map(len, after.values()))
    if not counted:
        raise ConfigError("the text has no two tokens beside each other: a watermark is looked for in pairs")
    green = sum(
        len(tokens.intersection(green_tokens(key, previous, gamma, vocab_size).tolist()))
        for previous, tokens in after.items()
    )
    share = int(gamma * vocab_size) / vocab_size
    chance = 1.0 if not green else float(bdtrc(green - 1, counted, share))
    return Detection(green, counted, share, green_z(green, counted, share), chance)
