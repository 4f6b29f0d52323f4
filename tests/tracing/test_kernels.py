"""A fault in any fused kernel is found, whatever its size, and pinned to it; an honest kernel is never accused."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from planted import FAULTS, OWN_RESULTS, RESULTS, SAMPLED_RESULTS, disagreements, pinned, planted
from recorded import batch, configuration, record

import limpid.model.kernels.attention
from limpid import maths
from limpid.config import TrainConfig
from limpid.maths import alignment
from limpid.maths.chain import Link
from limpid.maths.rounding import FORMATS
from limpid.model.kernels.native_attention import serves
from limpid.tracing.kernels.attention import NativeAttention, ShortAttention
from limpid.tracing.kernels.gate import EagerGate
from limpid.tracing.kernels.kernel import Formats, Kernel
from limpid.tracing.kernels.linear_cross_entropy import LinearCrossEntropy, SoftmaxOfLinear, TokenLogProbabilities
from limpid.tracing.kernels.random_rounding import RUNS, quantile
from limpid.training.record import Observation
from limpid.training.state import fresh_state
from limpid.training.step import backward


def small(variant: str, precision: str):
    config = configuration(variant, precision)
    return replace(config, model=replace(config.model, num_layers=1))


EVERY = [(name, fault, "bf16") for name, result in RESULTS.items() for fault in result.faults]
OTHER_FORMATS = [
    (name, fault, precision)
    for name in RESULTS
    for fault in ("1% too large", "one entry 1% too large")
    for precision in ("fp32", "fp16")
]


@pytest.mark.parametrize(("name", "fault", "precision"), EVERY + OTHER_FORMATS)
def test_a_fault_is_found_and_pinned_to_its_kernel(name: str, fault: str, precision: str, tmp_path: Path) -> None:
    result = RESULTS[name]
    with planted(result, FAULTS[fault]):
        found = disagreements(record(tmp_path, small(result.variant, precision), before=0))
    assert pinned(result, found), found


@pytest.mark.parametrize(
    ("name", "fault"), [(name, fault) for name, one in OWN_RESULTS.items() for fault in one.faults]
)
def test_a_fault_of_limpids_own_kernel_is_found_and_pinned_where_it_serves(
    name: str, fault: str, tmp_path: Path
) -> None:
    result, serving = OWN_RESULTS[name], serves("cpu", torch.bfloat16, 16)
    with planted(result, FAULTS[fault]):
        found = disagreements(record(tmp_path, small(result.variant, "bf16"), before=0))
    assert pinned(result, found) if serving else found == [], found


@pytest.fixture
def pytorchs_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limpid.model.kernels.attention, "materialised_positions", lambda itemsize: 1)


@pytest.fixture
def blocks_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are treated as compiled without being so: `benchmarks/verdict_compiled.py` compiles them."""

    def run_fused(block, x, *rest):
        return block(x, *rest)

    model = limpid.model.transformer.Transformer
    monkeypatch.setattr(model, "compile_blocks", lambda model: setattr(model, "compiled", run_fused))


OF_WHOLE_ARRAYS = [fault for fault in FAULTS if fault not in ("1% too large", "one entry 1% too large")]


@pytest.mark.usefixtures("pytorchs_attention")
@pytest.mark.parametrize(
    ("name", "fault", "precision"),
    [
        *itertools.product(SAMPLED_RESULTS, OF_WHOLE_ARRAYS, ["bf16"]),
        *itertools.product(SAMPLED_RESULTS, ["1% too large"], ["fp16", "fp32"]),
        *itertools.product(SAMPLED_RESULTS, ["one entry 1% too large"], ["fp32"]),
    ],
)
def test_a_fault_of_pytorchs_own_attention_is_found_and_pinned(
    name: str, fault: str, precision: str, tmp_path: Path
) -> None:
    result = SAMPLED_RESULTS[name]
    with planted(result, FAULTS[fault]):
        found = disagreements(record(tmp_path, small(result.variant, precision), before=0))
    assert pinned(result, found), found


@pytest.mark.usefixtures("pytorchs_attention")
@pytest.mark.parametrize(("precision", "size"), list(itertools.product(["fp32", "bf16", "fp16"], [0.3, 0.6, 1.0])))
def test_pytorchs_own_attention_is_not_accused_where_one_key_has_all_the_weight(
    precision: str, size: float, tmp_path: Path
) -> None:
    config = small("llama", precision)
    config = replace(config, model=replace(config.model, init_std=size), run=replace(config.run, seed=5))
    assert disagreements(record(tmp_path, config, before=0)) == []


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


def inside_a_block(config: TrainConfig) -> TrainConfig:
    return replace(config, run=replace(config.run, compile="on"))


IN_BLOCKS = [name for name in RESULTS if not name.startswith("cross-entropy")]


@pytest.mark.usefixtures("blocks_as_a_whole")
@pytest.mark.parametrize(
    ("name", "fault", "precision"),
    [(name, "one entry 1% too large", "fp32") for name in IN_BLOCKS] + [(name, "halved", "bf16") for name in IN_BLOCKS],
)
def test_a_fault_inside_a_compiled_block_is_found_and_placed_at_the_block(
    name: str, fault: str, precision: str, tmp_path: Path
) -> None:
    result = RESULTS[name]
    with planted(result, FAULTS[fault]):
        found = disagreements(record(tmp_path, inside_a_block(small(result.variant, precision)), before=0))
    outside = [one for one in found if not one.startswith(("blocks.0.", "embed."))]  # whose gradient the block makes
    assert len(found) > len(outside)
    assert pinned(result, outside) or not outside  # the norm outside is the same kernel


