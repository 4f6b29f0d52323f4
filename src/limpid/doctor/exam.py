"""The examination before the first step: what can be measured on a model, an optimizer and one batch.

Every measurement is made once, when a check first asks for it, and leaves the training as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from limpid.doctor.attention_probe import AttentionProbe, AttentionScores, attentions, off_diagonal_share
from limpid.doctor.calls import Call, Micro, call_for, find_logits, micro_batches
from limpid.doctor.finding import Finding
from limpid.doctor.forward_probe import Flow, flow, shortcut_gains
from limpid.doctor.loss_gradient import LossGradient
from limpid.doctor.schedules import simulated
from limpid.doctor.skipped import Skipped
from limpid.doctor.trial_pass import TrialPass, try_once
from limpid.doctor.undisturbed import seeded, undisturbed
from limpid.doctor.watched import Watched

ROWS, POSITIONS = 4, 128
"""Probes use the first rows and positions of the batch: exact properties need no more."""


@dataclass
class Exam(Watched):
    """One examination: what is watched, what was given beside it, and what is measured when asked."""

    batch: Any = None
    call: Call | None = None  # as the user's loop makes it, once seen
    loss: Callable[..., Any] | None = None
    loss_function: Callable[..., Any] | None = None
    seen_norms: dict[str, float | None] = field(default_factory=dict)  # of gradients of a real step, where one was seen
    seen_loss_gradients: list[LossGradient] = field(default_factory=list)
    skipped: Skipped = field(default_factory=Skipped)  # what could not be checked, and why

    @property
    def model(self) -> nn.Module:
        return self.info.model

    @cached_property
    def micros(self) -> list[Micro]:
        """The batch as given, or what the loop's own call shows of it."""
        if self.batch is not None or self.call is None:
            return micro_batches(self.batch)
        call = self.call
        return [Micro(call.ids, call.labels, call.mask, call.kwargs if "labels" in call.kwargs else call.args)]

    @cached_property
    def usual_call(self) -> Call | None:
        """How the loop calls the model on the first micro-batch."""
        if self.call is not None:
            return self.call.detached()
        if self.trial is not None and self.trial.calls:
            return self.trial.calls[0].detached()
        return call_for(self.model, self.micros[0], self.info.device) if self.micros else None

    @cached_property
    def trial(self) -> TrialPass | None:
        """One forward and backward pass of the user's own loss."""
        if self.batch is None or not self.micros or self.info.sharded:
            return None
        with self.skipped.noting("the loss"):
            return try_once(
                self.model,
                self.batch,
                self.micros,
                self.loss,
                self.loss_function,
                self.info.device,
                self.info.translates,
            )
        return None

    @property
    def refused(self) -> str:
        """What the user's own forward pass or loss raised."""
        return self.skipped.get("the forward pass") or self.skipped.get("the loss") or ""

    @property
    def loss_gradients(self) -> list[LossGradient]:
        if self.call is not None:
            return self.seen_loss_gradients
        return [] if self.trial is None else self.trial.loss_gradients

    @cached_property
    def probe(self) -> Call | None:
        """A few rows of the usual call, on token ids."""
        call = self.usual_call
        if call is None or call.ids is None or self.info.sharded or self.info.translates:
            return None
        return call.without_loss().rows(slice(0, ROWS), POSITIONS)

    @cached_property
    def plain(self) -> Tensor | None:
        """Logits of the probe in evaluation mode."""
        return self.logits(self.probe)

    def logits(self, call: Call | None, training: bool = False) -> Tensor | None:
        """Logits of a call, in float32, with the probe's random numbers; None where there are none."""
        if call is None:
            return None
        if self.refused and call is not self.probe:
            return None
        with self.skipped.noting("the forward pass"), undisturbed(self.model):
            self.model.train(training)
            seeded()
            found = find_logits(call.make(self.model))
            return None if found is None else found.detach().float()
        return None

    @cached_property
    def vocab(self) -> int | None:
        """Number of words the model can say."""
        if self.plain is not None and self.plain.ndim >= 2:
            return int(self.plain.shape[-1])
        return None if self.info.embedding is None else int(self.info.embedding[1].shape[0])

    @cached_property
    def rounding(self) -> float:
        """How far two ways to the same logits may lie apart: 32 units of round-off of the largest."""
        if self.plain is None:
            return math.inf
        finite = self.plain[torch.isfinite(self.plain)]
        kinds = {p.dtype for p in self.info.parameters.values() if p.is_floating_point()}
        unit = max((torch.finfo(kind).eps / 2 for kind in kinds), default=2.0**-24)
        if self.loss_gradients:
            unit = max(unit, torch.finfo(self.loss_gradients[0].dtype).eps / 2)
        compute = getattr(self.model, "compute", None)
        if isinstance(compute, torch.dtype):
            unit = max(unit, torch.finfo(compute).eps / 2)
        return 32 * unit * max(1.0, float(finite.abs().max()) if finite.numel() else 1.0)

    def moved(self, call: Call, other: Call, training: bool = False) -> Tensor | None:
        """How far each logit vector moves between two calls, (row, position)."""
        first, second = self.logits(call, training), self.logits(other, training)
        if first is None or second is None or first.shape != second.shape or first.ndim != 3:
            return None
        return (first - second).abs().nan_to_num(0.0).amax(-1)

    def other_ids(self, ids: Tensor) -> Tensor:
        """A different token at every position, from those that occur."""
        vocab = max(int(ids.max()) + 1, 2)
        shifted = ids.roll(1, -1).roll(1, 0)
        return torch.where(shifted == ids, (ids + 1) % vocab, shifted)

    @cached_property
    def heads(self) -> list[AttentionScores]:
        """The attentions of the probe."""
        probe = self.probe
        if probe is None:
            return []
        with undisturbed(self.model):
            self.model.eval()
            with AttentionProbe() as seen:
                probe.make(self.model)
        self.overflowed = seen.overflowed
        return seen.heads

    overflowed: str | None = None  # the operation of that pass that overflowed float16

    @cached_property
    def all_heads(self) -> list[AttentionScores]:
        """The attentions of the whole first micro-batch where it is masked, else of the probe."""
        call = self.usual_call
        if call is None or call.mask is None or self.info.sharded:
            return self.heads
        with undisturbed(self.model):
            self.model.eval()
            return attentions(lambda: self.keep_output(call.without_loss().make(self.model)))

    def keep_output(self, output: Any) -> Any:
        logits = find_logits(output)
        if logits is not None:
            self.first_output_finite = bool(torch.isfinite(logits).all())
        return output

    first_output_finite: bool | None = None

    @cached_property
    def shortcuts(self) -> dict[str, float]:
        """How much of a small change of a block's input comes out unchanged, by block: 1 with a shortcut."""
        call = self.probe
        return {} if call is None else shortcut_gains(self.info, call)

    @cached_property
    def constant_heads(self) -> AttentionScores | None:
        """The first attention for a row of one repeated token; None where positions are added to the tokens."""
        probe = self.probe
        if probe is None or probe.ids is None or not self.info.blocks:
            return None
        ids = probe.ids[:1].clone()
        ids[:] = ids[0, 0]
        entered: list[Tensor] = []

        def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            value = args[0] if args else kwargs.get("hidden_states")
            if isinstance(value, Tensor):
                entered.append(value.detach())

        one = probe.rows(slice(0, 1))
        if one.mask is not None and not bool(one.mask.all()):
            return None
        handle = self.info.blocks[0][1].register_forward_pre_hook(look, with_kwargs=True)
        try:
            with undisturbed(self.model):
                self.model.eval()
                with AttentionProbe() as seen:
                    one.with_ids(ids).make(self.model)
        finally:
            handle.remove()
        self.turns = seen.turns
        if not seen.heads or not entered or entered[0].ndim != 3:
            return None
        x = entered[0][0].float()
        return None if float((x - x[:1]).abs().max()) > 1e-4 * float(x.abs().max()) else seen.heads[0]

    turns: bool = False  # whether that pass computed angles

    @cached_property
    def off_diagonal(self) -> float | None:
        return None if self.constant_heads is None else off_diagonal_share(self.constant_heads)

    @cached_property
    def flow(self) -> Flow | None:
        """Which modules the probe calls, and what each passes on."""
        call = self.usual_call
        if call is None or self.info.sharded:
            return None
        return flow(self.info, call if call.ids is None else call.rows(slice(0, ROWS), POSITIONS))

    @cached_property
    def fresh(self) -> bool:
        """Whether the weights are still as they were drawn."""
        return not self.pretrained and self.info.fresh()

    @cached_property
    def rates(self) -> list[float] | None:
        """The largest rate at each update to the planned end."""
        if not self.schedulers or not self.planned:
            return None
        return simulated(self.schedulers[0], min(self.planned, 100_000))

    @cached_property
    def groups(self) -> list[tuple[int, dict[str, Any]]]:
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        return list(enumerate(groups))


Check = Callable[[Exam], Iterator[Finding]]


def examine(exam: Exam, checks: list[Check]) -> list[Finding]:
    """Every check; one that breaks is skipped, and says so."""
    found: list[Finding] = []
    for check in checks:
        with exam.skipped.noting(check.__name__.replace("_", "-")):
            found.extend(check(exam))
    return found
