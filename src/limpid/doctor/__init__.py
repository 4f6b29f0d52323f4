"""The doctor: watches any PyTorch training loop, and names the cause when something is wrong."""

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Rule
from limpid.doctor.rules import RULES

__all__ = ["RULES", "Finding", "Rule"]
