"""The memory that the engine is planned to need, against what it is measured to need."""

from __future__ import annotations

import pytest

from limpid.planning import engine_memory, operation_memory
from limpid.planning.figure import evaluate
from planning.measured import configured, peak_bytes

PLAIN = {"norm": "layer", "mlp": "plain", "activation": "gelu", "positions": "learned", "attention_bias": True,
         "mlp_bias": True, "tied": False}  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"precision": "bf16"},
        {"precision": "fp64", "optimizer": "sgd"},
        {"batch_size": 1, "context_length": 16},
        {"batch_size": 1, "precision": "bf16", "gradient_accumulation_steps": 3},
        {"gradient_accumulation_steps": 2, "optimizer": "momentum"},
        {"vocab_size": 300},
        {"vocab_size": 300, "precision": "bf16", "num_kv_heads": 2, "qk_norm": True},
        {"vocab_size": 8192, "batch_size": 2},
        PLAIN,
        {**PLAIN, "precision": "bf16", "activation": "relu2", "vocab_size": 300},
        {"mlp": "plain", "activation": "relu", "vocab_size": 300},
        {"norm_placement": "post", "precision": "bf16", "vocab_size": 300},
        {"dropout": 0.1, "vocab_size": 300},
        {"dropout": 0.1, "vocab_size": 300, "precision": "bf16"},
        {"context_length": 600, "batch_size": 1, "num_kv_heads": 2},
        {"context_length": 600, "batch_size": 1, "vocab_size": 300, "attention_window": 50, "windowed_blocks": (0, 2)},
        {"context_length": 256, "batch_size": 4, "num_kv_heads": 2, "vocab_size": 300},
        {**PLAIN, "context_length": 512, "batch_size": 2, "vocab_size": 65},
        {"d_model": 256, "num_layers": 6, "precision": "bf16"},
        {"lora_rank": 4, "precision": "bf16"},
        {"lora_rank": 4, "use_dora": True, "lora_targets": ("attention.*", "mlp.output")},
        {"lora_rank": 4, "lora_dropout": 0.1, "precision": "bf16"},
        {"lora_rank": 4, "lora_dropout": 0.1, "use_dora": True, "lora_targets": ("attention.query", "mlp.output")},
        {"lora_rank": 4, "vocab_size": 8192, "batch_size": 2, "tied": False},
        {"lora_rank": 4, "batch_size": 1, "context_length": 16},
        {"lora_rank": 4, "base_precision": "bf16", "batch_size": 1, "d_model": 256},
        {"lora_rank": 4, "base_precision": "bf16", "precision": "bf16", "batch_size": 1, "d_model": 256},
        {"lora_rank": 4, "base_precision": "int8", "batch_size": 1, "d_model": 256},
        {
            "lora_rank": 4,
            "base_precision": "int8",
            "precision": "bf16",
            "gradient_checkpointing": "on",
            "num_layers": 6,
            "batch_size": 1,
            "vocab_size": 300,
        },
        {"num_layers": 6, "gradient_checkpointing": "on", "vocab_size": 300},
        {"num_layers": 6, "gradient_checkpointing": "on", "vocab_size": 300, "precision": "bf16"},
    ],
    ids=lambda options: "-".join(f"{key}={value}" for key, value in options.items()) or "default",
)
def test_planned_memory_is_within_five_percent_of_the_measured_peak(options: dict) -> None:
    config = configured(**options)
    planned = next(one.value for one in engine_memory.figures(config) if one.name == "memory.total")
    assert planned == pytest.approx(peak_bytes(config), rel=0.05)


def test_a_row_that_is_forgotten_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured()
    whole = operation_memory.rows(config, operation_memory.kernels_of(config, True))
    monkeypatch.setattr(engine_memory, "rows", lambda *_: tuple(row for row in whole if row.name != "mlp.activation"))
    planned = next(one.value for one in engine_memory.figures(config) if one.name == "memory.total")
    assert planned != pytest.approx(peak_bytes(config), rel=0.05)


def test_every_parameter_has_its_gradient_in_one_row() -> None:
    from limpid.planning.parameters import parameter_count

    for options in ({}, PLAIN, {"qk_norm": True, "norm_placement": "post"}, {"tied": False, "mlp_bias": True}):
        config = configured(**options)
        numbers = operation_memory.sizes(config)
        learned = sum(
            evaluate(row.parameters, numbers)
            for row in operation_memory.rows(config, operation_memory.kernels_of(config, True))
        )
        assert learned == parameter_count(config.model)


def test_the_figures_add_up() -> None:
    for options in ({}, {"precision": "bf16", "batch_size": 1}, {"windowed_blocks": (1,), "attention_window": 9}):
        config = configured(**options)
        for on_processor in (True, False):
            worst = engine_memory.peak(config, engine_memory.kernels_of(config, on_processor))
            found = {one.name: one.value for one in engine_memory.figures(config, on_processor)}
            assert found["memory.activations"] == sum(worst.saved_bytes.values())
            assert found["memory.backward_workspace"] == worst.workspace_bytes
            parts = [value for name, value in found.items() if name.count(".") == 1 and name != "memory.total"]
            assert found["memory.total"] == pytest.approx(sum(parts))


def test_more_sequences_need_more_and_narrow_numbers_less() -> None:
    def total(**options: object) -> float:
        return next(one.value for one in engine_memory.figures(configured(**options)) if one.name == "memory.total")

    assert total(batch_size=16) > total(batch_size=8) > total(batch_size=8, precision="bf16")
