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
    output: Path | None,
    landscape: bool,
    reporter: Reporter = SILENT,
) -> int:
    """Inspect a run or Hugging Face folder; pictures and inspect.json go to `output`, or beside it where that is None.

    Raises  CheckpointError when there is no such model; ConfigError for a text, position or word that does not fit
    """
    import json
    import time

    from limpid.files import write_atomically
    from limpid.inspection.document import document
    from limpid.inspection.landscape import ROWS, measure_landscape
    from limpid.inspection.model_and_text import open_model_and_text
    from limpid.inspection.report import files_written, landscape_lines, structure_lines
    from limpid.inspection.structure import measure_structure
    from limpid.plots import figure, left_out_where_refused
    from limpid.training.allocator import keep_freed_memory

    keep_freed_memory()
    start = time.perf_counter()
    figure(1, 1)  # a missing matplotlib is reported before anything is computed
    sample = open_model_and_text(what, text)
    if landscape:
        sample.rows(ROWS)  # so is a text that is too short
    structure = measure_structure(sample, position, token, word, reporter)
    around = measure_landscape(sample, reporter) if landscape else None
    reporter.close()
    for line in structure_lines(structure):
        reporter.line(line)
    for line in [] if around is None else landscape_lines(around):
        reporter.line(line)
    folder = _beside(what) if output is None else output
    pictures: list[Path] = []
    with left_out_where_refused(output, reporter):
        pictures += structure.draw(folder) + ([] if around is None else around.draw(folder))
    plain = document(structure, around, pictures, time.perf_counter() - start)
    with left_out_where_refused(output, reporter if pictures else SILENT):  # said once
        write_atomically(folder / "inspect.json", (json.dumps(plain, ensure_ascii=False) + "\n").encode())
    reporter.document(plain)
    if pictures:
        reporter.line(files_written(folder, pictures, plain["seconds"]))
    return 0


def _beside(what: str) -> Path:
    """Where pictures of a model go when nobody says: into its run, or under runs/."""
    from limpid.run import RUNS
    from limpid.source import ModelFolder, find_model

    source = find_model(what)
    return RUNS / f"{source.name}-inspect" if isinstance(source, ModelFolder) else source.run.path / "inspect"
