"""`limpid inspect`: structure inside a trained model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from limpid.config.flags import read
from limpid.config.threads import Threads
from limpid.errors import ConfigError
from limpid.files import user_path

if TYPE_CHECKING:
    from limpid.inspection.inspection import Inspection
    from limpid.reporter import Reporter


@dataclass(frozen=True)
class InspectFlags(Threads):
    """Structure inside a trained model, on one text; with --landscape, the curvature of its loss.

    limpid inspect last --text "the cat sat on the" --token " mat"
    limpid inspect last --landscape
    limpid inspect last --adapter
    """

    what: str = field(default="last", metadata={"positional": "MODEL"})
    """Run, name under runs/, `last`; with --text a Hugging Face folder, ORG/NAME or adapter."""
    text: str | None = None
    """The text to look at; the start of a run's held-out text when left out."""
    position: int = -1
    """Whose next-token logit is taken apart: 0 is the first position, -1 the last."""
    token: str | None = None
    """Which token's logit; the likeliest when left out."""
    word: tuple[str, ...] = ()
    """One: its neighbours in the embedding. Three, a b c: what is to c as b is to a."""
    landscape: bool = False
    """Sharpness, spectrum, loss curves and surface, gradient noise, and what keeps gradients alive; takes longer."""
    adapter: bool = False
    """Instead: what low-rank factors have learned, the change of each weight against the weight that it changes."""
    output: str | None = field(default=None, metadata={"short": "o"})
    """Folder for pictures and inspect.json; inspect/ inside a run, MODEL-inspect under runs/ otherwise."""
    json: bool = False
    """Print everything as one JSON document."""


def verb(argv: Sequence[str]) -> int:
    flags = read("inspect", InspectFlags, argv)
    from limpid.reporter import Reporter

    if flags.adapter:
        return _adapter(flags)
    with Reporter(flags.json) as reporter:
        reporter.progress("loading the model", 0)
        from limpid.inspection.inspection import inspect
        from limpid.plots import figure
        from limpid.training.allocator import keep_freed_memory

        keep_freed_memory()
        figure(1, 1)  # a missing matplotlib is reported before anything is computed
        found = inspect(
            flags.what,
            flags.text,
            position=flags.position,
            token=flags.token,
            word=flags.word,
            landscape=flags.landscape,
            reporter=reporter,
        )
        show(found, flags.what, None if flags.output is None else user_path(flags.output), reporter)
    return 0


def _adapter(flags: InspectFlags) -> int:
    """What factors have learned, as a table."""
    usual = InspectFlags()
    for name in ("text", "position", "token", "word", "landscape", "output"):
        if getattr(flags, name) != getattr(usual, name):
            raise ConfigError(f"--adapter looks at weights alone: leave out --{name}")
    from limpid.inspection.adapter import inspect_adapter
    from limpid.inspection.report import adapter_lines
    from limpid.reporter import Reporter

    with Reporter(flags.json) as reporter:
        found = inspect_adapter(flags.what, reporter=reporter)
        for line in adapter_lines(found):
            reporter.line(line)
        reporter.document(found.document())
    return 0


def show(found: Inspection, what: str, output: Path | None, reporter: Reporter) -> None:
    """Print it; pictures and inspect.json go to `output`, or beside the model where that is None."""
    from limpid.files import write_atomically
    from limpid.inspection.report import files_written, landscape_lines, structure_lines
    from limpid.plots import left_out_where_refused
    from limpid.reporter import SILENT

    for line in structure_lines(found.structure):
        reporter.line(line)
    for line in [] if found.landscape is None else landscape_lines(found.landscape):
        reporter.line(line)
    folder = _beside(what) if output is None else output
    pictures: list[Path] = []
    with left_out_where_refused(output, reporter):
        pictures += found.draw(folder)
    plain = found.document() | {"pictures": [picture.name for picture in pictures]}
    with left_out_where_refused(output, reporter if pictures else SILENT):  # said once
        write_atomically(folder / "inspect.json", (json.dumps(plain, ensure_ascii=False) + "\n").encode())
    reporter.document(plain)
    if pictures:
        reporter.line(files_written(folder, pictures, found.seconds))


def _beside(what: str) -> Path:
    """Where pictures of a model go when nobody says: into its run, or under runs/."""
    from limpid.run import RUNS
    from limpid.source import Checkpoint, find_model

    source = find_model(what)
    if isinstance(source, Checkpoint):
        return source.run.path / "inspect"
    return RUNS / f"{source.name.replace('/', '--')}-inspect"
