"""The doctor: watches any PyTorch training loop, and names the cause when something is wrong."""

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Rule
from limpid.doctor.rules import RULES
from limpid.doctor.watch import Doctor

__all__ = ["RULES", "Doctor", "Finding", "Rule", "watch"]

watch = Doctor
