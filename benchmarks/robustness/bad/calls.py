"""A piece of Python that calls limpid, judged like a command: a named complaint is one line and exit code 2."""

import builtins
import linecache
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks.robustness.bad.sandbox import PYTHON_ERROR

BY_SIGNATURE = re.compile(
    r"unexpected keyword argument|required (positional|keyword-only) argument|positional arguments? but|multiple values"
)
PLAIN = (TypeError, ValueError, OverflowError, OSError)
"""Python's own words for wrong types, values and files: clear when limpid raises them on purpose."""


def clear(problem: BaseException) -> bool:
    """Whether an exception is a complaint: limpid's own, or one raised on purpose, or the signature's."""
    names = [of.__name__ for of in type(problem).__mro__]
    if "LimpidError" in names:
        return True
    if not isinstance(problem, PLAIN) or type(problem).__module__ not in (builtins.__name__, "limpid.errors"):
        return False
    if isinstance(problem, TypeError) and BY_SIGNATURE.search(str(problem)):
        return True
    last = traceback.extract_tb(problem.__traceback__)[-1]
    source = linecache.getline(last.filename, last.lineno or 0).strip()
    return "limpid" in Path(last.filename).parts and source.startswith("raise ")


def call(code: str) -> Callable[[], None]:
    """What runs the code in a process that has imported limpid."""

    def command() -> None:
        space: dict[str, object] = {"__name__": "case"}
        exec("import math\nimport numpy as np\nimport torch\nimport limpid\nimport limpid.planning\n", space)
        try:
            exec(compile(code, "<case>", "exec"), space)
        except Exception as problem:
            if clear(problem):
                print(f"{type(problem).__name__}: {problem}", file=sys.stderr)
                raise SystemExit(2) from None
            traceback.print_exc()
            raise SystemExit(PYTHON_ERROR) from None

    return command
