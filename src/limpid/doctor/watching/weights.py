"""What updates do to weights, and what activations do: predicted, then compared."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

import torch

from limpid.doctor.checks.optimisation import epsilon_finding
from limpid.doctor.finding import Finding
from limpid.doctor.step_record import History, StepRecord
from limpid.doctor.watched import Watched
from limpid.doctor.watching.rate import rate


def updates(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    update = record.update
    if update is None or not update.names or record.skipped:
        return
    history.updates.append((record.number, update))
    del history.updates[:-64]
    yield from lost(watched, record, history)
    yield from still(watched, record, history)
    yield from restored(record, history)
    yield from ascent(record, history)
    yield from epsilon(record, history)
    yield from size(record, history)
    yield from rate(watched, record, history)


def lost(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """Elements with an update that rounding threw away, in narrow formats."""
    update = record.update
    assert update is not None
    parameters = watched.info.parameters
    halves = (torch.float16, torch.bfloat16)
    narrow = [i for i, name in enumerate(update.names) if name in parameters and parameters[name].dtype in halves]
    if not narrow or max(update.rates) == 0:
        return
    weight = [parameters[update.names[i]].numel() for i in narrow]
    share = sum(update.lost[i] * n for i, n in zip(narrow, weight, strict=True)) / sum(weight)
    gains = [i for i in narrow if update.names[i] in set(watched.info.norm_gains)]
    stuck = [i for i in gains if update.lost[i] > 0.99]
    everything = bool(gains) and len(stuck) == len(gains) and record.number > 3
    history.facts["lost"] = history.facts.get("lost", 0) + 1 if share > 0.2 or everything else 0
    if history.facts["lost"] < 2:
        return
    kind = str(parameters[update.names[narrow[0]]].dtype).removeprefix("torch.")
    rate = max(update.rates)
    yield Finding(
        rule="updates-lost-to-rounding",
        severity="fault" if share > 0.5 or everything else "warning",
        step=record.number,
        where=update.names[max(narrow, key=lambda i: update.lost[i])],
        says=f"{share:.0%} of the weight updates round to nothing (rate {rate:.1e}, {kind} weights); {len(stuck)} of "
        f"{len(gains)} gains did not move at all.",
        cause=f"the weights themselves are {kind}, and the optimizer adds updates to them directly",
        fix="keep float32 master weights (autocast instead of .to(bfloat16)), or stochastic rounding, or Kahan sums",
        refuted_by="elements that change with every update",
        evidence={"lost_share": share, "gains_stuck": len(stuck), "gains": len(gains), "rate": rate},
    )


def still(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """Tensors that never move although they have a gradient and the rate is above 0."""
    recent = [u for _, u in history.updates[-3:]]
    if len(recent) < 3 or any(max(u.rates) == 0 for u in recent):
        return
    rates = [dict(zip(u.names, u.rates, strict=True)) for u in recent]
    stuck = [
        name
        for name in recent[-1].names
        if all(
            name in u.names and u.still[u.names.index(name)] and r.get(name) for u, r in zip(recent, rates, strict=True)
        )
        and name in watched.info.parameters
        and watched.info.parameters[name].dtype == torch.float32
    ]
    if stuck:
        yield Finding(
            rule="weights-never-change",
            severity="warning",
            step=record.number,
            where=stuck[0],
            says=f"{len(stuck)} tensors ({', '.join(stuck[:3])}) have gradients, and did not change in 3 sampled "
            "updates.",
            cause="something restores them, or the optimizer steps other tensors",
            fix="compare a parameter before and after optimizer.step()",
            sure=0.9,
            refuted_by="one changed element",
            evidence={"tensors": stuck[:32]},
        )


def restored(record: StepRecord, history: History) -> Iterator[Finding]:
    """Weights that begin each step where they began the one before, whatever the update changed."""
    if len(history.updates) < 2:
        return
    (before, first), (now, second) = history.updates[-2:]
    if now == before + 1 and first.names == second.names and any(change > 0 for change in first.change):
        same = all(torch.equal(a, b) for a, b in zip(first.start, second.start, strict=True))
        history.facts["restored"] = history.facts.get("restored", 0) + 1 if same else 0
    first.start.clear()
    if history.facts.get("restored") == 2:
        yield Finding(
            rule="weights-never-change",
            severity="fault",
            step=record.number,
            where=second.names[0],
            says=f"all {len(second.names)} tensors begin step {now} as they began the two before: updates "
            "change them, and something puts them back.",
            cause="weights are loaded or copied back between the steps: an average swapped the wrong way, a "
            "restored copy",
            fix="compare a parameter after optimizer.step() and before the next",
            refuted_by="one element that begins a step elsewhere",
            evidence={"tensors": len(second.names)},
        )


def ascent(record: StepRecord, history: History) -> Iterator[Finding]:
    cosines = [u.cosine for _, u in history.updates[-3:]]
    if len(cosines) == 3 and min(cosines) > 0.1 and all(s <= record.number for s, _ in history.updates):
        early = history.updates[-1][0] <= 20 or min(cosines) > 0.3
        if early:
            yield Finding(
                rule="gradient-ascent",
                severity="fault",
                step=record.number,
                where="optimizer",
                says="updates go along the gradient, not against it (cosine "
                f"{', '.join(f'{c:.2f}' for c in cosines)}): each step raises the loss of its own batch.",
                cause="a sign in the optimizer (maximize=True), or a hook that negates gradients",
                fix="w ← w - lr·g",
                sure=0.9,
                refuted_by="a negative cosine of gradient and update",
                evidence={"cosines": cosines},
            )


def epsilon(record: StepRecord, history: History) -> Iterator[Finding]:
    update = record.update
    assert update is not None
    known = [i for i in update.matrices() if not math.isnan(update.eps_share[i])]
    over = [i for i in known if update.eps_share[i] > 0.5]
    history.facts["eps"] = history.facts.get("eps", 0) + 1 if known and len(over) > len(known) / 2 else 0
    if history.facts["eps"] >= 3:
        worst = max(over, key=lambda i: update.eps_share[i])
        root = update.root_v[worst]
        share = update.eps_share[worst]
        eps = share / max(1 - share, 1e-12) * root if root > 0 else math.nan
        yield epsilon_finding(len(over), len(known), eps, root, update.names[worst], record.number)


def size(record: StepRecord, history: History) -> Iterator[Finding]:
    """Observed over predicted changes."""
    update = record.update
    assert update is not None
    pairs = [
        update.change[i] / update.predicted[i]
        for i in update.matrices()
        if update.predicted[i] > 0 and update.lost[i] < 0.2
    ]
    odd = bool(pairs) and not 1 / 3 < median(pairs) < 3
    history.facts["size"] = history.facts.get("size", 0) + 1 if odd else 0
    if history.facts["size"] == 3:
        yield Finding(
            rule="update-not-as-predicted",
            severity="warning",
            step=record.number,
            where=update.names[update.matrices()[0]],
            says=f"weights change {median(pairs):.2g} times as much as rate and moments say, three samples in a row.",
            cause="something else changes weights or gradients: a second optimizer, a hook, a projection",
            fix="compare w after the step with w - lr·m̂/(√v̂ + ε)",
            sure=0.8,
            refuted_by="a ratio within 1/3 … 3",
            evidence={"ratio": median(pairs)},
        )


def attention(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    """The largest attention logit, and how long until the format ends at its rate of growth."""
    if not record.heads:
        return
    index = max(range(len(record.heads)), key=lambda i: record.heads[i].largest)
    heads = record.heads[index]
    history.scores.append((record.number, heads.largest, index))
    blocks = watched.info.blocks
    where = f"{blocks[index][0]} attention" if index < len(blocks) else f"attention {index}"
    half = heads.dtype == torch.float16
    raw = heads.largest / max(abs(heads.factor), 1e-12) if heads.exact else heads.largest
    largest = max(heads.largest, raw) if half else heads.largest
    if half and largest > 65504 / 2:
        yield _half(record.number, where, largest, history)
    elif half and len(history.scores) >= 4:
        (s0, x0, _), (s1, x1, _) = history.scores[-4], history.scores[-1]
        if x1 > 3 * x0 > 0 and s1 > s0:
            left = math.log(65504 / max(largest, 1e-9)) / (math.log(x1 / x0) / (s1 - s0))
            if left < 200 and largest > 100:
                yield _half(record.number, where, largest, history, left)
    exact = heads.exact or heads.largest > 1e4
    if heads.largest > 1e3 and exact:
        start = history.scores[0][1]
        yield Finding(
            rule="attention-scores-large",
            severity="fault" if heads.largest > 1e4 and heads.exact else "warning",
            step=record.number,
            where=where,
            says=f"attention logits reach {heads.largest:.3g} ({start:.3g} at the start): softmax is one-hot; above "
            "1e3 harm begins, every run known above 1e4 diverged.",
            cause="query and key norms grow: a high rate, no QK-norm, no decay",
            fix="QK-norm, a lower rate, decay on W_q and W_k",
            sure=0.85,
            refuted_by="a largest logit below 1000",
            evidence={"largest": heads.largest, "start": start},
        )


def _half(step: int, where: str, largest: float, history: History, left: float | None = None) -> Finding:
    start = history.scores[0][1]
    when = "" if left is None else f", reached in about {left:.0f} steps at this rate"
    return Finding(
        rule="scores-overflow-half",
        severity="warning" if largest < 65504 else "fault",
        step=step,
        where=where,
        says=f"{where} scores reach {largest:.3g} in float16, whose maximum is 65504{when} ({start:.3g} at the start).",
        cause="query and key norms grow",
        fix="scale queries before the product, bfloat16, QK-norm, or a lower rate",
        sure=0.9,
        refuted_by="scores that stay below 65504",
        evidence={"largest": largest, "start": start, "steps_left": left},
    )


WATCH = [updates, attention]
