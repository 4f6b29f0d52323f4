"""Any PyTorch step: every operation done again in float64, and the rounding error of the loss accounted for."""

from limpid.operations.compared import Compared, compare
from limpid.operations.recorder import Recording, recording
from limpid.operations.report import Report

__all__ = ["Compared", "Recording", "Report", "compare", "recording"]
