"""How each family's faults are found: before the first step, at every step, and now and then."""

from __future__ import annotations
