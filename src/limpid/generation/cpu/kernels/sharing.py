"""Threads that share one stage after the other: each takes pieces of its own share in a row, then of what others left.

A share lies in one run of addresses, so that what is prefetched is what the thread itself reads next. A thread that the
system has put aside keeps the others waiting for the one piece that it holds, never for what it has not begun; one
thread alone comes to the end too. Source: Markatos & LeBlanc 1994, "Using processor affinity in loop scheduling on
shared-memory multiprocessors", IEEE Trans. Parallel and Distributed Systems 5.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_process_triple
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from limpid.generation.cpu.kernels.compiled import CACHE_LINE, PARALLEL, jit

APART = CACHE_LINE // 8
"""Places from one worker's counters to the next one's, which lie in another line: what is taken of its share, and
after that what it has finished, which it alone writes: an addition of several to one counter costs 0.1 µs a piece."""
PART, PARTS = 3, 4
"""Of what is left of a share, what is taken at once: the last piece is waited for, and each costs 0.1 µs. Source:
Polychronopoulos & Kuck 1987, "Guided self-scheduling", IEEE Trans. Computers C-36."""
SPINS = 1000
"""Looks, some tens of microseconds, after which a thread lets others have the processor between looks."""


def _address(context, builder, kind, array, place):
    return builder.gep(context.make_array(kind)(context, builder, array).data, [place])


@intrinsic
def _load(typing, counters, place):
    """A counter, and all that was written before it was raised."""

    def generate(context, builder, signature, arguments):
        address = _address(context, builder, counters, *arguments)
        return builder.load_atomic(address, ordering="acquire", align=8)

    return types.int64(counters, types.int64), generate


@intrinsic
def _store(typing, counters, place, value):
    """Set a counter, after all that was written before."""

    def generate(context, builder, signature, arguments):
        address = _address(context, builder, counters, *arguments[:2])
        builder.store_atomic(arguments[2], address, ordering="release", align=8)
        return context.get_dummy_value()

    return types.void(counters, types.int64, types.int64), generate


@intrinsic
def _add(typing, counters, place, value):
    """Raise a counter; what it was."""

    def generate(context, builder, signature, arguments):
        address = _address(context, builder, counters, *arguments[:2])
        return builder.atomic_rmw("add", address, arguments[2], "acq_rel")

    return types.int64(counters, types.int64, types.int64), generate


@intrinsic
def _pause(typing):
    """Leave the processor's units to its other thread for a moment."""

    def generate(context, builder, signature, arguments):
        if get_process_triple().startswith("x86_64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _give_way(typing):
    """Let another thread have the processor."""

    def generate(context, builder, signature, arguments):
        if PARALLEL:
            kind = ir.FunctionType(ir.IntType(32), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate


@jit
def share(total, workers):
    """How many of all pieces are each worker's own."""
    return (total + workers - 1) // workers


@jit
def take(counters, total, least, worker, workers):
    """Where the next pieces for this worker begin and end; none are left where both are `total`."""
    own = share(total, workers)
    for other in range(worker, worker + workers):
        owner = other % workers
        start, stop = owner * own, min(total, (owner + 1) * own)
        left = stop - start - _load(counters, APART * owner)
        if left > 0:
            count = left if workers == 1 else max(least, PART * left // PARTS)
            first = start + _add(counters, APART * owner, count)
            if first < stop:
                return first, min(stop, first + count)
    return total, total


@jit
def finish(counters, count, worker):
    """So many pieces are done by this worker."""
    place = APART * worker + 1
    _store(counters, place, _load(counters, place) + count)


@jit
def finished(counters, workers):
    """How many pieces are done, by whomever."""
    total = 0
    for worker in range(workers):
        total += _load(counters, APART * worker + 1)
    return total


@jit
def wait(counters, total, workers):
    """Until all pieces are done, also those that others took."""
    looks = 0
    while finished(counters, workers) < total:
        looks += 1
        if looks < SPINS:
            _pause()
        else:
            _give_way()


@jit
def no_counters(stages, workers):
    """Of so many stages, before they begin."""
    return np.zeros((stages, APART * workers), np.int64)
