"""`limpid trace`: one step, opened."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

from limpid.config.flags import read
from limpid.config.options import require
from limpid.config.threads import Threads
from limpid.terminal import command, say, say_json

if TYPE_CHECKING:
    from limpid.tracing import Trace


Precision = Literal["fp32", "bf16", "fp64"]


@dataclass(frozen=True)
class TraceFlags(Threads):
    """Open one step: redo it in NumPy float64 by hand-written derivatives, and compare all of it.

    limpid trace last                          the newest run's last step
    limpid trace last --brief                  the same on one screen
    limpid trace last --step 400 --quantity blocks.0.attention.weights
    limpid trace models/llama --text "the cat sat on the mat"
    limpid trace models/whisper --text "good morning"
    limpid trace steps.py:small                a step of your own, in PyTorch

    Of models that limpid has no mathematics of, and of your own, every call of PyTorch is redone by itself.
    """

    what: str = field(default="last", metadata={"positional": "RUN"})
    """Run, recorded step (.safetensors), recording; with --text a Hugging Face folder, ORG/NAME or adapter; or
    MODULE:FUNCTION, FILE.py:FUNCTION that returns (model, optimizer, step)."""
    step: int | None = None
    """Which step of the run, 1 being the first; the last one when left out. Of RUN@M: replayed from that checkpoint."""
    text: str | None = None
    """Take one step of this model on this text."""
    quantity: str | None = None
    """Show one quantity, gradient, moment or parameter in full: a name, or TransformerLens's or Hugging Face's."""
    rows: bool = False
    """Show which documents made each row of the step's batch."""
    brief: bool = False
    """The step on one screen: verdict, loss, a line for each station, what to type next."""
    everything: bool = False
    """Do not fold blocks that look alike."""
    json: bool = False
    """Print the step as one JSON document."""
    output: str | None = field(default=None, metadata={"short": "o"})
    """Where to keep the recorded step, a .safetensors file; in the run when left out."""
    html: str | None = None
    """Write the step as one page that any browser opens, offline: every station and verdict, to click through."""
    worked: bool = False
    """Open the worked model instead: 3,456 parameters, every number of its step."""
    operations: bool = False
    """With --text: redo every call of transformers' own model, also where limpid has the mathematics of the whole."""
    precision: Precision | None = None
    """With --text, where calls are redone: format of weights and arithmetic; fp32 when left out."""
    what_if: tuple[str, ...] = ()
    """With --text: what the loss would be with these operations in another format, such as 'layers.3.*=fp8'."""
    error_of: tuple[str, ...] = ()
    """Where calls are redone: whose rounding error to account for beside the loss's, such as 'grad(lm_head.weight)'."""
    keep: str | None = None
    """Where calls are redone: a new folder for what each of them made, for `limpid compare` and `limpid serve`."""


