"""Where a call stands: the module whose forward pass makes it, and the line that asks for it."""

from __future__ import annotations

import os
import sys
from types import FrameType

import torch
from torch import nn

PASSED = (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__)), "<")
"""Where frames are nobody's own code."""


def standing(names: dict[int, str]) -> tuple[str, str]:
    """The innermost module that is running, by its identity's name, and the nearest line of the user's own code."""
    module, source = "", ""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (module and source):
        code = frame.f_code
        if not source and not code.co_filename.startswith(PASSED):
            source = f"{os.path.basename(code.co_filename)}:{frame.f_lineno}"
        if not module and code.co_name == "forward" and isinstance(one := frame.f_locals.get("self"), nn.Module):
            module = names.get(id(one), "")
        frame = frame.f_back
    return module, source
