"""A loop held against one that worked: sketches of its first steps, a line of every step, facts of some."""

from limpid.doctor.baseline.file import Baseline as Baseline

__all__ = ["Baseline"]
