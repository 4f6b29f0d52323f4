"""Results as the last line of a notebook cell: a live view where anywidget is there, else the tables of limpid.html."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

VIEWER = "limpid.view.widget"
"""Named, not imported: it stands above every room whose results it shows, and loads when one is shown."""


def mimebundle(result: Any, include: Any = None, exclude: Any = None) -> dict[str, Any]:
    """What Jupyter is told beside `__repr__` and `_repr_html_`, as the method `_repr_mimebundle_` of a result.

    Empty outside of a kernel, and without anywidget, which `pip install limpid[notebook]` brings.
    """
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is None or find_spec("anywidget") is None:
        return {}
    bundle: dict[str, Any] = import_module(VIEWER).mimebundle(result)
    return bundle


def html_by(module: str, function: str) -> Callable[[Any], str]:
    """The method `_repr_html_` of a result that a file above it writes out: named, not imported, as the view is."""

    def written(result: Any) -> str:
        html: str = getattr(import_module(module), function)(result)
        return html

    return written
