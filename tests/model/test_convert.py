"""Hugging Face folders in and out: equal logits, equal loss, equal gradients; and what cannot be read says why."""

import json
import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from limpid.config import ModelConfig
from limpid.data.new_tokenizer import train_bpe
from limpid.errors import CheckpointError, ConfigError, LimpidError
from limpid.model import Transformer, initialise
from limpid.model.convert import load_folder, load_model
from limpid.model.export import save_folder
from limpid.model.kernels.linear_cross_entropy import linear_cross_entropy

SIZES = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.0}
GPT2 = {"vocab_size": 61, "n_positions": 64, "n_embd": 24, "n_layer": 3, "n_head": 6,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # fmt: skip
PUBLISHED = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "llama, tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "llama, biases": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)),
    "llama, wide heads": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, head_dim=10)),
    "llama, gelu": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, hidden_act="gelu_pytorch_tanh")),
    "llama 3.1": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=LLAMA3)),
    "llama, yarn": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=YARN)),
    "llama, linear": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=LINEAR)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=5)),
    "mistral, no window": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen2, windows": lambda: Qwen2ForCausalLM(
        Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    ),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8)),
    "qwen3, biases": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8, attention_bias=True)),
    "gpt-2": lambda: GPT2LMHeadModel(GPT2Config(**GPT2)),
    "gpt-2, other mlp": lambda: GPT2LMHeadModel(GPT2Config(**GPT2, n_inner=56, activation_function="relu")),
}
OURS = {
    "llama": {"tied": False},
    "interleaved": {"rotary_layout": "interleaved"},
    "interleaved, normed heads": {"rotary_layout": "interleaved", "qk_norm": True, "num_kv_heads": 2},
    "stretched": {"rotary_scaling": "yarn", "rotary_factor": 2.0, "rotary_low": 1.0, "rotary_high": 32.0},
    "llama 3": {"rotary_scaling": "llama3", "rotary_factor": 2.0},
    "window": {"attention_window": 5},
    "windowed blocks": {"attention_window": 5, "windowed_blocks": (1,), "qk_norm": True},
    "qwen2": {"attention_bias": True, "attention_window": 5, "windowed_blocks": (0, 2)},
    "all biases": {"attention_bias": True, "attention_output_bias": True, "mlp_bias": True},
    "relu2": {"activation": "relu2"},
    "gpt-2": {"norm": "layer", "positions": "learned", "mlp": "plain", "activation": "gelu_tanh",
              "attention_bias": True, "attention_output_bias": True, "mlp_bias": True},
}  # fmt: skip


def tokens_and_targets() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(0, 61, (3, 18), generator=torch.Generator().manual_seed(0))
    return tokens[:, :-1], tokens[:, 1:]


