"""GGUF files: what transformers reads back from them, which is nobody of llama.cpp's family, has the same logits."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers

from limpid import export
from limpid.config import ModelConfig
from limpid.data.new_tokenizer import byte_tokenizer, character_tokenizer, train_bpe
from limpid.errors import CheckpointError, ConfigError
from limpid.model import Transformer, initialise
from limpid.model.export import save_folder
from limpid.model.gguf_file import save_gguf

SIZES = {"vocab_size": 300, "context_length": 32, "d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 64}
GPT2 = {
    "norm": "layer", "positions": "learned", "mlp": "plain", "activation": "gelu_tanh", "attention_bias": True,
    "attention_output_bias": True, "mlp_bias": True,
    "d_ff": 128, "context_length": 1024,  # the only ones that transformers reads
}  # fmt: skip
MODELS = {
    "llama": {},
    "llama, biases": {"attention_bias": True, "num_kv_heads": 2, "tied": False},
    "llama, interleaved": {"rotary_layout": "interleaved"},
    "qwen2": {"attention_bias": True, "attention_output_bias": False, "num_kv_heads": 1},
    "qwen3": {"qk_norm": True, "num_kv_heads": 2, "d_head": 128},  # llama.cpp reads any d_head, transformers this one
    "gpt2": GPT2,
    "low-rank": {"lora_rank": 2},
}


def written(file: Path, stored_as: str = "fp32", **options) -> Transformer:
    """A random model, and its file."""
    config = ModelConfig(**(SIZES | options))
    model = initialise(Transformer(config), seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    tokenizer = train_bpe(["the cat sees the dog"] * 9, 300)
    save_gguf(file, config, model.state_dict(), name="tiny", tokenizer_json=tokenizer.to_json(),
              end_of_text=tokenizer.end_of_text, stored_as=stored_as)  # fmt: skip
    return model.eval()


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_transformers_reads_the_same_logits(tmp_path: Path, options: dict) -> None:
    ours = written(tmp_path / "model.gguf", **options)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    tokens = torch.arange(24).reshape(2, 12) * 12 % 300
    with torch.no_grad():
        expected, found = ours(tokens), theirs(tokens).logits
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize(("stored_as", "bits"), [("bf16", 8), ("fp16", 11), ("q8_0", 7)])
def test_matrices_are_rounded_and_gains_are_not(tmp_path: Path, stored_as: str, bits: int) -> None:
    """q8_0 rounds to 1/127 of a block's largest number, the others to so many bits of each."""
    model = written(tmp_path / "model.gguf", stored_as)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    gain, matrix = tensors["blk.0.attn_norm.weight"], tensors["blk.1.ffn_down.weight"]
    assert np.array_equal(gain.data, model.blocks[0].norm1.weight.detach().numpy())
    exact = model.blocks[1].mlp.output.weight.detach().numpy()
    read = gguf.quants.dequantize(matrix.data, matrix.tensor_type).reshape(exact.shape)
    largest = np.abs(exact).max() if stored_as == "q8_0" else np.abs(exact)
    assert (np.abs(read - exact) <= 1.01 * largest * 2.0**-bits + 2.0**-25).all()  # half of the smallest fp16
    assert not np.array_equal(read, exact)


@pytest.mark.parametrize(
    ("options", "word"),
    [({"activation": "gelu"}, "activation gelu in llama"), ({"attention_window": 4}, "attention_window 4 in llama")],
)
def test_what_llama_cpp_would_compute_otherwise_is_refused(tmp_path: Path, options: dict, word: str) -> None:
    with pytest.raises(ConfigError, match=f"llama.cpp has no word for {word}"):
        written(tmp_path / "model.gguf", **options)
    assert not list(tmp_path.iterdir())


def test_tokenizers_that_split_otherwise_are_refused(tmp_path: Path) -> None:
    config = ModelConfig(**SIZES)
    weights = initialise(Transformer(config), 0).state_dict()

    def save(tokenizer) -> None:
        save_gguf(tmp_path / "m.gguf", config, weights, name="m", tokenizer_json=tokenizer.to_json(), end_of_text=None)

    save(train_bpe(["the cat sees the dog"] * 9, 300))
    with pytest.raises(ConfigError, match="byte-level BPE tokenizers that split as GPT-2's"):
        save(character_tokenizer("abc"))


def test_bytes_alone_have_a_merge_that_no_text_has(tmp_path: Path) -> None:
    """llama.cpp says "cannot find tokenizer merges in model file" where there is none."""
    model, tokenizer = initialise(Transformer(config := ModelConfig(**SIZES)), 0), byte_tokenizer()
    file = tmp_path / "m.gguf"
    save_gguf(file, config, model.state_dict(), name="m", tokenizer_json=tokenizer.to_json(), end_of_text=None)
    words = dict(zip(gguf.GGUFReader(file).fields["tokenizer.ggml.tokens"].contents(), range(300), strict=True))
    [merge] = gguf.GGUFReader(file).fields["tokenizer.ggml.merges"].contents()
    first, _ = merge.split(" ")
    assert first in words
    text = "".join(chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000)
    assert words[first] not in tokenizer.encode(text)


def test_export_writes_either_form_and_nothing_over_something(tmp_path: Path) -> None:
    config, tokenizer = ModelConfig(**SIZES), train_bpe(["the cat sees the dog"] * 9, 300)
    model = initialise(Transformer(config), 0)
    save_folder(tmp_path / "hf", config, model.state_dict(), tokenizer_json=tokenizer.to_json(), end_of_text=299)
    export(tmp_path / "hf", tmp_path / "half", "bf16")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "half", dtype="auto")
    assert theirs.dtype == torch.bfloat16
    assert torch.equal(theirs.model.norm.weight, model.final_norm.weight.bfloat16())
    export(tmp_path / "hf", tmp_path / "m.gguf")
    for output in ("half", "m.gguf"):
        with pytest.raises(CheckpointError, match="exists already"):
            export(tmp_path / "hf", tmp_path / output)
    with pytest.raises(ConfigError, match=r"name a file that ends in \.gguf"):
        export(tmp_path / "hf", tmp_path / "eight", "q8_0")
