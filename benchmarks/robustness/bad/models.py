"""Hugging Face folders with one thing wrong: a field, a tensor, a shard, the index, the tokenizer."""

import json
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.robustness.bad.case import Cases, Expect, Step, change, have, put
from benchmarks.robustness.bad.damage import DISK, SLIGHT, STRANGE, damage, field, fill, header, instead

READERS: dict[str, tuple[str, ...]] = {
    "generate": ("generate", "MODEL", "the", "-n", "3"),
    "trace": ("trace", "MODEL", "--text", "the river runs"),
    "evaluate": ("evaluate", "MODEL", "other.txt", "--max-tokens", "200"),
    "compare": ("compare", "MODEL", "MODEL:plain"),
    "init": (
        "train",
        "text.txt",
        "--init-from",
        "MODEL",
        "--max-steps",
        "1",
        "--batch-size",
        "2",
        "--eval-batches",
        "1",
    ),
    "inspect": ("inspect", "MODEL", "--text", "the river runs over stone"),
    "plan": ("plan", "MODEL"),
}
SIZES = {
    "llama": ("hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "intermediate_size",
              "vocab_size", "max_position_embeddings", "rms_norm_eps", "hidden_act", "head_dim", "tie_word_embeddings",
              "attention_bias", "model_type", "mlp_bias"),
    "gpt2": ("n_embd", "n_head", "n_layer", "n_positions", "vocab_size", "activation_function", "layer_norm_epsilon",
             "model_type", "n_inner"),
}  # fmt: skip
SURE = {"minus", "half", "word", "list", "object", "nested", "nan", "long", "escape", "huge", "zero", "inf", "vast"}
"""Strange values that no size may have."""
ACTIVATION = {"hidden_act", "activation_function", "model_type"}
FREE = {"n_inner", "max_position_embeddings", "tie_word_embeddings", "attention_bias", "mlp_bias", "head_dim"}

