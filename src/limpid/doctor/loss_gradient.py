"""The loss read from its gradient: which token each position was taught, and with what weight.

For a mean cross-entropy dL/dz = w (softmax(z) - e_y): the one negative entry names the target y, the length the weight.
So the gradient of the logits tells targets, weights, masks and divisor whatever code made the loss.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from limpid.doctor.calls import Call
from limpid.doctor.rules.loss import FORMULA_UNUSUAL, SOFTMAX_TWICE

ROUNDINGS = 8
"""Of the gradient's own format, that two ways to one gradient of the logits may lie apart: measured, less than one."""
INVERTED_ALIKE = 0.03
"""Scatter of the weights of a mean, relative: gradients in half precision carry 2^-8 each, eight of them in a row."""
ROOM = 2**22
"""Most entries of the logits that one reading takes in: about 30 ms, 50 MB, once in a while."""


@dataclass(frozen=True)
class LossGradient:
    """What one backward pass taught, on some positions of a micro-batch; its tensors lie on the host."""

    ids: Tensor | None  # (row, position) the inputs
    rows: Tensor  # (n,) which row, which position was read
    positions: Tensor
    taught: Tensor  # (n,) the target by the gradient; -1 where none
    weight: Tensor  # (n,) w; 0 where no label
    unevenness: float  # std of w over its mean, over labels: 0 where all count alike
    misfit: float  # ‖g - w (p - e)‖ / ‖g‖ over labelled positions: 0 for a cross-entropy of these logits
    misfit_log_z: float  # what is left over with a term c p beside w (p - e): 0 for any loss of these logits and log Z
    squashed: str  # what the logits went through before the loss, if that explains the gradient: softmax, sigmoid, tanh
    misfit_squashed: float  # the misfit then
    smoothing: float  # ε of (1 - ε) e + ε / V as the target, if that explains the gradient to rounding; else 0
    zeros: float  # share of exact zeros among gradients of labelled rows
    of_half: bool  # whether every entry is a number of float16: the gradient has passed through it
    row_sum: float  # Σ_v g over w, the mean: 0 for every loss of log-probabilities, c for a term c log Z
    unbalanced: float  # |Σ_v g| over Σ_v |g|, the mean: 0 for every loss of log-probabilities over this axis
    over_another: bool  # whether it adds up to 0 along another axis instead, to rounding: a softmax ran over that one
    surprise: Tensor  # (n,) -log p(taught), nats; 0 where no label
    logit_std: float
    log_z: float  # mean
    largest: float  # max |z|
    shape: tuple[int, ...]  # of the logits
    dtype: torch.dtype
    complete: bool  # whether every position was read
    inverted: bool  # the gradient points the other way: the loss is raised, not lowered
    tiny: float  # share of w p below half of the smallest float16
    simplex: bool  # whether the logits are probabilities: none negative, each position's add up to 1
    unit: bool  # whether all of them lie between 0 and 1

    @property
    def labelled(self) -> Tensor:
        return self.weight > 0

    @property
    def labels(self) -> int:
        """Labels of the micro-batch; scaled up where only some positions were read."""
        share = 1.0 if self.complete else len(self.weight) / max(1, self.shape[0] * self.shape[1])
        return round(int(self.labelled.sum()) / share)

    @property
    def total_weight(self) -> float:
        """Σ w: 1 for a mean over all labels of the step."""
        share = 1.0 if self.complete else len(self.weight) / max(1, self.shape[0] * self.shape[1])
        return float(self.weight.sum()) / share

    @property
    def taught_ids(self) -> Tensor:
        """What each position is taught, -1 where nothing: (row, position) where all were read."""
        taught = self.taught.masked_fill(~self.labelled, -1)
        return taught if self.ids is None or not self.complete else taught.view(self.ids.shape)

    @property
    def mean_surprise(self) -> float:
        """Mean of -log p over the labels, nats."""
        return float(self.surprise[self.labelled].mean())

    @property
    def half(self) -> bool:
        """Whether the logits are of a half-precision format."""
        return self.dtype in (torch.float16, torch.bfloat16)

    @property
    def is_of_language(self) -> bool:
        """Whether inputs and outputs share a vocabulary, as in language modelling."""
        return self.ids is not None and int(self.ids.max()) < self.shape[-1]

    def by_row(self) -> tuple[list[int], list[float]]:
        """Labels, and sum of their weights, of each row that has any."""
        labelled, rows = self.labelled.cpu(), self.rows.cpu()
        counts = torch.bincount(rows[labelled])
        sums = torch.bincount(rows[labelled], weights=self.weight.cpu()[labelled].double())
        return counts[counts > 0].tolist(), sums[counts > 0].tolist()

    def match(self, offset: int) -> tuple[float, int]:
        """Share of the labelled positions that are taught the input `offset` further on, and how many count."""
        if self.ids is None:
            return 0.0, 0
        where = self.positions + offset
        inside = self.labelled & (where >= 0) & (where < self.ids.shape[1])
        if not bool(inside.any()):
            return 0.0, 0
        seen = self.ids[self.rows[inside], where[inside]]
        return float((seen == self.taught[inside]).double().mean()), int(inside.sum())


