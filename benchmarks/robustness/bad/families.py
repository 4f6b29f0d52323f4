"""Random small Hugging Face folders: configurations, weights, tokenizers, and the forms in which folders are found."""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.robustness.bad.vocabularies import tokenizer_of

READABLE = {"gpt2": "GPT2", "llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
"""Families that limpid says it reads, and the beginning of transformers' names for them."""

OTHERS = [
    "Gemma", "Gemma2", "Gemma3", "Phi", "Phi3", "Mixtral", "Olmo", "Olmo2", "Olmo3", "Falcon", "GPTNeoX",
    "GPTNeo", "OPT", "Bloom", "Cohere", "Cohere2", "Granite", "Starcoder2", "StableLm", "GPTJ", "Mpt",
    "Qwen2Moe", "Qwen3Moe", "SmolLM3", "GPTBigCode", "Helium", "Glm", "Glm4", "Nemotron", "Persimmon", "XGLM",
    "Arcee", "Olmoe", "GraniteMoe", "Mamba",
]  # fmt: skip


@dataclass(frozen=True)
class Folder:
    """What one folder is made from."""

    name: str
    family: str  # as transformers' class names begin
    options: dict[str, Any]  # of the configuration
    dtype: str = "float32"
    tokenizer: str = "bytes"
    spare: int = 0  # rows of the embedding beyond the tokenizer's
    form: tuple[str, ...] = ()  # how it is written: shards, old, hub, buffers
    odd: str = ""  # what may be refused about it; nothing may be read wrongly
    known: bool = True
    seed: int = 0

    @property
    def kind(self) -> str:
        return self.family if self.known else "others"

    @property
    def done(self) -> str:
        options = ", ".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.family} {self.dtype}, tokenizer {self.tokenizer}+{self.spare}, {' '.join(self.form)}: {options}"


def _rope(rng: random.Random, context: int) -> tuple[dict[str, Any], str]:
    """Rotary parameters, and what is odd about them."""
    base: dict[str, Any] = {"rope_theta": rng.choice([10000.0, 10000.0, 500000.0, 1e6, 100.0])}
    kind = rng.choice(["default", "default", "default", "linear", "llama3", "yarn"])
    kind = rng.choice(["dynamic", "longrope", "partial"]) if rng.random() < 0.12 else kind
    factor = rng.choice([2.0, 4.0, 8.0])
    original = max(4, int(context / factor))
    if kind == "linear":
        return base | {"rope_type": "linear", "factor": rng.choice([factor, 1.5])}, ""
    if kind == "llama3":
        low = rng.choice([1.0, 1.0, 0.5])
        bounds = {"low_freq_factor": low, "high_freq_factor": low * 4, "original_max_position_embeddings": original}
        return base | {"rope_type": "llama3", "factor": factor} | bounds, ""
    if kind == "yarn":
        more: dict[str, Any] = {"original_max_position_embeddings": original}
        odd = ""
        if rng.random() < 0.5:
            more |= {"beta_fast": rng.choice([32.0, 16.0]), "beta_slow": rng.choice([1.0, 2.0])}
        if rng.random() < 0.3:
            more |= {"attention_factor": rng.choice([1.0, 1.25])}
        if rng.random() < 0.2:
            more, odd = more | {"mscale": 0.8, "mscale_all_dim": 1.2}, "mscale of yarn"
        if rng.random() < 0.2:
            more, odd = more | {"truncate": False}, "yarn without truncation"
        return base | {"rope_type": "yarn", "factor": factor} | more, odd
    if kind == "dynamic":
        return base | {"rope_type": "dynamic", "factor": factor}, "dynamic rotary scaling"
    if kind == "longrope":
        return base | {
            "rope_type": "longrope",
            "factor": factor,
            "original_max_position_embeddings": original,
        }, "longrope"
    if kind == "partial":
        return base | {"rope_type": "default", "partial_rotary_factor": 0.5}, "partial rotation"
    return base | {"rope_type": "default"}, ""


def _sizes(rng: random.Random) -> dict[str, Any]:
    """Sizes of a model with rotary positions, common and not."""
    groups, each = rng.choice([1, 1, 2, 3]), rng.choice([1, 2, 3, 4])
    head = rng.choice([4, 6, 8, 10, 16])
    return {
        "hidden_size": groups * each * head, "num_attention_heads": groups * each, "num_key_value_heads": groups,
        "head_dim": head, "intermediate_size": rng.choice([16, 29, 37, 48, 64, 101]),
        "num_hidden_layers": rng.choice([1, 2, 3]), "rms_norm_eps": rng.choice([1e-6, 1e-5, 1e-2, 0.1]),
        "max_position_embeddings": rng.choice([24, 32, 48, 64]), "tie_word_embeddings": rng.random() < 0.5,
    }  # fmt: skip


