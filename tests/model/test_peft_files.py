"""Trained factors as peft keeps an adapter: what peft makes of them, and what comes back."""

import json
import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from limpid.cli import main
from limpid.config import ModelConfig
from limpid.data.new_tokenizer import byte_tokenizer
from limpid.errors import CheckpointError, ConfigError
from limpid.model import Transformer, initialise
from limpid.model.export import save_folder
from limpid.model.linear import begun_magnitudes, merge
from limpid.model.lora import trained_adapter
from limpid.model.peft_files import load_adapter, save_adapter
from limpid.model.pissa import beside_the_original, principal
from small import corpus

LLAMA = ModelConfig(vocab_size=257, d_model=16, num_layers=2, num_heads=4, num_kv_heads=2, context_length=12)
GPT2 = replace(
    LLAMA, num_kv_heads=None, norm="layer", positions="learned", mlp="plain", activation="gelu_tanh", mlp_bias=True,
    attention_bias=True, attention_output_bias=True,
)  # fmt: skip
SOME = {"lora_rank": 3, "lora_alpha": 6.0, "lora_targets": ("attention.query", "attention.output", "mlp.*")}
MODELS = {
    "llama": replace(LLAMA, **SOME),
    "llama, √rank": replace(LLAMA, **SOME, lora_scaling="sqrt_rank"),
    "llama, pairs side by side": replace(LLAMA, **SOME, rotary_layout="interleaved"),
    "gpt-2": replace(GPT2, **SOME),
    "llama, magnitudes": replace(LLAMA, **SOME, use_dora=True, rotary_layout="interleaved"),
    "gpt-2, magnitudes": replace(GPT2, **SOME, use_dora=True),
    "gpt-2, √rank": replace(GPT2, lora_rank=2, lora_scaling="sqrt_rank"),
}


def trained(config: ModelConfig) -> Transformer:
    """Factors that are not zero any more."""
    model = initialise(Transformer(config), 0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_b" in name:
                parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(len(name)))
            if ".lora_magnitude" in name:
                parameter *= 1 + 0.5 * torch.rand(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
    return model.eval()


@pytest.mark.parametrize("kind", MODELS)
def test_peft_gives_the_same_logits(kind: str, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    config = MODELS[kind]
    model = trained(config)
    weights = model.state_dict()
    base = {name: tensor for name, tensor in weights.items() if ".lora_" not in name}
    save_folder(tmp_path / "base", config.without_factors(), base, tokenizer_json=None, end_of_text=None)
    save_adapter(tmp_path / "adapter", config, weights, str(tmp_path / "base"))
    base_model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    theirs = PeftModel.from_pretrained(base_model, tmp_path / "adapter", is_trainable=True).eval()
    tokens = torch.randint(0, 257, (2, 11), generator=torch.Generator().manual_seed(1))
    logits, expected = model(tokens), theirs(tokens).logits
    torch.testing.assert_close(expected, logits, rtol=0, atol=1e-6)
    seed = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2)) / logits.numel()
    logits.backward(seed)
    expected.backward(seed)
    factors = (one for name, one in theirs.named_parameters() if re.search(r"\.1\.mlp\.(down|c)_proj\.lora_A", name))
    ours, expected = model.blocks[1].mlp.output.lora_a.weight.grad, next(factors).grad
    assert float((ours - expected).norm()) <= 1e-5 * float(expected.norm())
    kept = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert kept["base_model_name_or_path"] == str(tmp_path / "base")


PRINCIPAL = {"init_lora_weights": "pissa"}


