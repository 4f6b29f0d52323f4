"""A recorded step holds everything that the step depended on, and recording changes nothing."""

import json
from pathlib import Path

import ml_dtypes  # noqa: F401  gives NumPy the name bfloat16
import numpy as np
import pytest
from safetensors import safe_open

import limpid
from limpid.config import ModelConfig, TrainConfig
from limpid.config.options import from_dict
from limpid.errors import CheckpointError
from limpid.quantities import parameters, quantities
from limpid.tracing import Trace
from limpid.training.loop import loop
from limpid.training.replay import record_past
from limpid.training.start import start
from small import config, quiet


def sampler(*_) -> str:
    return ""


def opened(file: Path) -> tuple[dict[str, np.ndarray], dict]:
    with safe_open(file, "numpy") as record:
        return {name: record.get_tensor(name) for name in record.keys()}, json.loads(record.metadata()["limpid"])  # noqa: SIM118


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": {"dropout": 0.2, "positions": "learned", "norm": "layer", "mlp": "plain", "attention_bias": True}},
        {"model": {"norm_placement": "post", "qk_norm": True, "tied": False}, "gradient_accumulation_steps": 2},
        {"precision": "fp16", "update": {"optimizer": "momentum"}},
        {"precision": "bf16", "update": {"optimizer": "sgd"}},
    ],
    ids=str,
)
def test_a_record_is_complete_and_leaves_the_run_as_it_was(data: Path, options: dict) -> None:
    plain = start(config(data, **options), "plain", quiet())
    loop(plain, quiet(), sampler)
    recorded = start(config(data, record_steps=(5,), **options), "recorded", quiet())
    loop(recorded, quiet(), sampler)
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (plain.run.checkpoint(12) / name).read_bytes() == (recorded.run.checkpoint(12) / name).read_bytes()

    tensors, meta = opened(recorded.run.recorded_step(5))
    kept = from_dict(TrainConfig, meta["config"])
    model: ModelConfig = kept.model
    for parameter in parameters(model):
        assert tensors[f"before/{parameter.name}"].shape == parameter.shape
        for part in ("fast/grad({})", "after/{}"):
            assert tensors[part.format(parameter.name)].shape == parameter.shape
    for quantity in quantities(model):
        fused = {"scores", "weights"} if not model.dropout else set()
        inside = quantity.name.split(".")[-1] in fused or quantity.name in ("logits", "log_probabilities")
        path = "plain" if inside else "fast"
        assert f"{path}/{quantity.name}" in tensors
        if quantity.name != "embed.positions" or model.positions == "learned":
            assert tensors[f"{path}/grad({quantity.name})"].shape == tensors[f"{path}/{quantity.name}"].shape
    rows = kept.run.batch_size * kept.run.gradient_accumulation_steps
    assert tensors["batch/tokens"].shape == (rows, model.context_length)
    assert meta["step"] == 5
    assert meta["labels"] == rows * model.context_length
    assert set(meta["token_texts"]) == {str(t) for t in np.unique([tensors["batch/tokens"], tensors["batch/targets"]])}


def test_a_step_recorded_afterwards_equals_the_one_recorded_while_training(data: Path) -> None:
    training = start(config(data, record_steps=(6,), model={"dropout": 0.1}), "run", quiet())
    loop(training, quiet(), sampler)
    file = training.run.recorded_step(6)
    during = file.read_bytes()
    file.unlink()
    assert record_past(training.run, 6) == file
    (now, _), (then, _) = opened(file), ({}, {})
    file.write_bytes(during)
    then, _ = opened(file)
    assert now.keys() == then.keys()
    for name, array in now.items():
        assert array.tobytes() == then[name].tobytes(), name


@pytest.mark.parametrize("place", [-1, 9, "digit", "name"])
def test_a_recorded_step_that_is_damaged_is_named_and_judges_no_engine(data: Path, place: int | str) -> None:
    training = start(config(data, record_steps=(1,), max_steps=1), "run", quiet())
    loop(training, quiet(), sampler)
    file = training.run.recorded_step(1)
    content = bytearray(file.read_bytes())
    assert Trace.open(file, on_disk=False).step.verdict.agrees
    if isinstance(place, int):
        content[place] ^= 1
    else:
        content[content.index(b'"sha256":"') + (12 if place == "digit" else 3)] = ord("`")  # one bit from an a
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"is damaged: its SHA-256 is|cannot open the recorded step") as caught:
        Trace.open(file, on_disk=False).document()
    assert "\n" not in str(caught.value)


def test_the_first_step_recorded_while_the_doctor_looks_on_opens(data: Path) -> None:
    """Its passes on batches of its own are not the step's."""
    run = limpid.train(config(data, max_steps=3, record_steps=(1,)), "first")
    trace = Trace.open(run.recorded_step(1))
    assert len(trace.step.parameters) == len(trace.record.trained)
