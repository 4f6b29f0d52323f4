"""Objects are not searched while modules are loaded, nor at the end of a command."""

import gc
import subprocess
import sys

import pytest

from limpid.garbage import unsearched

SCRIPT = """
import gc
class Loop:
    def __init__(self):
        self.own = self
    def __del__(self):
        print("found")
from limpid.garbage import leave_the_end_unsearched
leave_the_end_unsearched()
left = Loop()
print("end", flush=True)
"""


def said(script: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_what_is_left_at_the_end_is_not_searched() -> None:
    assert said(SCRIPT) == ["end"]
    assert said(SCRIPT.replace("\nleave_the_end_unsearched()", "")) == ["end", "found"]


def test_the_search_goes_on_until_then() -> None:
    assert said(SCRIPT + "del left\nprint(gc.collect() > 0)\n") == ["end", "found", "True"]


def test_it_is_as_before_after_modules_were_loaded() -> None:
    with unsearched():
        assert not gc.isenabled()
        with unsearched():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), unsearched():
        raise ImportError
    assert gc.isenabled()
