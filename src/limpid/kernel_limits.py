"""Sizes at which the kernels change what they hold in memory: the kernels obey them, the planner counts with them."""

from functools import cache
from importlib.util import find_spec

from limpid.native.build import missing, processor_flags

LANES = 16
"""Numbers of a vector: what limpid's own kernels go over comes in so many."""
MATERIALISED_POSITIONS = 512
"""Positions up to which attention materialises its weights where that is quicker: beyond, they no longer fit caches."""
KEPT_POSITIONS = 128
"""Positions up to which it keeps its weights, which then are no larger than its queries; so it does in 16 bits."""
TILE_QUERIES = 128
"""Queries whose weights it forms at a time beyond that: keys after the last of them are left out."""
TILE_BYTES = 1 << 21
"""Weights that it forms at a time: they stay in the caches until they are read."""
LOGITS_BYTES = 1 << 26
"""Logits that the fused loss holds at a time: enough for whole matrix products, little beside what a block saves."""
LOGITS_BYTES_ON_GPU = 1 << 29
"""The same on a graphics processor, where products are larger before they are whole."""
MATRIX_ROWS = 1 << 12
"""Rows of the output matrix whose gradient it forms at a time on a processor."""
CHUNK_LOGITS = 1 << 19
"""Logits whose softmax is computed at a time, at least of `CHUNK_ROWS` rows: they stay in the processor's cache."""
CHUNK_ROWS = 128
PACKED_PRODUCT = 1 << 26
"""Multiplications of a product in 16 bits below which its matrix is not packed: the call takes what it saves."""
PACKED_ENTRIES = 1 << 25
"""Entries of a matrix beyond which there is no room for a packed one."""


def logits_rows(vocab_size: int, itemsize: int, device: str = "cpu") -> int:
    """How many rows of logits a fused loss forms at a time on such a device."""
    held = LOGITS_BYTES if device == "cpu" else LOGITS_BYTES_ON_GPU
    return max(1, held // (vocab_size * itemsize))


def matrix_rows(vocab_size: int, device: str) -> int:
    """How many rows of the output matrix's gradient it forms at a time on such a device."""
    return min(vocab_size, MATRIX_ROWS) if device == "cpu" else vocab_size


def softmax_rows(vocab_size: int) -> int:
    """Of how many of these rows it computes the softmax at a time."""
    return max(CHUNK_ROWS, CHUNK_LOGITS // vocab_size)


@cache
def materialised_positions(itemsize: int) -> int:
    """Positions up to which attention in such a format materialises its weights on this processor.

    None in 32 bits without AVX-512, where PyTorch's fused kernel takes 0.6 to 1.08 of the time.
    """
    return 0 if itemsize == 4 and "avx512f" not in processor_flags() else MATERIALISED_POSITIONS


def keeps_no_weights(positions: int, itemsize: int) -> bool:
    """Whether attention that materialises its weights forms them in tiles, and again in the backward pass."""
    return positions > KEPT_POSITIONS and itemsize >= 4


def has_native_attention(d_head: int) -> bool:
    """Whether attention of bfloat16 heads is limpid's own kernel here, which keeps no weights at any length."""
    return d_head % LANES == 0 and not missing()


has_native_attention._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compile asks, and not inside


def has_native_loss(precision: str) -> bool:
    """Whether the softmax of logits in this format is limpid's own kernel here, which forms it in their place."""
    return precision == "bf16" and not missing()


def is_packed(rows: int, d_out: int, d_in: int) -> bool:
    """Whether a matrix is packed for its product with so many rows, in a format that has a kernel for it."""
    return rows * d_out * d_in >= PACKED_PRODUCT and packed_entries(d_out, d_in) > 0


def packed_entries(d_out: int, d_in: int) -> int:
    """Entries of the room for a packed matrix, in blocks of 64 × 32; 0 where it is too large to have some."""
    return 64 * 32 * -(-d_out // 64) * -(-d_in // 32) if 0 < d_out * d_in <= PACKED_ENTRIES else 0


@cache
def has_triton() -> bool:
    """Whether Triton, which comes with PyTorch for graphics processors, is installed: kernels for them are in it."""
    return find_spec("triton") is not None
