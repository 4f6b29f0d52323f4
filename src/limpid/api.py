"""limpid from Python: the same rooms as the command line, without printing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limpid.config import TrainConfig
from limpid.config.arguments import checked
from limpid.config.domain import Count
from limpid.config.effect import require_effect
from limpid.config.options import converted
from limpid.config.sections import StoredAs
from limpid.data.documents import require_there
from limpid.errors import CheckpointError, ConfigError
from limpid.files import user_path
from limpid.reporter import SILENT, Reporter
from limpid.run import Run, place_of

if TYPE_CHECKING:
    from limpid.data.tokenizer import Tokenizer
    from limpid.model import Transformer
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
) -> Run:
    """Train a model to the last step and return its run; silent unless a reporter is given.

    config       a configuration, or its sections as plain values: {"model": {"d_model": 64}}
    deadline     when the run is to end: it sets the number of steps, and the size where that is open
    step_budget  the same for a configuration that is complete; both need the schedule warmup_stable_decay
    callbacks    objects that are told of every step, evaluation and checkpoint: see limpid.Callback
    Raises  LimpidError for what cannot work; Diverged, Interrupted when training breaks off (everything is saved)
    """
    asked: TrainConfig = converted(TrainConfig, {} if config is None else config, "config")
    require_effect(asked, steps_are_known=deadline is None and step_budget is None)
    require_there([*asked.data.paths, *asked.data.validation])  # before PyTorch is loaded, which takes seconds
    if name is not None:
        place_of(name)
    from limpid.training.start import start

    def begin(mesh: Mesh, shown: Reporter) -> Training:
        training = start(asked, name, shown, deadline, mesh)
        training.step_budget = training.step_budget or step_budget
        return training

    return _train(begin, reporter, callbacks)


@checked
def resume(
    what: str | Path,
    max_steps: Count | None = None,
    reporter: Reporter = SILENT,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Continue a run bit for bit, as it was configured, to its last step or to another one.

    what   a run, which goes on from its newest checkpoint; RUN@STEP goes on from the one after that step
    """
    from limpid.source import find_checkpoint
    from limpid.training.start import resume

    def begin(mesh: Mesh, shown: Reporter) -> Training:
        run, step = find_checkpoint(what)
        return resume(run, max_steps, shown, mesh, step)

    return _train(begin, reporter, callbacks)


def _train(begin: Callable[[Mesh, Reporter], Training], reporter: Reporter, callbacks: Sequence[Callback]) -> Run:
    """From the first step that is left to the last: the loop, watched by the doctor; a sample; the model's folder."""
    from limpid.diagnose import attend
    from limpid.generation import continue_text
    from limpid.lock import released_after
    from limpid.training.loop import Diverged, Interrupted, finish, loop, sample
    from limpid.training.mesh import open_mesh
    from limpid.training.start import describe

    with released_after(), open_mesh() as mesh:
        shown = reporter if mesh.is_main else SILENT
        training = begin(mesh, shown)
        shown.close()  # bars of tokenizing and measuring
        for line in describe(training) if mesh.is_main else ():
            shown.line(line)
        doctor = attend(training, shown.line)
        try:
            loop(training, shown, continue_text, doctor, callbacks)
        except (Interrupted, Diverged):
            finish(training)  # the folder is that of the newest checkpoint then, too
            raise
        finally:
            if doctor is not None:
                doctor.close()
        if reporter is not SILENT:
            shown.line(sample(training, continue_text))
        why_no_folder = finish(training)
        if why_no_folder is not None:
            shown.line(f"model/ was not written: {why_no_folder}")
    return training.run


@checked
def load(path: str | Path) -> tuple[Transformer, Tokenizer]:
    """Model and tokenizer of a run, or of a Hugging Face folder."""
    from limpid.data.tokenizer import load_tokenizer
    from limpid.model.weights import load_model
    from limpid.source import find_model

    source = find_model(path)
    tokenizer = load_tokenizer(source)
    return load_model(source), tokenizer


@checked
def export(what: str | Path, output: str | Path, stored_as: StoredAs = "fp32") -> Path:
    """Write a model for other programs, low-rank factors added in: a Hugging Face folder, or a file ending in .gguf.

    what       run, RUN@STEP, or Hugging Face folder
    stored_as  of matrices; q8_0 (blocks of 32 numbers, 8 bits each) in GGUF alone
    Raises     CheckpointError for an output that is there already; ConfigError for what the other format cannot express
    """
    from limpid.data.tokenizer import load_tokenizer
    from limpid.model.convert import save_folder
    from limpid.model.gguf_file import save_gguf
    from limpid.model.weights import load_weights
    from limpid.source import Checkpoint, find_model
    from limpid.training.precision import FORMATS

    source, file = find_model(what), user_path(output)
    if file.exists():
        raise CheckpointError(f"{file} exists already: name another output, or move it away")
    is_gguf = file.suffix.lower() == ".gguf"
    if stored_as == "q8_0" and not is_gguf:
        raise ConfigError("stored_as is q8_0, which Hugging Face's folders do not have: name a file that ends in .gguf")
    tokenizer = load_tokenizer(source)
    config, weights = load_weights(source)
    text, end = tokenizer.to_json(), tokenizer.end_of_text
    if is_gguf:
        save_gguf(file, config, weights, name=source.name, tokenizer_json=text, end_of_text=end, stored_as=stored_as)
    else:
        kept = {name: tensor.to(FORMATS[stored_as]) for name, tensor in weights.items()}
        step = source.step if isinstance(source, Checkpoint) else None
        save_folder(file, config, kept, tokenizer_json=text, end_of_text=end, step=step)
    return file


@checked
def open_step(what: str | Path, step: Count | None = None, text: str | None = None) -> dict[str, Any]:
    """One step, redone in float64 and compared: the document that `limpid trace --json` prints.

    what   run, recorded step, or Hugging Face folder (with `text`)
    """
    from limpid.tracing import Trace
    from limpid.tracing.schema import to_json
    from limpid.training.replay import recorded

    document: dict[str, Any] = to_json(Trace.open(recorded(str(what), step, text)).document())
    return document