def published(name: str, folder: Path) -> torch.nn.Module:
    """A model of transformers with weights far from zero, saved."""
    torch.manual_seed(0)
    model = PUBLISHED[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


def ours(name: str) -> Transformer:
    config = ModelConfig(vocab_size=61, context_length=64, d_model=24, num_layers=3, num_heads=6, **OURS[name])
    model = initialise(Transformer(config), 0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def close(some: torch.Tensor, others: torch.Tensor, floor: float = 0.0) -> None:
    """Equal but for rounding in float32: relative to the largest, or to `floor` where all should be zero."""
    assert (some - others).abs().max() <= 2e-5 * max(floor, others.abs().max())


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_gives_equal_logits_loss_and_gradients(name: str, tmp_path: Path) -> None:
    theirs = published(name, tmp_path)
    model = load_model(tmp_path)
    inputs, targets = tokens_and_targets()
    their_logits = theirs(inputs).logits
    F.cross_entropy(their_logits.flatten(0, 1), targets.flatten()).backward()
    logits = model(inputs)
    loss = linear_cross_entropy(model.hidden(inputs), model.output_matrix, targets, targets.numel())
    loss.backward()
    close(logits, their_logits)
    their_gradients = {n: p.grad for n, p in theirs.named_parameters()}
    gradient_folder = tmp_path / "gradients"
    gradient_folder.mkdir()
    (gradient_folder / "config.json").write_text((tmp_path / "config.json").read_text())
    save_file({n: g.clone() for n, g in their_gradients.items()}, gradient_folder / "model.safetensors")
    _, renamed = load_folder(gradient_folder)  # gradients are arranged as the weights are
    floor = 1e-3 * max(gradient.abs().max() for gradient in renamed.values())  # a bias of all keys alike has none
    for parameter_name, parameter in model.named_parameters():
        close(parameter.grad, renamed[parameter_name], floor)


@pytest.mark.parametrize("name", OURS)
def test_our_model_loads_in_transformers_with_equal_logits(name: str, tmp_path: Path) -> None:
    model = ours(name)
    save_folder(tmp_path / "model", model.config, model.state_dict(), tokenizer_json=None, end_of_text=None)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    inputs, _ = tokens_and_targets()
    with torch.no_grad():
        close(model(inputs), theirs(inputs).logits)
    again = load_model(tmp_path / "model")
    with torch.no_grad():
        close(again(inputs), theirs(inputs).logits)


def test_our_tokenizer_loads_in_transformers_with_equal_ids(tmp_path: Path) -> None:
    tokenizer = train_bpe(["naïve cats see <|endoftext|> trees"] * 30, 300)
    model = ours("llama")
    save_folder(
        tmp_path / "model",
        model.config,
        model.state_dict(),
        tokenizer_json=tokenizer.to_json(),
        end_of_text=tokenizer.end_of_text,
    )
    theirs = AutoTokenizer.from_pretrained(tmp_path / "model")
    for text in ("cats see naïve trees", "a <|endoftext|> b", "  two  spaces\n\ttab", "日本"):
        assert theirs(text)["input_ids"] == tokenizer.encode(text)
        assert theirs.decode(tokenizer.encode(text)) == text
    assert theirs.eos_token_id == tokenizer.end_of_text


def test_greedy_generation_in_transformers_follows_our_argmax(tmp_path: Path) -> None:
    model = ours("windowed blocks")
    save_folder(tmp_path / "model", model.config, model.state_dict(), tokenizer_json=None, end_of_text=None)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    tokens = tokens_and_targets()[0][:1, :5]
    everything = torch.ones_like(tokens)
    generated = theirs.generate(tokens, attention_mask=everything, max_new_tokens=12, do_sample=False, pad_token_id=0)
    with torch.no_grad():
        for _ in range(12):
            tokens = torch.cat((tokens, model(tokens)[:, -1:].argmax(-1)), 1)
    assert torch.equal(tokens, generated)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"positions": "sinusoidal"}, ["positions sinusoidal"]),
        ({"norm_placement": "post"}, ["norm_placement post"]),
        ({"positions": "none", "norm": "layer"}, ["positions none"]),
        ({"attention_window": 4, "windowed_blocks": (1,)}, ["attention_window 4"]),
        ({"mlp": "plain"}, ["mlp plain"]),
    ],
)
def test_what_no_family_can_say_is_named(options: dict, names: list[str], tmp_path: Path) -> None:
    config = ModelConfig(vocab_size=61, d_model=24, num_heads=3, num_layers=2, **options)
    with pytest.raises(ConfigError) as caught:
        save_folder(tmp_path / "model", config, {}, tokenizer_json=None, end_of_text=None)
    assert all(name in str(caught.value) for name in names)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("rope", [LLAMA3, YARN, LINEAR])
def test_both_spellings_of_rotary_options_are_read(version: int, rope: dict, tmp_path: Path) -> None:
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=rope)).save_pretrained(tmp_path)
    expected, _ = load_folder(tmp_path)
    file = tmp_path / "config.json"
    their = json.loads(file.read_text())
    if version == 4:
        parameters = their.pop("rope_parameters")
        their["rope_theta"] = parameters.pop("rope_theta")
        parameters["type"] = parameters.pop("rope_type")
        their["rope_scaling"] = parameters
    file.write_text(json.dumps(their))
    config, _ = load_folder(tmp_path)
    assert config == expected
    assert config.rotary_scaling == rope["rope_type"]


