"""What another format would do to the loss: foretold from one pass, and tried."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import limpid
from limpid.cli import main
from limpid.errors import ConfigError
from limpid.operations.formats import format_of
from limpid.operations.what_if import WhatIf, what_if
from operations.models import step_of
from operations.test_folder import folder, typed


def asked(name: str, formats: dict[str, str]) -> WhatIf:
    """Of a small model with wide weights."""
    model, loss_of = step_of(name)
    torch.manual_seed(3)
    for weight in model.eval().parameters():
        nn.init.normal_(weight, std=0.3) if weight.ndim > 1 else None
    return what_if(model, lambda: loss_of(model), torch.get_rng_state(), formats)


@pytest.mark.parametrize("form", ["bf16", "fp16", "fp8", "e5m2"])
@pytest.mark.parametrize(("name", "module"), [("Llama", "layers.0"), ("T5", "decoder.block.0.layer.2"),
                                              ("Mamba", "layers.1.mixer"), ("recurrent", "unit")])  # fmt: skip
def test_what_is_tried_is_what_was_foretold(name: str, module: str, form: str) -> None:
    found = asked(name, {module: form})
    assert found.holds, str(found)
    assert found.predicted.is_value or abs(found.tried) <= found.predicted.at_most


def test_a_weight_that_is_rounded_beforehand_moves_the_loss_as_the_trial_says() -> None:
    layer = nn.Linear(24, 8, bias=False)
    x, target = torch.randn(5, 24), torch.randn(5, 8)
    fp8 = format_of("fp8")

    def loss() -> Tensor:
        return functional.mse_loss(layer(x), target)

    found = what_if(nn.Sequential(layer), loss, torch.get_rng_state(), {"0": "fp8"})
    expected = functional.mse_loss(fp8.rounded(x) @ fp8.rounded(layer.weight).T, target) - loss()
    assert found.tried == pytest.approx(expected.item(), abs=1e-6)


def test_8_bits_have_one_scale_for_a_tensor_and_16_bits_none() -> None:
    x = torch.tensor([700.0, 1.0, 1e-3, 3e38])
    assert format_of("bf16").rounded(x).tolist() == x.bfloat16().float().tolist()
    assert format_of("fp16").rounded(x)[3] == torch.inf
    small = torch.tensor([[7.3e-6, -2.1e-6]])
    rounded = format_of("float8_e4m3fn").rounded(small)
    assert (rounded - small).abs().max() <= 2.0**-4 * small.abs().max()
    assert torch.equal(format_of("fp8").rounded(rounded), rounded)


@pytest.mark.parametrize("autocast", [False, True])
def test_of_a_step_that_is_in_16_bits_itself_sizes_are_said(autocast: bool) -> None:
    model, loss_of = step_of("Llama")
    model = model.eval() if autocast else model.eval().bfloat16()

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return loss_of(model)

    found = what_if(model, loss, torch.get_rng_state(), {"layers.1": "fp8"})
    assert found.predicted.size > 0
    assert found.predicted.deviation >= found.predicted.size
    assert found.holds, str(found)


def test_memory_that_is_written_piece_by_piece_is_followed() -> None:
    begin, end = nn.Linear(6, 6), nn.Linear(12, 1)
    x = torch.randn(4, 6)

    def loss() -> Tensor:
        whole = x.new_zeros(4, 12)
        whole[:, 6:] = begin(x)
        return end(whole.clone()).square().mean()

    found = what_if(nn.Sequential(begin, end), loss, torch.get_rng_state(), {"0": "bf16"})
    assert found.predicted.size > 0
    assert found.holds, str(found)


def test_nothing_is_left_changed_and_nothing_is_recorded() -> None:
    model = nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(16, 1)
    )
    x = torch.randn(32, 8)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    with limpid.recording(model) as step:
        loss = model(x).square().mean()
        loss.backward()
        gradient = model[0].weight.grad.clone()
        after = {name: one.clone() for name, one in model.state_dict().items()}
        calls = len(step.calls)
        found = step.what_if(lambda: model(x).square().mean(), {"0": "bf16", "4": "fp16"})
    assert found.loss == loss.item()
    assert found.holds, str(found)
    assert len(step.calls) == calls
    assert torch.equal(model[0].weight.grad, gradient)
    assert all(torch.equal(one, model.state_dict()[name]) for name, one in after.items())
    assert not torch.equal(before["1.running_mean"], after["1.running_mean"])


def test_every_module_has_its_narrowest_format() -> None:
    found = asked("Llama", {"*": "bf16"})
    rows = {row.module: row for row in found.rows}
    assert {"model.layers.0", "model.layers.1.mlp.up_proj", "lm_head", "(loss)"} <= rows.keys()
    assert rows["lm_head"].narrowest(1e9) == "float8_e4m3fn"
    assert rows["model.layers.0.input_layernorm"].narrowest(1e9) == "bfloat16"
    assert rows["lm_head"].narrowest(0.0) == ""
    assert "stays" in str(found) or "bf16" in str(found)


@pytest.mark.parametrize(("formats", "said"), [
    ({"layers.7": "fp8"}, "no operation stands in layers.7: modules that compute are model"),
    ({"layers.1": "int4"}, "int4 is no format to try: expected one of bfloat16"),
    ({}, "nothing to try"),
    ("bf16", "formats is 'bf16': expected a pattern and a format"),
    ({1: "bf16"}, "expected a pattern and a format"),
])  # fmt: skip
def test_a_wish_that_cannot_be_is_said(formats: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        asked("Llama", formats)


@pytest.mark.parametrize(("function", "said"), [
    (3.0, "function is 3.0: expected a function"),
    (lambda: None, "the function gives None: expected"),
    (lambda: torch.zeros(2, 3), r"the function gives a tensor of shape \[2, 3\]: expected"),
])  # fmt: skip
def test_a_function_that_gives_no_loss_is_named(function: object, said: str) -> None:
    model, _ = step_of("Llama")
    with pytest.raises(ConfigError, match=said):
        what_if(model, function, torch.get_rng_state(), {"*": "bf16"})


def test_the_command_line_tries_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = folder(tmp_path / "bert", "BertForMaskedLM")
    code, out, _ = typed(["trace", model, "--text", "hello world", "--what-if", "encoder.layer.1.*=fp8"], capsys)
    assert code == 0
    assert "what if encoder.layer.1.* in fp8" in out
    assert "foretold" in out
    assert "tried" in out
    code, out, _ = typed(["trace", model, "--text", "hello world", "--what-if", "cls=bf16", "--json"], capsys)
    found = json.loads(out)
    assert code == 0
    assert found["holds"]
    assert found["asked"] == {"cls": "bf16"}
    assert main(["trace", str(model), "--text", "hello", "--what-if", "cls"]) == 2
    assert "expected PATTERN=FORMAT" in capsys.readouterr().err
    assert main(["trace", "steps.py:small", "--what-if", "cls=bf16"]) == 2
    assert "--what-if needs the loss" in capsys.readouterr().err
