"""Low-rank adapters, beside the weights or added in: the same model, and peft's."""

import json
from pathlib import Path

import pytest
import torch
from tests.comparison.compared import PUBLISHED, a_folder, compared

from limpid.cli import main


@pytest.mark.parametrize("kind", ["llama", "gpt-2"])
@pytest.mark.parametrize("stabilised", [False, True])
def test_an_adapter_beside_the_weights_equals_one_added_in_and_peft(
    kind: str, stabilised: bool, tmp_path: Path
) -> None:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    model = PUBLISHED[kind]()
    model.save_pretrained(tmp_path / "base")
    modules = ["q_proj", "v_proj", "down_proj"] if kind == "llama" else ["c_attn", "c_proj"]
    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=12, target_modules=modules, use_rslora=stabilised))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    adapted.save_pretrained(tmp_path / "adapter")
    base = str(tmp_path / "base")
    verdict = compared(f"{base}:lora={tmp_path / 'adapter'}", f"{base}:merged={tmp_path / 'adapter'}")
    assert verdict.agrees, verdict.first_disagreement
    logits = adapted.eval()(torch.from_numpy(verdict.first.tokens)).logits.detach().numpy()
    assert verdict.first.values["logits"] == pytest.approx(logits, abs=2e-5)
    without = compared(base, f"{base}:lora={tmp_path / 'adapter'}")
    assert not without.agrees
    assert without.weights.differing


def test_an_adapter_of_another_model_is_refused(tmp_path: Path, capsys) -> None:
    from safetensors.torch import save_file

    folder = a_folder(tmp_path / "a", "llama")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 4}))
    at = "base_model.model.model.layers.9.mlp.up_proj"
    tensors = {f"{at}.lora_A.weight": torch.ones(2, 12), f"{at}.lora_B.weight": torch.ones(17, 2)}
    save_file(tensors, tmp_path / "adapter" / "adapter_model.safetensors")
    assert main(["compare", str(folder), f"{folder}:lora={tmp_path / 'adapter'}"]) == 2
    assert "layers.9.mlp.up_proj" in capsys.readouterr().err
    assert main(["compare", str(folder), f"{folder}:lora={tmp_path / 'none'}"]) == 2
    assert "no adapter" in capsys.readouterr().err
