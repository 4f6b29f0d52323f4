"""Answers that were judged one at a time: with each batch, how far the policy has moved from the reference."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from limpid.data.batches import MicroBatch
from limpid.quantities import NO_LABEL
from limpid.training.state import State
from limpid.training.tuning.examples import Complete, answer_sums
from limpid.training.tuning.reference import Reference, predicted_by_policy

Array = np.ndarray


def with_baseline(reference: Reference) -> Complete:
    """Log-probabilities of answers under the reference, and z₀: the mean log-ratio of answers to other prompts.

    No gradient flows through z₀, so it is formed before the step, of the same parameters.
    Source: Ethayarajh et al. 2024, section 4.1, arXiv:2402.01306
    """

    def complete(micro: MicroBatch, state: State) -> Mapping[str, Array]:
        others = mismatched(micro)
        policy = answer_sums(predicted_by_policy(state, others)["log_probabilities"], others)
        before = answer_sums(reference.token_log_probabilities(others, state), others)
        baseline = max(0.0, float((policy - before).mean()))
        answers = answer_sums(reference.token_log_probabilities(micro, state), micro)
        return {"reference": answers, "baseline": np.full(len(answers), baseline, np.float32)}

    return complete


def mismatched(micro: MicroBatch) -> MicroBatch:
    """Every prompt of a micro-batch with the answer of the next row."""
    tokens, targets, mask = micro["tokens"], micro["targets"], micro["mask"]
    rows = len(tokens)
    begins = [int(np.argmax(row > 0)) for row in mask]  # the position whose target is the answer's first token
    ends = [len(row) - int(np.argmax(row[::-1] > 0)) for row in mask]
    length = max(begins) + max(ends)
    made: dict[str, Array] = {
        "tokens": np.zeros((rows, length), np.int64),
        "targets": np.full((rows, length), NO_LABEL, np.int64),
        "mask": np.zeros((rows, length), np.float32),
    }
    longest = 0
    for row in range(rows):
        other = (row + 1) % rows
        here, answer = begins[row], slice(begins[other], ends[other])
        after = here + ends[other] - begins[other]
        made["tokens"][row, : here + 1] = tokens[row, : here + 1]
        made["tokens"][row, here + 1 : after] = tokens[other, begins[other] + 1 : ends[other]]
        made["targets"][row, here:after] = targets[other, answer]
        made["mask"][row, here:after] = mask[other, answer]
        longest = max(longest, after)
    return MicroBatch({name: array[:, :longest] for name, array in made.items()})
