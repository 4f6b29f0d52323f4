"""Pictures: matplotlib without its global state, written whole or not at all."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from limpid.errors import ConfigError, LimpidError
from limpid.files import write_atomically
from limpid.reporter import Reporter

INK, FIRST, SECOND = "#333333", "#1f6fb4", "#c4432b"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#f0e442")
"""Colours that colour-blind readers tell apart too. Source: Okabe & Ito 2008, jfly.uni-koeln.de/color."""


def figure(width: float, height: float) -> Any:
    """An empty figure, in inches.

    Raises  ConfigError when matplotlib is not installed
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("pictures need matplotlib, which is not installed: pip install 'limpid[plots]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def panels(count: int, columns: int, width: float, height: float) -> tuple[Any, list[Any]]:
    """A figure of `count` panels, each of this size in inches, row by row."""
    columns = min(columns, count)
    rows = -(-count // columns)
    drawing = figure(columns * width, rows * height)
    axes = list(drawing.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[count:]:
        unused.set_axis_off()
    return drawing, axes[:count]


def plain(axes: Any, title: str, x: str = "", y: str = "") -> None:
    """Titles, units and a faint grid; no frame where nothing is read off."""
    axes.set_title(title, fontsize=10, color=INK, parse_math=False)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def save(drawing: Any, file: Path) -> Path:
    """Write the figure as PNG, or as SVG where the file's name asks for it."""
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # tokens of scripts that the font lacks
        drawing.savefig(content, format="svg" if file.suffix.lower() == ".svg" else "png", dpi=110)
    write_atomically(file, content.getvalue())
    return file


@contextlib.contextmanager
def left_out_where_refused(asked: Path | None, reporter: Reporter, place: str = "FOLDER") -> Iterator[None]:
    """Say that pictures are left out where they cannot be written, unless their place was asked for."""
    try:
        yield
    except LimpidError as error:
        if asked is not None:
            raise
        reporter.note(f"no pictures: {error}; with -o {place} they go elsewhere")
