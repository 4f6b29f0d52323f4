"""`limpid train`: a model trained on text, or a run continued."""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from limpid.config import DataConfig, ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.config.effect import require_not_adopted
from limpid.config.flags import given
from limpid.config.options import from_dict
from limpid.config.threads import require_threads
from limpid.errors import ConfigError
from limpid.files import user_path
from limpid.terminal import command, say
from limpid.theme import HEADING

if TYPE_CHECKING:
    from limpid.reporter import Reporter
    from limpid.run import Run
    from limpid.training.callbacks import Callback
    from limpid.training.time_budget import Deadline


EVERYDAY = (
    "paths", "minutes", "name", "resume", "config", "recipe", "max_steps", "batch_size", "context_length", "d_model",
    "num_layers", "num_heads", "learning_rate", "warmup_steps", "weight_decay", "optimizer", "schedule", "dropout",
    "precision", "tokenizer", "text_field", "init_from", "lora_rank", "eval_steps", "early_stopping", "save_steps",
    "sample_steps", "sample_prompt", "seed", "threads", "report_to", "open",
)  # fmt: skip
"""What --help shows; --help-all shows the rest, in sections."""
INTERRUPTED = 130
"""The exit code of what was ended by Ctrl-C."""
ARGUMENTS = {"tune": "OBJECTIVE", "objective": "OBJECTIVE", "model_name": "MODEL", "paths": "PATH"}
"""Options that are typed without a name."""


@dataclass(frozen=True)
class TrainFlags:
    """Train a model on text, or continue a run.

    limpid train book.txt --minutes 5                the best model of five minutes
    limpid train texts/ --d-model 256 --num-heads 8 --max-steps 2000
    limpid train --resume last --max-steps 4000      go on, with a longer schedule
    limpid train more.txt --init-from last --lora-rank 8
    """

    config: str | None = None
    """File of options: TOML, JSON or YAML; flags win over it."""
    recipe: str | None = None
    """Named set of options to start from: fast (Muon, normed queries and keys, linear decay); file and flags win."""
    minutes: float | None = None
    """Train for so long on this machine, by the fast recipe; it chooses size and weight decay unless given."""
    name: str | None = None
    """Name of the run under runs/, or a path; the next free number when left out."""
    resume: str | None = None
    """Run to continue, bit for bit, or RUN@STEP from an earlier checkpoint; with --max-steps it is extended."""
    open: bool = False
    """Open the run in a browser as it trains, as `limpid serve` shows it; the page stays until Ctrl-C."""
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    update: UpdateConfig = field(default_factory=UpdateConfig)
    run: RunConfig = field(default_factory=RunConfig)


def verb(argv: Sequence[str]) -> int:
    typed = given("train", TrainFlags, argv, EVERYDAY)
    require_threads(typed.get("run", {}).get("threads", 0))
    require_not_adopted(typed)
    began = time.perf_counter()
    return beside_page(typed.pop("open", False), lambda callbacks: _trained(typed, began, callbacks))


def beside_page(is_open: bool, train: Callable[[Sequence[Callback]], int]) -> int:
    """Train, with the run's page open in a browser where it is asked for."""
    if not is_open:
        return train(())
    from limpid.view.beside import Page

    page = Page()
    code = train([page])
    page.stay(interrupted=code == INTERRUPTED)
    return code


def _trained(typed: dict[str, Any], began: float, callbacks: Sequence[Callback]) -> int:
    """Train as the options say, or go on with the run that they name."""
    from limpid.api import train
    from limpid.config.files import merged, read_options
    from limpid.config.recipes import TIMED, recipe

    if typed.get("resume") is not None:
        return resumed(typed, callbacks)
    file, chosen, minutes, name, _ = (typed.pop(key, None) for key in ("config", "recipe", "minutes", "name", "resume"))
    base = {} if chosen is None and minutes is None else recipe(chosen or "fast")
    base = base if minutes is None else merged(base, TIMED)
    options = typed if file is None else merged(read_options(user_path(file)), typed)
    config = from_dict(TrainConfig, merged(base, options))
    deadline = None if minutes is None else deadline_of(began, minutes, options, config.update.schedule)
    return shown(lambda reporter: train(config, name, reporter, deadline, callbacks=callbacks))


def resumed(typed: dict[str, Any], callbacks: Sequence[Callback] = ()) -> int:
    """Continue the run that --resume names, with no other option but --max-steps and --parallel."""
    from limpid.api import resume

    run = typed.pop("resume")
    max_steps, parallel = (typed.get("run", {}).pop(name, None) for name in ("max_steps", "parallel"))
    sections = (section for section in typed.values() if isinstance(section, dict))
    words = (word for word, value in typed.items() if value is not None and not isinstance(value, dict))
    if other := next(itertools.chain(*sections, words), None):
        named = ARGUMENTS.get(other) or f"--{other.replace('_', '-')}"
        raise ConfigError(
            f"--resume continues a run as it was configured: leave out {named} (only --max-steps and --parallel may "
            "change)"
        )
    return shown(lambda reporter: resume(run, max_steps, reporter, callbacks, parallel=parallel))


