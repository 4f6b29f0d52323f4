"""A training process starts itself again with settings of the C library, once, and with what it was given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from limpid.training.allocator import COMPACT

SCRIPT = """
import os, sys
from limpid.training.allocator import start_again_with_compact_heap
print(os.getpid(), flush=True)
start_again_with_compact_heap()
print(os.environ.get("GLIBC_TUNABLES"), sys.argv[1:], sys.stdin.read())
"""


def said(tmp_path: Path, script: str, **environment: str) -> list[str]:
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, str(tmp_path / "script.py"), "a b", "--c"]
    own = ("GLIBC_TUNABLES", "NUMPY_MADVISE_HUGEPAGE")
    kept = {name: value for name, value in os.environ.items() if name not in own}
    done = subprocess.run(command, input="text", capture_output=True, text=True, check=True, env=kept | environment)
    return done.stdout.splitlines()


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in getattr(os, "confstr_names", {}), reason="asks glibc")
def test_it_starts_again_as_the_same_process_with_the_same_words(tmp_path: Path) -> None:
    first, second, last = said(tmp_path, SCRIPT)
    assert first == second
    assert last == f"{COMPACT} ['a b', '--c'] text"


def test_what_a_user_has_set_stays_and_a_process_at_work_goes_on(tmp_path: Path) -> None:
    _, last = said(tmp_path, SCRIPT, GLIBC_TUNABLES="glibc.malloc.tcache_count=3")
    assert last == "glibc.malloc.tcache_count=3 ['a b', '--c'] text"
    _, last = said(tmp_path, f"import numpy\n{SCRIPT}")
    assert last == "None ['a b', '--c'] text"


TAKEN = """
import sys, threading
from limpid.training.allocator import keep_freed_memory, share_one_heap, take_beside
def held():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
if sys.argv[1] == "kept":
    keep_freed_memory()
    share_one_heap()
before = held()
take_beside(100_000_000)
for thread in threading.enumerate()[1:]:
    thread.join()
print((held() - before) // 1_000_000)
import numpy
before = held()
array = numpy.ones(10_000_000)
print((held() - before) // 1_000_000)
"""


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in getattr(os, "confstr_names", {}), reason="asks glibc")
def test_memory_taken_beside_is_there_for_arrays_to_come_where_it_is_kept() -> None:
    for how, taken, new in (("kept", range(95, 110), range(20)), ("given back", range(5), range(75, 90))):
        done = subprocess.run([sys.executable, "-c", TAKEN, how], capture_output=True, text=True, check=True)
        first, second = map(int, done.stdout.split())
        assert first in taken
        assert second in new


PAGES = """
import os, sys
import limpid.verbs.trace
from limpid.training.allocator import keep_to_small_pages
print("numpy" in sys.modules)
keep_to_small_pages()
print(os.environ["NUMPY_MADVISE_HUGEPAGE"])
"""


def test_pages_are_small_before_numpy_is_loaded_unless_a_user_says_otherwise(tmp_path: Path) -> None:
    assert said(tmp_path, PAGES) == ["False", "0"]
    assert said(tmp_path, PAGES, NUMPY_MADVISE_HUGEPAGE="1") == ["False", "1"]
