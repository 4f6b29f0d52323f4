"""`limpid plan`: what a model costs, and which size and how many tokens are best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from limpid.config.domain import Count
from limpid.config.flags import read
from limpid.errors import ConfigError
from limpid.planning.options import Options
from limpid.terminal import say_json

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class PlanFlags:
    """What a model costs: parameters, FLOPs, memory, time, money, and how far its training is from compute-optimal.

    `limpid plan fit RUNS…` fits a scaling law to runs, `limpid plan sweep` trains the runs for one.
    `limpid plan rate` finds a learning rate.
    Numbers may be written 70B, 1.4T, 32k, 1e21.

    limpid plan llama-3-8b --device h100 --devices 8 --zero 3 --tokens 1T
    limpid plan --compute 1e21                 the best size and number of tokens
    limpid plan last --why memory.activations
    limpid plan last --rehearse 1024           what each rank would hold and send
    """

    what: str | None = field(default=None, metadata={"positional": "WHAT"})
    """Published name (gpt2, llama-3-8b), run, `last`, Hugging Face folder, config.json, TOML; the default model."""
    compute: float | None = None
    """Training FLOPs: which size and how many tokens are best."""
    params: float | None = None
    """Parameters: for how many tokens this size is the best; with --tokens, how far off they are."""
    why: str | None = None
    """Show one figure with its equation, the numbers put in, and its source."""
    explain_engine: bool = False
    """Say how limpid would compute this model's training on this machine, and the number that decided each choice."""
    rehearse: Count | None = None
    """Go through one step of limpid's own engine as one of so many ranks, in this process and without numbers: what a
    rank holds and sends, and which way to divide the step sends least of those that fit."""
    parallel: str | None = None
    """With --rehearse: the one way, as in `limpid train --parallel`; several are tried when left out."""
    json: bool = False
    """Print one JSON document."""
    training: Options = field(default_factory=Options)


def verb(argv: Sequence[str]) -> int:
    if argv and argv[0] in ("fit", "rate", "sweep"):
        from limpid.verbs import plan_fit, plan_rate, plan_sweep

        return {"fit": plan_fit, "rate": plan_rate, "sweep": plan_sweep}[argv[0]].verb(argv[1:])
    from limpid.console import Console

    console = Console()
    flags = read("plan", PlanFlags, argv)
    if flags.rehearse is not None:
        _require_alone("rehearse", flags)
        from limpid.verbs import plan_rehearsal

        return plan_rehearsal.shown(flags.what, flags.rehearse, flags.parallel, flags.training, flags.json, console)
    if flags.parallel is not None:
        raise ConfigError(f"--parallel is {flags.parallel}, which does nothing without --rehearse")
    if flags.explain_engine:
        _require_alone("explain-engine", flags)
        for name, value in flags.training.chosen().items():
            raise ConfigError(f"{name} is {value}, and --explain-engine decides for this machine: leave it out")
        return _engine(flags, console)
    return _plan(flags, console)


def _require_alone(asked: str, flags: PlanFlags) -> None:
    """Raise ConfigError for what is asked beside an option that answers something else."""
    others = {"compute": flags.compute, "params": flags.params, "why": flags.why,
              "explain-engine": flags.explain_engine if asked == "rehearse" else None}  # fmt: skip
    for name, value in others.items():
        if value:
            raise ConfigError(f"--{name} and --{asked} ask for different things: give one of them")


def _plan(flags: PlanFlags, console: Console) -> int:
    """Every figure, or the one that --why names; 1 when what is planned does not fit."""
    from limpid.api import plan
    from limpid.planning.terminal import print_figure, print_plan
    from limpid.reporter import Reporter

    with Reporter(flags.json, console=console) as reporter:
        if flags.training.device == "here":
            reporter.progress("measuring this machine", 0)
        report = plan(flags.what, compute=flags.compute, params=flags.params, **flags.training.chosen())
    if flags.why is not None:
        figure = report.figure(flags.why)
        if flags.json:
            say_json(figure.document())
        else:
            print_figure(figure, console)
        return 0
    if flags.json:
        say_json(report.document())
    else:
        print_plan(report, console)
    return 1 if report.fits is False else 0


def _engine(flags: PlanFlags, console: Console) -> int:
    """How limpid would compute this model's training here, and why."""
    from limpid.planning.subject import subject
    from limpid.planning.terminal import print_decisions
    from limpid.training.autotune import decisions
    from limpid.training.mesh import best_device

    what = subject(flags.what)
    if what.config is None:
        raise ConfigError(f"limpid does not train {what.architecture.name} itself: name a run or a TOML configuration")
    run = replace(what.config.run, precision="auto") if what.precision_open else what.config.run
    rows = [(one.part, one.chosen, one.why) for one in decisions(replace(what.config, run=run), best_device())]
    if flags.json:
        say_json([dict(zip(("part", "chosen", "why"), row, strict=True)) for row in rows])
    else:
        print_decisions(rows, console)
    return 0
