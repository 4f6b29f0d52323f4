"""Numbers beyond their format: the quantity and the limit are named; a loss scale that was too large is no fault."""

from dataclasses import replace
from pathlib import Path

import pytest
import recorded as module
import torch
from recorded import configuration as of_two_blocks
from recorded import record
from tests.tracing.one_block import configuration, first, printed, with_state

from limpid.tracing import verify_step
from limpid.tracing.verdict import Unchecked

BLOCK = "blocks.0."


OVERFLOWING = {
    "embed.sum": ("gpt-2", "fp32", {"embed.positions.weight": 3e38, "embed.tokens.weight": 3e38}),
    f"{BLOCK}norm1": ("llama", "fp16", {f"{BLOCK}norm1.weight": 6e4}),
    f"{BLOCK}attention.query": ("llama", "fp16", {f"{BLOCK}attention.query.weight": 6e4}),
    f"{BLOCK}attention.scores": (
        "llama", "fp16", {f"{BLOCK}attention.query.bias": 3e4, f"{BLOCK}attention.key.bias": 3e4},
    ),
    f"{BLOCK}attention.output": ("llama", "fp16", {f"{BLOCK}attention.output.bias": 7e4}),
    f"{BLOCK}mlp.up": ("llama", "bf16", {f"{BLOCK}mlp.up.weight": 3e38}),
    f"{BLOCK}mlp.hidden": ("llama", "fp16", {f"{BLOCK}mlp.up.bias": 1e3, f"{BLOCK}mlp.gate.bias": 1e3}),
    f"{BLOCK}mlp.output": ("llama", "fp16", {f"{BLOCK}mlp.output.bias": 7e4}),
    f"{BLOCK}residual2": (
        "llama", "fp32", {f"{BLOCK}attention.output.bias": 3e38, f"{BLOCK}mlp.output.bias": 3e38},
    ),
    "final_norm": ("llama", "fp16", {"final_norm.weight": 6e4}),
    "logits": ("llama", "bf16", {"final_norm.weight": 3e37, "embed.tokens.weight": 1e3}),
}  # fmt: skip
"""A quantity of each station, and what weights must be for it to pass the largest number of its format."""


@pytest.mark.parametrize("name", OVERFLOWING)
def test_an_overflow_names_the_limit_of_the_format(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variant, precision, weights = OVERFLOWING[name]
    biases = {"attention_bias": True, "attention_output_bias": True, "mlp_bias": True}

    def change(model) -> None:
        learned = dict(model.named_parameters())
        with torch.no_grad():
            for weight, value in weights.items():
                learned[weight].copy_(value * torch.ones_like(learned[weight]) if "embed" in weight else
                                      value * (1 + 0.1 * torch.rand_like(learned[weight])))  # fmt: skip

    with_state(monkeypatch, change)
    step = verify_step(record(tmp_path, configuration(variant, precision, **biases)))
    origin = first(step)
    limit = {"fp16": 65504.0, "fp32": 2.0**128 - 2.0**104, "bf16": 255 * 2.0**120}[precision]
    assert (origin.quantity, origin.largest) == (name, limit)
    assert origin.cause in ("overflow", "intermediate overflow")
    assert f"the largest {precision} number, {limit:.6g}" in origin.explanation
    assert step.origins()[0] == origin
    assert not step.agrees


def test_gradients_that_a_loss_scale_drove_out_of_range_are_no_fault(tmp_path: Path) -> None:
    text, code, step = printed(record_scaled(tmp_path, 2.0**40))
    origin = first(step)
    assert (origin.cause, origin.format, origin.largest) == ("loss scale", "fp16", 65504.0)
    assert origin.quantity.startswith("grad(")
    assert code == 0
    assert "SKIPPED" in text
    assert f"the loss scale {2.0**40:g} was too large" in text
    assert "the step was skipped, as it should be" in text
    assert "agrees" not in text.split("SKIPPED")[-1]


def record_scaled(tmp_path: Path, scale: float) -> Path:
    state = module.fresh_state(configuration("llama", "fp16"))
    state.scaler._init_scale = scale
    config = configuration("llama", "fp16")
    file = tmp_path / "step.safetensors"
    module.record_step(file, state, module.batch(config, 1), config, run="test", token_text=str)
    return file


@pytest.mark.parametrize("variant", ["llama", "gpt-2"])
def test_a_norm_whose_squares_overflow_is_not_accused(variant: str, tmp_path: Path) -> None:
    """Its root is infinite then, and what is divided by it 0 or no number, as the order of sums has it."""
    config = of_two_blocks(variant, "fp32")
    config = replace(config, model=replace(config.model, init_std=1e21))
    step = verify_step(record(tmp_path, config, before=0))
    assert step.first_disagreement() is None
    assert "operation" not in [origin.cause for origin in step.origins()]
    norm = next(one for one in step.quantities if one.name == "blocks.0.norm1")
    assert isinstance(norm.forward.verdict, Unchecked) or norm.forward.origin.cause == "intermediate overflow"
