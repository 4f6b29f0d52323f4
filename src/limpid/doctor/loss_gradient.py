"""The loss read from its gradient: which token each position was taught, and with what weight.

For a mean cross-entropy dL/dz = w (softmax(z) - e_y): the one negative entry names the target y, the length the weight.
So the gradient of the logits tells targets, weights, masks and divisor whatever code made the loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from limpid.doctor.calls import Call
from limpid.doctor.rules.loss import SOFTMAX_TWICE

ROOM = 2**22
"""Most entries of the logits that one reading takes in: about 30 ms, 50 MB, once in a while."""


@dataclass(frozen=True)
class LossGradient:
    """What one backward pass taught, on some positions of a micro-batch."""

    ids: Tensor | None  # (row, position) the inputs
    rows: Tensor  # (n,) which row, which position was read
    positions: Tensor
    taught: Tensor  # (n,) the target by the gradient; -1 where none
    weight: Tensor  # (n,) w; 0 where no label
    misfit: float  # ‖g - w (p - e)‖ / ‖g‖ over labelled positions: 0 for a cross-entropy of these logits
    misfit_log_z: float  # what is left over with a term c p beside w (p - e): 0 for any loss of these logits and log Z
    squashed: str  # what the logits went through before the loss, if that explains the gradient: softmax, sigmoid, tanh
    misfit_squashed: float  # the misfit then
    zeros: float  # share of exact zeros among gradients of labelled rows
    row_sum: float  # Σ_v g over w, the mean: 0 for every loss of log-probabilities, c for a term c log Z
    unbalanced: float  # |Σ_v g| over Σ_v |g|, the mean: 0 for every loss of log-probabilities over this axis
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
    found = read(logits, gradient, None if translates else call.ids, room)
    if found is None or found.ids is None or max(found.match(k)[0] for k in range(-3, 5)) > 0.5:
        return found
    others = [replace(found, ids=ids) for ids in call.all_ids if ids.shape == found.ids.shape]
    return next((other for other in others if other.match(1)[0] >= 0.99), found)


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
    high, low = g.amax(-1), -g.amin(-1)
    one = g.abs().amax(-1) > 0.3 * g.abs().sum(-1)  # one entry stands out
    p = z.softmax(-1)
    inverted = vocab > 2 and bool(((high > 1.5 * low) & one).double().mean() > 0.5)
    if inverted:  # and nothing but the sign is wrong: other objectives point anywhere
        inverted = _fit(-g, p, g.argmax(-1), g.norm(dim=-1) > 0)[1] < 0.5
        g = -g if inverted else g
    size = g.norm(dim=-1)
    labelled = size > 0
    taught = torch.where(labelled, g.argmin(-1), -1)
    log_z = z.logsumexp(-1)
    fitted, misfit = _fit(g, p, taught.clamp(min=0), labelled)
    simplex = bool((z >= 0).all()) and bool((z.sum(-1) - 1).abs().max() < 1e-3)
    zeros = _mean((raw[labelled] == 0).double())
    squashed, misfit_squashed = "", misfit
    if zeros <= 0.1:
        rounding, share = 40 * torch.finfo(raw.dtype).eps, len(where) / (batch * length)
        squashed, misfit_squashed = _squashed(z, g, taught.clamp(min=0), labelled, misfit, rounding, share)
    weight = torch.where(labelled, fitted, 0.0)
    surprise = torch.where(labelled, log_z - z.gather(1, taught.clamp(min=0)[:, None])[:, 0], 0.0)
    return LossGradient(
        ids=ids.detach() if ids is not None and ids.shape == (batch, length) else None,
        rows=where // length,
        positions=where % length,
        taught=taught,
        weight=weight,
        misfit=misfit,
        misfit_log_z=_left_by_log_z(g, p, taught.clamp(min=0), labelled),
        squashed=squashed,
        misfit_squashed=misfit_squashed,
        zeros=zeros,
        row_sum=_mean(g.sum(-1)[labelled]) / max(_mean(fitted[labelled]), 1e-30),
        unbalanced=_mean((g.sum(-1).abs() / g.abs().sum(-1).clamp(min=1e-30))[labelled]),
        surprise=surprise,
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


SQUASHES = {"softmax": lambda z: z.softmax(-1), "sigmoid": torch.sigmoid, "tanh": torch.tanh}
"""What logits are sent through by mistake before a loss that expects logits."""


def _squashed(
    z: Tensor, g: Tensor, target: Tensor, labelled: Tensor, plain: float, rounding: float, share: float
) -> tuple[str, float]:
    """Which squashing explains the gradient better than none, and its misfit; `share` of all positions was read."""
    best, misfit = "", plain
    rows = labelled.nonzero()[:256, 0]
    if not len(rows):
        return best, misfit
    every = torch.ones(len(rows), dtype=torch.bool, device=z.device)
    of_a_mean = len(rows) * share / float(labelled.sum())  # Σ w over these rows where w is 1 over all labels
    for name, squash in SQUASHES.items():
        with torch.enable_grad():
            leaf = z[rows].clone().requires_grad_(True)
            loss = torch.nn.functional.cross_entropy(squash(leaf), target[rows], reduction="sum")
            (d,) = torch.autograd.grad(loss, leaf)
        fitted, left = _fit(g[rows], d, None, every)
        better = plain > rounding and SOFTMAX_TWICE["better"] * left < plain
        # probabilities near 1/V squash to nearly parallel gradients, V times shorter: then a mean's length decides
        of_its_length = abs(math.log(max(float(fitted.sum()), 1e-30) / of_a_mean)) < math.log(1.4)
        if left < misfit and (better or (z.shape[-1] > 16 and left < 0.3 and of_its_length)):
            best, misfit = name, left
    return best, misfit
