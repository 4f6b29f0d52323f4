"""Numbers that are not finite: the first place that is at fault is named, and nothing that follows from it agrees."""

import itertools
import json
import math
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from recorded import record
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.tracing.one_block import configuration, first, printed, with_state

from limpid.maths.attention import CausalSoftmax
from limpid.quantities import parameters, quantities
from limpid.tracing import verify_step
from limpid.tracing.verdict import Beyond, Unchecked
from limpid.training.record import Observation

PRECISIONS = ("fp32", "bf16", "fp16")


VALUES = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


MODEL = configuration("llama", "fp32").model


WEIGHTS = [parameter.name for parameter in parameters(MODEL)]


FORWARD = [quantity.name for quantity in quantities(MODEL)]


GRADIENTS = [f"grad({name})" for name in [*FORWARD, *WEIGHTS]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A sound step of each precision."""
    return {
        precision: record(tmp_path_factory.mktemp(precision), configuration("llama", precision))
        for precision in PRECISIONS
    }


def changed(path: Path, tensors: dict, meta: dict, to: Path) -> Path:
    """The same record with some tensors or facts replaced."""
    with safe_open(path, "pt") as file:
        written = json.loads(file.metadata()["limpid"])
    save_file({**load_file(path), **tensors}, to / "changed.safetensors", {"limpid": json.dumps({**written, **meta})})
    return to / "changed.safetensors"


def formed(tensor: str, tensors: dict) -> str:
    """`any/NAME` is the tensor of that name on the path that forms it."""
    return next(name for name in (tensor.replace("any/", "fast/"), tensor.replace("any/", "plain/")) if name in tensors)


def planted(path: Path, tensor: str, value: float, to: Path, **meta) -> tuple[Path, tuple[int, ...]]:
    """The record with one entry replaced, as if only that number had gone wrong; and which entry."""
    tensors = load_file(path)
    tensor = formed(tensor, tensors)
    array = tensors[tensor].clone()
    index = tuple(size // 2 for size in array.shape)
    array[index] = value
    return changed(path, {tensor: array}, meta, to), index


def assert_nothing_that_follows_agrees(step) -> None:
    """A check holds only if every entry was compared; nothing is accused that follows from the planted number."""
    for check in step.checks():
        assert not isinstance(check.verdict, Beyond), check
        assert not check.holds or check.compared == check.entries
        assert math.isfinite(check.worst)


EVERYWHERE = [
    *(f"before/{name}" for name in WEIGHTS),
    *(f"before/{kind}/{name}" for name in WEIGHTS for kind in "mv"),
    *(f"any/{name}" for name in [*FORWARD, *GRADIENTS]),
]


@pytest.mark.parametrize(
    ("place", "value", "precision"),
    [
        *((place, "nan", precision) for place, precision in zip(EVERYWHERE, itertools.cycle(PRECISIONS), strict=False)),
        *itertools.product(
            (
                "before/embed.tokens.weight", "before/blocks.0.mlp.gate.weight", "before/m/final_norm.weight",
                "before/v/embed.tokens.weight", "any/embed.tokens", "any/blocks.0.attention.key",
                "any/blocks.0.residual2", "any/logits", "any/grad(logits)",
                "any/grad(blocks.0.mlp.hidden)", "any/grad(blocks.0.attention.value.weight)",
            ),
            ("inf", "-inf"),
            PRECISIONS,
        ),
    ],
)  # fmt: skip
def test_one_number_gone_wrong_is_named_exactly(
    place: str, value: str, precision: str, recorded, tmp_path: Path
) -> None:
    path, index = planted(recorded[precision], place, VALUES[value], tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = verify_step(path)
    origin = first(step)
    name = place.removeprefix("any/").removeprefix("before/")
    moment, _, parameter = name.partition("/")
    assert origin.quantity == (f"{moment}({parameter})" if parameter else name)
    assert origin.index == index
    assert origin.count == 1
    assert str(origin.value) == value
    assert origin.cause == ("given" if place.startswith("before/") else "operation")
    assert step.origins() == [origin]
    assert not step.agrees
    assert_nothing_that_follows_agrees(step)


def test_entries_that_do_not_follow_from_it_are_still_compared(recorded, tmp_path: Path) -> None:
    path, _ = planted(recorded["fp32"], "any/blocks.0.mlp.up", math.nan, tmp_path)
    step = verify_step(path)
    checks = {(check.name, check.kind): check for check in step.checks()}
    hidden = checks["blocks.0.mlp.hidden", "forward"]
    assert isinstance(hidden.verdict, Unchecked)
    assert hidden.compared == hidden.entries - 1
    assert hidden.verdict.why == "input not finite: blocks.0.mlp.up"
    assert 0 < hidden.verdict.share <= 1
    assert checks["blocks.0.mlp.output", "forward"].holds  # the hidden vector that it was given is finite
    assert checks["blocks.0.mlp.up", "forward"].compared == hidden.entries - 1
    assert checks["blocks.0.attention.scores", "forward"].holds


def spoiling(name_of_interest: str, *, gradient: bool):
    """An observation that sees, and passes on, one quantity or its gradient with one entry that is not a number."""
    original = Observation.observe

    def spoiled(value):
        mask = torch.zeros_like(value, dtype=torch.bool)
        mask[tuple(size // 2 for size in value.shape)] = True
        return value + torch.zeros_like(value).masked_fill(mask, math.nan)  # the gradient passes

    def see(self, name, value):
        if name != name_of_interest:
            return original(self, name, value)
        if not gradient:
            return original(self, name, spoiled(value))
        value.register_hook(spoiled)
        return original(self, name, value)

    return see


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", FORWARD)
def test_an_activation_is_named_through_all_that_it_spoils(
    name: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Observation, "observe", spoiling(name, gradient=False))
    step = verify_step(record(tmp_path, configuration("llama", precision)))
    assert [(origin.quantity, origin.count) for origin in step.origins()] == [(name, 1)]
    assert_nothing_that_follows_agrees(step)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", FORWARD)
def test_a_gradient_is_named_through_all_that_it_spoils(
    name: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Observation, "observe", spoiling(name, gradient=True))
    step = verify_step(record(tmp_path, configuration("llama", precision)))
    assert [(origin.quantity, origin.count) for origin in step.origins()] == [(f"grad({name})", 1)]
    assert_nothing_that_follows_agrees(step)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_weight_that_was_not_a_number_is_named_through_all_that_it_spoils(
    name: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_state(monkeypatch, lambda model: spoil(model, name, math.nan))
    step = verify_step(record(tmp_path, configuration("llama", precision)))
    origin = first(step)
    assert (origin.quantity, origin.count, origin.cause) == (name, 1, "given")
    assert step.origins() == [origin]
    assert_nothing_that_follows_agrees(step)


def spoil(model, name: str, value: float) -> None:
    parameter = dict(model.named_parameters())[name]
    with torch.no_grad():
        parameter[tuple(size // 2 for size in parameter.shape)] = value


def test_a_gradient_out_of_range_without_any_loss_scale_is_a_fault(recorded, tmp_path: Path) -> None:
    path, _ = planted(recorded["fp16"], "any/grad(blocks.0.mlp.hidden)", math.inf, tmp_path, updated=False)
    origin = first(verify_step(path))
    assert (origin.cause, origin.fault) == ("operation", True)


@pytest.mark.parametrize("value", VALUES)
def test_the_loss_scale_itself_may_be_at_fault(value: str, recorded, tmp_path: Path) -> None:
    origin = first(verify_step(changed(recorded["fp16"], {}, {"loss_scale": VALUES[value]}, tmp_path)))
    assert (origin.quantity, origin.cause) == ("loss_scale", "given")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", WEIGHTS)
def test_the_fast_path_alone_may_be_at_fault(name: str, precision: str, recorded, tmp_path: Path) -> None:
    path, index = planted(recorded[precision], f"fast/grad({name})", math.nan, tmp_path)
    step = verify_step(path)
    origin = first(step)
    assert (origin.quantity, origin.index, origin.count) == (f"grad({name})", index, 1)
    assert step.origins()[0] == origin


@pytest.mark.parametrize("name", ["loss", "grad_norm"])
def test_the_loss_and_the_norm_that_training_used_are_named(name: str, recorded, tmp_path: Path) -> None:
    path, _ = planted(recorded["bf16"], f"fast/{name}", math.nan, tmp_path)
    assert first(verify_step(path)).quantity == name


@pytest.mark.parametrize("kind", ["", "m/", "v/"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_the_update_spoils_is_named(kind: str, precision: str, recorded, tmp_path: Path) -> None:
    path, index = planted(recorded[precision], f"after/{kind}blocks.0.mlp.up.weight", math.inf, tmp_path)
    step = verify_step(path)
    origin = first(step)
    name = "blocks.0.mlp.up.weight"
    assert origin.quantity == (f"{kind[0]}({name})" if kind else name)
    assert (origin.index, origin.count, origin.cause) == (index, 1, "operation")
    assert step.origins() == [origin]


def test_a_negative_second_moment_has_no_root(recorded, tmp_path: Path) -> None:
    name = "blocks.0.mlp.up.weight"
    tensors = load_file(recorded["fp32"])
    before, after = tensors[f"before/v/{name}"].clone(), tensors[f"after/{name}"].clone()
    before[2, 3], after[2, 3] = -1.0, math.nan
    origin = first(
        verify_step(changed(recorded["fp32"], {f"before/v/{name}": before, f"after/{name}": after}, {}, tmp_path))
    )
    assert (origin.quantity, origin.index, origin.cause) == (name, (2, 3), "no value")


def test_a_step_taken_in_spite_of_a_gradient_that_is_not_finite_is_a_fault(recorded, tmp_path: Path) -> None:
    path = changed(recorded["fp32"], {"fast/grad_norm": torch.tensor(math.inf, dtype=torch.float64)}, {}, tmp_path)
    checks = {check.name: check for check in verify_step(path).checks() if check.kind == "update"}
    assert isinstance(checks["updated"].verdict, Beyond)


def test_scores_that_the_mask_made_infinite_are_no_fault(recorded, tmp_path: Path) -> None:
    scores = load_file(recorded["fp32"])["plain/blocks.0.attention.scores"].clone()
    hidden = ~CausalSoftmax().visible(*scores.shape[-2:])
    scores[..., torch.from_numpy(hidden)] = -math.inf
    step = verify_step(changed(recorded["fp32"], {"plain/blocks.0.attention.scores": scores}, {}, tmp_path))
    assert step.agrees
    scores[0, 0, 3, 1] = -math.inf  # a key that is to be seen
    step = verify_step(changed(recorded["fp32"], {"plain/blocks.0.attention.scores": scores}, {}, tmp_path))
    origin = first(step)
    assert (origin.address, origin.count) == ("blocks.0.attention.scores[0, 0, 3, 1]", 1)


def test_a_hidden_key_passes_nothing_on_even_if_its_gradient_is_not_a_number() -> None:
    softmax = CausalSoftmax()
    _, saved = softmax.forward(np.zeros((4, 4)))
    weights_bar = np.arange(16.0).reshape(4, 4)
    (clean,) = softmax.backward(weights_bar, saved)
    (spoilt,) = softmax.backward(np.where(softmax.visible(4, 4), weights_bar, math.nan), saved)
    assert np.array_equal(clean, spoilt)
    weights_bar[3, 1] = math.nan
    (spoilt,) = softmax.backward(weights_bar, saved)
    assert np.isfinite(spoilt[:3]).all()


def test_two_faults_are_both_named_the_first_of_the_step_first(recorded, tmp_path: Path) -> None:
    path, _ = planted(recorded["fp32"], "any/blocks.0.mlp.up", math.nan, tmp_path)
    path, _ = planted(path, "before/final_norm.weight", math.inf, tmp_path)
    assert [origin.quantity for origin in verify_step(path).origins()] == [
        "final_norm.weight", "blocks.0.mlp.up",
    ]  # fmt: skip


def test_the_terminal_says_it_before_any_comparison(recorded, tmp_path: Path) -> None:
    path, (i, j) = planted(recorded["bf16"], "before/blocks.0.mlp.up.weight", math.nan, tmp_path)
    text, code, step = printed(path, everything=True)
    said = f"NOT FINITE  first at blocks.0.mlp.up.weight[{i}, {j}] = nan (fp32, 1 such entry)"
    assert code == 1
    assert text.index(said) < text.index("embed.tokens")
    assert said in text[text.index("update") :]
    assert "it was so before the step" in text or "was so before the step" in text
    unchecked = sum(isinstance(check.verdict, Unchecked) for check in step.checks())
    assert f"{unchecked} not checked: input not finite" in text
    assert "DISAGREES" not in text
    text, code, _ = printed(path, as_json=True)
    verdict = json.loads(text, parse_constant=pytest.fail)["verdict"]
    assert code == 1
    origin = verdict["origin"]
    assert (verdict["verdict"], verdict["agrees"], origin["cause"]) == ("not finite", False, "given")
    assert (origin["quantity"], origin["index"], origin["value"]) == ("blocks.0.mlp.up.weight", [i, j], "nan")
    assert verdict["not_checked"] == unchecked
    assert verdict["within_bounds"] == sum(check.holds for check in step.checks())
    for name in ("blocks.0.mlp.up.weight", "grad(blocks.0.mlp.up)", "v(blocks.0.mlp.up.weight)", "logits"):
        printed(path, quantity=name)


def test_formats_have_the_limits_that_are_said() -> None:
    assert float(ml_dtypes.finfo(np.float16).max) == 65504
