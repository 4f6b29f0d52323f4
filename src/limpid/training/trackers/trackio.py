"""trackio: W&B's interface on a local database, or a Space of the Hugging Face hub (TRACKIO_SPACE_ID)."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from typing import Any

from limpid.config import TrainConfig
from limpid.config.options import to_dict
from limpid.metrics import Sample
from limpid.run import Run
from limpid.terminal import command


def start(run: Run, config: TrainConfig, identity: str) -> Trackio:
    """The run of this name, gone on with where there is one; the name is trackio's identity, hence ours within it."""
    import trackio

    project = os.environ.get("TRACKIO_PROJECT", "limpid")
    name = f"{run.path.resolve().name}-{identity}"
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its instructions, which we say in one line
        opened = trackio.init(project=project, name=name, config=to_dict(config), resume="allow", embed=False)
    return Trackio(opened, f"{command('trackio', 'show', '--project', project)} (run {name})")


class Trackio:
    """Metrics and samples of one run."""

    def __init__(self, opened: Any, where: str) -> None:
        self._run, self.where = opened, where

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def sample(self, sample: Sample) -> None:
        import trackio

        text = f"{sample.prompt}{sample.text}"
        self._run.log({"sample": trackio.Markdown(f"```\n{text}\n```")}, step=sample.step)

    def finish(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._run.finish()  # trackio.finish() knows its run in the thread alone that began it
