"""What is a library's and what is the user's own."""

from __future__ import annotations

import sys
import sysconfig

LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def is_library(module: str | None) -> bool:
    """Whether a module was installed, limpid among them, and not written by the user."""
    if not module or module.partition(".")[0] in ("limpid", "torch", "builtins"):
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return module != "__main__" if file is None else str(file).startswith(LIBRARIES)
