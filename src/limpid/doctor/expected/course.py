"""What is counted at every step for keys that are about a run: rates, batches of one class."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched


@dataclass
class Course:
    """The steps until now."""

    rates: array[float] = field(default_factory=lambda: array("d"))  # of the largest group that has one, by step
    first_loss: float | None = None
    batches: int = 0  # whose classes were read
    of_one_class: int = 0

    def take(self, watched: Watched, record: StepRecord, history: History) -> None:
        """Add a step."""
        groups = [(sum(p.numel() for p in group["params"]), index) for index, group in watched.groups]
        rated = [(size, index) for size, index in groups if index in record.group_rates]
        if rated and record.updated:
            self.rates.append(record.group_rates[max(rated)[1]])
        if self.first_loss is None and record.number == 1:
            self.first_loss = record.loss
        if record.taught and record.taught[0].ids is None and history.facts and history.facts.step == record.number:
            taught = [one.taught[one.labelled] for one in record.taught]
            self.batches += 1
            self.of_one_class += sum(len(one) for one in taught) > 3 and len({int(t) for o in taught for t in o}) == 1
