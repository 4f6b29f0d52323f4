"""A trained model, opened: what its parts write, and how its loss curves around the weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def inspect_model(
    what: str,
    *,
    text: str | None,
    position: int,
    token: str | None,
    word: tuple[str, ...],
    output: Path,
    landscape: bool,
    as_json: bool,
    console: Console,
) -> int:
    """Inspect a run or Hugging Face folder; pictures and inspect.json go to `output`.

    Raises  CheckpointError when there is no such model; ConfigError for a text, position or word that does not fit
    """
    import json
    import time

    from rich.console import Console as Screen

    from limpid.inspect import landscape as around
    from limpid.inspect import show, show_landscape
    from limpid.inspect.document import document
    from limpid.inspect.structure import structure
    from limpid.inspect.subject import open_subject
    from limpid.plots import figure
    from limpid.progress import progress
    from limpid.run import write_atomically
    from limpid.training.allocator import keep_freed_memory

    keep_freed_memory()
    start = time.perf_counter()
    figure(1, 1)  # a missing matplotlib is said before anything is computed
    subject = open_subject(what, text)
    if landscape:
        subject.rows(around.ROWS)  # so is a text that is too short
    with progress(Screen(stderr=True)) as report:
        found = structure(subject, position, token, word, output, report)
        measured = around.landscape(subject, output, report) if landscape else None
    seconds = time.perf_counter() - start
    plain = document(found, measured, seconds)
    write_atomically(output / "inspect.json", (json.dumps(plain, ensure_ascii=False) + "\n").encode())
    if as_json:
        console.file.write(json.dumps(plain, ensure_ascii=False) + "\n")
        return 0
    show.tell(found, console)
    if measured is not None:
        show_landscape.tell(measured, console)
    pictures = found.pictures + (() if measured is None else measured.pictures)
    console.print(show.files(output, pictures, seconds), soft_wrap=True, highlight=False)
    return 0
