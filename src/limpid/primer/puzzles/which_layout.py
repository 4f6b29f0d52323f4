"""Choose the layout that fits: four ways to lay a training step over devices, one of which fits into their memory."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from limpid.errors import ConfigError
from limpid.planning.cluster import Layout
from limpid.primer.exercise import DRAWS
from limpid.primer.puzzles.puzzle import Choice, Puzzle
from limpid.primer.sizes import PARTS, device_bytes

MODELS = ("gpt2-xl", "llama-2-7b", "llama-3-8b", "llama-2-13b")
DEVICES, MEMORIES = (4, 8, 16, 32), (24, 40, 80)
CHOICES = 4
ROOM = 0.1
"""How far each layout is from the memory, as a share of it: nobody has to count the last megabyte."""
CONTEXT = 2048
HINTS = (
    "In bf16 with AdamW a parameter takes 2 bytes of weight, 2 of gradient and 12 of optimizer.",
    "ZeRO 1 divides the optimizer's among copies, 2 the gradients too, 3 the weights too; tensor and pipeline cut all.",
    "What is left are activations: recomputation keeps only what enters each block.",
)  # fmt: skip


def puzzle(seed: int) -> Puzzle:
    """Model, devices and layouts of a seed."""
    rng = np.random.Generator(np.random.PCG64(seed))
    for _ in range(DRAWS):
        model = str(rng.choice(MODELS)) if seed else "llama-2-7b"
        devices, memory = (int(rng.choice(DEVICES)), int(rng.choice(MEMORIES))) if seed else (8, 40)
        layouts = _layouts(model, devices)
        needed = np.array([one["total"] for _, one in layouts]) / 1e9
        fit = np.flatnonzero(needed < memory * (1 - ROOM))
        not_fit = np.flatnonzero((needed > memory * (1 + ROOM)) & (needed < 4 * memory))
        if len(fit) and len(not_fit) >= CHOICES - 1:
            chosen = [int(rng.choice(fit)), *map(int, rng.choice(not_fit, CHOICES - 1, replace=False))]
            order = [int(place) for place in rng.permutation(CHOICES)]
            return _posed(seed, model, devices, memory, [layouts[chosen[place]] for place in order], order.index(0))
    raise ConfigError(f"which-layout has no layouts for the seed {seed} of which one fits: try another")


@cache
def _layouts(model: str, devices: int) -> list[tuple[Layout, dict[str, float]]]:
    """Every way to lay this model over so many devices, and the bytes of the fullest one."""
    found = []
    sizes = [size for size in (1, 2, 4, 8) if size <= devices]
    for tensor in sizes:
        for pipeline in sizes:
            if tensor * pipeline > devices:
                continue
            plain = Layout(devices, tensor=tensor, pipeline=pipeline, context=CONTEXT)
            for zero in (0, 1, 2, 3) if plain.replicas > 1 else (0,):
                for recompute in ("none", "full"):
                    layout = replace(plain, zero=zero, recompute=recompute)
                    try:
                        found.append((layout, device_bytes(model, layout)))
                    except ConfigError:  # the model cannot be cut so
                        continue
    return found


def _posed(
    seed: int, model: str, devices: int, memory: int, offered: list[tuple[Layout, dict[str, float]]], right: int
) -> Puzzle:
    asked = (
        f"{model} is trained on {devices} devices of {memory} GB each, in bf16 with AdamW, one sequence of "
        f"{CONTEXT:,} tokens on each copy. Which layout fits? The words are explained in limpid learn scaling."
    )
    choices = tuple(
        Choice(_said(layout), "does-not-fit", f"That takes {_account(needed)}, and there are {memory}.")
        for layout, needed in offered
    )
    layout, needed = offered[right]
    words = f"--devices {devices} --memory {memory} --batch-size 1 --context-length {CONTEXT}{_flags(layout)}"
    solution = f"{right + 1} takes {_account(needed)}; limpid plan {model} {words}"
    return Puzzle("which-layout", seed, asked, choices, right, solution, HINTS)


def _account(needed: dict[str, float]) -> str:
    parts = " + ".join(f"{needed[part] / 1e9:.1f} {part}" for part in PARTS)
    return f"{parts} = {needed['total'] / 1e9:.1f} GB"


def _said(layout: Layout) -> str:
    copies = f"{layout.replicas} {'copy' if layout.replicas == 1 else 'copies'}"
    cut = f"tensor {layout.tensor}, pipeline {layout.pipeline}, {copies}"
    again = "everything recomputed" if layout.recompute == "full" else "nothing recomputed"
    return f"{cut}, ZeRO {layout.zero}, {again}"


def _flags(layout: Layout) -> str:
    named = {"zero": 0, "tensor": 1, "pipeline": 1, "recompute": "none"}
    return "".join(
        f" --{name} {getattr(layout, name)}" for name, plain in named.items() if getattr(layout, name) != plain
    )
