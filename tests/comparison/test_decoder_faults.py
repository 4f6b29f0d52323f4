"""A fault in any kernel of the decoder is found, whatever its size, and pinned; an honest decoder is never accused."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from planted import FAULTS
from recorded import SMALL, VARIANTS

from limpid.comparison.observed import Observed
from limpid.comparison.run import run
from limpid.comparison.variant import Variant
from limpid.comparison.verdict import judge
from limpid.config import ModelConfig
from limpid.generation.cpu import position, weights
from limpid.generation.cpu.kernels import attention, decode, product
from limpid.model import Transformer, initialise
from limpid.source import ModelFolder


@dataclass(frozen=True)
class Result:
    """What one kernel makes: in which of its arguments, and which quantities may be blamed for a fault there."""

    caller: ModuleType
    kernel: str
    argument: int
    blamed: tuple[str, ...]  # ends of names
    part: Callable[[np.ndarray, tuple], np.ndarray] = lambda array, arguments: array


PROJECTIONS = ("query", "key", "value", "attention.output", "mlp.output", "logits")
RESULTS = {
    "norm": Result(decode, "add_and_norm", 7, ("norm1", "norm2", "final_norm")),
    "norm of queries and keys": Result(attention, "norm", 5, ("query_norm", "key_norm")),
    "projections and logits": Result(decode, "product", 4, PROJECTIONS),
    "gate and up": Result(product, "gate_and_up", 5, ("mlp.gate", "mlp.up")),
    "rotation": Result(attention, "rotate", 0, ("query_rotated", "key_rotated")),
    "attention": Result(decode, "attend", 7, ("attention.mixed",)),
    "gate": Result(product, "gated_hidden", 3, ("mlp.hidden",)),
    "keys in the cache": Result(
        decode, "attend", 1, ("cached(blocks.0.attention.key_rotated)",), lambda keys, given: keys[:, :, given[4]]
    ),
    "values in the cache": Result(
        decode, "attend", 2, ("cached(blocks.0.attention.value)",), lambda values, given: values[:, :, given[4]]
    ),
}  # fmt: skip


def model(precision: torch.dtype = torch.float32, variant: str = "qwen3", **options: object) -> Transformer:
    config = ModelConfig(**(SMALL | VARIANTS[variant] | {"num_layers": 1, "dropout": 0.0} | options))
    return initialise(Transformer(config, precision), 3)


def observed(net: Transformer, *, path: str = "sampler", weights_read: str = "auto") -> Observed:
    tokens = np.random.default_rng(0).integers(0, net.config.vocab_size, (4, 7))
    precision = {torch.float32: "fp32", torch.float64: "fp64"}[net.compute]
    variant = Variant(path, ModelFolder(Path()), net.config, net.state_dict(), path, precision)
    variant = dataclasses.replace(variant, weights_read=weights_read)
    return run(variant, tokens[:, :-1], tokens[:, 1:], backward=False)


@contextmanager
def one_by_one() -> Iterator[pytest.MonkeyPatch]:
    """The decoder with its compiled kernels called one by one."""
    with pytest.MonkeyPatch.context() as decoder:
        decoder.setattr(position, "decode_position", decode.decode_position.py_func)
        for stages in ("all_stages", "mlp_hidden", "place_heads"):
            decoder.setattr(decode, stages, getattr(decode, stages).py_func)
        yield decoder


@contextmanager
def planted(result: Result, fault: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """The decoder with a fault in one result of a kernel."""
    own = getattr(result.caller, result.kernel)

    def faulty(*arguments):
        if result.kernel != "attend" or result.argument == 7:
            own(*arguments)
        made = result.part(arguments[result.argument], arguments)
        made[...] = fault(torch.from_numpy(np.atleast_2d(made.copy()))).numpy().reshape(made.shape)
        if result.kernel == "attend" and result.argument != 7:
            own(*arguments)

    with one_by_one() as decoder:
        decoder.setattr(result.caller, result.kernel, faulty)
        yield


def wrong(seen: Observed) -> list[str]:
    return [check.name for check in seen.kernels if not check.holds]


def faults(name: str) -> list[str]:
    """A single head comes to the kernel alone: it has no rows."""
    rows = ("one head or row negated", "one row dropped") if name in ("norm of queries and keys", "rotation") else ()
    return [fault for fault in FAULTS if fault not in rows]


@pytest.mark.parametrize(("name", "fault"), [(name, fault) for name in RESULTS for fault in faults(name)])
def test_a_fault_of_the_decoder_is_found_and_pinned(name: str, fault: str) -> None:
    result = RESULTS[name]
    with planted(result, FAULTS[fault]):
        found = wrong(observed(model()))
    assert found
    assert all(one.endswith(result.blamed) for one in found), found


@pytest.mark.parametrize(
    ("kind", "weights_read"), list(itertools.product(["1% too large", "one entry 1% too large"], ["bf16", "int8"]))
)
def test_a_fault_of_a_product_of_narrow_matrices_is_found_and_pinned(kind: str, weights_read: str) -> None:
    with planted(RESULTS["projections and logits"], FAULTS[kind]):
        found = wrong(observed(model(), weights_read=weights_read))
    assert found
    assert all(one.endswith(PROJECTIONS) for one in found), found


@pytest.mark.parametrize("weights_read", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("fault", ["1% too large", "one entry 1% too large", "one row dropped"])
def test_matrices_that_are_read_wrong_are_named(fault: str, weights_read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = weights.in_format
    monkeypatch.setattr(
        weights, "in_format", lambda entries, read: own(FAULTS[fault](torch.from_numpy(entries)).numpy(), read)
    )
    found = wrong(observed(model(), weights_read=weights_read))
    assert found
    assert all(one.startswith("read(") for one in found), found


@pytest.mark.parametrize(
    "variant", ["llama", "gpt-2", "the paper's", "shared keys in a window", "interleaved, stretched"]
)
@pytest.mark.parametrize("weights_read", ["fp32", "bf16", "int8"])
def test_an_honest_decoder_is_never_accused(variant: str, weights_read: str) -> None:
    seen = observed(model(variant=variant, num_layers=2), weights_read=weights_read)
    assert len(seen.kernels) > 30
    assert wrong(seen) == []


def test_low_rank_factors_are_added_in_before() -> None:
    net = model(lora_rank=2)
    for name, parameter in net.named_parameters():
        if "lora_b" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    seen = observed(net)
    assert "blocks.0.attention.query" in [check.name for check in seen.kernels]
    assert wrong(seen) == []


def test_kernels_called_one_by_one_make_the_same_bits() -> None:
    whole = observed(model())
    with one_by_one():
        apart = observed(model())
    assert all(np.array_equal(whole.values[name], array) for name, array in apart.values.items())


def test_a_fault_is_placed_in_the_comparison_too() -> None:
    net = model(num_layers=2)
    plain = observed(net, path="plain")
    with planted(RESULTS["gate"], FAULTS["3% too large"]):
        comparison = judge(net.config, plain, observed(net))
    assert not comparison.agrees
    assert comparison.first_disagreement is not None
    assert comparison.first_disagreement.name == "blocks.0.mlp.hidden"
    assert {check.name for check in comparison.kernels if not check.holds} == {
        "blocks.0.mlp.hidden", "blocks.1.mlp.hidden"
    }  # fmt: skip