def deadline_of(
    began: float, minutes: float, options: dict[str, Any], schedule: str, *, tuned: bool = False
) -> Deadline:
    """When a run of so many minutes ends, and whether the options name its size and weight decay.

    A model that is tuned has its size, and keeps what it has learned.
    """
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
    size_given = tuned or bool(sizes & set(options.get("model", {}))) or "init_from" in options.get("run", {})
    decay_given = tuned or "weight_decay" in options.get("update", {})
    return Deadline(began + 60 * minutes, size_given, decay_given)


def shown(train: Callable[[Reporter], Run]) -> int:
    """Train, and say where everything lies and what to type next."""
    from rich.text import Text

    from limpid.console import Console
    from limpid.machine import process_peak
    from limpid.planning.figure import shown as figure
    from limpid.reporter import LastingReporter
    from limpid.training.allocator import keep_freed_memory
    from limpid.training.failure import RankFailed
    from limpid.training.loop import BrokeOff, Diverged, Interrupted
    from limpid.training.mesh import is_main_process

    keep_freed_memory()  # the process is ours alone
    console = Console(quiet=not is_main_process())
    with LastingReporter(console=console, aside=console) as reporter:
        try:
            run = train(reporter)
        except Interrupted as stopped:
            how = f"{stopped}; go on with\n  {_resuming(stopped.run)}"
            if reporter.listened_to:
                reporter.line(how)
            else:
                with contextlib.suppress(OSError):  # the terminal may be gone, too
                    say(f"limpid: standard output was closed: {how}", file=sys.stderr)
            return INTERRUPTED
        except RankFailed as broken:
            if not broken.told:
                say(f"limpid: error: {broken}", file=sys.stderr)
            return 1
        except BrokeOff as broken:
            if not broken.told:
                say(f"limpid: error: {broken}", file=sys.stderr)
            reporter.line(f"stopped after step {broken.step}, everything saved; go on with\n  {_resuming(broken.run)}")
            return 1
        except Diverged as broken:
            reporter.line(
                f"{broken}; open it with\n  {command('limpid', 'trace', broken.run.path, '--step', broken.step)}"
            )
            return 1
        if console.quiet:  # one of several, which says nothing
            return 0
        if (held := process_peak()) is not None:
            reporter.line(f"memory     {figure(held, 'bytes')} of this process at most")
        reporter.line(Text(f"\n{run.path}/", HEADING))
        for what, where in _contents(run):
            reporter.line(f"  {what:<24}{where}")
        reporter.line(Text("\nnext", HEADING))
        done, planned = run.latest_checkpoint(), run.read_config().run.max_steps
        longer = () if done < planned else ("--max-steps", 2 * done)
        judged = [(command("limpid", "evaluate", run.path), "hold it against what it started from")]
        lines = (
            (command("limpid", "trace", run.path), "open the last step"),
            (_page_of(run), "look at it in a page"),
            *(judged if run.read_config().tune is not None else []),
            _use(run),
            (_resuming(run, *longer), "train on"),
        )
        widest = max(len(line) for line, _ in lines)
        for line, what in lines:
            reporter.line(f"  {line:<{widest}}  {what}")
    return 0


def _page_of(run: Run) -> str:
    """The address of its page where a server shows it, else the command that starts one."""
    from limpid.view.addresses import of_run
    from limpid.view.alive import address_of

    server = address_of(run.path.absolute().parent)
    return command("limpid", "serve", run.path) if server is None else f"{server}{of_run(run.path.name)}"


def _resuming(run: Run, *longer: object) -> str:
    """The command that goes on with a run."""
    return command("limpid", "train" if run.read_config().tune is None else "tune", "--resume", run.path, *longer)


def _use(run: Run) -> tuple[str, str]:
    """What to do with the model: continue a prompt, talk to it, or, of a reward model, reward another."""
    config = run.read_config()
    if config.model.head == "score":
        named = config.run.init_from or "MODEL"
        return command("limpid", "tune", "grpo", named, "PROMPTS", "--reward", run.path), "tune by its scores"
    prompt = _prompt(run)
    if "\n" in prompt:  # a conversation
        return command("limpid", "chat", run.path), "talk to it"
    return command("limpid", "generate", run.path, prompt), "continue a prompt"


def _prompt(run: Run) -> str:
    """What the model may be asked to continue: the samples' prompt, or the first words of what was held out."""
    from limpid.data.held_out import opening

    config = run.read_config()
    return next(filter(None, config.run.sample_prompt), None) or opening(run)


def _contents(run: Run) -> list[tuple[str, str]]:
    loadable = [("model/", "loads with transformers' from_pretrained")]
    drawn = (run.path / "batches").is_dir()
    watched = [("findings.jsonl", "what the doctor found; empty is good")]
    return [
        *(loadable if run.model_folder.is_dir() else []),
        *([("adapter/", "the trained factors alone, for peft")] if run.adapter_folder.is_dir() else []),
        ("checkpoints/", "what --resume and trace start from"),
        *([("batches/", "what each step was given: references, or drawn answers")] if drawn else []),
        ("metrics.jsonl", "one line per step"),
        *([("samples.jsonl", "what the model made of the sample prompts")] if run.samples_file.is_file() else []),
        ("micro_batches.jsonl", "one per micro-batch: rows, tokens, labels, loss"),
        *(watched if run.read_config().run.doctor else []),
        ("config.toml", "every option, and what was left open resolved"),
    ]
