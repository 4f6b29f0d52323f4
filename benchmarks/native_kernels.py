"""limpid's own kernels beside PyTorch's operations, forward and backward together, in turn: median milliseconds.

Attention: two batched products up to 512 positions, PyTorch's fused kernel beyond. Norms with their cast, activations,
products with float32 masters.

    python benchmarks/native_kernels.py [--rounds 15]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from limpid.model.kernels.attention import attention, short_attention, short_masks
from limpid.model.kernels.native_activation import native_activation
from limpid.model.kernels.native_attention import native_attention, serves
from limpid.model.kernels.native_norm import native_norm
from limpid.model.kernels.native_product import native_product
from limpid.native.build import missing

HEADS = ((16, 6, 256, 64), (16, 4, 128, 64), (2, 12, 256, 64), (4, 8, 1024, 64), (2, 8, 2048, 64), (1, 8, 4096, 64))
"""Rows, heads, positions, width of a head."""
Form = Callable[..., Tensor]


def seconds(form: Form, inputs: Sequence[Tensor], bar: Tensor) -> float:
    start = time.perf_counter()
    torch.autograd.grad(form(*inputs), inputs, bar)
    return time.perf_counter() - start


def compared(name: str, own: Form, other: Form, inputs: Sequence[Tensor], bar: Tensor, rounds: int) -> None:
    times = [(seconds(own, inputs, bar), seconds(other, inputs, bar)) for _ in range(rounds + 3)][3:]
    first, second = (1e3 * statistics.median(side) for side in zip(*times, strict=True))
    print(f"{name:36} {first:8.2f} {second:8.2f}   {second / first:.2f}×", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    if not serves("cpu", torch.bfloat16, 64):
        raise SystemExit(f"no kernels of limpid's own here: {missing() or 'the compiler fails'}")
    print(f"{'':36} {'own':>8} {'PyTorch':>8}   ratio")
    for batch, heads, positions, d_head in HEADS:
        made = [torch.randn(batch, positions, heads, d_head).bfloat16() for _ in range(4)]
        mask = short_masks({None}, made[0].requires_grad_(), torch.bfloat16).get(None)

        def theirs(*qkv: Tensor, mask: Tensor | None = mask) -> Tensor:
            query, key, value = (x.transpose(1, 2) for x in qkv)
            if mask is not None:  # up to 512 positions
                return short_attention(query, key, value, mask).transpose(1, 2)
            return attention(query, key, value, None, None).transpose(1, 2)

        inputs = [x.requires_grad_() for x in made[:3]]
        name = f"attention, {batch} × {heads} × {positions} × {d_head}"
        compared(name, lambda *qkv: native_attention(*qkv, None), theirs, inputs, made[3].detach(), rounds)
    stream, gain, bias = torch.randn(4096, 384, requires_grad=True), torch.randn(384), torch.randn(384)
    norm = [stream, gain.requires_grad_(), bias.requires_grad_()]
    compared(
        "layer norm and cast, 4096 × 384", lambda x, g, b: native_norm(x, g, b, 1e-5),
        lambda x, g, b: F.layer_norm(x, (384,), g, b, 1e-5).bfloat16(), norm, torch.randn(4096, 384).bfloat16(), rounds,
    )  # fmt: skip
    x, bar = torch.randn(4096, 1536).bfloat16().requires_grad_(), torch.randn(4096, 1536).bfloat16()
    for word, form in (("gelu", F.gelu), ("silu", F.silu)):
        compared(f"{word}, 4096 × 1536", lambda x, word=word: native_activation(x, None, word), form, [x], bar, rounds)
    for rows, d_in, d_out in (
        (4096, 384, 1536),
        (4096, 1536, 384),
        (4096, 384, 384),
        (512, 768, 2048),
        (512, 768, 768),
    ):
        x, bar = torch.randn(rows, d_in).bfloat16().requires_grad_(), torch.randn(rows, d_out).bfloat16()
        learned = [torch.randn(d_out, d_in, requires_grad=True), torch.randn(d_out, requires_grad=True)]
        compared(
            f"product, {rows} × {d_in} × {d_out}", native_product,
            lambda x, w, b: F.linear(x, w.bfloat16(), b.bfloat16()), [x, *learned], bar, rounds,
        )  # fmt: skip


if __name__ == "__main__":
    main()
