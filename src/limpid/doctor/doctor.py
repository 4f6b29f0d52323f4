"""The doctor at the bedside: listens to a training loop, examines it at the start, speaks when something is wrong."""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from limpid.doctor import breakage, updates
from limpid.doctor.anatomy import Anatomy
from limpid.doctor.attention import Watching
from limpid.doctor.calls import Call, find_logits, micro_batches
from limpid.doctor.exam import Exam, examine
from limpid.doctor.examination import AFTER_BACKWARD, AT_FIRST_SIGHT, CHECKS
from limpid.doctor.finding import SEVERITIES, Finding
from limpid.doctor.ranking import ranked
from limpid.doctor.ranks import Ranks, processes
from limpid.doctor.reading import read
from limpid.doctor.record import Past, StepRecord
from limpid.doctor.taps import Taps
from limpid.doctor.undisturbed import undisturbed
from limpid.doctor.watching import WATCHES

EARLY, OFTEN = 3, 10
"""The first steps are looked at closely, and every tenth after them; the loss's formula at `every` steps."""
ROOM = 2**20
"""Entries of the logits that a look during training takes in: 20 MB for a moment."""


def guarded(method: Callable[..., None]) -> Callable[..., None]:
    """An error inside the doctor is noted once and never reaches the training."""

    @functools.wraps(method)
    def call(self: Doctor, *args: Any, **kwargs: Any) -> None:
        if self.paused or self.closed:
            return
        try:
            self.gradients_on = torch.is_grad_enabled()
            with torch.no_grad():
                method(self, *args, **kwargs)
        except Exception as error:
            self.trouble(method.__name__, error)

    return call