def test_shards_half_precision_and_short_names_are_read(tmp_path: Path) -> None:
    theirs = published("llama", tmp_path)
    whole = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = sorted(whole)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    weight_map = {}
    for file, members in parts.items():
        save_file({name.removeprefix("model."): whole[name].bfloat16() for name in members}, tmp_path / file)
        weight_map |= {name.removeprefix("model."): file for name in members}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    _, weights = load_folder(tmp_path)
    assert torch.equal(weights["embed.tokens.weight"], theirs.model.embed_tokens.weight.bfloat16().float())


def change(folder: Path, **options) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | options))


def quantised(folder: Path) -> None:
    file = folder / "model.safetensors"
    weights = load_file(file)
    save_file(weights | {"model.norm.weight": weights["model.norm.weight"].to(torch.int8)}, file)


def pipe(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


def index_without_one(folder: Path) -> None:
    names = sorted(load_file(folder / "model.safetensors"))[1:]
    weight_map = dict.fromkeys(names, "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "not valid JSON"),
        (lambda f: (f / "config.json").write_text("[]"), "holds list"),
        (lambda f: change(f, model_type="mamba"), "limpid reads llama, mistral, qwen2, qwen3, gpt2"),
        (lambda f: change(f, hidden_act="quick_gelu"), "quick_gelu"),
        (lambda f: change(f, hidden_size=36), "has shape"),
        (lambda f: change(f, num_hidden_layers=4), "its weights are of 3 layers, the configuration asks for 4"),
        (lambda f: change(f, num_hidden_layers=2), "its weights are of 3 layers, the configuration asks for 2"),
        (lambda f: change(f, num_hidden_layers=10**12, sliding_window=4), "the configuration asks for 1000000000000"),
        (lambda f: change(f, max_position_embeddings=10**30), "it must fit in 64 bits"),
        (lambda f: change(f, num_attention_heads=0), "num_attention_heads is 0: it must be at least 1"),
        (lambda f: change(f, hidden_size="32"), "hidden_size is '32': expected a whole number"),
        (lambda f: change(f, hidden_size=None), "hidden_size is None: expected a whole number"),
        (lambda f: change(f, hidden_act=["silu"]), "hidden_act is ['silu']: expected text"),
        (lambda f: change(f, model_type={}), "holds a model of type {}"),
        (lambda f: change(f, rope_parameters=[1]), "rope_parameters is [1]: expected an object"),
        (lambda f: change(f, rope_parameters={"rope_theta": "big"}), "rope_theta is 'big': expected a number"),
        (lambda f: change(f, rope_parameters={"rope_type": "llama3", "factor": 2.0}), "needs low_freq_factor"),
        (lambda f: change(f, rms_norm_eps=float("inf")), "rms_norm_eps is inf: it must be a finite number"),
        (lambda f: (f / "config.json").write_text('{"a":' * 100_000), "nested too deeply"),
        (lambda f: (f / "model.safetensors.index.json").write_text("[" * 100_000), "not an index of shards"),
        (
            lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": 5}}'),
            "not an index of shards",
        ),
        (quantised, "is of format I8"),
        (pipe, "model.safetensors is missing"),
        (lambda f: change(f, num_attention_heads=5), "config.json"),
        (lambda f: change(f, rope_parameters={"rope_type": "dynamic", "factor": 2.0}), "'dynamic' has no equivalent"),
        (lambda f: change(f, rope_parameters={"rope_type": "linear"}), "rope_type linear needs factor"),
        (lambda f: change(f, rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.5}), "every pair"),
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\x80\x04}."), "cannot be read"),
        (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "is a pickle"),
        (lambda f: (f / "model.safetensors.index.json").write_text("{}"), "not an index of shards"),
        (index_without_one, "index.json lacks lm_head.weight, which model.safetensors holds"),
    ],
)
def test_what_cannot_be_read_is_one_line(spoil, message: str, tmp_path: Path) -> None:
    published("llama", tmp_path)
    spoil(tmp_path)
    with pytest.raises(LimpidError) as caught:
        load_folder(tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_gpt2_variants_without_equivalent_are_named(tmp_path: Path) -> None:
    published("gpt-2", tmp_path)
    change(tmp_path, scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(ConfigError, match="scale_attn_by_inverse_layer_idx"):
        load_folder(tmp_path)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    published("llama", tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_folder(tmp_path)
