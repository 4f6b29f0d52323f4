"""Steps whose passes are recorded and launched as a whole: the very steps of one kernel after the other.

On a graphics processor where there is one, in CUDA graphs; else on the device of pretence, in graphs of pretence.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd.graph import get_gradient_edge

import pretend
from limpid.config import ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.data.batches import MicroBatch
from limpid.doctor.doctor import Doctor
from limpid.quantities import NO_LABEL
from limpid.training import cuda_graphs
from limpid.training.cuda_graphs import REPEATS, CudaGraphs, OnDevice
from limpid.training.mesh import Mesh
from limpid.training.record import record_step
from limpid.training.state import State, fresh_state
from limpid.training.step import Outcome, begin_next, step
from pretend.tape import OnTape

THERE, RECORDER = ("cuda", OnDevice) if torch.cuda.is_available() else (pretend.NAME, OnTape)
SIZES = {"vocab_size": 61, "d_model": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "context_length": 24}


@pytest.fixture(autouse=True)
def device() -> None:
    if THERE == pretend.NAME:
        pretend.install()


def configured(parts: int = 1, model: dict[str, Any] | None = None, **run: Any) -> TrainConfig:
    options = {"precision": "fp32", "max_steps": 40, "batch_size": 3, "gradient_accumulation_steps": parts, **run}
    return TrainConfig(
        ModelConfig(**(SIZES | (model or {}))), update=UpdateConfig(warmup_steps=2), run=RunConfig(**options)
    )


def begun(config: TrainConfig, *, recorded: bool, where: str = THERE) -> State:
    state = fresh_state(config, Mesh(torch.device(where)))
    state.graphs = CudaGraphs(state.model, RECORDER) if recorded else None
    return state


def batch(number: int, parts: int = 1, rows: int = 3, unlabelled: int = 0) -> list[MicroBatch]:
    drawn = np.random.default_rng(number)
    made = []
    for part in range(parts):
        tokens = drawn.integers(0, 61, (rows, 25))
        targets = tokens[:, 1:].copy()
        targets[0, :unlabelled] = NO_LABEL
        made.append(MicroBatch({"tokens": tokens[:, :-1], "targets": targets}, tuple(range(part, part + rows))))
    return made


def weights(state: State) -> dict[str, torch.Tensor]:
    return {name: one.detach().cpu() for name, one in state.model.named_parameters()}


def same(one: State, other: State) -> bool:
    there = weights(other)
    return all(torch.equal(tensor, there[name]) for name, tensor in weights(one).items())


MODELS: dict[str, dict[str, Any]] = {
    "default": {},
    "GPT": {"positions": "learned", "norm": "layer", "mlp": "plain", "activation": "gelu", "mlp_bias": True},
    "untied": {"tied": False, "qk_norm": True},
    "adapted": {"lora_rank": 2, "use_dora": True},
}


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("model", MODELS)
def test_thirty_steps_are_the_same_to_the_bit(model: str, parts: int) -> None:
    config = configured(parts, MODELS[model])
    plain, graphed = begun(config, recorded=False), begun(config, recorded=True)
    for number in range(30):
        ones = step(plain, batch(number, parts), config)
        assert step(graphed, batch(number, parts), config) == ones
    assert graphed.graphs is not None
    assert graphed.graphs.launches >= parts * (30 - REPEATS - 2)
    assert same(plain, graphed)


@pytest.mark.parametrize("run", [{"gradient_checkpointing": "on"}, {"precision": "fp16"}, {"precision": "bf16"}])
def test_in_other_formats_and_with_activations_computed_again(run: dict[str, Any]) -> None:
    config = configured(2, **run)
    plain, graphed = begun(config, recorded=False), begun(config, recorded=True)
    for number in range(12):
        assert step(graphed, batch(number, 2), config) == step(plain, batch(number, 2), config)
    assert graphed.graphs is not None
    assert graphed.graphs.launches > 12


@pytest.mark.parametrize("parts", [1, 2])
def test_a_step_that_was_begun_while_another_was_told_of_is_the_same(parts: int) -> None:
    """One that is then looked into runs anew; a batch that is not the one begun with is not mistaken for it."""
    config = configured(parts)
    plain, graphed = begun(config, recorded=False), begun(config, recorded=True)
    upcoming = batch(0, parts)
    assert graphed.graphs is not None
    for number in range(24):
        given = upcoming if number % 7 else batch(100 + number, parts)
        assert step(graphed, given, config, looked_into=number % 5 == 0) == step(plain, given, config)
        upcoming = batch(number + 1, parts)
        before = graphed.graphs.launches
        begin_next(graphed, upcoming)
        assert graphed.graphs.launches - before == (number > 2)
    assert same(plain, graphed)


def test_what_varies_is_launched_kernel_by_kernel() -> None:
    """Another number of rows or of labels; what was recorded serves again when its kind comes back."""
    config = configured()
    plain, graphed = begun(config, recorded=False), begun(config, recorded=True)
    graphs, launches = graphed.graphs, []
    assert graphs is not None
    kinds = [{}] * 4 + [{"rows": 2}, {"unlabelled": 5}, {}, {"unlabelled": 3}] + [{"rows": 2}] * 3 + [{}]
    for number, kind in enumerate(kinds):
        before = graphs.launches
        assert step(graphed, batch(number, **kind), config) == step(plain, batch(number, **kind), config)
        launches.append(graphs.launches - before)
    assert launches == [0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 1, 0]
    assert same(plain, graphed)


def test_a_step_that_is_looked_into_lies_between(tmp_path: Path) -> None:
    """Evaluations, hooks, and a step that is written down as a whole, whose gradients are not those of a graph."""
    config = configured(2)
    plain, graphed = begun(config, recorded=False), begun(config, recorded=True)
    seen: list[str] = []
    for number in range(20):
        given = batch(number, 2)
        if number == 9:
            outcomes = [
                record_step(
                    tmp_path / f"{state.graphs is None}.safetensors", state, given, config, run="", token_text=str
                )
                for state in (plain, graphed)
            ]
            assert outcomes[0] == outcomes[1]
            continue
        for state in (plain, graphed):
            if number % 5 == 0:
                with torch.no_grad():
                    state.model.eval()(torch.zeros(1, 7, dtype=torch.long, device=THERE))
        hook = graphed.model.register_forward_pre_hook(lambda *_: seen.append("pass"))
        looked_into = step(graphed, given, config, looked_into=number % 4 == 0)
        hook.remove()
        assert looked_into == step(plain, given, config)
    assert len(seen) == 2 * 19
    assert same(plain, graphed)


class Once:
    """Records nothing, and so keeps nothing."""

    def warm_up(self, work: Any) -> None:
        work()

    def record(self, work: Any) -> Any:
        return (lambda: None), work()


@pytest.mark.parametrize("model", MODELS)
def test_no_graph_of_autograd_outlives_its_recording(model: str) -> None:
    """Else kernels that come one by one later would wait for the stream that it was recorded on."""
    config = configured(model=MODELS[model])
    state = begun(config, recorded=False)
    state.graphs = CudaGraphs(state.model, Once)
    for number in range(REPEATS + 1):
        step(state, batch(number), config)
    assert state.graphs.launches == 1
    for parameter in state.graphs.trained:
        get_gradient_edge(parameter).node.metadata["seen"] = True
    assert not any("seen" in get_gradient_edge(parameter).node.metadata for parameter in state.graphs.trained)


def test_what_a_graph_cannot_hold_is_left_to_be_launched_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that reads its own number, and a hook of a part of the model."""
    config = configured()
    hooked = begun(config, recorded=True)
    hooked.model.blocks[0].register_forward_hook(lambda *_: None)
    for number in range(5):
        step(hooked, batch(number), config)
    assert hooked.graphs is not None
    assert not hooked.graphs.launches
    waiting = begun(config, recorded=True)
    was = cuda_graphs.Pass.run

    def reads(self: cuda_graphs.Pass) -> Any:
        made = was(self)
        float(self.loss)  # type: ignore[arg-type]
        return made

    monkeypatch.setattr(cuda_graphs.Pass, "run", reads)
    for number in range(5):
        step(waiting, batch(number), config)
    assert waiting.graphs is not None
    assert not waiting.graphs.is_able
    assert same(hooked, waiting)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_doctor_sees_every_step_and_says_the_same(compiled: bool) -> None:
    """Steps that it looks into run kernel by kernel; of the others it sees what goes in and comes out."""

    def block(block: torch.nn.Module, *rest: Any) -> Any:
        return block(*rest)

    block._torchdynamo_orig_callable = block  # type: ignore[attr-defined]  # by which it knows compiled code
    config, told, outcomes = configured(2), [], []
    config = replace(config, update=replace(config.update, learning_rate=0.8, warmup_steps=0, schedule="constant"))
    launches = 0
    for recorded in (False, True):
        state, found, upcoming = begun(config, recorded=recorded), [], batch(0, 2)
        state.model.compiled = block if compiled else None
        doctor = Doctor(state.model, state.optimizer, say=False, total_steps=60)
        for number in range(60):
            outcome: Outcome = step(state, upcoming, config, looked_into=doctor.looks_inside)
            begin_next(state, upcoming := batch(number + 1, 2))
            doctor.step(outcome.loss, (), outcome.metrics)
            found.append(outcome)
        doctor.close()
        assert doctor.steps == 60
        assert dict(doctor.skipped) == {}
        told.append(([str(one) for one in doctor.findings], str(doctor.description)))
        outcomes.append(found)
        launches = state.graphs.launches if state.graphs is not None else 0
    assert told[0] == told[1]
    assert told[0][0]
    assert outcomes[0] == outcomes[1]
    looked_into = 0 if compiled else 6  # begun with, and then made one by one
    assert launches == 2 * (60 - 3 - REPEATS - looked_into) + looked_into + 1


def test_gradients_that_are_no_numbers_are_told_as_on_the_host() -> None:
    """Their norm is read behind an update that left the weights; the step is repeated, and says where they arise."""
    config, told = configured(), []
    for where in ("cpu", THERE):
        state = begun(config, recorded=where == THERE, where=where)
        doctor, waited = Doctor(state.model, state.optimizer, say=False, total_steps=40), 0
        for number in range(26):
            if number == 25:
                with torch.no_grad():
                    state.model.get_parameter("blocks.1.mlp.up.weight")[3] = torch.inf
            waits = pretend.waits() if THERE == where == pretend.NAME else 0
            outcome = step(state, batch(number), config, looked_into=doctor.looks_inside)
            if number == 23 and waits:
                waited = pretend.waits() - waits
            doctor.step(outcome.loss, (), outcome.metrics)
        doctor.close()
        assert not outcome.updated
        assert waited < 12
        told.append([(one.rule, one.step, one.where, one.says) for one in doctor.findings if one.severity != "notice"])
        assert dict(doctor.skipped) == {}
    assert told[0] == told[1]
    assert told[0]
