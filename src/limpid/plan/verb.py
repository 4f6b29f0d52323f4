"""`limpid plan` and its sub-words, from the command line's words to what is printed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limpid.config import TrainConfig
from limpid.errors import ConfigError
from limpid.flags import given
from limpid.options import from_dict, require
from limpid.verbs import PlanFitFlags, PlanFlags

if TYPE_CHECKING:
    from rich.console import Console

    from limpid.plan.figure import Figure
    from limpid.plan.fit import Fit
    from limpid.plan.planned import Plan


Engine = Callable[[TrainConfig], list[tuple[str, str, str]]]


def plan_verb(argv: Sequence[str], here: Any = None, engine: Engine | None = None) -> int:
    """Run `limpid plan …`; `here` measures this machine's rate of matrix products, `engine` how it would train."""
    from rich.console import Console

    console = Console(highlight=False)
    if argv and argv[0] == "fit":
        return fit_verb(argv[1:], console)
    flags = from_dict(PlanFlags, given("plan", PlanFlags, argv))
    asked = [name for name in ("compute", "params", "tokens") if getattr(flags, name) is not None]
    if flags.what is None and asked and (len(asked) == 1 or "tokens" not in asked or len(asked) == 2):
        return _allocation(flags, asked, console)
    for name in ("compute", "params"):
        require(getattr(flags, name) is None, f"--{name} asks for the best partner of a number: leave {flags.what} out")
    if flags.explain_engine:
        return _engine(flags, engine, console)
    found = _planned(flags, here)
    if flags.why is not None:
        return _why(found.figure(flags.why), flags.json, console)
    if flags.json:
        print(json.dumps(found.document(), ensure_ascii=False))
    else:
        from limpid.plan.show import tell

        tell(found, console)
    return 1 if found.fits is False else 0


def _planned(flags: PlanFlags, here: Any) -> Plan:
    from limpid.plan.planned import Options, planned
    from limpid.plan.subject import subject

    names = {entry.name for entry in fields(Options)}
    options = {name: getattr(flags, name) for name in names if hasattr(flags, name)}
    options["micro_batches"] = flags.gradient_accumulation_steps
    what = subject(flags.what)
    if flags.device == "here":
        precision = flags.precision or (what.config.run.precision if what.config else "fp32")
        require(here is not None, "device `here` is measured by the command line only: give --flops")
        options |= {"device": None, "flops": options["flops"] or here(precision)}
    return planned(what, Options(**options))


def _engine(flags: PlanFlags, engine: Engine | None, console: Console) -> int:
    """How limpid would compute this model's training here."""
    from rich.table import Table

    from limpid.plan.subject import subject

    found = subject(flags.what)
    if found.config is None or engine is None:
        raise ConfigError(f"limpid does not train {found.architecture.name} itself: name a run or a TOML configuration")
    run = replace(found.config.run, precision="auto") if found.precision_open else found.config.run
    choices = engine(replace(found.config, run=run))
    if flags.json:
        print(json.dumps([{"part": part, "chosen": chosen, "why": why} for part, chosen, why in choices]))
        return 0
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("part", "chosen here", "because"):
        table.add_column(column, overflow="fold")
    for row in choices:
        table.add_row(*row)
    console.print(table)
    return 0


def _why(figure: Figure, as_json: bool, console: Console) -> int:
    from limpid.plan.show import why

    if as_json:
        print(json.dumps(figure.document(), ensure_ascii=False))
    else:
        why(figure, console)
    return 0


def _allocation(flags: PlanFlags, asked: list[str], console: Console) -> int:
    """The partner of one of the three; of two, parameters and tokens, how far they are from the best."""
    from limpid.plan.scaling import APPROACH_3, LAWS, REFIT, allocate, judge

    for name in asked:
        require(getattr(flags, name) > 0, f"--{name} is {getattr(flags, name)}: it must be above 0")
    if len(asked) > 1:
        require(
            "compute" not in asked, "--compute with --params or --tokens leaves no choice: C = 6 N D fixes the third"
        )
        figures = (
            judge(REFIT, flags.params or 0, flags.tokens or 0)
            + judge(APPROACH_3, flags.params or 0, flags.tokens or 0)[1:]
        )
    else:
        figures = [one for law in LAWS for one in allocate(law, flags.compute, flags.params, flags.tokens)]
    if flags.why is not None:
        from limpid.plan.planned import Plan

        return _why(Plan("scaling", {"scaling": figures}).figure(flags.why), flags.json, console)
    if flags.json:
        print(json.dumps({"scaling": [figure.document() for figure in figures]}, ensure_ascii=False))
    elif len(asked) > 1:
        from limpid.plan.show import tell_judgement

        tell_judgement(figures, console)
    else:
        from limpid.plan.show import tell_allocation

        tell_allocation(figures, console)
    return 0


def fit_verb(argv: Sequence[str], console: Console) -> int:
    """Run `limpid plan fit RUNS…`."""
    flags = from_dict(PlanFitFlags, given("plan fit", PlanFitFlags, argv))
    if not flags.runs:
        raise ConfigError("plan fit takes runs, or tables with parameters, tokens and loss: limpid plan fit runs.csv")
    from limpid.plan.fit import fit, points_of
    from limpid.plan.runs import points
    from limpid.progress import progress

    notes: list[str] = []
    found = points_of(*zip(*points(flags.runs, notes), strict=True))
    from rich.console import Console as Screen

    for note in notes:
        Screen(stderr=True, highlight=False).print(note, soft_wrap=True)

    with progress(Screen(stderr=True)) as report:
        fitted = fit(found, flags.delta, flags.resamples, flags.level, flags.seed, report)
    return show_fit(fitted, flags.compute, flags.output, flags.json, console)


def show_fit(fitted: Fit, compute: float | None, output: str | None, as_json: bool, console: Console) -> int:
    """Tell a fitted law, its predictions, and draw it."""
    from limpid.plan.show import tell_fit, tell_prediction

    if compute is not None:
        require(compute > 0, f"--compute is {compute}: FLOPs, above 0")
    drawn = []
    if output is not None:
        from limpid.plan.plots import draw_fit

        drawn = draw_fit(fitted, Path(output))
    if as_json:
        print(json.dumps({**fitted.document(compute), "pictures": [str(file) for file in drawn]}, ensure_ascii=False))
        return 0
    tell_fit(fitted, console)
    if compute is not None:
        console.print(f"with {compute:.3g} FLOPs")
        tell_prediction(fitted, compute, console)
    for file in drawn:
        console.print(f"written {file}")
    return 0
