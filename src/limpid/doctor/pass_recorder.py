"""What hooks report of a forward pass and its loss becomes part of the record of the step."""

from __future__ import annotations

import abc
import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from limpid.doctor.attention_probe import AttentionProbe
from limpid.doctor.calls import Call, find_logits, find_rows
from limpid.doctor.contracts import Breach, Contract, LayerProbe
from limpid.doctor.description.candidates import Candidates
from limpid.doctor.description.examples import on_rows
from limpid.doctor.description.into_loss import ENTRIES, into_loss
from limpid.doctor.description.soft_targets import SoftTargets
from limpid.doctor.description.ways import GradientWays
from limpid.doctor.finding import Skipped
from limpid.doctor.history import History
from limpid.doctor.levels import LogitLevel
from limpid.doctor.loss_gradient import read_call
from limpid.doctor.pass_of_parts import PassOfParts
from limpid.doctor.rule import Probe
from limpid.doctor.rules.loss_arguments import PROBABILITY
from limpid.doctor.step_record import StepRecord
from limpid.doctor.trial_pass import divergence, explained, made_by, reach, spread_out
from limpid.doctor.watched import Watched

ROWS = 2**16
"""Outputs of rows that are kept, at most, with their gradients."""
KEPT = 4
"""Tensors of a pass that are kept while a step lasts that is read, and things given to losses that are told."""
ROOM = 2**20
"""Entries of the logits that a look during training takes in: 20 MB for a moment."""


class Judge(Protocol):
    """Who is asked as a step goes on."""

    def called(self, call: Call) -> None: ...
    def compared(self, given: Any, target: Any, ignored: int | None) -> None: ...
    def updating(self, record: StepRecord, cleared: bool) -> None: ...
    def broke(self, record: StepRecord, loss: float) -> None: ...
    def ended(self, record: StepRecord) -> None: ...


def guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Record nothing while the doctor itself uses the model; note an error, which never reaches the training."""

    @functools.wraps(method)
    def call(self: PassRecorder, *args: Any, **kwargs: Any) -> None:
        if self.is_paused or self.skipped.too_many:
            return
        self.gradients_on = torch.is_grad_enabled()
        try:
            with torch.no_grad():
                method(self, *args, **kwargs)
        except Exception as error:
            self.skipped.failed(method.__name__, error)

    return call


class PassRecorder(abc.ABC):
    """Logits, attention and the arguments of losses, as far as rules ask for them."""

    record: StepRecord

    def __init__(
        self, watched: Watched, judge: Judge, history: History, skipped: Skipped, probes: frozenset[Probe]
    ) -> None:
        self.watched, self.judge, self.history, self.skipped = watched, judge, history, skipped
        self.probes = probes  # what is measured
        self.is_paused = False
        self.gradients_on = True
        self._attention: AttentionProbe | None = None
        self._layers: LayerProbe | None = None
        self._inside = False  # a forward pass with gradients
        self.runs: nn.Module | None = None  # what the loop has called and has not returned, of what is hooked
        self._parts = PassOfParts(watched.info)
        self._losses = 0  # loss functions under way
        self._depth = 0  # of backward passes: checkpointing makes one inside another
        self._loss_from: int | None = None  # thread whose next loss is looked at

    @abc.abstractmethod
    def end(self) -> None:
        """Have the step judged, and begin the next."""

    @property
    def _never_reported(self) -> bool:
        """Whether the loop never calls step(): the next pass then ends the step before."""
        return self.record.updated and not self.record.reported and not self.history.reported

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """While the doctor itself calls the model."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before

    def leave_attention(self) -> None:
        """Leave the modes that watch a forward pass, however that has ended: left on, they would keep every tensor."""
        if self._layers is not None:  # entered last
            layers, self._layers = self._layers, None
            layers.__exit__(None, None, None)
        if self._attention is not None:
            watching, self._attention = self._attention, None
            watching.__exit__(None, None, None)
            self.record.attentions = [*self.record.attentions, *watching.attentions]

    def on_output(self, module: nn.Module, output: Any) -> None:
        if self.is_paused or self.runs is not module:  # of a part of what was called: its pass goes on
            return
        self.runs = None
        self._inside = False
        layers = self._layers
        self.leave_attention()
        if layers is not None:
            self.record.breaches += layers.ended(output)
        self._look_at_output(module, output)

    @guarded
    def _look_at_output(self, module: nn.Module, output: Any) -> None:
        record = self.record
        if self.gradients_on:
            self.history.so_far.states.gave(output)
        if not record.calls:
            return
        if self._parts:
            record.calls[-1], comes_of_it = self._parts.gave(record.calls[-1], module, output)
            if not comes_of_it or not self.gradients_on:
                return
        if not (record.sampled or record.read):
            return
        if record.level is None and Probe.LOGIT_LEVEL in self.probes:
            record.level = LogitLevel.of_output(output)
        unformed = hasattr(output, "some_logits")  # logits that the loss forms: they have no gradient
        logits = None if unformed else find_logits(output)
        tensors = [t for t in (output if isinstance(output, tuple | list) else [output]) if isinstance(t, Tensor)]
        record.outputs += [(t.data_ptr(), tuple(t.shape)) for t in tensors if t.ndim == 3 and t.is_contiguous()]
        record.latents = divergence(tensors)
        if record.read and not unformed and Probe.LOSS_GRADIENT in self.probes:
            self._keep_gradient(record, find_rows(output) if logits is None else logits)
        found = find_rows(output) if logits is None and not unformed else logits
        if found is not None and found.grad_fn is not None and (ways := self._ways()) is not None:
            entries = list(output.values()) if isinstance(output, Mapping) else tensors
            ways.gave(len(record.calls) - 1, found, [one for one in entries if isinstance(one, Tensor)])
        if record.read and self.gradients_on and Probe.FACTS in self.probes:
            entries = list(output.values()) if isinstance(output, Mapping) else tensors
            made = [e.detach() for e in entries if isinstance(e, Tensor) and 1 < e.numel() <= ENTRIES][:KEPT]
            record.made = [*record.made, *made][-KEPT:]
        if logits is None:
            return
        if record.read and logits.grad_fn is not None and Probe.LOSS_GRADIENT in self.probes:
            self._read_gradient(record, logits)

    def _ways(self) -> GradientWays | None:
        """Where the gradient's way is written down, on steps that are described."""
        record = self.record
        if record.ways is None and record.read and Probe.FACTS in self.probes and not self.watched.info.sharded:
            record.ways = GradientWays(self.watched.info.names, self.watched.processes == 1)
        return record.ways

    def _read_gradient(self, record: StepRecord, logits: Tensor) -> None:
        """The loss's formula, from the gradient of the logits in the backward pass."""
        index, kept, slot, call = len(record.calls) - 1, logits.detach(), logits.output_nr, record.calls[-1]
        translates, parts = self.watched.info.translates, bool(self._parts)

        def back(gradients: tuple[Tensor | None, ...]) -> None:
            gradient = gradients[slot] if slot < len(gradients) else None
            if gradient is None or self.is_paused:
                return
            with self.skipped.noting("reading"), torch.no_grad():
                reading = read_call(kept, gradient, call, translates, ROOM)
                known = parts and index in record.loss_gradients  # of several parts the last is read first
                if reading is not None and not known:
                    record.loss_gradients[index] = reading
                    (record.asides.discard if self._depth else record.asides.add)(index)

        assert logits.grad_fn is not None
        logits.grad_fn.register_prehook(back)

    def _keep_gradient(self, record: StepRecord, rows: Tensor | None) -> None:
        """The gradient of outputs as it is, and of outputs (row,) or (row, number) these themselves."""
        if rows is None or rows.grad_fn is None or rows.numel() > ROWS:
            return
        kept = rows.detach().clone() if rows.ndim <= 2 else None
        slot, index = rows.output_nr, len(record.calls) - 1

        def back(gradients: tuple[Tensor | None, ...]) -> None:
            gradient = gradients[slot] if slot < len(gradients) else None
            if gradient is None or self.is_paused:
                return
            copied = gradient.detach().clone().cpu()
            if copied.ndim > 1:
                record.place_gradients.append(copied)
            if kept is not None:
                record.row_gradients.append((kept.cpu(), copied))
                record.row_passes.append(index)

        rows.grad_fn.register_prehook(back)

    @guarded
    def on_recurrence(self, name: str, given: Any, made: Any) -> None:
        """A recurrent layer of the model was called."""
        if self.gradients_on:
            self.history.so_far.states.passed(name, given, made, self.record.sampled)

    @guarded
    def on_loss(self, given: Any, target: Any, ignored: Any = None) -> None:
        """What the loss is given, which may be more than the model returned."""
        if Probe.LOSS_INPUTS in self.probes:
            self.judge.compared(given, target, ignored)
        if self._enters_loss():
            self._look_at_soft(given, target)
            self._look_at_candidates(given, target)
            self._look_between("cross_entropy", given, target)
        if isinstance(given, Tensor) and given.ndim == 2 and given.is_contiguous():
            for address, shape in self.record.outputs:
                several = shape[2] > 1  # of one place alone there is nothing to mix
                middle = several and given.shape[1] == shape[1] != shape[2] and given.numel() == math.prod(shape)
                if middle and given.data_ptr() == address:
                    self.record.mixed = shape, tuple(given.shape)
        if Probe.LOGIT_LEVEL not in self.probes:
            return
        if self._loss_from == threading.get_ident() and given.requires_grad and given.ndim == 2:
            self.record.level = LogitLevel.of(given)

    def _enters_loss(self) -> bool:
        """Whether a loss function begins that is not within another: modes that watch layers enter it once more."""
        self._losses += 1
        return self._losses == 1

    @guarded
    def on_difference(self, given: Any, target: Any) -> None:
        """Predictions and targets of a regression."""
        tensors = isinstance(given, Tensor) and isinstance(target, Tensor)
        if Probe.LOSS_INPUTS in self.probes and tensors and spread_out(given, target):
            self.record.spread_out = tuple(given.shape), tuple(target.shape)
        if self._enters_loss():
            self._look_between("a regression's loss", given, target)
        if Probe.LOSS_INPUTS in self.probes and tensors and given.requires_grad and given.numel() == target.numel():
            if self.record.read and given.numel() <= ROWS:
                self.record.difference = given.detach().cpu(), target.detach().cpu()
            if self.record.sampled:
                self.record.reach, seen = reach(given, target), explained(given, target)
                self.record.explained = None if seen is None else (*seen, target.detach().cpu())

    @guarded
    def on_mean(self, name: str, value: Any, reduction: str) -> None:
        """What a loss function returned: a mean, or one number for each row, whose mean is the loss."""
        self._losses = max(0, self._losses - 1)
        if not self.gradients_on:
            self.history.passes.judged()
            if isinstance(value, Tensor):
                self.history.so_far.kept.versions.loss(name, value)
        self.history.losses_called.add(name)
        if not self.record.read or Probe.LOSS_INPUTS not in self.probes or not self.gradients_on:
            return
        if isinstance(value, Tensor) and (ways := self._ways()) is not None:
            ways.compared(name, value, reduction)
        if name == "kl_div":  # no rule asks for its mean
            return
        if isinstance(value, Tensor) and value.grad_fn is not None and reduction in ("mean", "none"):
            self.record.means.append((name, value.detach().mean()))

    def _look_at_soft(self, given: Any, target: Any) -> None:
        """Targets that are probabilities, with the classes last."""
        tensors = isinstance(given, Tensor) and isinstance(target, Tensor) and given.requires_grad
        if self.record.read and tensors and Probe.LOSS_INPUTS in self.probes:
            self.record.soft = SoftTargets.of(given, target) or self.record.soft

    def _look_at_candidates(self, given: Any, target: Any) -> None:
        """Scores of rows with candidates that are told by number."""
        tensors = isinstance(given, Tensor) and isinstance(target, Tensor) and given.requires_grad
        if self.record.read and tensors and self.gradients_on and Probe.LOSS_INPUTS in self.probes:
            found = Candidates.of(given, target)
            self.record.candidates += [] if found is None else [found]

    def _look_between(self, function: str, given: Any, target: Any) -> None:
        """What a loss function is given beside what the model has returned in this step, and its target."""
        record = self.record
        if not record.read or not self.gradients_on or Probe.LOSS_INPUTS not in self.probes or self._depth:
            return
        if not isinstance(given, Tensor) or not given.requires_grad or len(record.targets) >= KEPT:
            return
        found = into_loss(function, given, record.made)
        record.into_loss += [] if found is None else [found]
        record.targets += [(function, target.detach())] if isinstance(target, Tensor) else []

    @guarded
    def on_divergence(self, given: Any, target: Any) -> None:
        """What kl_div is given as logarithms of probabilities, which are never above 0."""
        self._enters_loss()
        if Probe.LOSS_INPUTS not in self.probes or not isinstance(given, Tensor) or not given.numel():
            return
        self._look_at_soft(given, target)
        if self.record.sampled and float(given.detach().max()) > PROBABILITY:
            self.record.not_logarithms = float(given.detach().min()), float(given.detach().max())

    @guarded
    def on_binary(self, given: Any, target: Any) -> None:
        """What a loss that applies a sigmoid is given."""
        if self._enters_loss():
            self._look_between("binary_cross_entropy_with_logits", given, target)
        if Probe.LOSS_INPUTS in self.probes and isinstance(given, Tensor):
            self.record.squashed_before = made_by(given) or self.record.squashed_before
            if self.record.read and given.requires_grad and isinstance(target, Tensor):
                self.record.binary = on_rows(given, target, ROWS)

    @guarded
    def on_checkpoint(self, inputs: Any) -> None:
        """What a reentrant checkpoint is given, in a pass that is learned from."""
        tensors = [value for value in inputs if isinstance(value, Tensor)]
        self.record.checkpoint_blind |= self._inside and not any(t.requires_grad for t in tensors)

    @guarded
    def on_gradient_hook(self, tensor: Any) -> None:
        """Somebody wants to see a gradient: a second backward pass would show it twice."""
        self.record.gradient_hooks |= getattr(tensor, "grad_fn", None) is not None

    @guarded
    def on_saved_hooks(self, hooks: Any) -> None:
        """Somebody's function is called for what a loss saves, as checkpointing does: a second pass would call it."""
        self.record.gradient_hooks |= not self._inside

    def wants_arguments(self) -> bool:
        """Whether arguments of functions are looked at now."""
        return self.record.sampled and Probe.ARGUMENTS in self.probes

    @guarded
    def on_arguments(self, contract: Contract, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """A call of a function whose documentation asks something of its arguments."""
        if not self.gradients_on:
            return
        given = contract.given(args, kwargs)
        for breach in contract.breaches(given):
            if isinstance(result, Tensor):
                whole = breach.elements is None or given.get("reduction") != "none"
                self._if_learned_from(breach, None if whole else breach.elements, result)
            else:
                self.record.breaches.append(breach)

    def _if_learned_from(self, breach: Breach, elements: Tensor | None, result: Tensor) -> None:
        """Whether what was returned, or these elements of it, have a part in the gradient: a look at them has none."""
        record = self.record

        def back(gradients: tuple[Tensor | None, ...]) -> None:
            gradient = gradients[0]
            if gradient is None or self.is_paused:
                return
            with self.skipped.noting("arguments"):
                part = gradient if elements is None else gradient[elements.expand_as(gradient)]
                if bool((part != 0).any()):
                    record.breaches.append(breach)

        if result.grad_fn is not None:
            result.grad_fn.register_prehook(back)
