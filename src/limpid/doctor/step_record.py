"""One step as the doctor saw it."""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from limpid.doctor.attention_probe import AttentionScores
from limpid.doctor.calls import Call
from limpid.doctor.contracts import Breach
from limpid.doctor.description.beside import Beside
from limpid.doctor.description.candidates import Candidates
from limpid.doctor.description.into_loss import IntoLoss
from limpid.doctor.description.soft_targets import SoftTargets
from limpid.doctor.description.ways import GradientWays
from limpid.doctor.description.zeros import Zeros
from limpid.doctor.devices import HostCopies, on_host
from limpid.doctor.idle_units import IdleUnits
from limpid.doctor.levels import LogitLevel
from limpid.doctor.loss_gradient import LossGradient
from limpid.doctor.micro_batches import Micro, nothing_to_learn
from limpid.doctor.pass_gradients import PassGradients
from limpid.doctor.ranks import RankLines
from limpid.doctor.rules.loss_scaling import LOSS_NOT_SCALED
from limpid.doctor.trial_pass import Shapes
from limpid.doctor.update_sample import UpdateSample
from limpid.doctor.weight_trail import Outside, Start

SMALL = 2**20
"""Bytes of a tensor that are copied to the host at every step: a tenth of a millisecond."""
CATEGORIES = 8
"""Whole numbers of a row up to which they may be categories beside measured numbers, and not a text."""


