"""What a loop is meant to do, as its author says it in a file, held against what it is seen to do."""

from limpid.doctor.expected.expected import Expected, Mismatch

__all__ = ["Expected", "Mismatch"]
