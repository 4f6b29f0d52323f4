"""Two processes that should act as one."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from benchmarks.doctor.fault import Exact, Fault, above
from benchmarks.doctor.loop import Inject, Loop, after
from benchmarks.doctor.models import anatomy, build
from torch import Tensor, nn

ONSET = 20


def raw_module(loop: Any) -> None:
    """The module inside the wrapper is called, so that the wrapper never averages."""
    loop.forward = lambda batch: Loop.forward(loop, batch)


def never_in_step(loop: Any) -> None:
    """Every backward pass inside no_sync, the last one too."""
    micro_step = loop.micro_step

    def alone(batch: Any) -> Tensor:
        with loop.wrapped.no_sync():
            return micro_step(batch)

    loop.micro_step = alone


def own_weights(loop: Any) -> None:
    """Seeded by rank, and nobody broadcasts."""
    loop.build = lambda: build(loop.architecture, loop.settings, loop.seed + dist.get_rank())


def same_rows(loop: Any) -> None:
    loop.reader = lambda: 0


def wrong_gradient(kind: str) -> Inject:
    """Rank 1 hands in a wrong gradient of one matrix, from step 20 on for five steps."""

    def inject(loop: Any) -> None:
        def corrupt(gradient: Tensor) -> Tensor:
            if dist.get_rank() != 1 or not ONSET <= loop.number < ONSET + 5:
                return gradient
            gradient = gradient.clone()
            place = gradient.view(-1)[:1]
            if kind == "bit":
                bits = place.view(torch.int32)
                bits ^= 1 << 30  # the highest bit of the exponent: times 2¹²⁸ or thereabouts
                place.clamp_(-1e18, 1e18)
            else:
                place.fill_(float("nan"))
            return gradient

        def hook(model: nn.Module) -> None:
            next(p for p in anatomy(model).mlps[2].parameters() if p.ndim == 2).register_hook(corrupt)

        after(loop, "build", hook)

    return inject


def disagreement(loop: Any) -> float:
    """Largest difference of any weight between the ranks, after five steps."""
    loop.run(steps=5)
    return weights_apart(loop)


def first_disagreement(loop: Any) -> float:
    loop.prepare()
    return weights_apart(loop)


def weights_apart(loop: Any) -> float:
    worst = 0.0
    for parameter in loop.model.parameters():
        theirs = parameter.detach().clone()
        dist.broadcast(theirs, 0)
        worst = max(worst, float((theirs - parameter.detach()).abs().max()))
    found = torch.tensor(worst)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def shared_rows(loop: Any) -> float:
    """Share of this rank's rows that rank 0 has too."""
    loop.prepare()
    mine = loop.batch(0, 0)[0].contiguous()
    theirs = mine.clone()
    dist.broadcast(theirs, 0)
    found = torch.tensor(float((mine == theirs).all(1).float().mean()))
    dist.all_reduce(found, dist.ReduceOp.MIN)
    return float(found)


def largest_gradient(loop: Any) -> float:
    """Largest element of any averaged gradient in the run; infinite for NaN."""
    seen = [0.0]

    def look(_: None) -> None:
        largest = max(float(p.grad.abs().max().nan_to_num(float("inf"))) for p in loop.model.parameters())
        seen.append(largest)

    after(loop, "unscale", look)
    loop.run(steps=ONSET + 2)
    return max(seen)


APART = Exact("largest difference of a weight between ranks after five steps", disagreement, above(0))
WRONG = Exact("largest element of a gradient", largest_gradient, lambda bad, good: bad > 1e3 * good)
SHORT = {"steps": 30}

FAULTS = (
    Fault("DIS-01", "the raw module is called, nothing is averaged", raw_module,
          ("gradients-not-averaged",), APART, SHORT, ranks=2),
    Fault("DIS-01 no_sync", "every backward pass inside no_sync", never_in_step,
          ("gradients-not-averaged",), APART, SHORT, ranks=2),
    Fault("DIS-02", "ranks start from different weights, gradients averaged by hand", own_weights,
          ("ranks-start-apart",), Exact("largest difference of a weight before the first step", first_disagreement,
          above(0)), {**SHORT, "averaging": "by hand"}, ranks=2),
    Fault("DIS-03", "both ranks read the same rows", same_rows, ("ranks-same-data",),
          Exact("share of rows that both ranks have", shared_rows, above(0)), SHORT, ranks=2),
    Fault("DIS-04", "rank 1 flips an exponent bit of one gradient element", wrong_gradient("bit"),
          ("rank-computes-wrong",), WRONG, {"steps": 40}, onset=ONSET, ranks=2),
    Fault("DIS-04 NaN", "rank 1 hands in a NaN", wrong_gradient("nan"), ("rank-computes-wrong",),
          WRONG, {"steps": 40}, onset=ONSET, ranks=2),
)  # fmt: skip
