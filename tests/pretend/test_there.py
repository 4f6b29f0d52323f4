"""What runs on the device of pretence, in a process of its own.

PyTorch counts its devices once, at the first backward pass of a process, and other tests are to find none.
"""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize("what", ["doctor", "graphs", "operations"])
def test_there(what: str) -> None:
    """The doctor and the recording say there what they say on the host."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / f"{what}_there.py")]
    done = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:]
