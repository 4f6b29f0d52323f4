"""What the server of a folder answers from, and all its addresses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from starlette.routing import Route

from limpid.view.compare import Compare
from limpid.view.folder import Folder
from limpid.view.jobs import Jobs
from limpid.view.kept_formats import KeptFormats
from limpid.view.kept_variants import KeptVariants
from limpid.view.live import Streams
from limpid.view.over_steps import OverTime
from limpid.view.play import Play
from limpid.view.routes.compare import CompareAnswers
from limpid.view.routes.jobs import JobAnswers
from limpid.view.routes.learn import LearnAnswers
from limpid.view.routes.models import ModelAnswers
from limpid.view.routes.page import Pages
from limpid.view.routes.recordings import RecordingAnswers
from limpid.view.routes.runs import RunAnswers
from limpid.view.routes.steps import StepAnswers
from limpid.view.routes.variants import VariantAnswers
from limpid.view.runs import Runs
from limpid.view.steps import Steps
from limpid.view.what_if import WhatIf


@dataclass(frozen=True)
class Site:
    """What the server answers from."""

    runs: Runs
    steps: Steps
    jobs: Jobs
    play: Play
    compare: Compare
    what_if: WhatIf
    over_time: OverTime
    streams: Streams = field(default_factory=Streams)

    @classmethod
    def of(cls, folder: Path, steps_of: Callable[[Runs, Jobs], Steps] = Steps) -> Site:
        """The site of a folder of runs; a notebook has steps that are open already."""
        runs, jobs = Runs(Folder(folder)), Jobs()
        steps = steps_of(runs, jobs)
        return cls(runs, steps, jobs, Play(runs.folder), Compare(steps, jobs), WhatIf(steps), OverTime(steps))

    def routes(self) -> list[Route]:
        """Every address."""
        return [
            *Pages(self.runs).routes(),
            *RunAnswers(self.runs, self.streams).routes(),
            *StepAnswers(self.steps, self.over_time).routes(),
            *JobAnswers(self.jobs, self.streams).routes(),
            *ModelAnswers(self.runs.folder, self.play).routes(),
            *CompareAnswers(self.compare, self.what_if).routes(),
            *VariantAnswers(KeptVariants(self.runs.folder, self.jobs)).routes(),
            *RecordingAnswers(KeptFormats(self.runs.folder, self.jobs)).routes(),
            *LearnAnswers(self.steps).routes(),
        ]
