"""Text of a small grammar, as tokens, crops and padded documents."""

import random

import torch
from torch import Tensor

PAD, BOS, EOS, MASK = 0, 1, 2, 3

ALPHABET = " abcdefghijklmnopqrstuvwxyz."

VOCABULARY = 4 + len(ALPHABET)


def text(seed: int = 0, characters: int = 40_000) -> str:
    """Sentences of a small grammar over invented words, the frequent ones first."""
    draw = random.Random(seed)
    syllables = [a + b for a in "bdfgklmnprstv" for b in ("a", "e", "i", "o", "un", "ar")]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 3))) for _ in range(90)]
    nouns, verbs, others = words[:40], words[40:65], words[65:]

    def pick(options: list[str]) -> str:
        return options[min(int(draw.expovariate(0.15)), len(options) - 1)]

    out: list[str] = []
    length = 0
    while length < characters:
        sentence = f"{pick(others)} {pick(nouns)} {pick(verbs)} {pick(others)} {pick(nouns)}. "
        out.append(sentence)
        length += len(sentence)
    return "".join(out)


def encode(string: str, first: int = 4) -> Tensor:
    return torch.tensor([first + ALPHABET.index(c) for c in string])


def corpus(seed: int = 0, first: int = 4, characters: int = 40_000) -> Tensor:
    return encode(text(seed, characters), first)


def crops(tokens: Tensor, rows: int = 8, length: int = 32) -> tuple[Tensor, Tensor]:
    """Inputs and next tokens at random places, drawn from torch's own generator."""
    starts = torch.randint(0, len(tokens) - length - 1, (rows,))
    block = torch.stack([tokens[s : s + length + 1] for s in starts.tolist()])
    return block[:, :-1], block[:, 1:]


def sentences(seed: int = 0) -> list[Tensor]:
    """Documents of one to three sentences, with their ends."""
    draw = random.Random(seed + 1)
    parts = [part + ". " for part in text(seed).split(". ") if part]
    documents, at = [], 0
    while at < len(parts):
        count = draw.choice((1, 1, 1, 2, 2, 3))
        ids = encode("".join(parts[at : at + count]).strip())[:46]
        documents.append(torch.cat([torch.tensor([BOS]), ids, torch.tensor([EOS])]))
        at += count
    return documents


def padded(documents: list[Tensor], left: bool = False, fill: int = PAD) -> tuple[Tensor, Tensor]:
    """One batch of unequal documents: the ids and a mask, 1 where there is a token."""
    longest = max(len(d) for d in documents)
    ids = torch.full((len(documents), longest), fill)
    mask = torch.zeros(len(documents), longest, dtype=torch.long)
    for row, document in enumerate(documents):
        place = slice(longest - len(document), longest) if left else slice(0, len(document))
        ids[row, place] = document
        mask[row, place] = 1
    return ids, mask


def some(documents: list[Tensor], rows: int = 8) -> list[Tensor]:
    return [documents[i] for i in torch.randint(0, len(documents), (rows,)).tolist()]


def topics(documents: list[Tensor], classes: int = 4) -> Tensor:
    """A class that can be read off a document: by its first letters."""
    return torch.tensor([int(d[1] + d[2]) % classes for d in documents])
