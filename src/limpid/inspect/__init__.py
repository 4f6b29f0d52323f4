"""A trained model examined: what its parts compute on a text, and the shape of its loss around the weights."""

from __future__ import annotations

from pathlib import Path

from limpid.reporter import SILENT, Reporter


def inspect_model(
    what: str,
    *,
    text: str | None,
    position: int,
    token: str | None,
    word: tuple[str, ...],
    output: Path,
    landscape: bool,
    reporter: Reporter = SILENT,
) -> int:
    """Inspect a run or Hugging Face folder; pictures and inspect.json go to `output`.

    Raises  CheckpointError when there is no such model; ConfigError for a text, position or word that does not fit
    """
    import json
    import time

    from limpid.files import write_atomically
    from limpid.inspect.document import document
    from limpid.inspect.landscape import ROWS, measure_landscape
    from limpid.inspect.model_and_text import open_model_and_text
    from limpid.inspect.report import files_written, landscape_lines, structure_lines
    from limpid.inspect.structure import measure_structure
    from limpid.plots import figure
    from limpid.training.allocator import keep_freed_memory

    keep_freed_memory()
    start = time.perf_counter()
    figure(1, 1)  # a missing matplotlib is reported before anything is computed
    sample = open_model_and_text(what, text)
    if landscape:
        sample.rows(ROWS)  # so is a text that is too short
    structure = measure_structure(sample, position, token, word, output, reporter)
    around = measure_landscape(sample, output, reporter) if landscape else None
    reporter.close()
    seconds = time.perf_counter() - start
    plain = document(structure, around, seconds)
    write_atomically(output / "inspect.json", (json.dumps(plain, ensure_ascii=False) + "\n").encode())
    reporter.document(plain)
    for line in structure_lines(structure):
        reporter.line(line)
    for line in [] if around is None else landscape_lines(around):
        reporter.line(line)
    pictures = structure.pictures + (() if around is None else around.pictures)
    reporter.line(files_written(output, pictures, seconds))
    return 0
