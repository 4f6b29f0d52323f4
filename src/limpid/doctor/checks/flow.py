"""The way of the gradient: which parameters it reaches, and how it changes with depth."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from limpid.doctor.exam import Exam
from limpid.doctor.finding import Finding
from limpid.doctor.model_info import local


def gradients_arrive(exam: Exam) -> Iterator[Finding]:
    """Frozen by flag, unused, cut off, or 0 for a reason: told apart."""
    info = exam.info
    trained = {name: p for name, p in info.parameters.items() if p.requires_grad}
    yield from _frozen(exam)
    flow = exam.flow
    if not trained or flow is None:
        return
    unused = [
        name
        for name, module in exam.model.named_modules()
        if name and name not in flow.called and any(True for _ in module.parameters(recurse=False))
    ]
    norms = exam.trial.norms if exam.call is None and exam.trial is not None else exam.seen_norms
    if not norms:
        return
    without = [name for name in trained if norms.get(name) is None]
    if exam.call is None and exam.trial is not None and exam.trial.no_graph:
        yield _cut(exam, list(trained), flow.cut, "the loss")
        return
    idle = [n for n in without if any(n.startswith(module + ".") for module in unused)]
    if idle:
        modules = [m for m in unused if any(n.startswith(m + ".") for n in idle)]
        size = sum(trained[name].numel() for name in idle)
        yield Finding(
            rule="module-never-called",
            severity="warning",
            where=modules[0],
            says=f"{', '.join(modules[:4])} ({size:,} parameters) is never called by the forward pass: it will not "
            "change.",
            cause="constructed but not used in forward",
            fix="call it, or remove it",
            refuted_by="one call",
            evidence={"modules": modules[:32], "parameters": size},
        )
    cut = [n for n in without if n not in idle]
    zero = [n for n, p in trained.items() if norms.get(n) == 0 and not _excused(exam, n)]
    if cut or zero:
        yield _cut(exam, cut + zero, flow.cut, None)


def positions_ignored(exam: Exam) -> Iterator[Finding]:
    """A table of positions of which every position gets the same row."""
    flow = exam.flow
    if flow is None or exam.info.embedding is None:
        return
    declared = exam.info.declared("n_positions", "max_position_embeddings", "context_length", "block_size")
    for name in sorted(flow.one_row):
        rows = int(exam.info.parameters[f"{name}.weight"].shape[0]) if f"{name}.weight" in exam.info.parameters else 0
        if name == exam.info.embedding[0] or not (exam.info.of_positions(name) or rows == declared):
            continue
        yield Finding(
            rule="positions-ignored",
            severity="fault",
            where=name,
            says=f"{name} has {rows:,} rows, one for each position, but every position is given the same one: "
            "the model cannot tell where a token stands.",
            cause="position ids that are all 0, or an index made with zeros_like where arange is meant",
            fix="position_ids = torch.arange(length), or leave them to the model",
            refuted_by="two rows that are looked up",
            evidence={"rows": rows},
        )
        return


def _cut(exam: Exam, names: list[str], modules: list[str], what: str | None) -> Finding:
    size = sum(exam.info.parameters[name].numel() for name in names)
    total = sum(p.numel() for p in exam.info.parameters.values())
    blocks = [block for block, _ in exam.info.blocks]
    dead = [b for b in blocks if any(n.startswith(b + ".") for n in names)]
    alive = [b for b in blocks if b not in dead]
    shown = ", ".join([n for n in names if exam.info.block_of(n) is None][:2] + dead[:3]) or ", ".join(names[:3])
    last = (
        dead[-1]
        if dead and alive and blocks.index(dead[-1]) + 1 == blocks.index(alive[0])
        else modules[-1]
        if modules
        else ""
    )
    at = f"; the output of {last} has left the graph" if last and len(dead) + len(alive) else ""
    fine = (
        f" ({alive[0]} onwards are fine)" if alive and dead and blocks.index(alive[0]) > blocks.index(dead[-1]) else ""
    )
    return Finding(
        rule="gradient-cut",
        severity="fault",
        where=last or names[0],
        says=f"no gradient reaches {what or shown} ({len(names)} tensors, {size:,} parameters, "
        f"{size / total:.0%}){at}{fine}.",
        cause="detach(), no_grad(), .data, .item() or a function without derivative between them and the loss",
        fix="remove it; or freeze these parameters with requires_grad_(False), and leave them out of the optimizer",
        refuted_by="a gradient that is not 0 for one of them",
        evidence={"tensors": len(names), "parameters": size, "names": names[:32]},
    )


def _excused(exam: Exam, name: str) -> bool:
    """Zero gradients that theory predicts: behind a factor that is still 0, rows never looked up, biases of keys."""
    parameter = exam.info.parameters[name]
    if name in exam.info.embedding_names or parameter.numel() < 2:
        return True
    lower = name.lower()
    if lower.endswith("bias") or "lora" in lower or "rel" in lower:
        return True
    # somewhere in its own block a matrix or gain is all 0: the product's other factor has gradient 0
    block = exam.info.block_of(name)
    siblings = [
        p
        for n, p in exam.info.parameters.items()
        if (block is None or n.startswith(block + ".")) and n != name and not n.endswith("bias")
    ]
    if any(p.numel() > 1 and not bool(local(p.detach()).any()) for p in siblings):
        return True
    # or what stands behind everything, the head
    head = exam.info.head(exam.vocab) if exam.vocab else None
    return head is not None and not bool(local(head[1].detach()).any())


def _frozen(exam: Exam) -> Iterator[Finding]:
    info = exam.info
    frozen = [name for name, p in info.parameters.items() if not p.requires_grad and p.is_floating_point()]
    if not frozen:
        return
    blocks = [block for block, _ in info.blocks]
    leaves: dict[str, set[str]] = {}  # what part of a block -> blocks in which it is frozen
    for name in frozen:
        block = info.block_of(name)
        if block is not None:
            leaves.setdefault(name[len(block) :], set()).add(block)
    partial = {leaf: where for leaf, where in leaves.items() if 0 < len(where) < len(blocks)}
    held = {id(p) for _, group in exam.groups for p in group["params"]}
    in_optimizer = [name for name in frozen if id(info.parameters[name]) in held]
    size = sum(info.parameters[name].numel() for name in frozen)
    total = sum(p.numel() for p in info.parameters.values())
    nothing = len(frozen) == len(info.parameters)
    adapters = any("lora" in name.lower() or "adapter" in name.lower() for name in info.parameters)
    suspicious = nothing or (in_optimizer and exam.optimizers) or (partial and exam.fresh and not adapters)
    where = sorted({block for blocks_ in partial.values() for block in blocks_}) if partial else []
    # requires_grad is how freezing is done on purpose; in fresh weights, or kept in the optimizer, it hardly is
    yield Finding(
        rule="parameters-frozen",
        severity="fault" if nothing else "warning" if suspicious else "notice",
        where=where[0] if where else frozen[0],
        says=f"{len(frozen)} tensors ({size:,} parameters, {size / total:.0%}) have requires_grad False"
        + (f": {', '.join(where[:4])} but not its siblings" if where else "")
        + (
            f"; {len(in_optimizer)} of them are in the optimizer all the same"
            if in_optimizer and exam.optimizers
            else ""
        )
        + (", and their weights are fresh" if exam.fresh and partial else "")
        + ".",
        cause="frozen by a filter on names that matched more than meant"
        if suspicious
        else "frozen on purpose, it seems",
        fix="requires_grad_(True) for what should train; leave the others out of the optimizer"
        if suspicious
        else "nothing",
        sure=0.9 if suspicious else 0.5,
        refuted_by="requires_grad True",
        evidence={"tensors": len(frozen), "parameters": size, "blocks": where, "in_optimizer": len(in_optimizer)},
    )


def residual_missing(exam: Exam) -> Iterator[Finding]:
    """Of blocks that hold attention: how much of a change of their input comes out as it went in."""
    blocks = [block for block, _ in exam.info.blocks]
    if len(blocks) < 2 or len(exam.heads) < len(blocks):
        return
    gains, flow = exam.shortcuts, exam.flow
    if len(gains) < 2:
        return
    middle = sorted(gains.values())[len(gains) // 2]
    if middle >= 0.3:
        return
    cosine = flow.cosine.get(blocks[len(blocks) // 2]) if flow is not None else None
    yield Finding(
        rule="residual-missing",
        severity="fault",
        where=blocks[0],
        says=f"blocks do not pass their input on: of a small change of it {middle:.2f} comes out unchanged, 1 "
        "expected of "
        f"x + f(x)" + (f" (cosine of input and output {cosine:.2f})" if cosine is not None else "") + ".",
        cause="x = f(x) where x = x + f(x) is meant, in a sublayer of the blocks",
        fix="add the input of each sublayer to its output",
        sure=0.95,
        refuted_by="a share near 1",
        evidence={"gains": {k: round(v, 3) for k, v in gains.items()}, "cosine": cosine},
    )


def gradient_by_depth(exam: Exam) -> Iterator[Finding]:
    norms = exam.trial.norms if exam.call is None and exam.trial is not None else exam.seen_norms
    blocks = [block for block, _ in exam.info.blocks]
    if len(blocks) < 3 or not norms:
        return
    sizes = []
    for block in blocks:
        own = [v for n, v in norms.items() if n.startswith(block + ".") and v and exam.info.parameters[n].ndim >= 2]
        if not own:
            return
        sizes.append(math.sqrt(sum(v * v for v in own)))
    ratio = sizes[0] / sizes[-1]
    steps = [math.log(a / b) for a, b in itertools.pairwise(sizes)]
    if 1e-3 < ratio < 1e3 or not (all(s > 0 for s in steps) or all(s < 0 for s in steps)):
        return
    yield Finding(
        rule="gradient-vanishes-with-depth",
        severity="warning",
        where=blocks[0],
        says=f"gradients {'shrink' if ratio < 1 else 'grow'} "
        f"{ratio ** (1 / (1 - len(blocks))) if ratio < 1 else ratio ** (1 / (len(blocks) - 1)):.1f}-fold per block on "
        f"the way back: first over last block {ratio:.1e}.",
        cause="no residual connection or norm, or weights of the wrong size",
        fix="pre-norm residual blocks; weights with std 1/√fan-in",
        sure=0.8,
        refuted_by="a ratio within 1e-3 … 1e3",
        evidence={"ratio": ratio, "norms": [round(s, 8) for s in sizes]},
    )


EXAM = [positions_ignored, gradients_arrive, residual_missing, gradient_by_depth]