@dataclass
class StepRecord:
    """What happened between two updates."""

    number: int
    sampled: bool = False  # updates, attention, modes are looked at
    read: bool = False  # the loss is read from its gradient
    reported: bool = False  # whether the loop has called step()
    updated: bool = False
    skipped: bool = False  # loss scaling saw infinities
    broken: bool = False
    events: list[str] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)  # what the loop logs beside the loss
    # forward passes
    calls: list[Call] = field(default_factory=list)
    rng: list[tuple[Tensor, ...]] = field(default_factory=list)  # random state before each
    autocast: list[torch.dtype | None] = field(default_factory=list)  # format of autocast around each
    micros: list[Micro] = field(default_factory=list)  # as reported
    outer_called: bool = False
    inner_called: bool = False
    attentions: list[AttentionScores] = field(default_factory=list)
    level: LogitLevel | None = None  # of the logits, as the loss gets them where seen
    # the loss
    loss: float | None = None  # as reported, or the sum of the roots
    roots: list[Tensor] = field(default_factory=list)  # what backward was called on
    outputs: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)  # addresses of those of three axes, shapes
    mixed: Shapes | None = None  # of an output and of what the loss is given of it, where axes are scrambled
    latents: float | None = None  # of a mean and a log-variance that the model returns: divergence from N(0, 1), nats
    reach: tuple[str, float, float, float, float] | None = None  # last activation, range, share of variance, of targets
    explained: tuple[float, float, Tensor] | None = None  # share of a regression's variance, and of its predictions
    difference: tuple[Tensor, Tensor] | None = None  # predictions and targets of a regression, on steps that are read
    binary: tuple[Tensor, Tensor] | None = None  # outputs and targets of a binary cross-entropy, on the same
    soft: SoftTargets | None = None  # of a loss whose targets are probabilities, on the same
    candidates: list[Candidates] = field(default_factory=list)  # of losses that choose among candidates, on the same
    row_gradients: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # outputs of rows and their gradients
    row_passes: list[int] = field(default_factory=list)  # of which forward pass each of them is
    place_gradients: list[Tensor] = field(default_factory=list)  # of outputs with axes beside rows and classes, too
    targets: list[tuple[str, Tensor]] = field(default_factory=list)  # of loss functions, on the same
    made: list[Tensor] = field(default_factory=list)  # what the model returned, while the step lasts, on the same
    into_loss: list[IntoLoss] = field(default_factory=list)  # what losses were given that is not this, on the same
    besides: dict[int, Beside] = field(default_factory=dict)  # other models that were called, on the same
    means: list[tuple[str, Tensor]] = field(default_factory=list)  # of loss functions since the last backward pass
    shares: list[tuple[str, Tensor, Tensor | None]] = field(default_factory=list)  # function, root, mean, of each pass
    spread_out: tuple[tuple[int, ...], tuple[int, ...]] | None = None  # shapes that a loss compared all with all
    not_logarithms: tuple[float, float] | None = None  # least and largest of what kl_div got as logarithms, above 0
    own_backward: bool = False  # whether a Function of somebody's own stands in the graph, at the first step
    backward_again: int = 0  # passes from a loss that one of this step has begun with
    loaded_itself: int = 0  # updates since the state_dict() that was loaded back, without a copy
    checkpoint_blind: bool = False  # whether a reentrant checkpoint had no input with a gradient
    breaches: list[Breach] = field(default_factory=list)  # arguments that are not what a function asks for
    squashed_before: str = ""  # what made the logits of a binary cross-entropy: sigmoid, softmax
    own_draw: bool = False  # whether the model itself drew these rows, shortly before
    # gradients
    loss_gradients: dict[int, LossGradient] = field(default_factory=dict)  # of the logits, by forward pass
    dropped: set[int] = field(default_factory=set)  # forward passes whose gradients were cleared before the update
    asides: set[int] = field(default_factory=set)  # forward passes whose gradients autograd.grad alone asked for
    passes: PassGradients | None = None  # on steps whose loss is read
    ways: GradientWays | None = None  # on steps whose loss is read
    gradient_hooks: bool = False  # whether the loop hooks into the gradient of what it computes
    zeros: Zeros | None = None  # of the gradients, on steps whose loss is read
    units: list[IdleUnits] | None = None  # on sampled steps: linear maps with rows or columns without gradient
    idle_after_pass: list[IdleUnits] | None = None  # the same when the last backward pass had ended
    left_over: float = 0.0  # largest norm of a gradient of the step before that was there when backward began
    left_in: dict[int, float] = field(default_factory=dict)  # its norm in each of the parameters that have one
    left_changed: bool = False  # whether any is another by now than the one that was stepped with
    passed_by: bool = False  # whether the backward pass before added nothing to them: another model's
    no_gradients: bool = False
    arrived: set[int] = field(default_factory=set)  # parameters with a gradient after a pass of the first step
    moved_since: bool | None = None  # whether the weights are not those that the last update left; None if unknown
    after_evaluation: bool = False  # whether passes without gradients came in between
    outside: Outside | None = None  # where evaluated weights lay outside of all that they were in training
    moved_between_updates: bool = False  # whether something else moved weights between two of one backward pass
    began_before: Start | None = None  # the step that the same weights began before, where updates had moved them
    optimizer_count: float = 0.0  # steps that the optimizer's state counts before the update
    in_eval: list[str] = field(default_factory=list)  # modules in evaluation mode during backward
    scale: float = 1.0  # the loss scale
    norm: float | None = None  # of the gradient, before clipping
    norm_tensor: Tensor | None = None
    true_norm: float | None = None  # without the loss scale; None where it is not finite
    clipped_to: float | None = None
    clips: list[tuple[set[int], Tensor]] = field(default_factory=list)  # whose gradients each clip had, norm before
    values_clipped_to: float | None = None  # the limit of clip_grad_value_
    unclipped: tuple[float, float] | None = None  # norms of the gradients that no clip had, and of all before clipping
    other_leaves: list[nn.Parameter] = field(default_factory=list)  # that the loss depends on, and the model has not
    # the update
    rates: list[float] = field(default_factory=list)  # of the groups of the optimizer that stepped last
    group_rates: dict[int, float] = field(default_factory=dict)  # of all groups, as `Watched.groups` numbers them
    updates_by: list[tuple[Any, UpdateSample]] = field(default_factory=list)  # optimizers, and what each did
    has_gradient: set[int] = field(default_factory=set)  # parameters, at the update, on sampled steps
    idle: set[int] = field(default_factory=set)  # optimizers that never stepped, with gradients of their own
    kept: set[int] = field(default_factory=set)  # those of them that had gradients before the backward pass
    scheduled: dict[int, tuple[tuple[float, ...], tuple[float, ...]]] = field(default_factory=dict)  # set, used
    other: weakref.ref[Any] | None = None  # an optimizer that is not watched and has changed the model
    beside: int = 0  # updates of another model's parameters
    rank_lines: list[RankLines] = field(default_factory=list)  # steps of which every process has reported by now
    copies: HostCopies = field(default_factory=HostCopies)  # of what lies elsewhere

    def host(self, tensor: Tensor) -> Tensor | None:
        """The numbers of a tensor on the host, copied once where they lie elsewhere; None where that takes long.

        A step's loss and norm have been read when rules look at it, so that a small copy waits for nothing more.
        """
        if on_host(tensor):
            return tensor
        if not self.sampled and tensor.numel() * tensor.element_size() > SMALL:
            return None
        return self.copies.of(tensor)

    def ahead(self, tensor: Tensor | None, idle: bool = False) -> Tensor | None:
        """What a pass is about to look up, on the host; None where reading it would wait, the device not being idle."""
        if tensor is None or not (on_host(tensor) or self.sampled or idle):
            return None
        return self.host(tensor)

    def has_read(self, tensor: Tensor) -> bool:
        """Whether its numbers have been on the host in this step."""
        return on_host(tensor) or self.copies.has(tensor)

    def on_hosts(self, tensors: list[Tensor]) -> list[Tensor]:
        """All of these on the host; none where one is too large to be copied now."""
        found = [copy for one in tensors if (copy := self.host(one)) is not None]
        return found if len(found) == len(tensors) else []

    @property
    def token_ids(self) -> list[Tensor]:
        """(row, position) each, on the host: as reported, or as the model was given them."""
        ids = [micro.ids for micro in self.micros if micro.ids is not None]
        ids = ids or [call.ids for call in self.calls if call.ids is not None]
        return [t for t in self.on_hosts(ids) if t.numel()]

    def measured_rows(self, known: bool) -> list[Tensor]:
        """Rows of measured numbers, (row, …), of each micro-batch: its first tensor, of numbers that hardly repeat.

        known   whether those of earlier steps were such, so that a batch in which some repeat is one, too
        """
        rows = [micro.numbers if known else micro.measured for micro in self.micros]
        found = [t for t in rows if t is not None]
        return self.on_hosts(found) if len(found) == len(rows) else []

    @property
    def row_numbers(self) -> list[int]:
        """Which row of the data each row of the token ids is; none where the loop does not say of all of them."""
        numbers = [number for micro in self.micros for number in micro.rows]
        return numbers if len(numbers) == sum(len(ids) for ids in self.token_ids) else []

    @property
    def beside_categories(self) -> list[int]:
        """Of rows of a few categories, hashes of the measured numbers that the model is given with them, one a row."""
        found: list[int] = []
        for call in self.calls:
            ids = call.ids
            if ids is None or ids.shape[1] > CATEGORIES:
                return []
            beside = [x for x in call.tensors.values() if x.ndim == 2 and len(x) == len(ids) and x.is_floating_point()]
            tables = self.on_hosts([x.detach() for x in beside if not x.requires_grad])
            if not tables:
                return []
            found += [hash(row.tobytes()) for row in torch.cat([x.float() for x in tables], 1).numpy()]
        return found if len(found) == sum(len(ids) for ids in self.token_ids) else []

    @property
    def is_drawn(self) -> bool:
        """Whether its rows are answers that a policy gave."""
        return self.own_draw or any(micro.is_drawn for micro in self.micros)

    @property
    def has_no_gradient(self) -> bool:
        """Whether every gradient of the update is exactly 0, or there is none."""
        return self.no_gradients or self.norm == 0

    @property
    def has_nothing_to_learn(self) -> bool:
        """Whether the gradient is 0 because of what the batch holds: no answer has an advantage, or none is learned."""
        return self.has_no_gradient and nothing_to_learn(self.micros)

    @property
    def class_labels(self) -> list[Tensor]:
        """One class for each row."""
        return self.on_hosts([m.labels for m in self.micros if m.labels is not None and m.labels.ndim == 1])

    @property
    def has_rates(self) -> bool:
        """Whether an update was made, at rates that are known."""
        return bool(self.rates) and self.updated

    @property
    def judged_update(self) -> UpdateSample | None:
        """The update, of all optimizers that made a part of it, where there is one to judge."""
        parts = [update for _, update in self.updates_by if update.names and not self.skipped]
        return functools.reduce(UpdateSample.beside, parts) if parts else None

    @property
    def scale_of_loss(self) -> float:
        """What the loss was multiplied by."""
        return self.scale if "scaler.scale" in self.events else 1.0

    @property
    def _unused(self) -> set[int]:
        """Forward passes that the update does not use; beside a backward pass autograd.grad is a look at an input."""
        return self.dropped | self.asides if "backward" in self.events else self.dropped

    @cached_property
    def _kept(self) -> list[LossGradient]:
        return [self.loss_gradients[i] for i in sorted(self.loss_gradients) if i not in self._unused]

    @property
    def all_passes_read(self) -> bool:
        """Whether the gradient of the logits is known of every forward pass that the update uses."""
        return bool(self._kept) and len(self._kept) == len(self.calls) - len(self._unused)

    @property
    def sum_of_weights(self) -> float:
        """Of all labels of the step: 1 in a mean."""
        return sum(gradient.total_weight for gradient in self._kept) / self.scale_of_loss

    @cached_property
    def loss_was_not_scaled(self) -> bool:
        """Whether weights add up to 1 in the gradient of a loss that should have been multiplied."""
        if not self.all_passes_read or self.scale_of_loss < LOSS_NOT_SCALED["scale"]:
            return False
        return abs(sum(gradient.total_weight for gradient in self._kept) - 1) < LOSS_NOT_SCALED["near"]

    @property
    def taught(self) -> list[LossGradient]:
        """The gradients of the logits by which the loss is judged; none where the loss scale is missing in them."""
        return [] if self.loss_was_not_scaled else self._kept

    @property
    def downhill(self) -> list[LossGradient]:
        """The same, unless they raise the loss."""
        return [] if self.taught and self.taught[0].inverted else self.taught
