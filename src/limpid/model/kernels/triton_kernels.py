"""Kernels for graphics processors, in Triton's language. Loaded by what calls them, for Triton is not everywhere."""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def row_loss(logits, targets, losses, weight, columns: tl.constexpr, COLUMNS: tl.constexpr, NO_LABEL: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row of `columns`: its loss, nats, and in the place of its logits weight · (p - 1[target])."""
    at = tl.program_id(0).to(tl.int64)
    row, target, lanes = logits + at * columns, tl.load(targets + at), tl.arange(0, COLUMNS)
    largest = tl.full((COLUMNS,), float("-inf"), tl.float32)
    for first in range(0, columns, COLUMNS):
        inside = first + lanes < columns
        largest = tl.maximum(largest, tl.load(row + first + lanes, mask=inside, other=float("-inf")).to(tl.float32))
    most = tl.max(largest, 0)
    sums = tl.zeros((COLUMNS,), tl.float32)
    for first in range(0, columns, COLUMNS):
        inside = first + lanes < columns
        sums += tl.exp(tl.load(row + first + lanes, mask=inside, other=float("-inf")).to(tl.float32) - most)
    mass = tl.sum(sums, 0)
    labelled = target != NO_LABEL
    known = (target >= 0) & (target < columns)
    at_target = tl.load(row + target, mask=known, other=float("nan")).to(tl.float32)
    tl.debug_barrier()  # the logit of the target is read before another thread writes its gradient there
    scale = tl.where(labelled, weight, 0.0)
    for first in range(0, columns, COLUMNS):
        inside = first + lanes < columns
        p = tl.exp(tl.load(row + first + lanes, mask=inside, other=float("-inf")).to(tl.float32) - most) * (
            scale / mass
        )
        bar = tl.where(first + lanes == target, p - scale, p)
        tl.store(row + first + lanes, bar.to(logits.dtype.element_ty), mask=inside)
    tl.store(losses + at, tl.where(labelled, tl.log(mass) + most - at_target, 0.0))
