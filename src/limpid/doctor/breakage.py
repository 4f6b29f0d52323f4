"""When it breaks: the step again, operation by operation, until the first number that should not be.

An operation is to blame when its inputs are finite (or masked on purpose) and its output is not. Then one thing at a
time is changed, and what heals names the cause: single rows, the batch before, float32.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from limpid.doctor.anatomy import Anatomy
from limpid.doctor.calls import IGNORED, Call, Micro, find_logits, find_loss
from limpid.doctor.finding import Finding
from limpid.doctor.undisturbed import undisturbed

FILLS = ("masked_fill", "where", "full", "fill", "scalar_tensor", "new_full")
"""Operations that place values: an infinity in their output is a mask."""
UNSET = ("empty", "new_empty", "_local_scalar")
"""Operations whose output holds nothing yet."""


@dataclass
class Culprit:
    """The first operation that made a number that is none."""

    op: str
    module: str
    backward: bool
    largest: float  # of its finite inputs
    inputs: tuple[str, ...]  # formats and shapes
    dtype: torch.dtype
    empty_rows: int = 0  # rows of a softmax with nothing visible
    rows: tuple[int, ...] = ()  # of the batch
    exact_largest: float | None = None  # of the same operation in float64
    chain: list[str] = field(default_factory=list)  # modules whose largest value grew on the way


class Searching(TorchDispatchMode):
    """Stops looking at the first bad output; passes everything on unchanged."""

    def __init__(self, where: Callable[[], str]) -> None:
        super().__init__()
        self.where, self.found, self.backward = where, None, False
        self.bad_inputs: str | None = None

    found: Culprit | None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.found is None and isinstance(out, Tensor) and out.is_floating_point() and out.numel():
            with contextlib.suppress(Exception):  # an operation that we cannot judge is not the culprit
                self.look(func, args, kwargs or {}, out)
        return out

    def look(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        if bool(torch.isfinite(out).all()):
            return
        name = str(func).removeprefix("aten.")
        if name.startswith(UNSET):
            return
        nan = bool(torch.isnan(out).any())
        inputs = [a for a in _flat(args) if isinstance(a, Tensor) and a.is_floating_point()]
        if any(bool(torch.isnan(a).any()) for a in inputs):
            return
        if not nan:
            infinite = any(bool(torch.isinf(a).any()) for a in inputs)
            if infinite or name.startswith(FILLS):
                return
        finite = [a[torch.isfinite(a)].abs().max() for a in inputs if bool(torch.isfinite(a).any())]
        culprit = Culprit(
            name,
            self.where(),
            self.backward,
            float(max(finite)) if finite else 0.0,
            tuple(f"{str(a.dtype).removeprefix('torch.')}{list(a.shape)}" for a in inputs),
            out.dtype,
        )
        if "softmax" in name and inputs:
            axis = args[1] if len(args) > 1 and isinstance(args[1], int) else -1
            empty = (inputs[0] == -math.inf).all(axis)
            culprit.empty_rows = int(empty.sum())
        bad = ~torch.isfinite(out)
        if out.ndim > 1:
            culprit.rows = tuple(bad.flatten(1).any(1).nonzero()[:, 0].tolist()[:16])
        if out.dtype in (torch.float16, torch.bfloat16):
            wide = [a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
            again = func(*wide, **kwargs)
            if isinstance(again, Tensor) and bool(torch.isfinite(again).all()):
                culprit.exact_largest = float(again.abs().max())
        self.found = culprit


def search(
    anatomy: Anatomy, call: Call, micro: Micro | None, rng: Tensor | None, backward: bool = True
) -> tuple[Culprit | None, bool]:
    """The first bad operation of a call (and of the way back), and whether logits came out finite."""
    stack: list[str] = []
    handles = []
    model = anatomy.model

    def enter(name: str) -> Any:
        def push(*_: Any) -> None:
            stack.append(name)

        return push

    def leave(*_: Any) -> None:
        if stack:
            stack.pop()

    mode = Searching(lambda: stack[-1] if stack else "model")
    finite = True
    with undisturbed(model, gradients=backward):
        model.train()
        if rng is not None:
            torch.set_rng_state(rng)
        for name, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(enter(name or "model")))
            handles.append(module.register_forward_hook(leave, always_call=True))
        try:
            with mode:
                output = call.make(model)
                logits = find_logits(output)
                finite = logits is None or bool(torch.isfinite(logits).all())
                if mode.found is None and backward:
                    stack[:] = ["loss"]
                    loss = _plain_loss(output, call, micro)
                    if loss is not None and loss.requires_grad:
                        mode.backward = True
                        loss.backward()
        finally:
            for handle in handles:
                handle.remove()
    return mode.found, finite


def localise(
    anatomy: Anatomy,
    call: Call | None,
    micros: list[Micro],
    step: int | None,
    loss: float,
    rng: Tensor | None = None,
    before: Call | None = None,
) -> Finding:
    """The finding for a step whose loss or gradient is not finite."""
    what = f"the loss is {loss}" if not math.isfinite(loss) else f"a gradient is not finite (the loss, {loss:.4g}, is)"
    odd = [name for name, p in anatomy.parameters.items() if not bool(torch.isfinite(p.detach()).all())]
    if odd:
        count = sum(int((~torch.isfinite(anatomy.parameters[n].detach())).sum()) for n in odd)
        return _plain(
            step,
            odd[0],
            f"{what}: {count:,} elements of {len(odd)} parameters are not finite already before the forward "
            f"pass ({', '.join(odd[:3])}).",
            "the update before wrote them",
            "look at the step before: its gradients, ε, rate and loss scale",
            {"tensors": odd[:16], "elements": count},
            0.9,
        )
    micro = micros[-1] if micros else None
    if call is None:
        return _plain(
            step,
            "loss",
            f"{what}.",
            "unknown: the call of the model was not seen",
            "let the doctor see the forward pass: watch(model) before the loop",
            {},
            0.3,
        )
    culprit, finite = search(anatomy, call, micro, rng)
    if culprit is None:
        labels = micro.labels if micro is not None and micro.labels is not None else call.labels
        if labels is not None and not bool((labels >= 0).any()):
            return Finding(
                rule="no-labels",
                severity="fault",
                step=step,
                where="batch",
                says=f"{what}: none of the {labels.numel():,} positions has a label, a mean over nothing is 0/0.",
                cause="labels are masked entirely",
                fix="drop such batches, or divide by max(1, labels)",
                sure=1.0,
                refuted_by="a label at or above 0",
                evidence={"labels": 0},
            )
        where = "loss" if finite else "model"
        return _plain(
            step,
            where,
            f"{what}, though the forward pass, repeated, gives finite logits: it arises in the loss, or "
            "after the backward pass.",
            "the loss function, the loss scale, or something that changes gradients",
            "look at the inputs of the loss: log of 0, a division by a count of 0, an overflow in its format",
            {},
            0.6,
        )
    healed = heal(anatomy, call, before, rng, culprit)
    return _of(culprit, what, step, healed, anatomy)


def heal(anatomy: Anatomy, call: Call, before: Call | None, rng: Tensor | None, culprit: Culprit) -> dict[str, Any]:
    """One thing changed at a time: single rows, and the batch before."""
    facts: dict[str, Any] = {}
    ids = call.ids
    if ids is not None and len(ids) > 1:
        bad = []
        for row in range(min(len(ids), 64)):
            found, _ = search(anatomy, call.rows(slice(row, row + 1)), None, rng, backward=False)
            if found is not None:
                bad.append(row)
        facts["rows_that_break_alone"] = bad
        facts["rows"] = min(len(ids), 64)
    if before is not None:
        found, _ = search(anatomy, before, None, rng, backward=False)
        facts["previous_batch_is_finite"] = found is None
    return facts


def _of(culprit: Culprit, what: str, step: int | None, healed: dict[str, Any], anatomy: Anatomy) -> Finding:
    op = culprit.op.split(".")[0]
    limit = float(torch.finfo(culprit.dtype).max)
    format_name = str(culprit.dtype).removeprefix("torch.")
    evidence = {
        "operation": culprit.op,
        "largest_input": culprit.largest,
        "inputs": list(culprit.inputs),
        "backward": culprit.backward,
        **healed,
    }
    rows = healed.get("rows_that_break_alone")
    who = ""
    if rows and len(rows) < healed.get("rows", 0):
        who = f" Only rows {', '.join(map(str, rows[:8]))} of {healed['rows']} break on their own: it is the batch."
    elif healed.get("previous_batch_is_finite") is False:
        who = " The batch before breaks too: it is the weights, not the batch."
    elif rows and healed.get("previous_batch_is_finite"):
        who = " The batch before stays finite with the same weights."
    if culprit.empty_rows:
        return Finding(
            rule="attention-row-sees-nothing",
            severity="fault",
            step=step,
            where=culprit.module,
            says=f"{what}: {culprit.empty_rows} rows of a softmax in {culprit.module} are all -inf (no visible "
            "key), so that "
            f"it is 0/0.{who}",
            cause="the causal mask and the padding mask together hide every key",
            fix="let padded queries see themselves, pad on the right, or use a softmax that gives 0 for an empty row",
            sure=1.0,
            refuted_by="a visible key in each of these rows",
            evidence=evidence | {"empty_rows": culprit.empty_rows},
        )
    if culprit.exact_largest is not None and culprit.exact_largest > limit:
        product = any(word in op for word in ("mm", "bmm", "matmul", "baddbmm", "dot"))
        scores = product and _attends(culprit, anatomy)
        evidence |= {"value": culprit.exact_largest, "limit": limit}
        return Finding(
            rule="scores-overflow-half" if scores else "overflow-in-half",
            severity="fault",
            step=step,
            where=culprit.module,
            says=f"{what}: {culprit.module} {'attention scores' if scores else f'({op})'} reached "
            f"{culprit.exact_largest:.3g} "
            f"> {limit:.5g} ({format_name} maximum); the same product of the same numbers is finite in float64.{who}",
            cause="query and key norms grew beyond the format" if scores else f"values outgrew {format_name}",
            fix="scale queries before the product, bfloat16, QK-norm, or a lower rate"
            if scores
            else "bfloat16, float32 for this operation, or smaller weights",
            sure=1.0,
            refuted_by=f"a largest value below {limit:.5g}",
            evidence=evidence,
        )
    why = {
        "log": "the logarithm of 0 or of a negative number",
        "div": "a division by 0",
        "sqrt": "the root of a negative number",
        "rsqrt": "1/√0",
        "pow": "a power that overflows",
        "exp": "an exponential that overflows",
        "reciprocal": "1/0",
        "nll_loss_forward": "a mean over no label",
    }
    cause = next(
        (text for word, text in why.items() if op.startswith(word)), f"{op} of numbers up to {culprit.largest:.3g}"
    )
    if culprit.backward:
        cause += ", in the backward pass"
    return _plain(
        step,
        culprit.module,
        f"{what}: the first operation with finite inputs and a result that is not is {op} in "
        f"{culprit.module}{' (backward)' if culprit.backward else ''}: inputs {', '.join(culprit.inputs[:2])} up to "
        f"{culprit.largest:.3g}.{who}",
        cause,
        "guard this operation (ε under a root or in a denominator, log_softmax for a log of probabilities, clamp)",
        evidence,
        0.9,
    )


def _attends(culprit: Culprit, anatomy: Anatomy) -> bool:
    """Whether a batched product is one of queries and keys: both with 3 axes, inside a module that attends."""
    shapes = [entry[entry.index("[") :].count(",") for entry in culprit.inputs]
    return all(count >= 2 for count in shapes[:2]) and len(shapes) >= 2


def _plain(
    step: int | None, where: str, says: str, cause: str, fix: str, evidence: dict[str, Any], sure: float
) -> Finding:
    return Finding(
        rule="not-finite",
        severity="fault",
        step=step,
        where=where,
        says=says,
        cause=cause,
        fix=fix,
        sure=sure,
        refuted_by="a finite result of the same operation",
        evidence=evidence,
    )


def _plain_loss(output: Any, call: Call, micro: Micro | None) -> Tensor | None:
    """The model's own loss, or a mean cross-entropy with the labels there are."""
    own, logits = find_loss(output), find_logits(output)
    if own is not None:
        return own
    labels = micro.labels if micro is not None and micro.labels is not None else call.labels
    if labels is None and call.ids is not None:
        labels = torch.cat([call.ids[:, 1:], torch.full_like(call.ids[:, :1], IGNORED)], 1)
    if logits is None or labels is None or labels.numel() * logits.shape[-1] != logits.numel():
        return None if logits is None else logits.float().mean()
    return F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), labels.to(logits.device).flatten(), ignore_index=IGNORED
    )


def _flat(values: Any) -> list[Any]:
    return [e for v in values for e in (_flat(v) if isinstance(v, tuple | list) else [v])]
