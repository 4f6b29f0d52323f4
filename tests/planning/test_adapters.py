"""Parameters that adapters learn, against peft's own models."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from limpid.errors import ConfigError
from limpid.planning import adapters
from limpid.planning.huggingface import read_config
from limpid.planning.published import published

SIZES = {
    "vocab_size": 31, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 10, "intermediate_size": 52, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


def theirs(method: str, **options: Any) -> int:
    """Learned parameters of a small Llama under one of peft's methods."""
    import peft
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("cpu"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SIZES))
    adapted = peft.get_peft_model(model, getattr(peft, method)(task_type="CAUSAL_LM", **options))
    return sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)


def test_adapters_learn_as_many_parameters_as_pefts() -> None:
    model = read_config({"model_type": "llama", **SIZES})
    linear = {"query": "q_proj", "value": "v_proj", "output": "o_proj", "gate": "gate_proj", "down": "down_proj"}
    modules = {"target_modules": list(linear.values())}
    assert adapters.lora(model, 4, tuple(linear)) == theirs("LoraConfig", r=4, **modules)
    adalora = theirs("AdaLoraConfig", init_r=4, target_r=2, total_step=10, **modules)
    assert adapters.adalora(model, 4, tuple(linear)) == adalora
    assert adapters.ia3(model) == theirs("IA3Config")
    assert adapters.prompt(model, 7) == theirs("PromptTuningConfig", num_virtual_tokens=7)
    tuned = theirs("PromptEncoderConfig", num_virtual_tokens=7, encoder_hidden_size=16)
    assert adapters.p_tuning(model, 7, 16) == tuned


def test_an_adapter_of_what_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="choose among query"):
        adapters.lora(published("gpt2"), 4, ("wte",))
    with pytest.raises(ConfigError, match="has no gate"):
        adapters.lora(published("gpt2"), 4, ("gate",))
    with pytest.raises(ConfigError, match="rank is 0"):
        adapters.lora(published("gpt2"), 0)
