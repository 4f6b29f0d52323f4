"""The moving average of the weights: what it is, resumed, named, recorded, planned."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import limpid
import small
from limpid.errors import CheckpointError
from limpid.model.weights import load_weights
from limpid.planning import engine_memory
from limpid.source import find_checkpoint, find_model
from limpid.tracing import Trace
from limpid.tracing.verdict import Beyond, Holds
from limpid.training.average import in_place_of_weights
from limpid.training.replay import record_past
from limpid.training.start import start
from limpid.training.step import step

config = partial(small.config, doctor=False)

EMA = {"ema_decay": 0.6}
"""Reached at update 13 of (1 + t) / (10 + t), so that both cases of the decay are met."""


def checkpoint_bytes(run, number: int) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in run.checkpoint(number).glob("*.safetensors")}


def test_it_is_what_its_equation_says_and_what_diffusers_keep(data: Path) -> None:
    """Against the sum written out: every set of weights with its product of decays."""
    training = start(config(data, update=EMA, precision="fp64", max_steps=16), "run")
    name = "blocks.0.mlp.up.weight"
    weights = [training.state.model.get_parameter(name).detach().clone()]
    for number in range(1, 17):
        step(training.state, training.batches.batch(number), training.config)
        weights.append(training.state.model.get_parameter(name).detach().clone())
    decays = [min(0.6, (1 + t) / (10 + t)) for t in range(1, 17)]
    shares = [math.prod(decays)] + [(1 - d) * math.prod(decays[t + 1 :]) for t, d in enumerate(decays)]
    assert sum(shares) == pytest.approx(1)
    expected = sum(share * tensor for share, tensor in zip(shares, weights, strict=True))
    torch.testing.assert_close(training.state.average[name], expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("options", [{}, {"precision": "fp16"}, {"model": {"lora_rank": 2}}], ids=str)
def test_a_resumed_run_has_the_same_average_and_training_does_not_notice_it(data: Path, options: dict) -> None:
    chosen = config(data, update=EMA, max_steps=6, save_steps=3, **options)
    run = limpid.train(chosen, "averaged")
    whole = checkpoint_bytes(run, 6)
    limpid.resume(f"{run.path}@3")
    assert checkpoint_bytes(run, 6) == whole
    plain = checkpoint_bytes(limpid.train(config(data, max_steps=6, save_steps=3, **options), "plain"), 6)
    assert plain == {name: content for name, content in whole.items() if name != "ema.safetensors"}


def test_what_is_frozen_is_in_no_average_and_in_every_model(data: Path) -> None:
    run = limpid.train(config(data, update=EMA | {"frozen": ("embed.*",)}, max_steps=4), "frozen")
    _, own = load_weights(find_model("frozen"))
    _, averaged = load_weights(find_model("frozen@ema"))
    assert torch.equal(own["embed.tokens.weight"], averaged["embed.tokens.weight"])
    assert not torch.equal(own["final_norm.weight"], averaged["final_norm.weight"])
    assert "embed.tokens.weight" not in Trace.open(record_past(run, 4)).record.names - {"before/embed.tokens.weight"}


def test_it_has_a_name_wherever_a_model_has_one(data: Path) -> None:
    limpid.train(config(data, update=EMA, max_steps=6, save_steps=3), "run")
    assert (find_model("run@ema").step, find_model("run@3@ema").step) == (6, 3)
    assert str(find_model("run@ema")) == "runs/run@6@ema"
    model, _ = limpid.load("run@ema")
    limpid.export("run@ema", "folder")
    again, _ = limpid.load("folder")
    assert torch.equal(model.final_norm.weight, again.final_norm.weight)
    assert not torch.equal(model.final_norm.weight, limpid.load("run")[0].final_norm.weight)
    assert limpid.compare("run@ema", "run@ema:transformers", backward=False).agrees  # model/ has the weights themselves
    assert repr(limpid.evaluate("run@ema", text="the cat sees")).startswith("Evaluation(run after step 6, averaged: ")
    limpid.train(config(data, max_steps=3), "without")
    with pytest.raises(CheckpointError, match="holds no average of the weights: train with --ema-decay"):
        find_model("without@ema")
    with pytest.raises(CheckpointError, match="no step was taken: leave out @ema"):
        find_checkpoint("run@ema")


def test_weights_come_back_bit_for_bit_after_the_average_was_in_their_place(data: Path) -> None:
    state = start(config(data, update=EMA), "run").state
    step(state, start(config(data), "other").batches.batch(1), config(data, update=EMA))
    before = {name: parameter.detach().clone() for name, parameter in state.model.named_parameters()}
    with in_place_of_weights(state.average, state.model):
        assert all(torch.equal(state.model.get_parameter(name), mean) for name, mean in state.average.items())
    assert all(torch.equal(parameter, before[name]) for name, parameter in state.model.named_parameters())


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
def test_the_trace_derives_it_a_second_time(data: Path, optimizer: str) -> None:
    chosen = config(data, update=EMA | {"optimizer": optimizer}, max_steps=4, record_steps=(3, 4))
    run = limpid.train(chosen, "recorded")
    for number in (3, 4):
        trace = Trace.open(run.recorded_step(number))
        checks = [one for parameter in trace.step.parameters for one in parameter.checks if one.name.startswith("ema(")]
        assert len(checks) == len(trace.record.trained)
        assert all(isinstance(check.verdict, Holds) for check in checks), checks
        assert trace.array("ema(final_norm.weight)").shape == (24,)
        lines = trace.explain("final_norm.weight", (3,)).update
        made, engine = (float(line.split()[-1]) for line in lines[-2:])
        assert made == pytest.approx(engine, rel=1e-6)


def test_the_trace_finds_an_average_of_another_decay(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = limpid.training.average.move
    monkeypatch.setattr(
        "limpid.training.average.move", lambda average, model, update, number: own(average, model, update, number + 1)
    )
    run = limpid.train(config(data, update=EMA, max_steps=3, record_steps=(3,)), "late")
    parameters = Trace.open(run.recorded_step(3)).step.parameters
    wrong = {one.name for parameter in parameters for one in parameter.checks if isinstance(one.verdict, Beyond)}
    assert wrong
    assert all(name.startswith("ema(") for name in wrong)


def test_memory_counts_it(data: Path) -> None:
    with_it, without = (
        engine_memory.total_bytes(config(data, update=update, model={"vocab_size": 257})) for update in (EMA, {})
    )
    size = sum(np.prod(tensor.shape) for tensor in start(config(data, update=EMA), "run").state.average.values())
    assert with_it - without == 4 * size