@pytest.mark.usefixtures("blocks_as_a_whole", "pytorchs_attention")
@pytest.mark.parametrize(
    ("variant", "precision", "size", "seed"),
    [("llama", "bf16", 0.3, 0), ("qwen3", "bf16", 1.0, 1), ("interleaved, stretched", "fp16", 1.0, 118)],
)
def test_a_whole_block_is_not_accused(variant: str, precision: str, size: float, seed: int, tmp_path: Path) -> None:
    config = inside_a_block(small(variant, precision))
    config = replace(config, model=replace(config.model, init_std=size), run=replace(config.run, seed=seed))
    assert disagreements(record(tmp_path, config, before=0)) == []


def test_the_limit_of_random_rounding_is_students() -> None:
    rng = np.random.default_rng(0)
    t = rng.standard_normal(200_000) / np.sqrt(np.square(rng.standard_normal((200_000, RUNS))).mean(-1))
    beyond = np.mean(np.abs(t) > quantile(0.01, 1))
    assert beyond == pytest.approx(0.01, abs=0.001)


FP64 = FORMATS["fp64"]


def kernels() -> dict[str, tuple[Kernel, list[Link], dict[str, np.ndarray]]]:
    """Every kernel whose roundings are repeated, without any; the operations that it stands for; their inputs."""
    rng = np.random.default_rng(4)
    formats = Formats(FP64, FP64, FP64, (FP64,) * 3)
    heads = {name: rng.standard_normal((2, 5, count, 4)) for name, count in (("query", 6), ("key", 2), ("value", 2))}
    scores, softmax = maths.Scores(0.5), maths.CausalSoftmax(3)
    gate = {name: rng.standard_normal((3, 7)) for name in ("gate", "up")}
    gated = maths.Gated()
    loss = {
        "hidden": rng.standard_normal((2, 5, 4)), "matrix": rng.standard_normal((11, 4)),
        "targets": np.where(rng.random((2, 5)) < 0.3, -100, rng.integers(0, 11, (2, 5))),
    }  # fmt: skip
    labels = int((loss["targets"] >= 0).sum())
    attention = [
        Link("scores", scores, ("query", "key"), None), Link("weights", softmax, ("scores",), None),
        Link("mixed", maths.Mix(), ("weights", "value"), None),
    ]  # fmt: skip
    return {
        "attention": (ShortAttention(scores, softmax, formats), attention, heads),
        "limpid's own attention": (NativeAttention(scores, softmax, formats), attention, heads),
        "gate": (EagerGate(gated, formats), [Link("hidden", gated, ("gate", "up"), None)], gate),
        "linear cross-entropy": (
            LinearCrossEntropy(formats, labels, 3),
            [
                Link("logits", maths.Linear(), ("hidden", "matrix"), None),
                Link("log_p", maths.LogSoftmax(), ("logits",), None),
                Link("loss", maths.NegativeLogLikelihood(), ("log_p", "targets"), None),
            ],
            loss,
        ),
        "token log-probabilities": (
            TokenLogProbabilities(formats, SoftmaxOfLinear(formats, 3, 0.7)),
            [
                Link("logits", maths.Linear(), ("hidden", "matrix"), None),
                Link("tempered", alignment.tempered.operation(temperature=0.7), ("logits",), None),
                Link("log_p", maths.LogSoftmax(), ("tempered",), None),
                Link("token_log_p", alignment.token_log_probabilities.operation(), ("log_p", "targets"), None),
            ],
            loss,
        ),
    }  # fmt: skip


def departure(kernel: Kernel, links: list[Link], inputs: dict[str, np.ndarray]) -> float:
    """The largest distance of the kernel's result and gradients from those of its operations, relative."""
    chain = maths.Chain(dict(inputs))
    for link in links:
        chain.apply(link.name, link.operation, *link.inputs)
    ball, saved = kernel.forward(list(inputs.values()))
    y_bar = np.random.default_rng(5).standard_normal(ball.value.shape)
    bars = {links[-1].name: y_bar}
    for link in reversed(chain.links):
        for name, bar in zip(link.inputs, link.operation.backward(bars[link.name], link.saved), strict=True):
            if bar is not None:
                bars[name] = bar
    pairs = [(ball.value, chain.values[links[-1].name])]
    pairs += [(one.value, bars[name]) for name, one in zip(inputs, kernel.backward(y_bar, saved), strict=True)
              if one is not None]  # fmt: skip
    return max(float(np.abs(one - other).max() / np.abs(other).max()) for one, other in pairs)


@pytest.mark.parametrize("name", kernels())
def test_a_kernel_that_rounds_nothing_is_the_mathematics(name: str) -> None:
    assert departure(*kernels()[name]) < 1e-13


@pytest.mark.parametrize("half", ["forward", "backward"])
@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("attention", maths.Mix), ("attention", maths.Scores), ("attention", maths.CausalSoftmax),
        ("gate", maths.Gated), ("linear cross-entropy", maths.Linear), ("linear cross-entropy", maths.LogSoftmax),
        ("linear cross-entropy", maths.NegativeLogLikelihood),
        ("token log-probabilities", maths.Linear), ("token log-probabilities", maths.LogSoftmax),
    ],
)  # fmt: skip
def test_mathematics_that_is_wrong_departs_from_the_kernel(
    name: str, operation: type[maths.Operation], half: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = kernels()[name]
    original = getattr(operation, half)

    def wrong(self, *arrays):
        made = original(self, *arrays)
        if half == "forward":
            return 1.05 * made[0], made[1]
        return tuple(None if bar is None else 1.05 * bar for bar in made)

    with monkeypatch.context() as broken:
        broken.setattr(operation, half, wrong)
        assert departure(*whole) > 1e-3
