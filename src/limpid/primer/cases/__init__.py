"""What chapters compute that takes more than one formula: functions, a small network, numbers drawn from a seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limpid.maths.loss import perplexity
from limpid.primer.cases import depth, draws, letters, network, recurrent, surfaces, timed, width

NAMES: Mapping[str, Any] = {
    "perplexity": perplexity,
    "surfaces": surfaces,
    "depth": depth,
    "network": network,
    "letters": letters,
    "draws": draws,
    "recurrent": recurrent,
    "timed": timed,
    "width": width,
}
"""As chapters call them."""