@pytest.mark.parametrize("kind", ["llama", "llama, √rank", "gpt-2", "gpt-2, magnitudes"])
def test_factors_that_began_as_singular_values_are_peft_s_and_go_out_for_the_model_itself(
    kind: str, tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    config = replace(MODELS[kind], **PRINCIPAL)
    original = initialise(Transformer(config.without_factors()), 0).state_dict()
    begun = principal(config, original | begun_magnitudes(config, original))
    model = Transformer(config)
    model.load_state_dict(begun)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
    save_folder(tmp_path / "base", config.without_factors(), original, tokenizer_json=None, end_of_text=None)
    save_adapter(tmp_path / "adapter", *beside_the_original(config, model.state_dict(), begun), str(tmp_path / "base"))
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    theirs = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    tokens = torch.randint(0, 257, (2, 11), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(theirs(tokens).logits, model.eval()(tokens), rtol=0, atol=2e-6)
    assert json.loads((tmp_path / "adapter/adapter_config.json").read_text())["r"] == 2 * config.lora_rank
    merged = load_adapter(tmp_path / "adapter", config.without_factors()).merged(original)
    for name, weight in merge(config, model.state_dict())[1].items():
        torch.testing.assert_close(merged[name], weight, rtol=0, atol=1e-6)


def test_the_rest_of_a_weight_is_what_peft_leaves(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    config = replace(LLAMA, lora_rank=3, lora_alpha=6.0, lora_targets=("attention.value",), **PRINCIPAL)
    original = initialise(Transformer(LLAMA), 0).state_dict()
    save_folder(tmp_path / "base", LLAMA, original, tokenizer_json=None, end_of_text=None)
    asked = LoraConfig(r=3, lora_alpha=6.0, init_lora_weights="pissa", target_modules=["v_proj"])
    theirs = get_peft_model(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), asked)
    ours = principal(config, original)
    name = "base_model.model.model.layers.1.self_attn.v_proj.base_layer.weight"
    torch.testing.assert_close(ours["blocks.1.attention.value.weight"], theirs.state_dict()[name], rtol=0, atol=1e-7)
    theirs.save_pretrained(tmp_path / "adapter")
    with pytest.raises(ConfigError, match="path_initial_model_for_weight_conversion"):
        load_adapter(tmp_path / "adapter", LLAMA)


@pytest.mark.parametrize("kind", ["llama, √rank", "llama, magnitudes"])
def test_peft_drops_the_same_where_its_masks_are_ours(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    config = replace(MODELS[kind], lora_dropout=0.4)
    model = trained(config).train()
    base = {name: tensor for name, tensor in model.state_dict().items() if ".lora_" not in name}
    save_folder(tmp_path / "base", config.without_factors(), base, tokenizer_json=None, end_of_text=None)
    save_adapter(tmp_path / "adapter", config, model.state_dict(), str(tmp_path / "base"))
    assert load_adapter(tmp_path / "adapter", config.without_factors()).dropout == 0.4
    base_model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    theirs = PeftModel.from_pretrained(base_model, tmp_path / "adapter", is_trainable=True).train()
    tokens = torch.randint(0, 257, (2, 11), generator=torch.Generator().manual_seed(1))
    masks = []

    def observe(name: str, value: torch.Tensor) -> torch.Tensor:
        masks.extend([value.flatten(2).to(torch.float32)] if name.startswith("kept(") else [])
        return value

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ours = model(tokens, observe=observe)
        torch.manual_seed(0)
        exact = deepcopy(model).double()(tokens).double()
    assert {float(mask.mean() > 0.4) for mask in masks} == {1.0}
    drawn = iter(masks)  # both meet the maps of a block in the same order
    monkeypatch.setattr(torch.nn.Dropout, "forward", lambda self, x: x * next(drawn) / (1 - self.p) if self.p else x)
    rounding = float((ours - exact).detach().abs().max())  # another processor adds up in another order
    assert rounding < 1e-5
    torch.testing.assert_close(theirs(tokens).logits.double(), exact, rtol=0, atol=4 * rounding)
    assert next(drawn, None) is None


@pytest.mark.parametrize("kind", ["llama", "llama, √rank", "gpt-2", "gpt-2, √rank", "gpt-2, magnitudes"])
def test_what_is_written_comes_back(kind: str, tmp_path: Path) -> None:
    config = MODELS[kind]
    weights = trained(config).state_dict()
    save_adapter(tmp_path / "adapter", config, weights, "base")
    back = load_adapter(tmp_path / "adapter", config.without_factors())
    options, factors = back.trainable(config.without_factors())
    again = replace(config.without_factors(), **options)
    assert again.lora_scale == pytest.approx(config.lora_scale, rel=1e-15)
    assert [config.adapted(name) for name in config.linear_maps] == [again.adapted(name) for name in config.linear_maps]
    ours = {name: tensor for name, tensor in weights.items() if ".lora_" in name}
    assert ours.keys() == factors.keys()
    assert all(torch.equal(ours[name], factors[name]) for name in ours)


def test_factors_of_several_kinds_cannot_go_on(tmp_path: Path) -> None:
    adapter = trained_adapter(MODELS["llama"], trained(MODELS["llama"]).state_dict())
    del adapter.factors["blocks.1.mlp.up.weight"]
    with pytest.raises(ConfigError, match="give --lora-rank too"):
        adapter.trainable(LLAMA)


def test_a_run_of_factors_leaves_an_adapter_that_another_run_goes_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIMPID_CACHE", str(tmp_path / "cache"))
    corpus(tmp_path / "text", 3)
    weights = initialise(Transformer(LLAMA), 0).state_dict()
    save_folder(Path("base"), LLAMA, weights, tokenizer_json=byte_tokenizer().to_json(), end_of_text=256)
    words = "train text --batch-size 2 --max-steps 2 --eval-steps 0 --precision fp32 --doctor no --threads 1".split()  # noqa: SIM905
    factors = ["--lora-rank", "2", "--lora-targets", "attention.*", "--lora-scaling", "sqrt_rank", "--use-dora"]
    assert main([*words, "--init-from", "base", "--name", "first", *factors]) == 0
    assert "for peft" in capsys.readouterr().out
    begun = load_file("runs/first/checkpoints/000000/model.safetensors")
    for name in (name for name in begun if name.endswith(".lora_magnitude")):
        lengths = begun[name.replace("lora_magnitude", "weight")].norm(dim=1)
        torch.testing.assert_close(begun[name], lengths)
    assert main([*words, "--init-from", "base+runs/first/adapter", "--name", "second"]) == 0
    assert "the factors of base+runs/first/adapter, of rank 2, go on being trained" in capsys.readouterr().out
    first, begun = (
        load_file(f"runs/{name}/model.safetensors")
        for name in ("first/checkpoints/000002", "second/checkpoints/000000")
    )
    assert first.keys() == begun.keys()
    assert all(torch.equal(first[name], begun[name]) for name in first)
    assert main(["export", "second", "out", "--adapter"]) == 0
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert Path("out", name).read_bytes() == Path("runs/second/adapter", name).read_bytes()
    assert json.loads(Path("out/adapter_config.json").read_text())["base_model_name_or_path"] == "base"
    assert main(["generate", "base+out", "a", "-n", "2"]) == 0
    capsys.readouterr()
    for refused, said in (
        (["export", "base", "again", "--adapter"], "base has no low-rank factors of its own"),
        (["export", "second", "a.gguf", "--adapter"], "an adapter is a folder"),
    ):
        assert main(refused) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["llama", "gpt-2"])
def test_an_adapter_of_another_size_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    config = MODELS[kind]
    save_adapter(tmp_path / "adapter", config, trained(config).state_dict(), "little")
    for other in (replace(config, d_model=32), replace(config, d_model=17 - 1, num_heads=8, d_ff=20)):
        with pytest.raises(CheckpointError) as caught:
            load_adapter(tmp_path / "adapter", other.without_factors(), "big")
        assert re.search(r"adapter does not belong to big: it changes .* of shape \(\d+, \d+\), the model's has "
                         r"\(\d+, \d+\); the adapter was trained for little$", str(caught.value))  # fmt: skip
