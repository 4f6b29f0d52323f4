"""A recorded step whose description was damaged ends in one line."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded import configuration, record
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from limpid.errors import CheckpointError, LimpidError
from limpid.tracing import Trace
from limpid.tracing.record import Record

STRANGE: list[Any] = [None, True, -1, 0, 0.5, 10**30, math.nan, "", "nonsense", [], {}, [[[]]], "x" * 9999]


@pytest.mark.parametrize(
    ("metadata", "said"),
    [("{", "is not JSON"), ("[1]", "is list"), ("[" * 100_000, "nested too deeply"), ("{}", "format version None")],
)
def test_metadata_that_is_none_is_one_line(metadata: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "step.safetensors"
    save_file({"x": np.zeros(1)}, file, {"limpid": metadata})
    with pytest.raises(CheckpointError, match=said) as caught:
        _ = Record(file).meta
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("step"), configuration("llama", "fp32"))


def rewritten(step: Path, to: Path, meta: dict[str, Any], tensors: dict[str, Any] | None = None) -> Path:
    save_file(load_file(step) | (tensors or {}), to, {"limpid": json.dumps(meta)})
    return to


def fits(own: Any, strange: Any) -> bool:
    """Whether one could stand for the other as far as types tell."""
    numbers = isinstance(strange, int | float) and isinstance(own, int | float) and not isinstance(own, bool)
    return numbers or type(strange) is type(own)


def test_a_field_of_another_type_is_one_line(step: Path, tmp_path: Path) -> None:
    meta = Record(step).meta
    asked = ("step", "update_number", "updated", "config", "precision", "learning_rate", "labels", "micro_batches",
             "loss_scale", "token_texts", "run")  # fmt: skip
    for field in asked:
        for strange in STRANGE:
            if fits(meta[field], strange):
                continue
            with pytest.raises(LimpidError) as caught:
                Record(rewritten(step, tmp_path / "damaged.safetensors", {**meta, field: strange}))
            assert "\n" not in str(caught.value)
        lacking = {name: value for name, value in meta.items() if name != field}
        without = rewritten(step, tmp_path / "damaged.safetensors", lacking)
        with pytest.raises(CheckpointError, match=field):
            Record(without)


def test_tokens_that_are_no_whole_numbers_are_named(step: Path, tmp_path: Path) -> None:
    tokens = {"batch/tokens": load_file(step)["batch/tokens"].astype(np.float64)}
    with pytest.raises(CheckpointError, match=r"batch/tokens is fp64, expected whole numbers"):
        Record(rewritten(step, tmp_path / "damaged.safetensors", Record(step).meta, tokens))


def test_a_header_that_was_written_anew_is_noticed(step: Path, tmp_path: Path) -> None:
    with safe_open(step, "numpy") as file:
        written = file.metadata()
    changed = {**written, "limpid": written["limpid"].replace('"labels"', '"labels" ')}
    save_file(load_file(step), tmp_path / "damaged.safetensors", changed)
    with pytest.raises(CheckpointError, match="is damaged: its SHA-256"):
        Record(tmp_path / "damaged.safetensors").require_whole()


def test_damage_is_named_before_what_it_leads_to(step: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.safetensors"
    tokens = Record(step).mapped("batch/tokens")
    content = bytearray(step.read_bytes())
    content[tokens.offset + 3] ^= 64  # a token that the vocabulary does not have
    damaged.write_bytes(content)
    with pytest.raises(CheckpointError, match="is damaged: its SHA-256"):
        Trace.open(damaged).step  # noqa: B018
    assert not damaged.with_suffix(".trace.json").exists()
