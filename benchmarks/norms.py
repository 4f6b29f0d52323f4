"""Layer norm beside RMS norm, by the clock: python -m benchmarks.norms [--keep]

Medians of forward and of forward and backward passes, each norm in turn, on the vectors of a batch: in NumPy as the
primer computes them, in PyTorch step by step and as one operation, and as limpid's engine has them. By the processor's
time, of which other programs take none. --keep writes what was measured to the file that the primer's chapter reads.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from limpid.maths.norm import LayerNorm, RMSNorm
from limpid.model.kernels.rms_norm import FusedRMSNorm
from limpid.primer import cases
from limpid.training.precision import engine

TOKENS, WIDTH, ROUNDS, WARM = 2048, 1024, 101, 5
EPS = 1e-5
KEPT = Path(cases.__file__).parent / "norm_times.json"


def layer_steps(x: Tensor, gain: Tensor, offset: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPS) * gain + offset


def rms_steps(x: Tensor, gain: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * gain


def in_numpy() -> dict[str, Callable[[], object]]:
    """Forward and backward of both, by hand, in float64."""
    rng = np.random.default_rng(0)
    x, y_bar = rng.standard_normal((2, TOKENS, WIDTH))
    gain, offset = np.ones(WIDTH), np.zeros(WIDTH)
    layer, rms = LayerNorm(EPS), RMSNorm(EPS)
    given = {"layer": (layer, (x, gain, offset)), "rms": (rms, (x, gain))}

    def both(norm: LayerNorm | RMSNorm, arrays: tuple[np.ndarray, ...]) -> object:
        return norm.backward(y_bar, norm.forward(*arrays)[1])

    made: dict[str, Callable[[], object]] = {}
    for name, (norm, arrays) in given.items():
        made[f"{name} forward"] = lambda norm=norm, arrays=arrays: norm.forward(*arrays)
        made[f"{name} both"] = lambda norm=norm, arrays=arrays: both(norm, arrays)
    return made


def in_torch(layer: Callable[..., Tensor], rms: Callable[..., Tensor]) -> dict[str, Callable[[], object]]:
    """In float32, backward by autograd."""
    torch.manual_seed(0)
    x, y_bar = torch.randn(2, TOKENS, WIDTH)
    x.requires_grad_()
    gain, offset = torch.ones(WIDTH, requires_grad=True), torch.zeros(WIDTH, requires_grad=True)
    given = {"layer": (layer, (x, gain, offset)), "rms": (rms, (x, gain))}
    made: dict[str, Callable[[], object]] = {}
    for name, (norm, tensors) in given.items():

        def forward(norm: Callable[..., Tensor] = norm, tensors: tuple[Tensor, ...] = tensors) -> object:
            with torch.no_grad():
                return norm(*tensors)

        def both(norm: Callable[..., Tensor] = norm, tensors: tuple[Tensor, ...] = tensors) -> object:
            return torch.autograd.grad(norm(*tensors), tensors, y_bar)

        made |= {f"{name} forward": forward, f"{name} both": both}
    return made


def measured(ways: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Milliseconds of each way, one after the other in every round."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for at in range(WARM + ROUNDS):
        for name, way in ways.items():
            began = time.process_time()
            way()
            if at >= WARM:
                times[name].append(1e3 * (time.process_time() - began))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="write the file that the chapter reads")
    given = parser.parse_args()
    torch.set_num_threads(1)
    one = (
        lambda x, gain, offset: functional.layer_norm(x, (WIDTH,), gain, offset, EPS),
        lambda x, gain: functional.rms_norm(x, (WIDTH,), gain, EPS),
    )
    own = (
        lambda x, gain, offset: functional.layer_norm(x, (WIDTH,), gain, offset, EPS),
        lambda x, gain: FusedRMSNorm.apply(x, gain, EPS),
    )
    written = {"NumPy, float64": in_numpy(), "PyTorch, step by step": in_torch(layer_steps, rms_steps),
               "PyTorch, one operation": in_torch(*one), "limpid's engine": in_torch(*own)}  # fmt: skip
    rows = []
    print(
        f"{TOKENS:,} vectors of {WIDTH:,} numbers, one thread, {ROUNDS} rounds: medians in ms, and quartiles of ratios"
    )
    print("| written in | pass | layer norm | RMS norm | RMS / layer |")
    for name, ways in written.items():
        times = measured(ways)
        for part in ("forward", "both"):
            layer, rms = times[f"layer {part}"], times[f"rms {part}"]
            low, ratio, high = statistics.quantiles([b / a for a, b in zip(layer, rms, strict=True)], n=4)
            pair = [round(statistics.median(each), 2) for each in (layer, rms)]
            rows.append({"written": name, "part": part, "layer": pair[0], "rms": pair[1], "ratio": round(ratio, 2)})
            print(f"| {name} | {part} | {pair[0]:.2f} | {pair[1]:.2f} | {ratio:.2f} ({low:.2f} to {high:.2f}) |")
    if given.keep:
        made = {"vectors": TOKENS, "width": WIDTH, **engine(torch.device("cpu")), "rows": rows}
        KEPT.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
