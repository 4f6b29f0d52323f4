"""Training from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limpid.config import TrainConfig
from limpid.config.arguments import checked
from limpid.config.domain import Count
from limpid.config.effect import require_effect
from limpid.config.options import converted
from limpid.data.documents import require_there
from limpid.reporter import SILENT, Reporter
from limpid.run import Run
from limpid.run_folder import place_of, require_free
from limpid.training.elastic import Restart, may_be_restarted

if TYPE_CHECKING:
    from limpid.training.callbacks import Callback
    from limpid.training.mesh import Mesh
    from limpid.training.start import Training
    from limpid.training.time_budget import Deadline, StepBudget


@checked
def train(
    config: TrainConfig | Mapping[str, Any] | None = None,
    name: str | None = None,
    reporter: Reporter = SILENT,
    deadline: Deadline | None = None,
    step_budget: StepBudget | None = None,
    callbacks: Sequence[Callback] = (),
    objective: Any = None,
    batches: Any = None,
) -> Run:
    """Train a model to the last step and return its run; silent unless a reporter is given.

    config       a configuration, or its sections as plain values: {"model": {"d_model": 64}}
    deadline     when the run is to end: it sets the number of steps, and the size where that is open
    step_budget  the same for a configuration that is complete; both need the schedule warmup_stable_decay
    callbacks    objects that are told of every step, evaluation and checkpoint: see limpid.Callback
    objective    your own loss, of the protocol limpid.objectives.Objective; DPO() lies beside it
    batches      your own rows: an object with batch(step, state) → micro-batches, and epoch(step)
    Raises  LimpidError for what cannot work; Diverged, Interrupted when training breaks off (everything is saved)
    """
    asked: TrainConfig = converted(TrainConfig, {} if config is None else config, "config")
    require_effect(asked, steps_are_known=deadline is None and step_budget is None)
    require_there([*asked.data.paths, *asked.data.validation_paths])  # before PyTorch is loaded, which takes seconds
    if name is not None and not may_be_restarted():
        require_free(place_of(name))
    from limpid.generation import answers
    from limpid.training.own import Own
    from limpid.training.start import resume, start

    own, restart = Own(objective, batches), Restart()

    def begin(mesh: Mesh, shown: Reporter) -> Training:
        before = mesh.decided(restart.run)
        if before is not None:
            return resume(before, None, shown, mesh, own=own, answerer=answers)
        training = start(asked, name, shown, deadline, mesh, own, answers)
        training.step_budget = training.step_budget or step_budget
        mesh.decided(lambda: restart.began(training.run))
        return training

    return _train(begin, reporter, callbacks)


@checked
def resume(
    what: str | Path | Run,
    max_steps: Count | None = None,
    reporter: Reporter = SILENT,
    callbacks: Sequence[Callback] = (),
    objective: Any = None,
    batches: Any = None,
    parallel: str | None = None,
) -> Run:
    """Continue a run bit for bit, as it was configured, to its last step or to another one.

    what       a run, which goes on from its newest checkpoint; RUN@STEP goes on from the one after that step
    objective  and batches: those that it was begun with, where they were the user's own
    parallel   other axes for the processes of torchrun, such as "shard=2,tensor=2"
    """
    from limpid.generation import answers
    from limpid.source import find_checkpoint
    from limpid.training.own import Own
    from limpid.training.start import resume

    own, restart = Own(objective, batches), Restart()

    def begin(mesh: Mesh, shown: Reporter) -> Training:
        before = mesh.decided(restart.run)
        run, step = find_checkpoint(what) if before is None else (before, None)
        training = resume(run, max_steps, shown, mesh, step, own, answers, parallel)
        mesh.decided(lambda: restart.began(training.run))
        return training

    return _train(begin, reporter, callbacks)


def _train(begin: Callable[[Mesh, Reporter], Training], reporter: Reporter, callbacks: Sequence[Callback]) -> Run:
    """From the first step that is left to the last: the loop, watched by the doctor; a sample; the model's folder."""
    from limpid.diagnose import attend
    from limpid.generation import continue_text
    from limpid.lock import released_after
    from limpid.training.failure import named_failures
    from limpid.training.heading import describe
    from limpid.training.loop import Diverged, Interrupted, finish, loop
    from limpid.training.mesh import open_mesh

    with released_after(), open_mesh() as mesh:
        shown = reporter if mesh.is_main else SILENT
        with named_failures(mesh):
            training = begin(mesh, shown)
        shown.close()  # bars of tokenizing and measuring
        for line in describe(training) if mesh.is_main else ():
            shown.line(line)
        doctor = attend(training, shown.line)
        try:
            loop(training, shown, continue_text, doctor, callbacks, sample_at_end=reporter is not SILENT)
        except (Interrupted, Diverged):
            finish(training)  # the folder is that of the newest checkpoint then, too
            raise
        finally:
            if doctor is not None:
                doctor.close()
        with named_failures(mesh):
            why_no_folder = finish(training)
            mesh.at(training.state.step, "ending")
            mesh.wait()  # one that never comes is named; torchrun alone would wait for it without end
        if why_no_folder is not None:
            shown.line(f"model/ was not written: {why_no_folder}")
    return training.run