def readable(rng: random.Random, number: int) -> Folder:
    """A random folder of a family that limpid reads."""
    family = rng.choice(sorted(READABLE))
    odd: list[str] = []
    if family == "gpt2":
        heads = rng.choice([1, 2, 3, 5])
        options: dict[str, Any] = {
            "n_embd": heads * rng.choice([3, 4, 7, 8]), "n_head": heads, "n_layer": rng.choice([1, 2, 3]),
            "n_positions": rng.choice([24, 33, 64]), "n_inner": rng.choice([None, None, 29, 50]),
            "activation_function": rng.choice(["gelu_new", "gelu_new", "gelu", "relu", "gelu_pytorch_tanh"]),
            "layer_norm_epsilon": rng.choice([1e-5, 1e-2, 0.1]),
        }  # fmt: skip
        unusual: list[tuple[dict[str, Any], str]] = [
            ({"tie_word_embeddings": False}, "untied GPT-2"), ({"activation_function": "silu"}, "SiLU in GPT-2"),
            ({"scale_attn_by_inverse_layer_idx": True}, "scores by layer"),
            ({"scale_attn_weights": False}, "no scaling"),
            ({"activation_function": "quick_gelu"}, "another activation"),
        ]  # fmt: skip
    else:
        options = _sizes(rng)
        options["rope_parameters"], strange = _rope(rng, options["max_position_embeddings"])
        odd += [strange] if strange else []
        unusual = [
            ({"hidden_act": act}, f"{act} for SiLU") for act in ("gelu", "relu", "gelu_pytorch_tanh", "quick_gelu")
        ]
        if rng.random() < 0.25:
            options["hidden_size"] += options["num_attention_heads"] * rng.choice(
                [1, 2, 5]
            )  # the heads are not its parts
        if family in ("llama", "qwen3") and rng.random() < 0.35:
            options["attention_bias"] = True
        if family == "llama" and rng.random() < 0.3:
            options["mlp_bias"] = True
        if family == "mistral":
            options["sliding_window"] = rng.choice([None, 4, 7, 16, 4096])
        if family in ("qwen2", "qwen3") and rng.random() < 0.4:
            windowed = rng.randint(0, options["num_hidden_layers"])
            options |= {"use_sliding_window": True, "sliding_window": rng.choice([4, 9]), "max_window_layers": windowed}
        if family == "qwen2":
            options.pop("head_dim")
            options["hidden_size"] = options["num_attention_heads"] * rng.choice([4, 6, 8, 10, 16])
    if rng.random() < 0.09:
        more, strange = rng.choice(unusual)
        options |= more
        odd.append(strange)
    shares = {"shards": 0.35, "old": 0.4} | ({"hub": 0.4} if family == "gpt2" else {"buffers": 0.1})
    form = tuple(way for way, share in shares.items() if rng.random() < share)
    if "shards" in form:
        form = tuple(way for way in form if way in ("shards", "old"))
    odd += ["buffers among the weights"] if "buffers" in form else []
    tokenizer = rng.choice(["bytes", "bytes-start", "qwen", "metaspace"])
    tokenizer = rng.choice(["words", "unigram"]) if rng.random() < 0.07 else tokenizer
    odd += [f"a tokenizer of {tokenizer}"] if tokenizer in ("words", "unigram") else []
    dtype = rng.choice(["float32", "bfloat16", "float16"])
    return Folder(
        f"{family}-{number:03d}", READABLE[family], options, dtype, tokenizer, rng.choice([0, 0, 1, 13]), form,
        ", ".join(odd), seed=rng.randrange(10**6),
    )  # fmt: skip


def other(rng: random.Random, number: int) -> Folder:
    """A random folder of a family that limpid does not say it reads."""
    family = OTHERS[number % len(OTHERS)]
    heads = rng.choice([2, 4])
    width = heads * 8
    layers = rng.choice([1, 2])
    options: dict[str, Any] = {
        "hidden_size": width, "num_attention_heads": heads, "num_hidden_layers": layers, "num_key_value_heads": heads,
        "intermediate_size": 24, "max_position_embeddings": 64,
    }  # fmt: skip
    if family in ("GPTJ", "GPTBigCode"):
        options = {"n_embd": width, "n_head": heads, "n_layer": layers, "n_positions": 64, "rotary_dim": 4}
    elif family == "GPTNeo":
        options = {"hidden_size": width, "num_heads": heads, "num_layers": layers, "intermediate_size": 24,
                   "attention_types": [[["global"], layers]], "max_position_embeddings": 64}  # fmt: skip
    elif family == "OPT":
        options |= {"ffn_dim": 24, "word_embed_proj_dim": width}
    elif family == "Bloom":
        options = {"hidden_size": width, "n_head": heads, "n_layer": layers}
    elif family == "Mpt":
        options = {"d_model": width, "n_heads": heads, "n_layers": layers, "max_seq_len": 64}
    elif family == "XGLM":
        options = {"d_model": width, "attention_heads": heads, "num_layers": layers, "ffn_dim": 24}
    elif family == "Mamba":
        options = {"hidden_size": width, "num_hidden_layers": layers, "state_size": 4}
    elif family in ("Gemma", "Gemma2", "Gemma3", "Helium", "Glm", "Glm4"):
        options |= {"head_dim": 8}
    elif "Moe" in family or family in ("Mixtral", "Olmoe"):
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_local_experts": 4}
        options |= experts | {"shared_expert_intermediate_size": 16}
    dtype = rng.choice(["float32", "bfloat16"])
    return Folder(f"{family.lower()}-{number:03d}", family, options, dtype, known=False, seed=rng.randrange(10**6))


