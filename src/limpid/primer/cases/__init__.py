"""What chapters compute that takes more than one formula: functions, a small network, numbers drawn from a seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limpid.maths.loss import perplexity

NAMES: Mapping[str, Any] = {"perplexity": perplexity}
"""As chapters call them."""
