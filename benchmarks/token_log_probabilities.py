"""Log-probabilities of answers and their gradients: limpid's kernel, TRL's fused head, all logits in plain PyTorch.

Time and peak memory of forward and backward, one round of each after the other. Half of the positions are prompt, and
have no target.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from limpid.model.kernels.token_log_probabilities import token_log_probabilities
from limpid.quantities import NO_LABEL

ROUNDS = 5
SIZES = ((1024, 512, 8192), (1024, 512, 32768))
"""Positions, d_model, vocabulary."""
CHUNK = 8192
"""Columns of a tile of TRL's, its own default on a processor."""


def trl_head() -> Callable[..., tuple[Tensor, ...]]:
    """TRL's kernel from its file alone: importing trl takes 20 s."""
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    utils = ModuleType("trl.trainer.utils")
    utils.maybe_gather_lm_head_ctx = lambda *_: contextlib.nullcontext()  # type: ignore[attr-defined]
    for name in ("trl", "trl.kernels", "trl.trainer"):
        sys.modules[name] = ModuleType(name)
    sys.modules["trl.trainer.utils"] = utils
    name, file = "trl.kernels.chunked_logprob", Path(spec.origin).parent / "kernels" / "chunked_logprob.py"
    found = importlib.util.spec_from_file_location(name, file)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    apply: Callable[..., tuple[Tensor, ...]] = module.ChunkedLogProbFunction.apply
    return apply


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("precision", nargs="?", choices=("fp32", "bf16"), default="fp32")
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[parser.parse_args().precision]
    torch.set_num_threads(1)
    head = trl_head()

    def limpids(hidden: Tensor, matrix: Tensor, targets: Tensor) -> Tensor:
        return token_log_probabilities(hidden, matrix, targets).log_probabilities

    def with_entropy(hidden: Tensor, matrix: Tensor, targets: Tensor) -> Tensor:
        return token_log_probabilities(hidden, matrix, targets, with_entropy=True).log_probabilities

    def trls(hidden: Tensor, matrix: Tensor, targets: Tensor) -> Tensor:
        flat = targets.flatten().clamp(min=0)
        log_p = head(hidden.flatten(0, 1), matrix.to(hidden.dtype), None, flat, 1.0, CHUNK, None, 1.0, ())[0]
        return log_p.view(targets.shape).where(targets != NO_LABEL, 0)

    def plain(hidden: Tensor, matrix: Tensor, targets: Tensor) -> Tensor:
        log_p = F.log_softmax(hidden @ matrix.to(hidden.dtype).T, -1, dtype=torch.float32)
        return log_p.gather(-1, targets.clamp(min=0)[..., None])[..., 0].where(targets != NO_LABEL, 0)

    ways = {"limpid": limpids, "limpid, with entropy": with_entropy, "TRL's fused head": trls, "all logits": plain}
    for positions, d_model, vocab in SIZES:
        print(f"{positions} positions, d_model {d_model}, vocabulary {vocab}, {str(dtype).removeprefix('torch.')}")
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                times[name].append(taken(way, positions, d_model, vocab, dtype))
        for name, way in ways.items():
            ratios = [a / b for a, b in zip(times[name], times["all logits"], strict=True)]
            peak = peak_bytes(way, positions, d_model, vocab, dtype)
            print(
                f"  {name:22} {1e3 * statistics.median(times[name]):7.0f} ms"
                f"   × {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})   {peak / 1e6:6.0f} MB"
            )


def given(positions: int, d_model: int, vocab: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(4, positions // 4, d_model, generator=generator).to(dtype).requires_grad_()
    matrix = (0.05 * torch.randn(vocab, d_model, generator=generator)).requires_grad_()
    targets = torch.randint(0, vocab, (4, positions // 4), generator=generator)
    targets[:, : positions // 8] = NO_LABEL
    return hidden, matrix, targets


def taken(way: Callable[..., Tensor], *size: int | torch.dtype) -> float:
    arrays = given(*size)  # type: ignore[arg-type]
    began = time.perf_counter()
    way(*arrays).sum().backward()
    return time.perf_counter() - began


def peak_bytes(way: Callable[..., Tensor], *size: int | torch.dtype) -> int:
    """Of all tensors that the two passes make, from PyTorch's profiler."""
    arrays = given(*size)  # type: ignore[arg-type]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        way(*arrays).sum().backward()
    held, peak = 0, 0
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


if __name__ == "__main__":
    main()