def make(folder: Folder, place: Path) -> bytes:
    """Write the folder with transformers."""
    import torch
    import transformers as tf

    tf.utils.logging.set_verbosity_error()
    tf.utils.logging.disable_progress_bar()
    rng = random.Random(folder.seed)
    torch.manual_seed(folder.seed)
    tokenizer = tokenizer_of(folder.tokenizer, rng)
    config_class = getattr(tf, "Gemma3TextConfig" if folder.family == "Gemma3" else folder.family + "Config")
    model_class = getattr(tf, "GPT2LMHeadModel" if folder.family == "GPT2" else folder.family + "ForCausalLM")
    end = tokenizer.token_to_id("</s>") or tokenizer.token_to_id("<|endoftext|>")
    marks = {"bos_token_id": tokenizer.token_to_id("<s>"), "eos_token_id": end, "pad_token_id": None}
    vocabulary = tokenizer.get_vocab_size() + folder.spare
    if folder.options.get("rope_parameters", {}).get("rope_type") == "longrope":
        half = folder.options.get("head_dim") or folder.options["hidden_size"] // folder.options["num_attention_heads"]
        scales = {name: [1.0 + rng.random() for _ in range(half // 2)] for name in ("short_factor", "long_factor")}
        folder.options["rope_parameters"].update(scales)
    model = model_class(config_class(vocab_size=vocabulary, **marks, **folder.options))
    if folder.known:
        randomise(model)
    model.to(getattr(torch, folder.dtype)).save_pretrained(
        place, max_shard_size="15KB" if "shards" in folder.form else "1GB"
    )
    tf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token=tokenizer.id_to_token(end)
    ).save_pretrained(place)
    for form in folder.form:
        {"old": old_names, "hub": hub_names, "buffers": buffers, "shards": lambda *_: None}[form](place, folder)
    return b""


def randomise(model: Any) -> None:
    """Weights at which every part of the model matters to its logits."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
            elif parameter.mean() > 0.5:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0, 0.3)


def old_names(place: Path, folder: Folder) -> None:
    """config.json as older versions of transformers wrote it, and as most folders have it."""
    document = json.loads((place / "config.json").read_text())
    if "dtype" in document:
        document["torch_dtype"] = document.pop("dtype")
    rope = document.pop("rope_parameters", None)
    if rope:
        document["rope_theta"] = rope.pop("rope_theta")
        if "partial_rotary_factor" in rope:
            document["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        document["rope_scaling"] = None if rope == {"rope_type": "default"} else rope
        if rope.get("rope_type") == "linear":
            rope["type"] = rope.pop("rope_type")
    document.pop("layer_types", None)
    same = folder.family in ("Llama", "Mistral")  # whose default it is
    if (
        same
        and document.get("head_dim")
        and document["head_dim"] * document["num_attention_heads"] == document["hidden_size"]
    ):
        document.pop("head_dim")
    document["transformers_version"] = "4.40.0"
    (place / "config.json").write_text(json.dumps(document, indent=2))


def _rewrite(place: Path, change: Any) -> None:
    from safetensors.torch import load_file, save_file

    for file in sorted(place.glob("*.safetensors")):
        save_file(change(load_file(file), file), file, {"format": "pt"})


def hub_names(place: Path, folder: Folder) -> None:
    """GPT-2's weights as the folder on the Hub has them: no prefix, and the masks among them."""
    import torch

    size = folder.options["n_positions"]
    mask = torch.tril(torch.ones(size, size)).reshape(1, 1, size, size)

    def change(tensors: dict[str, Any], file: Path) -> dict[str, Any]:
        named = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        return named | {f"h.{k}.attn.bias": mask.clone() for k in range(folder.options["n_layer"])}

    _rewrite(place, change)


def buffers(place: Path, folder: Folder) -> None:
    """The inverse frequencies that old Llama folders keep among their weights."""
    import torch

    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    _rewrite(place, lambda tensors, file: tensors | {name: torch.arange(4.0)})


def draw(count: int, others: int, seed: int) -> list[Folder]:
    """So many folders that can be read and so many that cannot, in a random order."""
    rng = random.Random(f"folders {seed}")
    folders = [readable(rng, number) for number in range(count)]
    folders += [other(rng, number) for number in range(others)]
    rng.shuffle(folders)
    return folders
