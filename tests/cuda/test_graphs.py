"""CUDA graphs on a graphics processor: what only it can refuse, and compiled kernels inside; see also
tests/pretend/graphs_there.py, which runs there as well."""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import limpid
from limpid.training import cuda_graphs
from limpid.training.step import step
from pretend.graphs_there import batch, begun, configured, same

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]


@pytest.mark.usefixtures("unchecked")  # the compiler does not trace the checker
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_compiled_blocks_are_launched_as_a_whole(precision: str) -> None:
    """Micro-batches, a limit that clips every step, and looks in between."""
    config = configured(3, precision=precision, compile="on")
    config = replace(config, update=replace(config.update, max_grad_norm=0.1))
    plain, graphed = begun(config, recorded=False), begun(config, recorded=True)
    for number in range(30):
        looked_into = number % 7 == 0
        one = step(plain, batch(number, 3), config)
        assert step(graphed, batch(number, 3), config, looked_into=looked_into) == one
        assert one.grad_norm > 0.1
    assert graphed.graphs is not None
    assert graphed.graphs.launches > 50
    assert same(plain, graphed)


@pytest.mark.parametrize("parts", [1, 2])
def test_an_operation_that_waits_ends_the_recording_and_nothing_else(
    parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, was = configured(parts), cuda_graphs.Pass.run
    plain, waiting = begun(config, recorded=False), begun(config, recorded=True)

    def reads(self: cuda_graphs.Pass) -> Any:
        made = was(self)
        float(self.loss)  # type: ignore[arg-type]
        return made

    monkeypatch.setattr(cuda_graphs.Pass, "run", reads)
    for number in range(10):
        assert step(waiting, batch(number, parts), config) == step(plain, batch(number, parts), config)
    assert waiting.graphs is not None
    assert not waiting.graphs.is_able
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert len(torch.rand(3, device="cuda").unique()) == 3
    assert same(plain, waiting)


def test_memory_is_given_back() -> None:
    config = configured(model={"d_model": 256, "num_layers": 4}, batch_size=512)
    state = begun(config, recorded=True)
    for number in range(8):
        step(state, batch(number, rows=512), config)
    assert state.graphs is not None
    assert state.graphs.launches
    held = torch.cuda.memory_reserved()
    state.graphs.release()
    state.optimizer.zero_grad(set_to_none=True)
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < held / 2
    for number in range(8):
        step(state, batch(number, rows=512), config)
    assert state.graphs.launches > 8


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("doctor", "compiled"), [(False, "off"), (True, "off"), (True, "on")])
def test_a_run_evaluates_samples_and_resumes_to_the_bit(
    doctor: bool, compiled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that stops goes on kernel by kernel where the whole one launched graphs; its step is opened and holds."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("the small river stone hears a bird that finds some green tree. " * 400)
    plan: dict[str, Any] = {
        "data": {"paths": ["text.txt"], "tokenizer": "bytes"},
        "model": {"d_model": 48, "num_layers": 2, "num_heads": 3, "context_length": 32},
        "update": {"warmup_steps": 0, "schedule": "constant"},
        "run": {"max_steps": 30, "batch_size": 4, "eval_steps": 6, "save_steps": 10, "save_total_limit": 0,
                "gradient_accumulation_steps": 2, "sample_steps": 8, "precision": "bf16", "doctor": doctor,
                "compile": compiled},
    }  # fmt: skip
    whole = limpid.train(plan, "whole")
    half = limpid.train({**plan, "run": {**plan["run"], "max_steps": 20}}, "half")
    limpid.resume(half, 30)
    losses = [[one["loss"] for one in run.read_metrics().steps] for run in (whole, half)]
    assert len(losses[0]) == 30
    assert losses[0] == losses[1]
    assert limpid.trace(whole, step=26).step.verdict.agrees
