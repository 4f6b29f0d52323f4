"""`limpid plan`: what a model costs, and which size and how many tokens are best."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from limpid.config.flags import read
from limpid.config.options import require
from limpid.errors import ConfigError
from limpid.plan.options import Options

if TYPE_CHECKING:
    from rich.console import Console

    from limpid.plan.figure import Figure
    from limpid.plan.report import Plan


@dataclass(frozen=True)
class PlanFlags:
    """What a model costs: parameters, FLOPs, memory, time, money, and how far its training is from compute-optimal.

    `limpid plan fit RUNS…` fits a scaling law to runs, `limpid plan sweep` trains the runs for one.
    Numbers may be written 70B, 1.4T, 32k, 1e21.
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
    json: bool = False
    """Print one JSON document."""
    training: Options = field(default_factory=Options)


def verb(argv: Sequence[str]) -> int:
    if argv and argv[0] in ("fit", "sweep"):
        from limpid.verbs import plan_fit, plan_sweep

        return (plan_fit if argv[0] == "fit" else plan_sweep).verb(argv[1:])
    from rich.console import Console

    console = Console(highlight=False)
    flags = read("plan", PlanFlags, argv)
    asked = {name: value for name, value in (("compute", flags.compute), ("params", flags.params)) if value is not None}
    if flags.what is None and (asked or flags.training.tokens is not None):
        return _allocation(flags, asked, console)
    for name in asked:
        raise ConfigError(f"--{name} asks for the best partner of a number: leave {flags.what} out")
    if flags.explain_engine:
        return _engine(flags, console)
    found = _planned(flags)
    if flags.why is not None:
        return _why(found.figure(flags.why), flags.json, console)
    if flags.json:
        print(json.dumps(found.document(), ensure_ascii=False))
    else:
        from limpid.plan.show import tell

        tell(found, console)
    return 1 if found.fits is False else 0


def _planned(flags: PlanFlags) -> Plan:
    from limpid.plan.report import planned
    from limpid.plan.subject import subject

    what, options = subject(flags.what), flags.training
    if options.device == "here":
        from limpid.training.mesh import best_device
        from limpid.training.precision import FORMATS, measured_peak

        precision = options.precision or (what.config.run.precision if what.config else "fp32")
        peak = options.flops or measured_peak(FORMATS[{"bf16_pure": "bf16"}.get(precision, precision)], best_device())
        options = replace(options, device=None, flops=peak)
    return planned(what, options)


def _engine(flags: PlanFlags, console: Console) -> int:
    """How limpid would compute this model's training here."""
    from rich.table import Table

    from limpid.plan.subject import subject
    from limpid.training.autotune import explain
    from limpid.training.mesh import best_device

    found = subject(flags.what)
    if found.config is None:
        raise ConfigError(f"limpid does not train {found.architecture.name} itself: name a run or a TOML configuration")
    run = replace(found.config.run, precision="auto") if found.precision_open else found.config.run
    choices = explain(replace(found.config, run=run), best_device())
    if flags.json:
        print(json.dumps([{"part": one.part, "chosen": one.chosen, "why": one.why} for one in choices]))
        return 0
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("part", "chosen here", "because"):
        table.add_column(column, overflow="fold")
    for one in choices:
        table.add_row(one.part, one.chosen, one.why)
    console.print(table)
    return 0


def _why(figure: Figure, as_json: bool, console: Console) -> int:
    from limpid.plan.show import why

    if as_json:
        print(json.dumps(figure.document(), ensure_ascii=False))
    else:
        why(figure, console)
    return 0


def _allocation(flags: PlanFlags, asked: dict[str, float], console: Console) -> int:
    """The partner of one of the three; of two, parameters and tokens, how far they are from the best."""
    from limpid.plan.laws.scaling import APPROACH_3, LAWS, REFIT, allocate, judge
    from limpid.plan.report import Plan
    from limpid.plan.show import tell_allocation, tell_judgement

    tokens = flags.training.tokens
    for name, value in asked.items():
        require(0 < value < math.inf, f"--{name} is {value}: it must be above 0")
    judged = tokens is not None and bool(asked)
    if len(asked) == 2 or (judged and "compute" in asked):
        raise ConfigError("--compute with --params or --tokens leaves no choice: C = 6 N D fixes the third")
    if judged:
        size = asked["params"]
        figures = judge(REFIT, size, tokens or 0) + judge(APPROACH_3, size, tokens or 0)[1:]
    else:
        figures = [one for law in LAWS for one in allocate(law, flags.compute, flags.params, tokens)]
    if flags.why is not None:
        return _why(Plan("scaling", {"scaling": figures}).figure(flags.why), flags.json, console)
    if flags.json:
        print(json.dumps({"scaling": [figure.document() for figure in figures]}, ensure_ascii=False))
    else:
        (tell_judgement if judged else tell_allocation)(figures, console)
    return 0
