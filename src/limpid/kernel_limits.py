"""Sizes at which the kernels change what they hold in memory: the kernels obey them, the planner counts with them."""

MATERIALISED_POSITIONS = 512
"""Positions up to which attention materialises its weights on a processor: beyond, they no longer fit its caches."""
LOGITS_BYTES = 1 << 26
"""Logits that the fused loss holds at a time: enough for whole matrix products, little beside what a block saves."""
CHUNK_LOGITS = 1 << 19
"""Logits whose softmax is computed at a time, at least of `CHUNK_ROWS` rows: they stay in the processor's cache."""
CHUNK_ROWS = 128


def logits_rows(vocab_size: int, itemsize: int) -> int:
    """How many rows of logits a fused loss forms at a time."""
    return max(1, LOGITS_BYTES // (vocab_size * itemsize))


def softmax_rows(vocab_size: int) -> int:
    """Of how many of these rows it computes the softmax at a time."""
    return max(CHUNK_ROWS, CHUNK_LOGITS // vocab_size)