ROPE: list[tuple[str, Any, Expect]] = [
    ("of an unknown kind", {"rope_type": "spiral", "rope_theta": 10000.0, "factor": 2.0}, "refuse"),
    ("without a factor", {"rope_type": "linear", "rope_theta": 10000.0}, "refuse"),
    ("of factor zero", {"rope_type": "linear", "rope_theta": 10000.0, "factor": 0.0}, "refuse"),
    ("of a negative factor", {"rope_type": "linear", "rope_theta": 10000.0, "factor": -2.0}, "refuse"),
    ("of a factor that is a word", {"rope_type": "linear", "rope_theta": 10000.0, "factor": "two"}, "refuse"),
    ("that is a word", "linear", "refuse"),
    ("that is a list", [2.0], "refuse"),
    ("of base zero", {"rope_type": "default", "rope_theta": 0.0}, "refuse"),
    ("of a base that is null", {"rope_type": "default", "rope_theta": None}, "any"),
    ("llama3 without its frequencies", {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0}, "refuse"),
    ("longrope without its factors", {"rope_type": "longrope", "rope_theta": 1e4}, "refuse"),
    ("dynamic", {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, "any"),
]
PAIRS: list[tuple[str, str, dict[str, Any], Expect]] = [
    ("llama", "heads that do not divide", {"num_attention_heads": 3}, "refuse"),
    ("llama", "groups that do not divide", {"num_key_value_heads": 3}, "refuse"),
    ("llama", "more key heads than heads", {"num_key_value_heads": 8}, "refuse"),
    ("llama", "a layer more than there is", {"num_hidden_layers": 3}, "refuse"),
    ("llama", "a layer fewer than there is", {"num_hidden_layers": 1}, "any"),
    ("llama", "another width", {"hidden_size": 32, "head_dim": 8}, "refuse"),
    ("llama", "a larger vocabulary", {"vocab_size": 400}, "refuse"),
    ("llama", "a smaller vocabulary", {"vocab_size": 100}, "refuse"),
    ("llama", "tied, with a head of its own", {"tie_word_embeddings": True}, "any"),
    ("llama", "an activation that nobody knows", {"hidden_act": "wobble"}, "refuse"),
    ("llama", "another activation", {"hidden_act": "gelu_new"}, "any"),
    ("llama", "biases that are not there", {"attention_bias": True, "mlp_bias": True}, "refuse"),
    ("llama", "an encoder-decoder", {"is_encoder_decoder": True}, "any"),
    ("llama", "quantised weights", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "refuse"),
    ("llama", "code of its own", {"auto_map": {"AutoModelForCausalLM": "evil.Model"}}, "any"),
    ("llama", "another family's name", {"model_type": "gpt2"}, "refuse"),
    ("llama", "a family with other parts", {"model_type": "qwen3"}, "refuse"),
    ("llama", "an unknown family", {"model_type": "nobody-knows"}, "refuse"),
    ("llama", "a family in Greek", {"model_type": "λλαμα"}, "refuse"),
    ("llama", "a dtype that does not exist", {"dtype": "float13"}, "any"),
    ("llama", "a classifier", {"architectures": ["LlamaForSequenceClassification"]}, "any"),
    ("gpt2", "cross-attention", {"add_cross_attention": True}, "any"),
    ("gpt2", "scores scaled by layer", {"scale_attn_by_inverse_layer_idx": True}, "any"),
    ("gpt2", "no scaling of scores", {"scale_attn_weights": False}, "any"),
    ("gpt2", "heads that do not divide", {"n_head": 3}, "refuse"),
    ("gpt2", "fewer positions than its table", {"n_positions": 32}, "any"),
    ("gpt2", "more positions than its table", {"n_positions": 128}, "refuse"),
]  # fmt: skip


def weights(name: str) -> str:
    return "llama/model-00001*.safetensors" if name == "llama" else "gpt2/model.safetensors"


def _first(entries: dict[str, Any]) -> str:
    return min(name for name in entries if name != "__metadata__" and len(entries[name]["shape"]) == 2)


def _tensors() -> list[tuple[str, Callable[[dict[str, Any]], object], Expect]]:
    def rename(entries: dict[str, Any]) -> None:
        entries["model.layers.0.\x1b[2J"] = entries.pop(_first(entries))

    def transposed(entries: dict[str, Any]) -> None:
        for name in entries:
            if name != "__metadata__" and len(set(entries[name]["shape"])) == 2:
                entries[name]["shape"].reverse()

    def extra(entries: dict[str, Any]) -> None:
        entries["model.layers.0.adapter.weight"] = dict(entries[_first(entries)])

    def set_first(**values: Any) -> Callable[[dict[str, Any]], object]:
        return lambda entries: entries[_first(entries)].update(values)

    return [
        ("a tensor missing", lambda h: h.pop(_first(h)), "refuse"),
        ("a tensor by another name", rename, "refuse"),
        ("tensors transposed", transposed, "refuse"),
        ("two names for the same bytes", extra, "any"),
        ("a dtype that does not exist", set_first(dtype="F13"), "refuse"),
        ("floats called integers", set_first(dtype="I32"), "refuse"),
        ("floats called half as long", set_first(dtype="BF16"), "refuse"),
        ("offsets beyond the file", set_first(data_offsets=[0, 10**12]), "refuse"),
        ("offsets backwards", set_first(data_offsets=[64, 0]), "refuse"),
        ("negative offsets", set_first(data_offsets=[-64, 0]), "refuse"),
        ("a shape of strings", set_first(shape=["a", "b"]), "refuse"),
        ("a shape of 10¹⁸", set_first(shape=[10**9, 10**9]), "refuse"),
        ("no shape", lambda h: h[_first(h)].pop("shape"), "refuse"),
        ("no tensors at all", lambda h: h.clear(), "refuse"),
    ]


BYTES: list[tuple[str, bytes]] = [
    ("a header of 2⁶⁴ bytes", struct.pack("<Q", 2**64 - 1) + b"{}"),
    ("a header longer than the file", struct.pack("<Q", 10**6) + b"{}"),
    ("a header that is a list", struct.pack("<Q", 2) + b"[]"),
    ("a header of brackets", struct.pack("<Q", 100_000) + b"[" * 100_000),
    ("an empty header", struct.pack("<Q", 0)),
    ("a header that is no UTF-8", struct.pack("<Q", 4) + b"\xff\xfe\xfd\xfc"),
    ("seven bytes", b"\x01" * 7),
    ("an unfetched LFS pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548118077\n"),
    ("a page of HTML", b"<!DOCTYPE html><html><body>404: not found</body></html>"),
]


class Evil:
    """Leaves a file behind if it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Path.touch, (Path("config-was-executed"),)  # type: ignore[return-value]


def _tokenizers() -> list[tuple[str, Callable[[Path], None], Expect]]:
    def larger(path: Path) -> None:
        document = json.loads(path.read_text())
        for token in list(document["model"]["vocab"]):
            document["model"]["vocab"][token] += 1000
        path.write_text(json.dumps(document))

    def doubled(path: Path) -> None:
        document = json.loads(path.read_text())
        vocabulary = document["model"]["vocab"]
        document["model"]["vocab"] = dict.fromkeys(vocabulary, 5)
        path.write_text(json.dumps(document))

    merges = [["zz", "qq"], ["none", "such"]]
    return [
        ("ids beyond the model's", larger, "refuse"),
        ("one id for all", doubled, "any"),
        ("no vocabulary", field("model", "vocab", value={}), "refuse"),
        ("no model", field("model", value=None), "refuse"),
        ("a model without a field", field("model", "vocab", drop=True), "refuse"),
        ("an unknown model", field("model", "type", value="Quantum"), "refuse"),
        ("merges of what is not there", field("model", "merges", value=merges), "refuse"),
        ("merges that are numbers", field("model", "merges", value=[1, 2]), "refuse"),
        ("ids that are negative", field("model", "vocab", value={"a": -1, "b": -2}), "refuse"),
        ("ids that are words", field("model", "vocab", value={"a": "one"}), "refuse"),
        ("no way to bytes", field("pre_tokenizer", value=None), "any"),
        ("no decoder", field("decoder", value=None), "any"),
        ("an added token beyond the model's", field("added_tokens", value=[
            {"id": 10**6, "content": "the", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": True}]), "any"),
        ("an added token without an id", field("added_tokens", value=[{"content": "x"}]), "refuse"),
        ("a template of nothing", field("post_processor", value={"type": "TemplateProcessing"}), "refuse"),
        ("a pattern that never ends", field("pre_tokenizer", value={"type": "Split", "pattern": {
            "Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}), "any"),
        ("a list", instead("[]"), "refuse"),
        ("nested without end", instead('{"a":' * 50_000), "refuse"),
    ]  # fmt: skip


def cases(rng: random.Random) -> Cases:
    found = Cases("models")

    def tried(
        model: str, name: str, what: str, steps: tuple[Step, ...], expect: Expect, verbs: int = 1, skip: str = "plan"
    ) -> None:
        for verb in rng.sample([v for v in READERS if v not in skip.split()], verbs):
            argv = tuple(word.replace("MODEL", model) for word in READERS[verb])
            lay = (have(model, "text.txt", "other.txt"), *steps)
            found.add(f"{verb}-{model}-{name}", what, *argv, lay=lay, expect=expect, names=(model,))

    for model, names in SIZES.items():
        tried(model, "plain", "as it should be", (), "accept", 3)
        for name in names:
            for strange in rng.sample(sorted(STRANGE), 4):
                value = STRANGE[strange]
                sure = strange in SURE and name not in FREE and not (name in ACTIVATION and strange == "null")
                sure &= not (name.endswith(("eps", "epsilon")) and strange in ("half", "zero", "huge", "vast"))
                steps = (change(f"{model}/config.json", field(name, value=value)),)
                tried(
                    model,
                    f"{name}={strange}",
                    f"config.json says {name} is {strange}",
                    steps,
                    "refuse" if sure else "any",
                    skip="plan" if name.endswith(("eps", "epsilon", "act")) else "",
                )
            if name not in FREE | ACTIVATION and rng.random() < 0.6:
                steps = (change(f"{model}/config.json", lambda path, key=name: json_without(path, key)),)  # type: ignore[misc]
                tried(model, f"{name}-gone", f"config.json without {name}", steps, "any", skip="")
        for what, edit, expect in _tensors():
            tried(model, what, f"weights: {what}", (change(weights(model), header(edit)),), expect)
        for what, content in rng.sample(BYTES, 6):
            tried(model, what, f"weights: {what}", (change(weights(model), instead(content)),), "refuse")
        for file in ("config.json", "tokenizer.json", weights(model).partition("/")[2]):
            for how in rng.sample([*DISK, *SLIGHT], 7):
                expect_file: Expect = "refuse" if how in DISK else "any"
                steps = (change(f"{model}/{file}", damage(how, rng.randrange(999))),)
                skip = "plan" if file == "config.json" else "plan compare" if file == "tokenizer.json" else "plan"
                tried(model, f"{file[:12]}-{how}", f"{file}, {how}", steps, expect_file, skip=skip)
    for what, rope, expect in ROPE:

        def scale(path: Path, rope: Any = rope) -> None:
            field("rope_parameters", value=rope)(path)
            field("rope_scaling", value=rope)(path)

        scaled = change("llama/config.json", scale)
        tried("llama", f"rope-{what}", f"rotary scaling {what}", (scaled,), expect, 2)
    for model, what, values, expect in PAIRS:
        several = tuple(change(f"{model}/config.json", field(key, value=v)) for key, v in values.items())
        tried(model, what, f"config.json: {what}", several, expect)
    index = "llama/model.safetensors.index.json"
    for what, hurt, expect in (
        ("no map", field("weight_map", value={}), "refuse"),
        ("a map that is a list", field("weight_map", value=[]), "refuse"),
        ("no map at all", field("weight_map", drop=True), "refuse"),
        ("a shard that is not there", field("weight_map", "model.norm.weight", value="model-9.safetensors"), "refuse"),
        ("a shard outside", field("weight_map", "model.norm.weight", value="../gpt2/model.safetensors"), "refuse"),
        ("a shard that is a number", field("weight_map", "model.norm.weight", value=3), "refuse"),
        ("a shard that is null", field("weight_map", "model.norm.weight", value=None), "refuse"),
        ("a tensor in the wrong shard",
         field("weight_map", "model.norm.weight", value="model-00001-of-00004.safetensors"),
         "any"),
        ("a tensor missing in the map", field("weight_map", "model.norm.weight", drop=True), "refuse"),
        ("a shard that is the folder", field("weight_map", "model.norm.weight", value="."), "refuse"),
        ("a size that is not so", field("metadata", "total_size", value=-5), "any"),
        ("the index, cut off", damage("half"), "refuse"),
        ("the index, empty", damage("empty"), "refuse"),
        ("no index", damage("gone"), "refuse"),
    ):  # fmt: skip
        tried("llama", what, f"the index: {what}", (have("gpt2"), change(index, hurt)), expect)
    for what, hurt, expect in _tokenizers():
        tried(
            "gpt2",
            f"tokenizer-{what}",
            f"tokenizer.json: {what}",
            (change("gpt2/tokenizer.json", hurt),),
            expect,
            1,
            "plan compare",
        )
    bin_only = change("gpt2/model.safetensors", damage("gone"))
    for what, content in (
        ("a pickle that runs code", pickle.dumps(Evil())),
        ("an empty pickle", b""),
        ("a zip", b"PK\x03\x04"),
    ):
        tried("gpt2", what, f"pytorch_model.bin: {what}", (bin_only, put("gpt2/pytorch_model.bin", content)), "refuse")
    evil = put("llama/modeling_evil.py", "open('config-was-executed', 'w')\n")
    auto = change("llama/config.json", field("auto_map", value={"AutoModelForCausalLM": "modeling_evil.Model"}))
    tried(
        "llama",
        "remote-code",
        "code in the folder",
        (evil, auto, change("llama/config.json", field("model_type", value="evil"))),
        "refuse",
        2,
    )
    for value in (float("nan"), float("inf"), 3e38):
        tried(
            "gpt2",
            f"weights={value}",
            f"weights that are {value}",
            (change("gpt2/model.safetensors", fill(value)),),
            "any",
            2,
        )
    return found


def json_without(path: Path, key: str) -> None:
    """A document without a field, where it is there."""
    document = json.loads(path.read_text())
    document.pop(key, None)
    path.write_text(json.dumps(document))
