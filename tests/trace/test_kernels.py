"""A fault in any fused kernel is found, whatever its size, and pinned to it; an honest kernel is never accused."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from planted import FAULTS, RESULTS, disagreements, pinned, planted
from recorded import batch, configuration, record

import limpid.model.kernels.attention
from limpid.trace.kernels.random_rounding import RUNS, quantile
from limpid.training.record import Observation
from limpid.training.state import fresh_state
from limpid.training.step import backward


def small(variant: str, precision: str):
    config = configuration(variant, precision)
    return replace(config, model=replace(config.model, num_layers=1))


EVERY = [(name, fault, "bf16") for name in RESULTS for fault in FAULTS]
OTHER_FORMATS = [
    (name, fault, precision)
    for name in RESULTS
    for fault in ("1% too large", "one entry 1% too large")
    for precision in ("fp32", "fp16")
]


@pytest.mark.parametrize(("name", "fault", "precision"), EVERY + OTHER_FORMATS)
def test_a_fault_is_found_and_pinned_to_its_kernel(name: str, fault: str, precision: str, tmp_path: Path) -> None:
    result = RESULTS[name]
    if not result.has(fault):
        assert result.place in (0, 1)  # a scalar or a vector has no rows
        return
    with planted(result, FAULTS[fault]):
        found = disagreements(record(tmp_path, small(result.variant, precision), before=0))
    assert pinned(result, found), found


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_pytorchs_own_attention_is_judged_by_random_rounding(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limpid.model.kernels.attention, "MATERIALISED_POSITIONS", 1)
    assert disagreements(record(tmp_path, small("llama", precision), before=0)) == []
    own = limpid.model.attention.attention
    monkeypatch.setattr(limpid.model.attention, "attention", lambda *arguments: 1.03 * own(*arguments))
    found = disagreements(record(tmp_path, small("llama", precision), before=0))
    assert "blocks.0.attention.mixed forward" in found


@pytest.mark.parametrize(("precision", "recomputed"), list(itertools.product(["fp32", "bf16"], [False, True])))
def test_an_observer_changes_no_bit(precision: str, recomputed: bool) -> None:
    config = configuration("llama", precision)
    gradients = []
    for observer in (None, Observation()):
        state = fresh_state(config)
        state.model.recomputed = recomputed
        losses = backward(state, batch(config, 1), config, observe=None if observer is None else observer.observe)
        gradients.append([losses[0].value, *(parameter.grad for parameter in state.model.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
    assert observer is not None
    assert all(len(parts) == 1 for parts in observer.values.values())


def test_a_compiled_block_is_observed_at_its_border_only() -> None:
    config = configuration("llama", "fp32")
    state, seen = fresh_state(config), Observation()
    given = []
    state.model.compiled = lambda block, x, *rest: given.append(rest[-1].observe) or block(x, *rest)
    backward(state, batch(config, 1), config, observe=seen.observe)
    assert given == [None, None]
    assert {name for name in seen.values if name.startswith("blocks.")} == {
        "blocks.0.residual2", "blocks.1.residual2"
    }  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_whole_block_is_judged_by_random_rounding(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_fused(block, x, *rest):
        return block(x, *rest)

    monkeypatch.setattr(
        limpid.model.transformer.Transformer, "compile_blocks", lambda model: setattr(model, "compiled", run_fused)
    )
    config = small("llama", precision)
    config = replace(config, run=replace(config.run, compile="on"))
    assert disagreements(record(tmp_path, config, before=0)) == []
    result = replace(RESULTS["attention: key"])
    with planted(result, FAULTS["wrong sign"]):
        found = disagreements(record(tmp_path, config, before=0))
    assert "blocks.0.attention.key.weight backward" in found


def test_the_limit_of_random_rounding_is_students() -> None:
    rng = np.random.default_rng(0)
    t = rng.standard_normal(200_000) / np.sqrt(np.square(rng.standard_normal((200_000, RUNS))).mean(-1))
    beyond = np.mean(np.abs(t) > quantile(0.01, 1))
    assert beyond == pytest.approx(0.01, abs=0.001)
