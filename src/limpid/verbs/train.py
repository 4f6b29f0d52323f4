"""`limpid train`: a model trained on text, or a run continued."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limpid.config import DataConfig, ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.config.flags import given
from limpid.config.options import from_dict
from limpid.errors import ConfigError

if TYPE_CHECKING:
    from limpid.training.mesh import Mesh
    from limpid.training.start import Training
    from limpid.training.time_budget import Deadline


@dataclass(frozen=True)
class TrainFlags:
    """Train a model on text, or continue a run."""

    config: str | None = None
    """File of options: TOML, JSON or YAML; flags win over it."""
    recipe: str | None = None
    """Named set of options to start from: fast (Muon, normed queries and keys, squared relu); file and flags win."""
    minutes: float | None = None
    """Train for so long on this machine, by the fast recipe: measures it, and chooses the size unless it is given."""
    name: str | None = None
    """Name of the run under runs/, or a path; the next free number when left out."""
    resume: str | None = None
    """Run to continue, bit for bit; with --max-steps it is extended."""
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    update: UpdateConfig = field(default_factory=UpdateConfig)
    run: RunConfig = field(default_factory=RunConfig)


def verb(argv: Sequence[str]) -> int:
    from limpid.config.files import merged, read_options
    from limpid.config.recipes import TIMED, recipe
    from limpid.source import find_run

    typed = given("train", TrainFlags, argv)
    began = time.perf_counter()
    words = ("config", "recipe", "minutes", "name", "resume")
    file, chosen, minutes, name, resumed = (typed.pop(key, None) for key in words)
    if resumed is not None:
        max_steps = typed.get("run", {}).pop("max_steps", None)
        others = [option for section in typed.values() for option in section] + [
            word for word, value in zip(words, (file, chosen, minutes, name), strict=False) if value is not None
        ]
        if others:
            raise ConfigError(
                f"--resume continues a run as it was configured: leave out --{others[0].replace('_', '-')} "
                "(only --max-steps may change)"
            )
        return _train(lambda console, progress, mesh: _resumed(find_run(resumed), max_steps, console, mesh))
    base = {} if chosen is None and minutes is None else recipe(chosen or "fast")
    base = base if minutes is None else merged(base, TIMED)
    options = typed if file is None else merged(read_options(Path(file)), typed)
    config = from_dict(TrainConfig, merged(base, options))
    deadline = None if minutes is None else _deadline(began, minutes, options, config.update.schedule)
    from limpid.training.start import start

    return _train(lambda console, progress, mesh: start(config, name, console, progress, deadline, mesh))


def _deadline(began: float, minutes: float, options: dict[str, Any], schedule: str) -> Deadline:
    """When a run of so many minutes ends, and whether the options name its size."""
    from limpid.training.time_budget import Deadline

    if not 0 < minutes < math.inf:
        raise ConfigError(f"minutes is {minutes}: it must be above 0")
    if "max_steps" in options.get("run", {}):
        raise ConfigError("--minutes counts the steps itself: leave out --max-steps")
    if schedule != "warmup_stable_decay":
        raise ConfigError(
            f"schedule is {schedule}: --minutes counts its steps while training, which only warmup_stable_decay "
            "allows; leave --schedule out"
        )
    sizes = {"d_model", "num_layers", "num_heads", "num_kv_heads", "d_head", "d_ff"}
    size_given = bool(sizes & set(options.get("model", {}))) or "init_from" in options.get("run", {})
    return Deadline(began + 60 * minutes, size_given)


def _resumed(run: Any, max_steps: int | None, console: Any, mesh: Mesh) -> Training:
    from limpid.training.start import resume

    return resume(run, max_steps, console, mesh)


def _train(begin: Callable[..., Training]) -> int:
    """Train with the processes that torchrun started, or in this one alone."""
    from limpid.training.mesh import open_mesh

    with open_mesh() as mesh:
        return _trained(begin, mesh)


def _trained(begin: Callable[..., Training], mesh: Mesh) -> int:
    """Begin, train to the end, and say where everything lies and what to type next."""
    from rich.console import Console

    from limpid.diagnose import attend
    from limpid.generate import continue_text
    from limpid.reporter import Reporter
    from limpid.training.allocator import keep_freed_memory
    from limpid.training.loop import Diverged, Interrupted, finish, loop, sample
    from limpid.training.start import describe

    keep_freed_memory()
    console = Console(soft_wrap=True, highlight=False, quiet=not mesh.is_main)
    with Reporter(console=console, aside=console) as reporter:
        training = begin(console, reporter.progress, mesh)
    run = training.run.path
    for line in describe(training):
        console.print(line, markup=False)
    doctor = attend(training, lambda line: console.print(line, markup=False))
    try:
        loop(training, console, continue_text, doctor)
    except Interrupted:
        console.print(f"stopped after step {training.state.step}, everything saved; go on with", markup=False)
        console.print(f"  limpid train --resume {run}", markup=False)
        return 130
    except Diverged as broken:
        console.print(f"{broken}; open it with", markup=False)
        console.print(f"  limpid trace {run} --step {broken.step}", markup=False)
        return 1
    finally:
        if doctor is not None:
            doctor.close()
    console.print(sample(training, continue_text), markup=False)
    why_not = finish(training)
    console.print(f"\n{run}/", markup=False)
    for what, where in _contents(why_not):
        console.print(f"  {what:<24}{where}", markup=False)
    console.print("\nnext", markup=False)
    for command, what in (
        (f"limpid trace {run}", "open the last step"),
        (f'limpid generate {run} "def "', "continue a prompt"),
        (f"limpid train --resume {run} --max-steps {2 * training.config.run.max_steps}", "train on"),
    ):
        console.print(f"  {command:<60}{what}", markup=False)
    return 0


def _contents(why_not: str | None) -> list[tuple[str, str]]:
    model = (
        "loads in transformers: AutoModelForCausalLM.from_pretrained" if why_not is None else f"not written: {why_not}"
    )
    return [
        ("model/", model),
        ("checkpoints/", "what --resume and trace start from"),
        ("metrics.jsonl", "one line per step"),
        ("micro_batches.jsonl", "one line per micro-batch: its rows, tokens, labels, loss"),
        ("findings.jsonl", "what the doctor found; empty is good"),
        ("config.toml", "every option, and what was left open resolved"),
    ]
