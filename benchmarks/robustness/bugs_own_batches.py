"""A user's own loop on batches of their own: uneven micro-batches, padding, preference pairs; its last step recorded.

Run as a script with the engine under test on PYTHONPATH: FILE.safetensors, then the options as JSON.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

NO_LABEL = -100


def main(file: str, options: dict[str, Any]) -> None:
    """Take the steps before the last one, and record that."""
    import torch

    from limpid.config import TrainConfig
    from limpid.config.options import from_dict
    from limpid.data.batches import MicroBatch
    from limpid.objectives import DPO, NEXT_TOKEN
    from limpid.training.record import record_step
    from limpid.training.state import fresh_state
    from limpid.training.step import step

    torch.set_num_threads(1)
    config = from_dict(TrainConfig, options["config"])
    preference, last = options["objective"] == "dpo", int(options["step"])
    objective = DPO(beta=0.3) if preference else NEXT_TOKEN
    make = pairs if preference else padded
    state = fresh_state(config)
    for number in range(1, last + 1):
        rng = np.random.default_rng((config.run.seed, number))
        sizes = (config.model.vocab_size, config.model.context_length)
        arrays = [make(rng, rows, *sizes) for rows in options["rows"]]
        named = bool(options.get("rows named", True))
        batch = [MicroBatch(one, tuple(range(len(one["tokens"]))) if named else ()) for one in arrays]
        if number < last:
            step(state, batch, config, objective)
        else:
            record_step(
                Path(file), state, batch, config, run="own", token_text=lambda token: f"<{token}>", objective=objective
            )


def padded(rng: np.random.Generator, rows: int, vocab: int, length: int) -> dict[str, np.ndarray]:
    """Rows of unlike lengths; the fewer of them, the longer they are, so that micro-batches have unlike labels."""
    windows = rng.integers(0, vocab, (rows, length + 1))
    targets = windows[:, 1:].copy()
    for row in range(rows):
        labels = length if rows == 1 else int(rng.integers(2, 1 + length // 2))
        targets[row, labels:] = NO_LABEL
    return {"tokens": windows[:, :-1].copy(), "targets": targets}


def pairs(rng: np.random.Generator, count: int, vocab: int, length: int) -> dict[str, np.ndarray]:
    """Chosen and rejected answers to the same prompts, padded to one length."""
    tokens = np.zeros((2 * count, length + 1), np.int64)
    mask = np.zeros((2 * count, length))
    targets = np.full((2 * count, length), NO_LABEL, np.int64)
    reference = np.zeros(2 * count)
    for pair in range(count):
        prompt = rng.integers(1, vocab, int(rng.integers(2, length // 3)))
        for row in (2 * pair, 2 * pair + 1):
            answer = rng.integers(1, vocab, int(rng.integers(2, length // 2)))
            whole = np.concatenate((prompt, answer))
            tokens[row, : len(whole)] = whole
            targets[row, : len(whole) - 1] = whole[1:]
            mask[row, len(prompt) - 1 : len(whole) - 1] = 1
            reference[row] = -len(answer) * math.log(vocab) + rng.normal()
    return {
        "tokens": tokens[:, :-1].copy(),
        "targets": targets,
        "mask": mask.astype(np.float32),
        "reference_chosen": reference[0::2].astype(np.float32),
        "reference_rejected": reference[1::2].astype(np.float32),
    }


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
