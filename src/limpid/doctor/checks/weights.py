"""Weights before the first step: drawn too large, degenerate, or tied only in name."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from limpid.doctor.exam import Exam
from limpid.doctor.finding import Finding
from limpid.doctor.model_info import TIE_FLAGS


def tied_weights_apart(exam: Exam) -> Iterator[Finding]:
    table = exam.info.embedding
    if table is None or exam.info.sharded:
        return
    head = exam.info.head(int(table[1].shape[0]))
    if head is None or head[1].data_ptr() == table[1].data_ptr() or head[1].shape != table[1].shape:
        return
    declared = exam.info.declared(*TIE_FLAGS)
    equal = bool(torch.equal(head[1], table[1])) and bool(table[1].detach().any())
    if not equal and declared is not True:
        return
    size = head[1].numel()
    apart = float((head[1].detach().float() - table[1].detach().float()).norm())
    yield Finding(
        rule="tied-weights-apart",
        severity="fault" if declared is True or equal else "warning",
        where=f"{head[0]}.weight",
        says=f"{head[0]}.weight is a separate copy of {table[0]}.weight ("
        + ("identical values, " if equal else f"{apart:.3g} apart, ")
        + "different storage)"
        + ("" if declared is not True else " although the configuration says they are tied")
        + f": {size:,} parameters more, which drift apart.",
        cause="something copied one of them after they were tied: resize, deepcopy, a new Parameter, a move to a "
        "device",
        fix="head.weight = embedding.weight after the last change, before the optimizer is built",
        sure=1.0 if declared else 0.95,
        refuted_by="one storage for both",
        evidence={"declared": declared, "equal": equal, "distance": apart, "parameters": size},
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
    stds = {name: float(p.detach().float().std()) for name, p in exam.info.parameters.items() if p.ndim >= 2}
    name = max(stds, key=lambda n: stds[n])
    yield Finding(
        rule="initialisation-too-large",
        severity="fault" if first > 2 * math.log(vocab) else "warning",
        where=name,
        says=f"the first loss is {first:.1f} nats, {math.log(vocab):.2f} expected: logits have std {spread:.1f} "
        f"because weights start at up to std {stds[name]:.2g} ({name}).",
        cause="matrices, embeddings or head are drawn too large",
        fix="std 0.02 (or 1/√fan-in) for embeddings and head, residual outputs divided by √(2·layers)",
        sure=0.9,
        refuted_by="a std of the logits below 2 on fresh weights",
        evidence={"first_loss": first, "expected": math.log(vocab), "logit_std": spread, "weight_std": stds[name]},
    )


def _degenerate(exam: Exam) -> Iterator[Finding]:
    if exam.info.sharded:
        return  # rows that are compared must be in one place
    zero: list[str] = []
    equal: list[str] = []
    for name, parameter in exam.info.parameters.items():
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
    norms = exam.trial.norms if exam.call is None and exam.trial is not None else exam.seen_norms
    head = exam.info.head(exam.vocab) if exam.vocab else None
    # behind a head that starts at 0, and learns, everything has gradient 0 for one step
    waits = head is not None and not bool(head[1].detach().any()) and bool(norms.get(f"{head[0]}.weight"))
    stuck = [n for n in zero if norms and norms.get(n) == 0 and not waits]
    if equal or stuck:
        names = equal or stuck
        yield Finding(
            rule="initialisation-degenerate",
            severity="fault",
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
            refuted_by="two different rows",
            evidence={"names": names[:32]},
        )
    elif zero and "lora" not in "".join(zero).lower():
        yield Finding(
            rule="initialisation-degenerate",
            severity="notice",
            where=zero[0],
            says=f"{len(zero)} matrices start at 0 ({', '.join(zero[:3])}); what they multiply gets no gradient at "
            "first.",
            cause="zero-initialised outputs, by choice it seems",
            fix="nothing",
            sure=0.5,
            refuted_by="gradients that stay 0",
            evidence={"names": zero[:32]},
        )


def _rows_equal(matrix: torch.Tensor) -> bool:
    return bool((matrix == matrix[:1]).all()) or bool((matrix == matrix[:, :1]).all())


EXAM = [tied_weights_apart, initialisation]
