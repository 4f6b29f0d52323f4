"""Weights before the first step: drawn too large, degenerate, tied only in name, or without their shortcut."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step
from limpid.doctor.weights import constant_matrices, units_stay_alike

if TYPE_CHECKING:
    from torch import Tensor

    from limpid.doctor.exam import Exam

FAMILY = "initialisation"
TIE_FLAGS = ("tie_word_embeddings", "tie_weights", "tied", "weight_tying", "tie_embeddings")

TIED_WEIGHTS_APART = Rule(
    "tied-weights-apart",
    FAMILY,
    detects="Embedding and head that should be one tensor, but are two.",
    equation=r"\text{storage}(E) \neq \text{storage}(W) \;\text{while tied is declared, or } E = W",
    source="Press & Wolf 2016, section 2, arXiv:1608.05859; transformers#35141",
    threshold="exact: storage and equality of values",
    cost="one comparison of two tensors",
    needs=(Probe.PARAMETERS,),
    cause="something copied one of them after they were tied: resize, deepcopy, a new Parameter, a move to a device",
    fix="head.weight = embedding.weight after the last change, before the optimizer is built",
    meant="a head that begins as a copy of the embedding and is then free",
    refuted_by="one storage for both",
    explains=("parameters-not-in-optimizer",),
)

FAR = 100.0
"""Times the lowest of the other logits, at which a number stands for no logit."""

TOO_LARGE = Rule(
    "initialisation-too-large",
    FAMILY,
    detects="Weights that start so large that the first predictions are confidently wrong.",
    equation=r"L_0 - \ln V = \sigma^2 / 2 \;\text{with } \sigma \text{ the std of logits}",
    source="moment generating function of a Gaussian; Takase et al. 2023, arXiv:2312.16903",
    threshold="fresh weights whose logits have a std above {spread:g} and whose first loss is {above:g} nat or more "
    "above ln V; a fault above {fault:g} ln V",
    thresholds={
        "spread": Threshold(2, "σ²/2 = 2 nats above ln V are expected from there on"),
        "above": Threshold(1, "half of what σ = 2 gives: logits of tied embeddings favour the input"),
        "fault": Threshold(2, "half of the way down is learning not to be sure"),
    },
    cost="none: logits of the first forward pass",
    needs=(Probe.PARAMETERS, Probe.FORWARD),
    cause="matrices, embeddings or head are drawn too large",
    fix="std 0.02 (or 1/√fan-in) for embeddings and head, residual outputs divided by √(2·layers)",
    meant="a large start on purpose: grokking, lazy training, an ablation of the initialisation",
    refuted_by="a std of the logits below 2 on fresh weights",
    explains=("initial-loss-off", "attention-scores-large", "gradient-vanishes-with-depth", "loss-plateau"),
)

DEGENERATE = Rule(
    "initialisation-degenerate",
    FAMILY,
    detects="Weights that start at 0, or all equal: no gradient flows, or units never become different.",
    equation=r"W = 0 \text{ or } w_{ij} = c \Rightarrow \partial L / \partial w_{ij} \text{ equal for all } i",
    source="Goodfellow et al. 2016, section 8.4",
    threshold="exact: a matrix of one value or of equal rows or columns; a notice for one factor of a product at 0 "
    "(adapters, zero-initialised outputs) and for what has a drawn matrix of its shape or a module for each row beside "
    "it in one module (its deviations, gains, gates), a fault where gradients of both are 0 or the value is not 0",
    cost="one pass over the weights",
    needs=(Probe.PARAMETERS, Probe.BACKWARD),
    cause="constant initialisation",
    fix="draw weights at random; zero at most one factor of each product",
    meant="a mean to begin with (mixing, gates, prototypes), told apart by what stands around it",
    refuted_by="two different rows",
    explains=("gradient-cut", "loss-plateau", "weights-never-change", "epsilon-dominates"),
)

RESIDUAL_MISSING = Rule(
    "residual-missing",
    FAMILY,
    detects="Blocks that replace their input instead of adding to it.",
    equation=r"\langle v, J v \rangle / \langle v, v \rangle = 1 + \mathrm{tr}(\partial f) / d \;\text{for}\; x + f(x)",
    source="He et al. 2015, eq. 1, arXiv:1512.03385",
    threshold="a median share below {share:g} over the blocks that hold attention, at least {blocks:g}",
    thresholds={
        "share": Threshold(0.3, "1 with the shortcut, 0 without, each give or take tr(∂f)/d"),
        "blocks": Threshold(2, "a single block may be anything"),
    },
    cost="one forward pass, and two of each block, before the first step",
    needs=(Probe.PARAMETERS, Probe.FORWARD, Probe.ATTENTION, Probe.MODULES),
    cause="x = f(x) where x = x + f(x) is meant, in a sublayer of the blocks",
    fix="add the input of each sublayer to its output",
    meant="blocks without shortcuts on purpose, or gates in their place",
    refuted_by="a share near 1",
    explains=("gradient-vanishes-with-depth", "loss-plateau"),
)


@before_first_step(TIED_WEIGHTS_APART)
def tied_apart(exam: Exam) -> Iterator[Finding]:
    table = exam.info.embedding
    head = None if table is None or exam.info.sharded else exam.info.head(int(table[1].shape[0]))
    if table is None or head is None or head[1].data_ptr() == table[1].data_ptr() or head[1].shape != table[1].shape:
        return
    declared = exam.info.declared(*TIE_FLAGS)
    equal = bool(head[1].equal(table[1])) and bool(table[1].detach().any())
    if not equal and declared is not True:
        return
    size, apart = head[1].numel(), float((head[1].detach().float() - table[1].detach().float()).norm())
    yield TIED_WEIGHTS_APART.finding(
        severity="fault",
        where=f"{head[0]}.weight",
        says=f"{head[0]}.weight is a separate copy of {table[0]}.weight ("
        f"{'identical values' if equal else f'{apart:.3g} apart'}, different storage)"
        f"{' although the configuration says they are tied' if declared is True else ''}: {size:,} parameters more, "
        "which drift apart.",
        meant=None if declared is True else "",
        sure=1.0 if declared else 0.95,
        evidence={"declared": declared, "equal": equal, "distance": apart, "parameters": size},
    )


def _holds_a_mask(logits: Tensor) -> bool:
    """Whether some are one number far below the others, which no weights give: choices that are ruled out."""
    least = logits.min()
    ruled_out = logits == least
    others = logits[~ruled_out]
    return int(ruled_out.sum()) > 1 and len(others) > 0 and float(least) < FAR * min(-1.0, float(others.min()))


@before_first_step(TOO_LARGE)
def too_large(exam: Exam) -> Iterator[Finding]:
    """By what it does to the logits."""
    rule, plain, ids = TOO_LARGE, exam.plain, exam.probe.ids if exam.probe is not None else None
    if plain is None or plain.ndim != 3 or not exam.fresh or not bool(plain.isfinite().all()):
        return
    chance, spread = math.log(plain.shape[-1]), float(plain.std(-1).mean())
    if spread <= rule["spread"] or ids is None or ids.shape[1] != plain.shape[1] or _holds_a_mask(plain):
        return
    targets = ids[:, 1:].clamp(max=plain.shape[-1] - 1).to(plain.device).long()
    first = float(-plain[:, :-1].log_softmax(-1).gather(-1, targets[..., None]).mean())
    if first - chance < rule["above"]:
        return
    stds = {name: float(p.detach().float().std()) for name, p in exam.info.parameters.items() if p.ndim >= 2}
    name = max(stds, key=lambda n: stds[n])
    yield rule.finding(
        severity="fault" if first > rule["fault"] * chance else "warning",
        where=name,
        says=f"the first loss is {first:.1f} nats, {chance:.2f} expected: logits have std {spread:.1f} because weights "
        f"start at up to std {stds[name]:.2g} ({name}).",
        sure=0.9,
        evidence={"first_loss": first, "expected": chance, "logit_std": spread, "weight_std": stds[name]},
    )


WAITS = "matrices that follow once others, which have a gradient, have left 0"


@before_first_step(DEGENERATE)
def degenerate(exam: Exam) -> Iterator[Finding]:
    """By values."""
    if exam.info.sharded:
        return  # rows that are compared must be in one place
    zero, equal, beside = constant_matrices(exam.info)
    norms = exam.gradient_norms
    head = exam.info.head(exam.vocab) if exam.vocab else None
    # behind a head that starts at 0, and learns, everything has gradient 0 for one step
    waits = head is not None and not bool(head[1].detach().any()) and bool(norms.get(f"{head[0]}.weight"))
    stuck = [name for name in zero if norms and norms.get(name) == 0 and not waits]
    follows = any(norms.get(name) for name in zero)
    if equal or stuck:
        names = equal or stuck
        alike = bool(equal) and units_stay_alike(exam.info, equal)
        effect = "they and what they multiply are 0, no gradient flows"
        if equal:
            effect = (
                "their units get equal gradients and never become different" if alike else "their units begin alike"
            )
        yield DEGENERATE.finding(
            severity="fault",
            where=names[0],
            says=f"{len(names)} matrices start as copies of one {'number' if not equal else 'row'} "
            f"({', '.join(names[:3])}): {effect}.",
            meant=WAITS if not equal and follows else "" if equal and not alike else None,
            evidence={"names": names[:32]},
        )
    elif zero and "lora" not in "".join(zero).lower():
        yield DEGENERATE.finding(
            severity="notice",
            where=zero[0],
            says=f"{len(zero)} matrices start at 0 ({', '.join(zero[:3])}); what they multiply gets no gradient at "
            "first.",
            cause="zero-initialised outputs, it seems on purpose",
            fix="nothing",
            sure=0.5,
            refuted_by="gradients that stay 0",
            evidence={"names": zero[:32]},
        )
    if beside:
        yield DEGENERATE.finding(
            severity="notice",
            where=beside[0],
            says=f"{len(beside)} matrices start with equal rows ({', '.join(beside[:3])}), each beside a drawn one of "
            "its shape or a module for each row: units differ by those.",
            cause="deviations, gains or gates of what stands beside, it seems",
            fix="nothing",
            sure=0.5,
            evidence={"names": beside[:32]},
        )


@before_first_step(RESIDUAL_MISSING)
def no_shortcut(exam: Exam) -> Iterator[Finding]:
    """Of blocks that hold attention: how much of a change of their input comes out as it went in."""
    rule, blocks = RESIDUAL_MISSING, [block for block, _ in exam.info.blocks]
    if len(blocks) < rule["blocks"] or exam.info.blocks_are_parts or len(exam.attention.scores) < len(blocks):
        return
    shares, flow = exam.shortcuts, exam.flow
    if len(shares) < rule["blocks"]:
        return
    middle = sorted(shares.values())[len(shares) // 2]
    if middle >= rule["share"]:
        return
    cosine = flow.cosine.get(blocks[len(blocks) // 2]) if flow is not None else None
    also = f" (cosine of input and output {cosine:.2f})" if cosine is not None else ""
    yield rule.finding(
        severity="fault",
        where=blocks[0],
        says=f"blocks do not pass their input on: of a small change of it {middle:.2f} comes out unchanged, 1 expected "
        f"of x + f(x){also}.",
        sure=0.95,
        evidence={"gains": {name: round(share, 3) for name, share in shares.items()}, "cosine": cosine},
    )