class Doctor:
    """What `limpid.watch` returns. Use it as a context manager, or call `close()` at the end; either is optional."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any = None,
        *,
        scheduler: Any = None,
        scaler: Any = None,
        output: str | Path | None = None,
        total_steps: int | None = None,
        pretrained: bool | None = None,
        say: Callable[[str], None] | bool = True,
        every: int = 50,
        examine: bool = True,
        writer: Any = None,
        first_step: int = 1,
    ) -> None:
        self.anatomy = Anatomy(model)
        self.optimizers = _several(optimizer)
        self.schedulers = _several(scheduler)
        self.scaler_object = scaler
        self.total_steps, self.pretrained = total_steps, pretrained
        self.every, self.examines = max(1, every), examine
        self.say, self.writer = say, writer
        self.output = None if output is None else Path(output)
        self.paused = self.closed = False
        self.gradients_on = True
        self.skipped: dict[str, str] = {}
        self.checked: set[str] = set()
        self.past = Past()
        self.first_step = first_step  # a resumed run goes on counting
        self.steps = first_step - 1
        self.record = StepRecord(first_step)
        self.ranks: Ranks | None = None
        self._found: dict[tuple[str, str], Finding] = {}
        self._taken: list[tuple[Any, updates.Before]] = []
        self._pending: list[Tensor] = []
        self._mode: Watching | None = None
        self._deaf: Callable[[], Any] = lambda: None
        self._examined = self._waiting = False
        self._errors = 0
        self._sentinels = self._smallest()
        self._next()
        self.taps = Taps(self)
        try:
            self._install(model)
        except Exception as error:
            self.trouble("watch", error)

    def _install(self, model: nn.Module) -> None:
        if self.anatomy.outer is not self.anatomy.model:
            self.taps.model(self.anatomy.outer, outer=True)
            if not self.anatomy.compiled:  # inside compiled code hooks would change what is compiled
                self.taps.model(self.anatomy.model, outer=False)
        else:
            self.taps.model(model, outer=True)
            core = self.anatomy.core
            if core is not model:  # some trainers call a part of the module themselves, never the whole
                self.taps.model(core, outer=False)
        for optimizer in self.optimizers:
            self.taps.optimizer(optimizer)
        if self.scaler_object is not None:
            self.taps.scaler(self.scaler_object)
        for scheduler in self.schedulers:
            self.taps.scheduler(scheduler)
        if processes() > 1:
            self.ranks = Ranks(self.anatomy)
            self.ranks.first = self.first_step
            self.ranks.listen(self.taps)

    # what a user calls

    def preflight(
        self,
        batch: Any,
        loss: Callable[..., Any] | Any = None,
        loss_function: Callable[..., Any] | None = None,
        total_steps: int | None = None,
        pretrained: bool | None = None,
    ) -> list[Finding]:
        """Examine everything before the first step; nothing is changed by it.

        batch           what the loop has: a tensor, (inputs, targets), a dict, or a list of such micro-batches
        loss            (model, batch) → loss, as the loop computes it; or
        loss_function   (logits, targets) → loss; with neither, the model's own loss or cross-entropy
        """
        before = set(self._found)
        self.total_steps = total_steps or self.total_steps
        self.pretrained = self.pretrained if pretrained is None else pretrained
        exam = self._exam(batch=batch, loss=loss if callable(loss) else None, loss_function=loss_function)
        self._run(exam, CHECKS)
        self._examined = True
        return ranked([finding for key, finding in self._found.items() if key not in before])

    def step(self, loss: Any = None, batch: Any = None) -> None:
        """Tell the doctor about one optimizer step: right before it or right after it, as you like."""
        self._step(loss, batch)

    @property
    def findings(self) -> list[Finding]:
        """Everything found so far: root causes first, then what they explain."""
        return ranked(list(self._found.values()))

    def close(self) -> None:
        """Let go of everything; called by itself at the end of a `with` block."""
        if self.closed:
            return
        if self.record.updated and not self.paused:
            self._end()
        self._deaf()
        self.closed = True
        self.taps.close()

    def __enter__(self) -> Doctor:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # what the taps tell

    @guarded
    def on_forward(self, outer: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.gradients_on:
            if outer and self.steps and self.anatomy.model.training and self.anatomy.dropout_rate > 0:
                facts = self.past.facts
                facts["random_evaluations"] = facts.get("random_evaluations", 0) + 1
            return
        record = self.record
        if record.updated and not record.told and outer and "told" not in self.past.facts:
            self._end()  # nobody calls step(): the next forward pass ends the step before
            record = self.record
        if outer:
            record.outer_called = True
        else:
            record.inner_called = True
        if outer is False and record.outer_called:
            return
        call = Call(args, kwargs)
        if not self._examined:
            self._examined = True
            if self.examines:
                self._run(self._exam(call=call), AT_FIRST_SIGHT)
                self._waiting = True
        record.events.append("forward")
        record.calls.append(call)
        record.rng.append(torch.get_rng_state())
        if record.sampled and len(record.calls) == 1 and not self.anatomy.compiled and not self.anatomy.sharded:
            self._mode = Watching()
            self._mode.__enter__()
            self._listen_to_loss(record)

    @guarded
    def on_output(self, outer: bool, output: Any) -> None:
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self.record.heads = self._mode.heads
            self._mode = None
        record = self.record
        if (not outer and record.outer_called) or not record.calls:
            return
        if not record.sampled and not record.read:
            return
        logits = find_logits(output)
        if logits is None:
            return
        if record.level is None:
            record.level = level(logits)
        if not record.read or logits.grad_fn is None:
            return
        index, kept, slot, ids = len(record.calls) - 1, logits.detach(), logits.output_nr, record.calls[-1].ids

        def back(gradients: tuple[Tensor | None, ...]) -> None:
            try:
                gradient = gradients[slot] if slot < len(gradients) else None
                if gradient is not None and not self.paused:
                    with torch.no_grad():
                        found = read(kept, gradient, ids, ROOM)
                    if found is not None:
                        record.readings[index] = found
            except Exception as error:
                self.trouble("reading", error)

        logits.grad_fn.register_prehook(back)

    @guarded
    def on_backward(self, root: Any) -> None:
        record = self.record
        if record.updated and record.calls and not record.told and "told" not in self.past.facts:
            self._end()
            record = self.record
        self._deaf()
        tensor = root[0] if isinstance(root, tuple | list) and root else root
        if "backward" not in record.events:
            self._look_for_leftovers(record)
            self._look_at_modes(record)
        record.events.append("backward")
        if isinstance(tensor, Tensor) and tensor.numel() == 1:
            record.roots.append(tensor.detach())

    def _listen_to_loss(self, record: StepRecord) -> None:
        """See what the loss is given until the backward pass: it may be more than the model returned."""
        original = F.cross_entropy

        @functools.wraps(original)
        def look(given: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            try:
                if given.requires_grad and given.ndim == 2:
                    record.level = level(given)
            except Exception as error:
                self.trouble("loss", error)
            return original(given, *args, **kwargs)

        setattr(F, "cross_entropy", look)  # noqa: B010
        self._deaf = lambda: setattr(F, "cross_entropy", original)

    @guarded
    def on_clip(self, parameters: Any, max_norm: float, norm: Any) -> None:
        self.record.events.append("clip")
        self.record.clipped_to = float(max_norm)
        if isinstance(norm, Tensor):
            self.record.norm_tensor = norm.detach()
            self._norm(self.record, [])  # some loops make no update when this is not finite

    @guarded
    def on_update_begins(self, optimizer: Any) -> None:
        record = self.record
        if record.updated and record.told and len(self.optimizers) <= 1:
            return
        record.events.append("update")
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        record.no_gradients = not gradients
        record.rates = [float(group.get("lr", 0.0)) for group in optimizer.param_groups]
        self._norm(record, gradients)
        cleared = "zero_grad" in record.events[_last(record.events, "backward") :]
        if self._waiting and record.calls and not cleared:
            self._waiting = False
            norms = {
                name: None if p.grad is None else float(p.grad.norm())
                for name, p in self.anatomy.parameters.items()
                if p.grad is None or not p.grad.is_sparse
            }
            readings = [record.readings[i] for i in sorted(record.readings)]
            exam = self._exam(call=record.calls[0].detached(), seen_norms=norms, seen_readings=readings)
            self._run(exam, AFTER_BACKWARD)
        if self.ranks is not None:
            self._add(self.ranks.before_update(record))
        if record.sampled:
            self._taken.append((optimizer, updates.before(optimizer, self.anatomy.names)))

    def _norm(self, record: StepRecord, gradients: list[Tensor]) -> None:
        dense = [g for g in gradients if not g.is_sparse and not hasattr(g, "full_tensor")]
        if record.norm_tensor is None and dense:
            record.norm_tensor = _norm_of(dense)
            record.norm_at_update = None
        if record.norm_tensor is not None and record.norm_tensor.device.type == "cpu":
            record.norm = float(record.norm_tensor)
            if not math.isfinite(record.norm) and not self._scaling():
                self._break(record, record.roots[-1].item() if record.roots else math.nan)

    @guarded
    def on_update_ended(self, optimizer: Any) -> None:
        record = self.record
        taken, self._taken = self._taken, []
        for its, before in taken:
            if its is optimizer:
                record.update = updates.after(before, its)
            else:
                self._taken.append((its, before))
        record.updated = True
        if record.told:
            self._end()

    @guarded
    def on_event(self, name: str) -> None:
        self.record.events.append(name)
        if name == "scaler.update" and not self.record.updated:
            self.record.skipped = True
            if self.record.told:
                self._end()

    # the step

    @guarded
    def _step(self, loss: Any, batch: Any) -> None:
        self.past.facts["told"] = True
        record = self.record
        record.told = True
        record.micros = micro_batches(batch)
        record.loss = _number(loss)
        if loss is not None and record.loss is None and isinstance(loss, dict):
            record.loss = next((_number(v) for k, v in loss.items() if "loss" in str(k).lower()), None)
        if record.updated or record.skipped or not self.optimizers:
            self._end()

    def _end(self) -> None:
        """Judge the step, and begin the next."""
        self._deaf()
        record = self.record
        self.steps = record.number
        if record.loss is None and record.roots:
            total = float(torch.stack([r.float().reshape(()) for r in record.roots]).sum())
            record.loss = total / (self._scale() or 1.0)
        if record.norm is None and record.norm_tensor is not None:
            record.norm = float(record.norm_tensor)
        record.scale = self._scale()
        if record.loss is not None and not math.isfinite(record.loss) and not record.broken:
            self._break(record, record.loss)
        for check in WATCHES:
            name = check.__name__.strip("_").replace("_", "-")
            try:
                self._add(list(check(self, record, self.past)))
            except Exception as error:
                self.trouble(name, error)
        if self.ranks is not None:
            self.ranks.hashes = self.past.facts.get("hashes", [])
            self._add(self.ranks.after_step(record))
        if record.calls:
            self.past.previous, self.past.previous_rng = record.calls[-1].detached(), record.rng[-1]
        self._next()

    def _next(self) -> None:
        number = self.steps + 1
        self.record = StepRecord(number)
        age = number - self.first_step + 1
        self.record.sampled = age <= EARLY or number % OFTEN == 0 or self._restless()
        self.record.read = age <= EARLY or number % self.every == 0

    def _restless(self) -> bool:
        """Whether to look closely at the next step: the loss is outside its scatter, or the rate was just raised."""
        rates = self.past.rates[-6:]
        raised = any(b > 2 * a > 0 for a, b in itertools.pairwise(rates))
        return raised or 0 < self.past.losses.outside <= 10

    def _look_for_leftovers(self, record: StepRecord) -> None:
        """Gradients that are there before the first backward pass of a step."""
        if record.number == self.first_step or (record.number > self.first_step + 10 and not record.sampled):
            return
        for parameter in self._sentinels:
            if parameter.grad is not None and not parameter.grad.is_sparse:
                record.stale = max(record.stale, float(parameter.grad.abs().max()))

    def _look_at_modes(self, record: StepRecord) -> None:
        if not self.anatomy.model.training:
            record.in_eval = ["model"]
        elif record.sampled or record.number <= 20:
            record.in_eval = [name for name, module in self.anatomy.dropout_modules if not module.training]

    def _break(self, record: StepRecord, loss: float) -> None:
        """The first number that is none: open the step, and say where it was made."""
        record.broken = True
        if "broken" in self.past.facts:
            return
        self.past.facts["broken"] = record.number
        self.paused = True
        try:
            with torch.no_grad():
                found = None
                for index, call in enumerate(record.calls):
                    micros = record.micros[index : index + 1]
                    found = breakage.localise(
                        self.anatomy,
                        call.detached(),
                        micros,
                        record.number,
                        loss,
                        record.rng[index],
                        self.past.previous,
                    )
                    if "operation" in found.evidence or found.rule != "not-finite":
                        break
                if found is None:
                    found = breakage.localise(self.anatomy, None, record.micros, record.number, loss)
        finally:
            self.paused = False
        self._add([found])

    # findings

    def _exam(self, **given: Any) -> Exam:
        return Exam(
            anatomy=self.anatomy,
            optimizers=[getattr(o, "optimizer", o) for o in self.optimizers],
            schedulers=self.schedulers,
            scaler=self.scaler_object,
            total_steps=self.total_steps,
            pretrained=self.pretrained,
            **given,
        )

    def _run(self, exam: Exam, checks: list[Any]) -> None:
        self.paused = True
        try:
            with undisturbed(self.anatomy.model):
                self._add(examine(exam, checks))
            self.skipped.update(exam.skipped)
            self.checked.update(check.__name__.replace("_", "-") for check in checks)
        except Exception as error:
            self.trouble("examination", error)
        finally:
            self.paused = False

    def _add(self, found: list[Finding]) -> None:
        for finding in found:
            key = (finding.rule, finding.where if finding.rule in SEVERAL else "")
            old = self._found.get(key)
            if old is not None and SEVERITIES.index(old.severity) >= SEVERITIES.index(finding.severity):
                continue
            self._found[key] = finding
            self._speak(finding)

    def _speak(self, finding: Finding) -> None:
        first = self.ranks is None or self.ranks.rank == 0
        if self.output is not None and first:
            self.output.mkdir(parents=True, exist_ok=True)
            with (self.output / "findings.jsonl").open("a", encoding="utf-8") as file:
                file.write(finding.as_json() + "\n")
        if self.writer is not None and first:
            _log(self.writer, finding)
        if finding.severity == "notice" or not self.say or not first:
            return
        line = spoken(finding)
        if callable(self.say):
            self.say(line)
        else:
            print(line, file=sys.stderr)

    def trouble(self, where: str, error: Exception) -> None:
        """Remember what could not be done; after many errors stop listening."""
        self.skipped.setdefault(where, f"{type(error).__name__}: {error}".split("\n")[0][:200])
        self._errors += 1
        if self._errors > 100:
            self.paused = True

    def _scaling(self) -> bool:
        return self.scaler_object is not None and bool(self.scaler_object.is_enabled())

    def _scale(self) -> float:
        return float(self.scaler_object.get_scale()) if self._scaling() else 1.0

    def _smallest(self) -> list[nn.Parameter]:
        """Three small parameters that stand for all: first, middle, last of the trainable."""
        held = {id(p) for o in self.optimizers for group in o.param_groups for p in group["params"]}
        trained = [
            p for p in self.anatomy.parameters.values() if p.requires_grad and (not held or id(p) in held)
        ]  # what the optimizer lacks, it cannot clear
        small = sorted(trained, key=lambda p: p.numel())[: max(3, len(trained) // 4)]
        return [small[i] for i in sorted({0, len(small) // 2, len(small) - 1})] if small else []


SEVERAL: set[str] = set()
"""Rules that may speak once per place; all others speak once."""


def spoken(finding: Finding) -> str:
    """A finding on the console: what, why, what to do."""
    when = "before the first step" if finding.step is None else f"step {finding.step}"
    return (
        f"doctor: {finding.severity}: {finding.rule} ({when}, {finding.where}): {finding.says}\n"
        f"        cause: {finding.cause}\n        fix:   {finding.fix}"
    )


def level(logits: Tensor) -> tuple[float, float, str]:
    """Mean log Z and largest size on up to 256 positions, and the format."""
    rows = logits.detach().reshape(-1, logits.shape[-1])
    rows = rows[:: max(1, len(rows) // 256)].float()
    return float(rows.logsumexp(-1).mean()), float(rows.abs().max()), str(logits.dtype).removeprefix("torch.")


def _last(events: list[str], name: str) -> int:
    """Where this event happened last; 0 if it did not."""
    return max((i for i, event in enumerate(events) if event == name), default=0)


def _several(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, list | tuple) else [given]


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        return float(value.detach()) if value.numel() == 1 else float(value.detach().float().mean())
    if isinstance(value, int | float):
        return float(value)
    return float(value) if type(value).__module__ == "numpy" and getattr(value, "size", 0) == 1 else None


def _norm_of(gradients: list[Tensor]) -> Tensor:
    norms = torch._foreach_norm(gradients)
    where = norms[0].device
    return torch.stack([n.to(where, torch.float32) for n in norms]).norm()


def _log(writer: Any, finding: Finding) -> None:
    """To TensorBoard's SummaryWriter (add_text) or a W&B run (log)."""
    if hasattr(writer, "add_text"):
        writer.add_text(f"doctor/{finding.rule}", finding.says, finding.step or 0)
    elif hasattr(writer, "log"):
        writer.log({f"doctor/{finding.rule}": SEVERITIES.index(finding.severity) + 1})
