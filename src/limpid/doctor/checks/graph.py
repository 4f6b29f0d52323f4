"""The model's graph before the first step: exact perturbations, then ratios that theory predicts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch

from limpid.doctor.anatomy import TIE_FLAGS
from limpid.doctor.data_facts import next_token_is_taught
from limpid.doctor.exam import Exam
from limpid.doctor.finding import Finding


def not_causal(exam: Exam) -> Iterator[Finding]:
    call = exam.probe
    if call is None or call.ids is None or call.ids.shape[1] < 3 or not next_token_is_taught(exam):
        return
    ids = call.ids
    j = ids.shape[1] // 2
    changed = ids.clone()
    changed[:, j] = exam.other_ids(ids)[:, j]
    moved = exam.moved(call, call.with_ids(changed))
    if moved is None or moved.shape[1] != ids.shape[1]:
        return
    before = moved[:, :j].amax(0)
    count = int((before > exam.rounding).sum())
    if not count:
        return
    yield Finding(
        rule="not-causal",
        severity="fault",
        step=None,
        where=_first_mixing(exam),
        says=f"changing token {j} changes the outputs of {'all ' if count == j else ''}{count} of {j} earlier "
        "positions "
        f"(by up to {float(before.max()):.2g}, rounding {exam.rounding:.0e}), though each is taught a later token: the "
        "model sees its answers.",
        cause="no causal mask in attention (or a normalisation or convolution over positions)",
        fix="is_causal=True, or a lower-triangular mask",
        sure=1.0,
        refuted_by="no output before a changed token moves beyond rounding",
        evidence={"moved": float(before.max()), "rounding": exam.rounding, "positions": count, "changed": j},
    )


def _first_mixing(exam: Exam) -> str:
    return exam.anatomy.blocks[0][0] if exam.anatomy.blocks else "model"


def batch_leaks(exam: Exam) -> Iterator[Finding]:
    call = exam.probe
    if call is None or call.ids is None or call.ids.shape[0] < 2:
        return
    changed = call.ids.clone()
    changed[1:] = exam.other_ids(call.ids)[1:]
    for training in (False, True):
        moved = exam.moved(call, call.with_ids(changed), training)
        if moved is None or float(moved[0].max()) <= exam.rounding:
            continue
        norms = exam.anatomy.batch_norms
        experts = any("expert" in name or "router" in name for name, _ in exam.model.named_modules())
        yield Finding(
            rule="batch-leaks",
            severity="notice" if experts or (norms and training) else "fault",
            step=None,
            where="row 0",
            says=f"changing the other rows of the batch moves the logits of row 0 by {float(moved[0].max()):.2g} "
            f"(rounding {exam.rounding:.0e}){' in training mode' if training else ''}.",
            cause="batch norm"
            if norms
            else "experts with a capacity"
            if experts
            else "an operation mixes rows: a wrong view, transpose or axis",
            fix="look for .view/.reshape across the batch axis, softmax or norm over dim 0",
            sure=1.0,
            refuted_by="logits that do not move",
            evidence={"moved": float(moved[0].max()), "rounding": exam.rounding},
        )
        return


def gradients_arrive(exam: Exam) -> Iterator[Finding]:
    """Frozen by flag, unused, cut off, or 0 for a reason: told apart."""
    anatomy = exam.anatomy
    trained = {name: p for name, p in anatomy.parameters.items() if p.requires_grad}
    yield from _frozen(exam)
    flow = exam.flow
    if not trained or flow is None:
        return
    unused = [
        name
        for name, module in exam.model.named_modules()
        if name and name not in flow.called and any(True for _ in module.parameters(recurse=False))
    ]
    norms = exam.rehearsal.norms if exam.call is None and exam.rehearsal is not None else exam.seen_norms
    if not norms:
        return
    without = [name for name in trained if norms.get(name) is None]
    if exam.call is None and exam.rehearsal is not None and exam.rehearsal.no_graph:
        yield _cut(exam, list(trained), flow.cut, "the loss")
        return
    idle = [n for n in without if any(n.startswith(module + ".") for module in unused)]
    if idle:
        modules = [m for m in unused if any(n.startswith(m + ".") for n in idle)]
        size = sum(trained[name].numel() for name in idle)
        yield Finding(
            rule="module-never-called",
            severity="warning",
            step=None,
            where=modules[0],
            says=f"{', '.join(modules[:4])} ({size:,} parameters) is never called by the forward pass: it will "
            "not change.",
            cause="constructed but not used in forward",
            fix="call it, or remove it",
            sure=1.0,
            refuted_by="one call",
            evidence={"modules": modules[:32], "parameters": size},
        )
    cut = [n for n in without if n not in idle]
    zero = [n for n, p in trained.items() if norms.get(n) == 0 and not _excused(exam, n)]
    if cut or zero:
        yield _cut(exam, cut + zero, flow.cut, None)


def _cut(exam: Exam, names: list[str], modules: list[str], what: str | None) -> Finding:
    size = sum(exam.anatomy.parameters[name].numel() for name in names)
    total = sum(p.numel() for p in exam.anatomy.parameters.values())
    blocks = [block for block, _ in exam.anatomy.blocks]
    dead = [b for b in blocks if any(n.startswith(b + ".") for n in names)]
    alive = [b for b in blocks if b not in dead]
    shown = ", ".join([n for n in names if exam.anatomy.block_of(n) is None][:2] + dead[:3]) or ", ".join(names[:3])
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
        step=None,
        where=last or names[0],
        says=f"no gradient reaches {what or shown} ({len(names)} tensors, {size:,} parameters, {size / total:.0%})"
        f"{at}{fine}.",
        cause="detach(), no_grad(), .data, .item() or a function without derivative between them and the loss",
        fix="remove it; or freeze these parameters with requires_grad_(False), and leave them out of the optimizer",
        sure=1.0,
        refuted_by="a gradient that is not 0 for one of them",
        evidence={"tensors": len(names), "parameters": size, "names": names[:32]},
    )


def _excused(exam: Exam, name: str) -> bool:
    """Zero gradients that theory predicts: behind a factor that is still 0, rows never looked up, biases of keys."""
    parameter = exam.anatomy.parameters[name]
    if name in exam.anatomy.embedding_names or parameter.numel() < 2:
        return True
    lower = name.lower()
    if lower.endswith("bias") or "lora" in lower or "rel" in lower:
        return True
    # somewhere in its own block a matrix or gain is all 0: the product's other factor has gradient 0
    block = exam.anatomy.block_of(name)
    siblings = [
        p
        for n, p in exam.anatomy.parameters.items()
        if (block is None or n.startswith(block + ".")) and n != name and not n.endswith("bias")
    ]
    if any(p.numel() > 1 and not bool(p.detach().any()) for p in siblings):
        return True
    # or what stands behind everything, the head
    head = exam.anatomy.head(exam.vocab) if exam.vocab else None
    return head is not None and not bool(head[1].detach().any())


def _frozen(exam: Exam) -> Iterator[Finding]:
    anatomy = exam.anatomy
    frozen = [name for name, p in anatomy.parameters.items() if not p.requires_grad and p.is_floating_point()]
    if not frozen:
        return
    blocks = [block for block, _ in anatomy.blocks]
    leaves: dict[str, set[str]] = {}  # what part of a block -> blocks in which it is frozen
    for name in frozen:
        block = anatomy.block_of(name)
        if block is not None:
            leaves.setdefault(name[len(block) :], set()).add(block)
    partial = {leaf: where for leaf, where in leaves.items() if 0 < len(where) < len(blocks)}
    held = {id(p) for _, group in exam.groups for p in group["params"]}
    in_optimizer = [name for name in frozen if id(anatomy.parameters[name]) in held]
    size = sum(anatomy.parameters[name].numel() for name in frozen)
    total = sum(p.numel() for p in anatomy.parameters.values())
    nothing = len(frozen) == len(anatomy.parameters)
    adapters = any("lora" in name.lower() or "adapter" in name.lower() for name in anatomy.parameters)
    suspicious = nothing or (in_optimizer and exam.optimizers) or (partial and exam.fresh and not adapters)
    where = sorted({block for blocks_ in partial.values() for block in blocks_}) if partial else []
    # requires_grad is how freezing is done on purpose; in fresh weights, or kept in the optimizer, it hardly is
    yield Finding(
        rule="parameters-frozen",
        severity="fault" if nothing else "warning" if suspicious else "notice",
        step=None,
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


def tied_weights_apart(exam: Exam) -> Iterator[Finding]:
    table = exam.anatomy.embedding
    if table is None or exam.anatomy.sharded:
        return
    head = exam.anatomy.head(int(table[1].shape[0]))
    if head is None or head[1].data_ptr() == table[1].data_ptr() or head[1].shape != table[1].shape:
        return
    declared = exam.anatomy.declared(*TIE_FLAGS)
    equal = bool(torch.equal(head[1], table[1])) and bool(table[1].detach().any())
    if not equal and declared is not True:
        return
    size = head[1].numel()
    apart = float((head[1].detach().float() - table[1].detach().float()).norm())
    yield Finding(
        rule="tied-weights-apart",
        severity="fault" if declared is True or equal else "warning",
        step=None,
        where=f"{head[0]}.weight",
        says=f"{head[0]}.weight is a separate copy of {table[0]}.weight ("
        + ("identical values, " if equal else f"{apart:.3g} apart, ")
        + "different storage)"
        + ("" if declared is not True else " although the configuration says they are tied")
        + f": {size:,} parameters more, which drift apart.",
        cause="something copied one of them after they were tied: resize, deepcopy, a new Parameter, a move to "
        "a device",
        fix="head.weight = embedding.weight after the last change, before the optimizer is built",
        sure=1.0 if declared else 0.95,
        refuted_by="one storage for both",
        evidence={"declared": declared, "equal": equal, "distance": apart, "parameters": size},
    )


def scores_not_scaled(exam: Exam) -> Iterator[Finding]:
    heads = [h for h in exam.heads if h.query.shape[-1] > 1]
    if not heads:
        return
    off = [(i, h) for i, h in enumerate(heads) if h.ratio > 1.25 or h.ratio < 0.8]
    if not off:
        return
    index, worst = max(off, key=lambda entry: abs(math.log(max(entry[1].ratio, 1e-30))))
    d = worst.query.shape[-1]
    width = exam.anatomy.embedding[1].shape[-1] if exam.anatomy.embedding is not None else 0
    known = {1.0: "the factor 1/√d_head is missing", 1 / d: "the factor is 1/d_head, not 1/√d_head"}
    if width:
        known[1 / math.sqrt(width)] = "the factor is 1/√d_model, not 1/√d_head"
    why = next(
        (text for factor, text in known.items() if abs(worst.factor / factor - 1) < 0.02), "the factor is not 1/√d_head"
    )
    declared = exam.anatomy.declared(
        "query_pre_attn_scalar", "attention_multiplier", "attn_scale", "scale_attn_by_inverse_layer_idx"
    )
    chosen = worst.normed or (declared not in (None, False)) or exam.anatomy.declared("model_type") in ("t5", "gpt_neo")
    trained = not exam.anatomy.fresh()
    kappa = exam.heads[0].largest
    yield Finding(
        rule="scores-not-scaled",
        severity="notice" if chosen else "warning" if trained else "fault",
        step=None,
        where=exam.anatomy.blocks[min(index, len(exam.anatomy.blocks) - 1)][0] if exam.anatomy.blocks else "attention",
        says=f"Var(scores)/(Var q · Var k) = {worst.ratio:.3g} instead of 1 in {len(off)} of {len(heads)} attentions "
        f"(d_head = {d}, factor {worst.factor:.4g}, expected {1 / math.sqrt(d):.4g}): {why}.",
        cause=why + (", by choice: queries and keys are normed or the configuration says so" if chosen else ""),
        fix="nothing" if chosen else "multiply q·k by 1/√d_head, once",
        sure=0.5 if chosen else 0.95,
        refuted_by=f"a factor of {1 / math.sqrt(d):.4g}",
        evidence={"ratio": worst.ratio, "factor": worst.factor, "d_head": d, "attentions": len(off), "largest": kappa},
    )


def rotary_not_relative(exam: Exam) -> Iterator[Finding]:
    share, heads = exam.off_diagonal, exam.constant_heads
    if share is None or heads is None:
        return
    q, k = heads.query[0].double(), heads.key[0].double()
    turned = {
        name: bool((x - x[:, :1]).abs().max() > 1e-3 * x.abs().max()) for name, x in (("queries", q), ("keys", k))
    }
    rotary = exam.anatomy.declared("rope_theta", "rotary_base", "rope_parameters", "rope_scaling", "rotary_emb_base")
    ours = exam.anatomy.declared("positions") == "rotary"
    if not any(turned.values()):
        if rotary is not None or ours:
            yield _rotary(exam, "neither queries nor keys are rotated", 0.0)
    elif share > 0.1:
        one = [name for name, yes in turned.items() if not yes]
        text = f"{one[0]} are not rotated" if one else "queries and keys are rotated in different layouts or angles"
        yield _rotary(exam, text, share)


def _rotary(exam: Exam, what: str, share: float) -> Finding:
    return Finding(
        rule="rotary-not-relative",
        severity="fault",
        step=None,
        where=_first_mixing(exam),
        says=f"for a row of one repeated token scores should depend on i - j alone; {share:.0%} of their variance does "
        f"not: {what}."
        if share
        else f"for a row of one repeated token no score depends on position: {what}.",
        cause=what,
        fix="rotate queries and keys by the same function, with the same layout and positions",
        sure=0.98,
        refuted_by="a share of 0",
        evidence={"off_diagonal_share": share},
    )


def initialisation(exam: Exam) -> Iterator[Finding]:
    """Too large by what it does to the logits; degenerate by its values."""
    yield from _degenerate(exam)
    plain = exam.plain
    if plain is None or plain.ndim != 3 or not exam.fresh or not bool(torch.isfinite(plain).all()):
        return
    vocab = plain.shape[-1]
    spread = float(plain.std(-1).mean())
    ids = exam.probe.ids if exam.probe is not None else None
    if spread <= 2 or ids is None or ids.shape[1] != plain.shape[1]:
        return
    targets = ids[:, 1:].clamp(max=vocab - 1)
    first = float(torch.nn.functional.cross_entropy(plain[:, :-1].flatten(0, 1), targets.flatten()))
    if first - math.log(vocab) < 1:
        return
    stds = {name: float(p.detach().float().std()) for name, p in exam.anatomy.parameters.items() if p.ndim >= 2}
    name = max(stds, key=lambda n: stds[n])
    yield Finding(
        rule="initialisation-too-large",
        severity="fault" if first > 2 * math.log(vocab) else "warning",
        step=None,
        where=name,
        says=f"the first loss is {first:.1f} nats, {math.log(vocab):.2f} expected: logits have std {spread:.1f} "
        "because "
        f"weights start at up to std {stds[name]:.2g} ({name}).",
        cause="matrices, embeddings or head are drawn too large",
        fix="std 0.02 (or 1/√fan-in) for embeddings and head, residual outputs divided by √(2·layers)",
        sure=0.9,
        refuted_by="a std of the logits below 2 on fresh weights",
        evidence={"first_loss": first, "expected": math.log(vocab), "logit_std": spread, "weight_std": stds[name]},
    )


def _degenerate(exam: Exam) -> Iterator[Finding]:
    zero: list[str] = []
    equal: list[str] = []
    for name, parameter in exam.anatomy.parameters.items():
        if (
            parameter.ndim < 2
            or min(parameter.shape) < 2
            or not parameter.requires_grad
            or not parameter.is_floating_point()
        ):
            continue
        first = parameter.detach().reshape(-1)[0]
        if bool((parameter.detach() == first).all()):
            (equal if bool(first) else zero).append(name)
        elif _rows_equal(parameter.detach()):
            equal.append(name)
    norms = exam.rehearsal.norms if exam.call is None and exam.rehearsal is not None else exam.seen_norms
    stuck = [n for n in zero if norms and norms.get(n) == 0]
    if equal or stuck:
        names = equal or stuck
        yield Finding(
            rule="initialisation-degenerate",
            severity="fault",
            step=None,
            where=names[0],
            says=f"{len(names)} matrices start as copies of one {'number' if not equal else 'row'} "
            f"({', '.join(names[:3])}): "
            + (
                "their units get equal gradients and never become different."
                if equal
                else "they and what they multiply are 0, no gradient flows."
            ),
            cause="constant initialisation",
            fix="draw weights at random; zero at most one factor of each product",
            sure=1.0,
            refuted_by="two different rows",
            evidence={"names": names[:32]},
        )
    elif zero and "lora" not in "".join(zero).lower():
        yield Finding(
            rule="initialisation-degenerate",
            severity="notice",
            step=None,
            where=zero[0],
            says=f"{len(zero)} matrices start at 0 ({', '.join(zero[:3])}); what they multiply gets no gradient "
            "at first.",
            cause="zero-initialised outputs, by choice it seems",
            fix="nothing",
            sure=0.5,
            refuted_by="gradients that stay 0",
            evidence={"names": zero[:32]},
        )


def _rows_equal(matrix: torch.Tensor) -> bool:
    return bool((matrix == matrix[:1]).all()) or bool((matrix == matrix[:, :1]).all())


def residual_missing(exam: Exam) -> Iterator[Finding]:
    """Of blocks that hold attention: how much of a change of their input comes out as it went in."""
    blocks = [block for block, _ in exam.anatomy.blocks]
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
        step=None,
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
    norms = exam.rehearsal.norms if exam.call is None and exam.rehearsal is not None else exam.seen_norms
    blocks = [block for block, _ in exam.anatomy.blocks]
    if len(blocks) < 3 or not norms:
        return
    sizes = []
    for block in blocks:
        own = [v for n, v in norms.items() if n.startswith(block + ".") and v and exam.anatomy.parameters[n].ndim >= 2]
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
        step=None,
        where=blocks[0],
        says=f"gradients {'shrink' if ratio < 1 else 'grow'} "
        f"{ratio ** (1 / (1 - len(blocks))) if ratio < 1 else ratio ** (1 / (len(blocks) - 1)):.1f}-fold per "
        "block on the way back: "
        f"first over last block {ratio:.1e}.",
        cause="no residual connection or norm, or weights of the wrong size",
        fix="pre-norm residual blocks; weights with std 1/√fan-in",
        sure=0.8,
        refuted_by="a ratio within 1e-3 … 1e3",
        evidence={"ratio": ratio, "norms": [round(s, 8) for s in sizes]},
    )


EXAM = [
    not_causal,
    batch_leaks,
    gradients_arrive,
    tied_weights_apart,
    scores_not_scaled,
    rotary_not_relative,
    initialisation,
    residual_missing,
    gradient_by_depth,
]
