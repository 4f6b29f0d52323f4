"""Any PyTorch step: every operation done again in float64, and the rounding error of the loss accounted for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from limpid.operations.compared import Compared as Compared
    from limpid.operations.compared import compare as compare
    from limpid.operations.recorder import Recording as Recording
    from limpid.operations.recorder import recording as recording
    from limpid.operations.report import Report as Report

HOMES = {"Compared": "compared", "Recording": "recorder", "Report": "report", "compare": "compared",
         "recording": "recorder"}  # fmt: skip
__all__ = list(HOMES)


def __getattr__(name: str) -> Any:
    """Public names are found on first use: a document of a recording needs no torch."""
    if name in HOMES:
        return getattr(import_module(f"limpid.operations.{HOMES[name]}"), name)
    raise AttributeError(f"limpid.operations has no {name!r}; there are {', '.join(__all__)}")
