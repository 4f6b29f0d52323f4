"""Which tokens of a batch are learned, however the loop says it: labels, targets, or a mask of answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from torch import Tensor

from limpid.doctor.micro_batches import ANSWER_MASKS, Micro

Array = np.ndarray
OF_THE_ROW = 0.9
"""Share of labels that are the row's own tokens where answers are learned; of hidden words one in ten is shown."""


class Learned(NamedTuple):
    """Rows, and which of their tokens are to be predicted."""

    ids: Array  # (row, position)
    learned: Array  # (row, position) bool
    real: Array  # (row, position) bool: no padding, as far as an attention mask says

    @property
    def has_prompts(self) -> bool:
        """Whether something that is read is not learned, in most rows: more than the first token."""
        first = np.where(self.learned.any(-1), self.learned.argmax(-1), 0) - self.real.argmax(-1)
        return bool(np.mean(first > 1) > 0.5)


def learned_rows(micro: Micro) -> Iterator[Learned]:
    """Of a micro-batch; of pairs that are kept apart each side."""
    for side in ("chosen_", "rejected_"):
        ids, labels = micro.array(f"{side}input_ids"), micro.array(f"{side}labels")
        if ids is not None and labels is not None and labels.shape == ids.shape:
            yield from _by_labels(ids, labels, micro.array(f"{side}attention_mask"))
    answers, prompts = micro.array("completion_ids"), micro.array("prompt_ids")
    if answers is not None and prompts is not None and len(answers) == len(prompts):
        masks = [micro.array(f"{side}_mask") for side in ("prompt", "completion")]
        real = np.concatenate([_ones(ids, mask) for ids, mask in zip((prompts, answers), masks, strict=True)], 1)
        inside = np.arange(real.shape[1]) >= prompts.shape[1]
        yield Learned(np.concatenate([prompts, answers], 1), real & inside, real)
        return
    ids, mask = _array(micro.ids), micro.array(*ANSWER_MASKS)
    if ids is None or ids.ndim != 2:
        return
    seen = _array(micro.mask)
    seen = seen if seen is not None and seen.shape == ids.shape else None
    labels = _array(micro.labels)
    if labels is not None and labels.shape == ids.shape:
        yield from _by_labels(ids, labels, seen)
    elif mask is not None and mask.shape == ids.shape:
        yield Learned(ids, mask > 0, _ones(ids, seen))


def _by_labels(ids: Array, labels: Array, seen: Array | None) -> Iterator[Learned]:
    """Labels that are the tokens themselves, or the ones after them."""
    kept = labels >= 0
    if not kept.any():
        return
    own = float((labels == ids)[kept].mean())
    after = kept[:, :-1]
    following = float((labels[:, :-1] == ids[:, 1:])[after].mean()) if after.any() else 0.0
    if max(own, following) < OF_THE_ROW:  # of hidden words, tags, another text
        return
    if own >= following:
        yield Learned(ids, kept, _ones(ids, seen))
        return
    last = np.where(kept[:, -1:], labels[:, -1:], ids[:, -1:])
    first = np.zeros((len(ids), 1), bool)
    real = _ones(ids, seen)
    ids = np.concatenate([ids, last], 1)
    yield Learned(ids, np.concatenate([first, kept], 1), np.concatenate([real, kept[:, -1:]], 1))


def _ones(ids: Array, mask: Array | None) -> Array:
    there: Array = np.ones(ids.shape, bool) if mask is None or mask.shape != ids.shape else mask > 0
    return there


def _array(tensor: Tensor | None) -> Array | None:
    return None if tensor is None else tensor.detach().cpu().numpy()
