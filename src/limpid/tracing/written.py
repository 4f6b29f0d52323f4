"""Whether a recorded step is the one that its run took: against the corpus, the log, and the checkpoints beside it.

What lies on the disk may have been damaged, and a replay may go wrong; redoing a step in float64 sees neither.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from limpid.data.held_out import data_of
from limpid.data.tokens import open_tokens
from limpid.data.tuning.examples import Examples
from limpid.errors import LimpidError
from limpid.maths.operation import Array
from limpid.maths.schedule import learning_rate_rounding
from limpid.run import Run
from limpid.tracing import replayed
from limpid.tracing.answer_rows import check_answers
from limpid.tracing.batch import check_windows, equal
from limpid.tracing.comparison import Expected, Range, compare, compare_number
from limpid.tracing.document import RunDocument, StepDocument, WrittenCheck
from limpid.tracing.kernels.kernel import Formats
from limpid.tracing.kernels.random_rounding import RandomRounding
from limpid.tracing.record import Record
from limpid.tracing.replayed import CHANGED as OPEN_AGAIN
from limpid.tracing.segments import Segment, outline
from limpid.tracing.verdict import Check, array_name

ENGINE = {"torch": "PyTorch", "processor": "processor", "threads": "threads", "processes": "processes",
          "fp32_products": "products of float32"}  # fmt: skip
"""What the last bit of a sum depends on, as checkpoints and records know it."""
CHANGED = OPEN_AGAIN + "training depends on what no checkpoint keeps: a random generator, a moment, a mask"


def with_run(step: StepDocument, record: Record, run: Run) -> StepDocument:
    """The document of a recorded step, with whether it is its run's; a step that is not is said so before all else."""
    with np.errstate(all="ignore"):
        found = against_run(record, run)
    wrong = next((one.check for one in found.checks if not one.check.holds), None)
    if wrong is None:
        return replace(step, written=found)
    verdict = replace(step.verdict, agrees=False, verdict="beyond", first_disagreement=wrong)
    return replace(step, written=found, verdict=verdict)


def against_run(record: Record, run: Run) -> RunDocument:
    """Every comparison with what the run wrote down, in the order of the step."""
    against = _Against(record, run, int(record.meta["step"]))
    checks = [*against.before(), *against.batch(), *against.log(), *against.after()]
    return RunDocument(str(run.path), tuple(checks), tuple(against.not_compared))


