"""Steps of one block, and what is said of those that are not finite."""

import warnings
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import recorded as module
from recorded import configuration as of_two_blocks
from rich.console import Console

from limpid.config import TrainConfig
from limpid.tracing import show_step, verify_step


def configuration(variant: str, precision: str, **options) -> TrainConfig:
    """One block is enough: everything that there is, is in it."""
    config = of_two_blocks(variant, precision)
    return replace(config, model=replace(config.model, num_layers=1, **options))


def first(step):
    origin = step.verdict()
    assert origin.verdict == "not finite"
    return origin


def printed(path: Path, **options):
    out = StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        code = show_step(path, console=Console(file=out, width=240), **options)
    return out.getvalue(), code, verify_step(path)


def with_state(monkeypatch: pytest.MonkeyPatch, change) -> None:
    """Change the model just before the step that is recorded."""
    original = module.record_step

    def record_step(file, state, *rest, **options):
        change(state.model)
        return original(file, state, *rest, **options)

    monkeypatch.setattr(module, "record_step", record_step)
