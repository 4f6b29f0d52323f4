"""Who loads whom, seen from a fresh interpreter; lint-imports reads what is written, this what really happens."""

import json
import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers", "scipy", "matplotlib", "datasets", "pyarrow"}


def modules_after(code: str) -> set[str]:
    """Top-level modules of a fresh interpreter that ran `code`."""
    script = f"import sys, json\n{code}\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "code",
    [
        "import limpid",
        "import limpid.maths",
        "import limpid.tracing",
        "import limpid.planning",
        "import limpid.run",
        "import limpid.schedule",
        "from limpid.doctor import RULES",
        "import limpid.doctor.report",
        "from limpid.cli import main; main(['doctor', '--explain', 'all'])",
        "from limpid.cli import main; main(['--help'])",
        "from limpid.cli import main; main(['no-such-verb'])",
    ],
)
def test_these_rooms_load_nothing_heavy(code: str) -> None:
    assert not modules_after(code) & HEAVY


@pytest.mark.parametrize(
    "room",
    [
        "config",
        "run",
        "source",
        "quantities",
        "schedule",
        "reporter",
        "maths",
        "data",
        "planning",
        "tracing",
        "api",
        "verbs",
    ],
)
def test_no_file_of_these_rooms_loads_torch(room: str) -> None:
    code = f"""
import importlib, pkgutil
room = importlib.import_module("limpid.{room}")
for module in pkgutil.walk_packages(getattr(room, "__path__", []), room.__name__ + "."):
    importlib.import_module(module.name)
"""
    assert "torch" not in modules_after(code)


@pytest.mark.parametrize("code", ["import limpid", "from limpid.cli import main; main(['--help'])"])
def test_the_package_and_its_help_do_not_even_load_numpy(code: str) -> None:
    assert "numpy" not in modules_after(code)


def test_importing_changes_nothing() -> None:
    """No seed, device, thread count, logging or environment is touched by an import.

    (rich draws the ids of its styles from Python's own generator, which nothing here uses.)
    """
    code = """
import os, logging
import numpy, torch
before = (dict(os.environ), torch.get_num_threads(), torch.get_default_dtype(),
          torch.initial_seed(), logging.getLogger().handlers[:], str(numpy.random.get_state()))
import limpid.training.loop, limpid.tracing, limpid.generation, limpid.cli
after = (dict(os.environ), torch.get_num_threads(), torch.get_default_dtype(),
         torch.initial_seed(), logging.getLogger().handlers[:], str(numpy.random.get_state()))
assert before == after
"""
    modules_after(code)
