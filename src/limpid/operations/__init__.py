"""Any PyTorch step: every operation done again in float64, and the rounding error of the loss accounted for."""

from limpid.operations.recorder import Recording, recording
from limpid.operations.report import Report

__all__ = ["Recording", "Report", "recording"]
