"""The text of the runs: the Python standard library, as limpid's own default; tokens are bytes or whole words."""

from __future__ import annotations

import functools
import re
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

IGNORED = -100
PAD = 0
"""Padding, and the end of a text: many tokenizers have one id for both."""
LENGTH = 600_000
MODULES = (
    *("argparse", "ast", "calendar", "codecs", "configparser", "datetime", "difflib", "doctest", "inspect", "locale"),
    *("mailbox", "optparse", "pdb", "pickle", "pickletools", "platform", "pydoc", "shutil", "smtplib", "ssl"),
    *("statistics", "subprocess", "tarfile", "threading", "traceback", "turtle", "typing", "uuid", "zipfile"),
)


@functools.cache
def prose() -> bytes:
    """Python's reference, as the help function prints it."""
    import pydoc_data.topics

    return "\n".join(pydoc_data.topics.topics.values()).encode()[:LENGTH]


@functools.cache
def code() -> bytes:
    library = Path(re.__file__).parent.parent
    return b"".join(path.read_bytes() for name in MODULES if (path := library / f"{name}.py").exists())[:LENGTH]


@functools.cache
def stream(kind: str, vocab: int) -> Tensor:
    """All tokens: of "text" (code), "prose", or words of the text by rank when the vocabulary is larger than bytes."""
    match kind:
        case "dna":
            return torch.from_numpy(np.random.default_rng(0).choice(4, LENGTH, p=[0.3, 0.2, 0.2, 0.3]))
        case "prose":
            text = prose()
        case _:
            text = code()
    if vocab <= 256:
        return torch.from_numpy(np.frombuffer(text, np.uint8).astype(np.int64))
    pieces = re.findall(rb"\w+|\s+|[^\w\s]", text)
    rank = {word: i for i, (word, _) in enumerate(Counter(pieces).most_common(vocab))}
    return torch.tensor([rank.get(piece, vocab - 1) for piece in pieces])


def rows(kind: str, vocab: int, count: int, length: int, seed: tuple[int, ...]) -> Tensor:
    """`count` rows of `length + 1` tokens from random places of the training part, a function of the seed."""
    tokens = stream(kind, vocab)
    starts = np.random.default_rng(seed).integers(0, int(0.9 * len(tokens)) - length - 1, count)
    return tokens[torch.from_numpy(starts)[:, None] + torch.arange(length + 1)]


def held_out(kind: str, vocab: int, count: int, length: int) -> Tensor:
    """The same `count` rows of the last tenth whenever asked."""
    tokens = stream(kind, vocab)
    first = int(0.9 * len(tokens))
    starts = torch.linspace(first, len(tokens) - length - 1, count).long()
    return tokens[starts[:, None] + torch.arange(length + 1)]