@dataclass
class _Against:
    record: Record
    run: Run
    number: int
    not_compared: list[str] = field(default_factory=list)

    def before(self) -> Iterator[WrittenCheck]:
        """Weights and moments before the step, where the checkpoint before it is left."""
        yield from self._checkpoint(self.number - 1, "before")

    def after(self) -> Iterator[WrittenCheck]:
        """The same after it: to the bit, where the arithmetic is that of the run."""
        if self.number not in self.run.checkpoint_steps():
            return
        if other := self._other_arithmetic():
            self.not_compared.append(f"the checkpoint after the step: {other}")
        else:
            yield from self._checkpoint(self.number, "after")

    def batch(self) -> Iterator[WrittenCheck]:
        """Rows, tokens and targets, as they follow from the seed, the step and the text."""
        config = self.record.config
        if config.tune is not None:
            yield from self._answers()
            return
        if self.record.objective.name != "next_token":
            return
        try:
            state = self.run.read_state(self.run.latest_checkpoint())
            tokens = open_tokens(state["data"], config.data, config.model.context_length, config.run.seed)
        except LimpidError as error:
            self.not_compared.append(f"the batch with the text: {error}")
            return
        place = f"the text, by seed {config.run.seed} and step {self.number}"
        for check in check_windows(self.record, tokens.train, list(tokens.regions.values())):
            yield _written(check, place, "the text or its cached tokens have changed since: bring the old text back")

    def _answers(self) -> Iterator[WrittenCheck]:
        """Of a run on records: which of them a step has, their tokens, and what is learned of them."""
        config = self.record.config
        if (self.run.path / "own.json").is_file():
            return
        try:
            data = data_of(self.run, config, self.run.read_state(self.run.latest_checkpoint())["data"])
        except LimpidError as error:
            self.not_compared.append(f"the batch with the records: {error}")
            return
        assert isinstance(data, Examples)
        place = f"the records, by seed {config.run.seed} and step {self.number}"
        for check in check_answers(self.record, data):
            yield _written(check, place, "the kept examples have changed since: bring the old records back")

    def log(self) -> Iterator[WrittenCheck]:
        """Loss, norm, rate, and whether parameters moved, as metrics.jsonl has them."""
        entry = self.run.logged(self.number, self.number).get(self.number)
        place = f"{self.run.metrics_file.name}, step {self.number}"
        if entry is None:
            self.not_compared.append(f"loss and norm: {self.run.metrics_file} has no line for step {self.number}")
            return
        config, meta = self.record.config, self.record.meta
        loss, norm = (float(self.record.exact(f"fast/{name}")) for name in ("loss", "grad_norm"))
        numbers = replayed.numbers(loss, norm, self.record.loss_scale, bool(meta["updated"]), entry)
        departed = next((check for check in numbers if not check.holds), None)
        other = "" if all(check.holds for check in numbers) else self._other_arithmetic()
        if other and self.number - 1 in self.run.checkpoint_steps():
            differ = f"the loss is {loss:.9g} here, {float(entry['loss']):.9g} in {place}"
            self.not_compared.append(f"loss and norm to the bit: {other}; {differ}")
            numbers = [self._within_rounding(float(entry["loss"]))]
        elif other:
            self.not_compared.append(f"loss and norm, after a replay of several steps: {other}")
            numbers = []
        rounding = 2 * learning_rate_rounding(self.number, config.run.max_steps, config.update)  # of both
        rate, logged = float(meta["learning_rate"]), float(entry["learning_rate"])
        numbers.append(compare_number("learning_rate", "run", rate, logged, rounding, Range(np.float64)))
        taken = meta.get("replayed", [])
        first = int(taken[0]["step"]) if taken else self.number
        before = replayed.departure(taken, self.run.logged(first, self.number - 1)) if not other else None
        if before is not None:
            step, check, way_out = before
            yield _written(check, f"{self.run.metrics_file.name}, step {step}", way_out)
        way_out = CHANGED if departed is None or other else replayed.why(departed, self.number, first)
        for check in numbers:
            yield _written(check, place, way_out)

    def _within_rounding(self, logged: float) -> Check:
        """The logged loss against the mathematics, within the scatter of honest rounding of the whole step."""
        links = tuple(outline(self.record))
        piece = Segment("plain", links)
        inputs = [self.record.exact(self.record.place(name)) for name in piece.inputs]
        widest, compute = self.record.summed_format, self.record.compute_format
        formats = Formats(widest, compute, widest, tuple(compute for _ in inputs), self.record.entering)
        loss, _ = RandomRounding.of(self.record, piece, formats).forward(inputs)
        return compare("loss", "run", np.asarray(logged), Expected(loss.value, loss.reach, Range(widest), widest))

    def _checkpoint(self, step: int, side: str) -> Iterator[WrittenCheck]:
        """Weights and moments of the record against those of a checkpoint, to the bit: the first that differs."""
        if step not in self.run.checkpoint_steps():
            return
        folder = self.run.checkpoint(step)
        names = [name for name in sorted(self.record.names) if name.startswith(f"{side}/")]
        for what, file in (("weights", "model.safetensors"), ("moments", "optimizer.safetensors")):
            try:
                with safe_open(folder / file, "numpy") as tensors:
                    own = {name.partition("/")[2]: name for name in names}
                    held = [name for name in tensors.keys() if name in own]  # noqa: SIM118
                    checks = (
                        _same(array_name(name), self.record.mapped(own[name]), tensors.get_tensor(name))
                        for name in held
                    )
                    found = next((check for check in checks if not check.holds), None)
            except (OSError, SafetensorError) as error:
                self.not_compared.append(f"{folder / file}: {' '.join(str(error).split())}")
                continue
            nothing = np.zeros(0)
            yield _written(found or equal(what, nothing, nothing), f"{folder / file}, {side} the step", CHANGED)

    def _other_arithmetic(self) -> str:
        """Why the run's own numbers need not come back to the bit; empty where they must."""
        later = [step for step in self.run.checkpoint_steps() if step >= self.number]
        written: dict[str, Any] = {}
        with contextlib.suppress(LimpidError):
            written = self.run.read_state(later[0]) if later else {}
        for key, what in ENGINE.items():
            before = "ieee" if written and key == "fp32_products" else None  # older checkpoints did not say it
            then, now = written.get(key, before), self.record.meta.get(key, before)
            if then is None:
                return f"the run did not write down which {what} it used"
            if then != now:
                return f"the run used {what} {then}, this replay {now}, and sums depend on it"
        return ""


def _written(check: Check, written_in: str, way_out: str) -> WrittenCheck:
    return WrittenCheck(replace(check, kind="run"), written_in, "" if check.holds else way_out)


def _same(name: str, here: Array, there: Array) -> Check:
    """One array, to the bit: what is not a number equals itself."""
    if here.shape != there.shape:
        return equal(f"size of {name}", np.asarray(here.size), np.asarray(there.size))
    if here.tobytes() == there.tobytes():
        return equal(name, np.zeros(0), np.zeros(0))
    return equal(name, here, there)