def verb(argv: Sequence[str]) -> int:
    flags = read("trace", TraceFlags, argv)
    _require_effect(flags)
    if flags.rows:
        return _rows(flags)
    if not flags.worked:
        from limpid.verbs.trace_operations import is_for_operations, trace_operations

        if is_for_operations(flags):
            return trace_operations(flags)
    from limpid.training.allocator import keep_freed_memory, keep_to_small_pages, share_one_heap

    keep_to_small_pages()
    from limpid.console import Console
    from limpid.tracing import show_step

    console = Console()
    if flags.html is not None:
        from limpid.view.bundle import script

        script("step")  # before the step is opened, which may take long
    shown = partial(
        show_step, quantity=flags.quantity, as_json=flags.json, everything=flags.everything, console=console
    )
    if flags.worked:
        from limpid.tracing import explain_entry
        from limpid.tracing.worked import EXAMPLES, opened

        with opened() as trace:
            if flags.brief:
                return _brief(trace, ["--worked"])
            if flags.html is not None:
                return _page(trace, flags.html, "#/worked")
            code: int = shown(trace, numbers=True)
            for entry in () if flags.json or flags.quantity else EXAMPLES:
                explain_entry(trace, entry, console=console)
            return code
    if flags.quantity is not None:
        from limpid.tracing.names import require_known

        require_known(flags.what, flags.quantity)
    from limpid.reporter import Reporter

    with Reporter(flags.json) as reporter:
        reporter.progress("opening the step", 0)
        from limpid.api import trace as open_trace
        from limpid.schedule import TEXT_RATE

        keep_freed_memory()
        share_one_heap()
        opened_step = open_trace(flags.what, flags.step, flags.text, flags.output, reporter)
        opened_step.step  # noqa: B018  redone here, where it shows how far it is
    if flags.text is not None:
        file = opened_step.record.path
        how = command("limpid", "explain", file, "logits[0, 0, 1]")
        say(f"one AdamW update on this text, at a rate of {TEXT_RATE:g}, is kept in {file}; {how}", file=sys.stderr)
    if flags.html is not None:
        from limpid.view.file import address

        return _page(opened_step, flags.html, address(opened_step))
    if flags.brief:
        number = () if flags.step is None else ("--step", str(flags.step))
        named = [flags.what, *number] if flags.text is None else [str(opened_step.record.path)]
        code = _brief(opened_step, named)
    else:
        code = shown(opened_step)
    if not flags.json:
        from limpid.view.alive import tell_step

        tell_step(opened_step, flags.quantity)
    return code


def _require_effect(flags: TraceFlags) -> None:
    """Raise ConfigError for options that would be passed over."""
    named = {
        "RUN": flags.what != "last", "--step": flags.step is not None, "--text": flags.text is not None,
        "--quantity": flags.quantity is not None, "--rows": flags.rows, "--output": flags.output is not None,
        "--json": flags.json, "--everything": flags.everything, "--html": flags.html is not None,
        "--operations": flags.operations, "--precision": flags.precision is not None, "--keep": flags.keep is not None,
        "--what-if": bool(flags.what_if), "--error-of": bool(flags.error_of),
    }  # fmt: skip
    given = [option for option, is_given in named.items() if is_given]
    redone = {"--operations", "--precision", "--keep", "--error-of"}
    tried = {"RUN", "--text", "--precision", "--everything", "--json", "--operations", "--what-if"}
    apart = {
        "--worked": (flags.worked, {"--quantity", "--json", "--everything", "--html"}),
        "--rows": (flags.rows, {"--rows", "RUN", "--step", "--json"}),
        "--brief": (flags.brief, {"RUN", "--step", "--text", "--output", *redone}),
        "--what-if": (bool(flags.what_if), tried),
        "--html": (flags.html is not None, {"RUN", "--step", "--text", "--output", "--html", *redone}),
    }
    for option, (is_given, together) in apart.items():
        others = [other for other in given if other not in together]
        require(not is_given or not others, f"{option} has no use for {' and '.join(others)}: leave one of them out")


def _brief(trace: Trace, opened: Sequence[str]) -> int:
    """Print a step on one screen; returns 1 when something is wrong with it."""
    from limpid.console import Console
    from limpid.tracing.terminal_brief import show

    step = trace.step
    show(step, Console(), opened)
    return 0 if step.verdict.agrees else 1


def _page(trace: Trace, file: str, home: str) -> int:
    """Write a step as one page; returns 1 when something is wrong with it."""
    from pathlib import Path

    from limpid.view.file import write

    write(trace, Path(file), home=home)
    say(f"{file} opens in any browser, without a server or a network")
    return 0 if trace.step.verdict.agrees else 1


def _rows(flags: TraceFlags) -> int:
    from limpid.data.lineage import rows_of_step
    from limpid.source import find_step

    found = rows_of_step(*find_step(flags.what, flags.step))
    if flags.json:
        from dataclasses import asdict

        say_json(asdict(found))
        return 0
    from limpid.console import Console
    from limpid.data.terminal import show_rows

    show_rows(found, Console())
    return 0