def read_call(logits: Tensor, gradient: Tensor, call: Call, translates: bool, room: int = ROOM) -> LossGradient | None:
    """The reading beside the ids that the outputs belong to: a decoder's own, where there are an encoder's too."""
    reading = read(logits, gradient, None if translates else call.ids, room)
    if reading is None or reading.ids is None or max(reading.match(k)[0] for k in range(-3, 5)) > 0.5:
        return reading
    others = [replace(reading, ids=ids.detach().cpu()) for ids in call.all_ids if ids.shape == reading.ids.shape]
    shifted = (other for other in others if other.match(1)[0] >= 0.99)
    copied = (other for other in others if other.match(0)[0] >= 0.99)
    return next(itertools.chain(shifted, copied), reading)


def read(logits: Tensor, gradient: Tensor, ids: Tensor | None, room: int = ROOM) -> LossGradient | None:
    """The reading of one backward pass; None without logits (batch, position, vocabulary) or (batch, class)."""
    if logits.ndim == 2 and ids is not None and logits.shape[0] == ids.numel():
        logits, gradient = logits.view(*ids.shape, -1), gradient.view(*ids.shape, -1)
    elif logits.ndim == 2 and (ids is None or len(ids) == len(logits)):  # one prediction for each row
        logits, gradient, ids = logits[:, None], gradient[:, None], None
    if logits.ndim != 3 or gradient.shape != logits.shape or logits.shape[-1] < 2:
        return None
    batch, length, vocab = logits.shape
    where = _chosen(batch * length, max(32, room // vocab), logits.device)
    z = logits.detach().reshape(-1, vocab)[where].float()
    raw = gradient.detach().reshape(-1, vocab)[where]
    g = raw.float()
    if not bool(torch.isfinite(z).all()) or not bool(torch.isfinite(g).all()):
        return None
    # of w (p - e) the largest entry is at the target, and negative
    size = g.norm(dim=-1)
    labelled = size > 0
    p = z.softmax(-1)
    inverted = vocab > 2 and _is_inverted(g, z, labelled)
    g = -g if inverted else g
    taught = torch.where(labelled, g.argmin(-1), -1)
    log_z = z.logsumexp(-1)
    fitted, misfit = _fit(g, p, taught.clamp(min=0), labelled)
    simplex = bool((z >= 0).all()) and bool((z.sum(-1) - 1).abs().max() < 1e-3)
    zeros = _mean((raw[labelled] == 0).double())
    squashed, misfit_squashed = "", misfit
    if zeros <= 0.1:
        rounding = ROUNDINGS * torch.finfo(raw.dtype).eps
        squashed, misfit_squashed = _squashed(z, g, taught.clamp(min=0), labelled, misfit, rounding)
    weight = torch.where(labelled, fitted, 0.0)
    unbalanced = _mean((g.sum(-1).abs() / g.abs().sum(-1).clamp(min=1e-30))[labelled])
    each = fitted[labelled].double()
    surprise = torch.where(labelled, log_z - z.gather(1, taught.clamp(min=0)[:, None])[:, 0], 0.0)
    return LossGradient(
        ids=ids.detach().cpu() if ids is not None and ids.shape == (batch, length) else None,
        rows=(where // length).cpu(),
        positions=(where % length).cpu(),
        taught=taught.cpu(),
        weight=weight.cpu(),
        misfit=misfit,
        misfit_log_z=_left_by_log_z(g, p, taught.clamp(min=0), labelled),
        squashed=squashed,
        misfit_squashed=misfit_squashed,
        smoothing=_smoothing(g, p, taught.clamp(min=0), labelled, misfit, ROUNDINGS * torch.finfo(raw.dtype).eps),
        zeros=zeros,
        of_half=bool((raw == raw.half()).all()),
        unevenness=float(each.std(correction=0) / each.mean().abs().clamp(min=1e-300)) if len(each) else 0.0,
        row_sum=_mean(g.sum(-1)[labelled]) / max(_mean(fitted[labelled]), 1e-30),
        unbalanced=unbalanced,
        over_another=unbalanced > FORMULA_UNUSUAL["unbalanced"] and _over_another(gradient.detach(), room),
        surprise=surprise.cpu(),
        logit_std=float(z.std(-1).mean()),
        log_z=float(log_z.mean()),
        largest=float(z.abs().max()),
        shape=tuple(logits.shape),
        dtype=logits.dtype,
        complete=len(where) == batch * length,
        inverted=inverted,
        tiny=_mean((fitted[:, None] * p < 2.0**-25)[labelled].double()),
        simplex=simplex,
        unit=not simplex and z.numel() >= 256 and bool((z > 0).all()) and bool((z < 1).all()),
    )


def _is_inverted(g: Tensor, z: Tensor, labelled: Tensor) -> bool:
    """Whether g is that of -log p of some tokens, negated, at every label and of one weight.

    A policy's advantages, a pair that is preferred and one that is not, weigh labels by numbers of both signs or of
    many sizes: there single rows point the other way, and nothing is wrong. Distances and energies are negated before
    their softmax: there the gradient fits that of softmax(-z) better.
    """
    if not bool(labelled.any()):
        return False
    high, low = g.amax(-1)[labelled], -g.amin(-1)[labelled]
    if not bool((high > 1.5 * low).double().mean() > 0.5) or bool((low > 1.5 * high).any()):
        return False
    w, misfit = _fit(-g, z.softmax(-1), g.argmax(-1), labelled)
    each = w[labelled]
    of_distances = _fit(-g, (-z).softmax(-1), g.argmax(-1), labelled)[1]
    return misfit < min(0.5, of_distances) and float(each.std(correction=0)) < INVERTED_ALIKE * float(each.mean())


def _over_another(gradient: Tensor, room: int) -> bool:
    """Whether gradients (row, position, V) add up to 0 along another axis, or one of another order."""
    batch, length, vocab = gradient.shape
    every = max(1, -(-gradient.numel() // room))
    exchanged = gradient.transpose(1, 2)
    summed = [(gradient, 0), (gradient, 1), (gradient.reshape(batch, vocab, length).transpose(1, 2), 2)]
    summed.append((exchanged.reshape(batch, length, vocab), 2))
    near = torch.finfo(gradient.dtype).eps + 64 * torch.finfo(torch.float32).eps
    for g, axis in summed:
        if g.shape[axis] < 2:
            continue
        part = (g[:, ::every] if axis == 2 else g[..., ::every]).float()
        size = float(part.abs().sum())
        if size and float(part.sum(axis).abs().sum()) <= near * size:
            return True
    return False


def _mean(values: Tensor) -> float:
    """0 of nothing."""
    return float(values.mean()) if values.numel() else 0.0


def _chosen(count: int, room: int, device: torch.device) -> Tensor:
    """All positions, or `room` of them spread evenly."""
    if count <= room:
        return torch.arange(count, device=device)
    return torch.linspace(0, count - 1, room, device=device).long()


def _fit(g: Tensor, p: Tensor, target: Tensor | None, labelled: Tensor) -> tuple[Tensor, float]:
    """w of each row in g ≈ w d, and the share of g that this leaves over; d = p - e_target, or p itself is d."""
    d = p
    if target is not None:
        d = p.clone()
        d[torch.arange(len(d), device=d.device), target] -= 1
    w = (g * d).sum(-1) / (d * d).sum(-1).clamp(min=1e-30)
    if not bool(labelled.any()):
        return w, 0.0
    left = (g - w[:, None] * d)[labelled].norm()
    return w, float(left / g[labelled].norm().clamp(min=1e-30))


def _left_by_log_z(g: Tensor, p: Tensor, target: Tensor, labelled: Tensor) -> float:
    """The share of g that no w (p - e) + c p explains: at each position the error of two unknowns."""
    if not bool(labelled.any()):
        return 0.0
    rest, other = g.clone(), p.clone()
    index = torch.arange(len(g), device=g.device)
    rest[index, target] = 0  # the target's entry is matched by w alone
    other[index, target] = 0
    return _fit(rest, other, None, labelled)[1] * float(rest[labelled].norm() / g[labelled].norm().clamp(min=1e-30))


def _smoothing(g: Tensor, p: Tensor, target: Tensor, labelled: Tensor, plain: float, rounding: float) -> float:
    """ε in g = w (p - e + ε (e - 1/V)), the same at every position; 0 where that is not the formula."""
    rows = labelled.nonzero()[:256, 0]
    if not len(rows) or plain <= rounding or g.shape[-1] < 3:
        return 0.0
    given, d = g[rows].double(), p[rows].double()
    if not float(given.sum(-1).norm()) <= g.shape[-1] * rounding * float(given.norm()):
        return 0.0  # as of questions with yes or no, which equal logits would fit
    index = torch.arange(len(rows), device=g.device)
    d[index, target[rows]] -= 1
    away = torch.full_like(d, -1 / d.shape[-1])
    away[index, target[rows]] += 1
    solved = torch.linalg.lstsq(torch.stack([d, away], -1), given[..., None])
    w, smoothed = solved.solution[:, 0, 0], solved.solution[:, 1, 0]
    left = given - w[:, None] * d - smoothed[:, None] * away
    epsilon = smoothed / w
    if not float(left.norm()) <= rounding * float(given.norm()) or not float(w.min()) > 0:
        return 0.0
    middle = float(epsilon.median())
    return middle if float((epsilon - middle).abs().max()) < 0.01 else 0.0


SQUASHES = {"softmax": lambda z: z.softmax(-1), "sigmoid": torch.sigmoid, "tanh": torch.tanh}
"""What logits are sent through by mistake before a loss that expects logits."""


def _squashed(
    z: Tensor, g: Tensor, target: Tensor, labelled: Tensor, plain: float, rounding: float
) -> tuple[str, float]:
    """Which squashing explains the gradient to rounding, where the logits themselves do not, and its misfit.

    Nothing else is proof: many objectives lie a little off cross-entropy, and where all probabilities are nearly equal
    the gradients of all of these are nearly parallel.
    """
    rows = labelled.nonzero()[:256, 0]
    if not len(rows):
        return "", plain
    every = torch.ones(len(rows), dtype=torch.bool, device=z.device)
    given, logits = g[rows].double(), z[rows].double()
    left = _fit(given, logits.softmax(-1), target[rows], every)[1]
    if left <= rounding:
        return "", plain
    for name, squash in SQUASHES.items():
        with torch.enable_grad():
            leaf = logits.clone().requires_grad_(True)
            loss = torch.nn.functional.cross_entropy(squash(leaf), target[rows], reduction="sum")
            (d,) = torch.autograd.grad(loss, leaf)
        misfit = _fit(given, d, None, every)[1]
        if misfit <= rounding and SOFTMAX_TWICE["better"] * misfit < left:
            return name, misfit
    return "", plain
