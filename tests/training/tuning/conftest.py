"""A model of two layers on bytes, and records of every kind to tune it on."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import limpid
import small
from limpid.lock import released_after
from limpid.run import Run
from limpid.source import find_run

SUMS = [(a, b) for a in range(1, 9) for b in range(2, 7)]
RECORDS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "answers": lambda a, b: {"prompt": f"{a}+{b}=", "completion": str(a + b)},
    "pairs": lambda a, b: {"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": str(a - b)},
    "judged": lambda a, b: {"prompt": f"{a}+{b}=", "completion": str(a + b - a % 2), "label": a % 2 == 0},
    "prompts": lambda a, b: {"prompt": f"{a}+{b}=", "answer": str(a + b)},
}
KIND = {"sft": "answers", "dpo": "pairs", "ipo": "pairs", "kto": "judged", "reward": "pairs"}
REWARDS = """
def digits(completions):
    return [sum(c.isdigit() for c in one) / max(1, len(one)) for one in completions]

def first(completions, answer):
    return [float(c[:1] == a[:1]) for c, a in zip(completions, answer)]

def undecided(completions):
    return [None if number % 2 else 1.0 for number, _ in enumerate(completions)]
"""
OPTIONS = {"max_steps": 3, "batch_size": 4, "eval_steps": 3, "save_steps": 1, "save_total_limit": 0, "threads": 1,
           "precision": "fp32"}  # fmt: skip


@pytest.fixture(scope="session")
def trained_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that every test gets a copy of."""
    folder = tmp_path_factory.mktemp("base")
    with pytest.MonkeyPatch.context() as patch, released_after():
        patch.setenv("LIMPID_CACHE", str(small.share_kernels(folder / "cache")))
        chosen = small.config(small.corpus(folder / "corpus"), max_steps=3, doctor=False)
        return limpid.train(chosen, str(folder / "run")).path


@pytest.fixture
def base(trained_base: Path, data: Path) -> Run:
    """A run to tune, and the texts that such a run is trained on."""
    shutil.copytree(trained_base, "runs/base")
    return find_run("base")


@pytest.fixture
def records(here: Path) -> Callable[[str], Path]:
    """A file of records of a kind."""

    def write(kind: str) -> Path:
        file = here / f"{kind}.jsonl"
        file.write_text("".join(json.dumps(RECORDS[kind](a, b)) + "\n" for a, b in SUMS))
        return file

    return write


@pytest.fixture
def tuned(base: Run, records: Callable[[str], Path], here: Path) -> Callable[..., Run]:
    """The base tuned by an objective for three steps."""
    (here / "rewards.py").write_text(REWARDS)

    start = base

    def tune(
        objective: str, name: str = "tuned", tune: Mapping[str, Any] | None = None, base: Any = start, **sections: Any
    ) -> Run:
        kind = KIND.get(objective, "prompts")
        chosen: dict[str, Any] = dict(tune or {})
        if kind == "prompts":
            chosen.setdefault("rollouts", {"reward": ["rewards.py:digits"], "num_generations": 3})
            chosen["options"] = {"max_completion_length": 4, **chosen.get("options", {})}
        run = {**OPTIONS, "doctor": False, **sections.pop("run", {})}
        run = {option: value for option, value in run.items() if value is not None}
        asked = {"tune": chosen, "run": run, **sections}
        return limpid.tune(objective, base, records(kind), asked, name)

    return tune
