"""Malformed inputs for all that limpid reads: read, or refused in one line. More of them: python -m benchmarks.fuzz."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from benchmarks.fuzz.inputs import Finding, outcome
from benchmarks.fuzz.mutate import mutated
from benchmarks.fuzz.seeds import make
from benchmarks.fuzz.targets import TARGETS
from safetensors.numpy import save

from limpid.errors import LONGEST, CheckpointError
from limpid.manifest import UNSEALED

INPUTS = 25
MIXTURE = {"model_type": "mixtral", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 9}
STATE = {"model_type": "mamba", "hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 9}
STEP = {"step": 1, "loss": 1.0, "seconds": 1.0, "tokens_per_second": 9.0, "peak_share": 0.1, "num_tokens": 9}
FOUND = [
    ("metrics", STEP | {"tokens_per_second": "nonsense"}),
    ("metrics", STEP | {"loss": "\udfff"}),
    ("metrics", {"step": 1, "eval_loss": "x"}),
    ("metrics", STEP | {"step": 10**30}),
    ("metrics", STEP | {"num_tokens": 0.5}),
    ("metrics", {name: value for name, value in STEP.items() if name != "num_tokens"}),
    ("metrics", STEP | {"peak_share": float("nan")}),
    ("manifest", {"files": {"state.json": {"bytes": float("inf"), "sha256": ""}}}),
    ("architecture", MIXTURE | {"intermediate_size": 8, "num_local_experts": 4, "num_experts_per_tok": -0.0}),
    ("architecture", STATE | {"hidden_size": float("inf")}),
    ("architecture", STATE | {"state_size": 1e308}),
    ("architecture", STATE | {"state_size": -(10**30)}),
    ("template", {"eos_token": "\udfff"}),
]


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("stock"))


@pytest.mark.parametrize("name", TARGETS)
def test_malformed_inputs_are_refused_in_one_line(name: str, stock: Path, tmp_path: Path) -> None:
    valid, read = TARGETS[name].make(stock, tmp_path)
    assert not any(outcome(read, data) for data in valid)
    rng = random.Random(name)
    for _ in range(INPUTS):
        came = outcome(read, mutated(rng.choice(valid), TARGETS[name].form, rng))
        assert not isinstance(came, Finding), came


@pytest.mark.parametrize(("name", "document"), FOUND, ids=range(len(FOUND)))
def test_what_was_found_is_refused_in_one_line(
    name: str, document: dict[str, object], stock: Path, tmp_path: Path
) -> None:
    _, read = TARGETS[name].make(stock, tmp_path)
    came = outcome(read, json.dumps(document).encode())
    assert not isinstance(came, Finding), came


def test_a_stored_batch_with_one_row_number_for_rows_is_refused(stock: Path, tmp_path: Path) -> None:
    _, read = TARGETS["batch"].make(stock, tmp_path)
    metadata = {"rows": "[1]", "measured": "[{}]", **UNSEALED}
    assert outcome(read, save({"0/tokens": np.ones((1, 2))}, metadata)) is True


def test_a_message_that_quotes_a_whole_file_is_cut_in_its_middle() -> None:
    said = str(CheckpointError("it begins " + "x" * 10**5 + " and ends"))
    assert len(said) <= LONGEST
    assert said.startswith("it begins x")
    assert said.endswith("x and ends")
