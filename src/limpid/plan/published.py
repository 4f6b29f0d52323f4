"""Published models by name: their sizes as their config.json states them."""

from __future__ import annotations

import difflib
from typing import Any

from limpid.errors import ConfigError
from limpid.plan.architecture import Architecture
from limpid.plan.huggingface import of_their_config

Row = tuple[str, int, int, int, int, int, int, int, int]
"""name, vocabulary, width, layers, query heads, key-value heads, width of a head, of the MLP, context"""

GPT2: tuple[Row, ...] = (
    ("gpt2", 50257, 768, 12, 12, 12, 64, 3072, 1024),
    ("gpt2-medium", 50257, 1024, 24, 16, 16, 64, 4096, 1024),
    ("gpt2-large", 50257, 1280, 36, 20, 20, 64, 5120, 1024),
    ("gpt2-xl", 50257, 1600, 48, 25, 25, 64, 6400, 1024),
)
GPT3: tuple[Row, ...] = (  # Brown et al. 2020, table 2.1, arXiv:2005.14165; where heads and width there contradict
    # each other (1.3B: 24 heads of 128 beside 2048; 13B: 40 heads of 128 beside 5140), what table D.1's totals need
    ("gpt3-125m", 50257, 768, 12, 12, 12, 64, 3072, 2048),
    ("gpt3-350m", 50257, 1024, 24, 16, 16, 64, 4096, 2048),
    ("gpt3-760m", 50257, 1536, 24, 16, 16, 96, 6144, 2048),
    ("gpt3-1.3b", 50257, 2048, 24, 16, 16, 128, 8192, 2048),
    ("gpt3-2.7b", 50257, 2560, 32, 32, 32, 80, 10240, 2048),
    ("gpt3-6.7b", 50257, 4096, 32, 32, 32, 128, 16384, 2048),
    ("gpt3-13b", 50257, 5120, 40, 40, 40, 128, 20480, 2048),
    ("gpt3-175b", 50257, 12288, 96, 96, 96, 128, 49152, 2048),
)
LLAMA: tuple[Row, ...] = (
    ("llama-7b", 32000, 4096, 32, 32, 32, 128, 11008, 2048),
    ("llama-13b", 32000, 5120, 40, 40, 40, 128, 13824, 2048),
    ("llama-30b", 32000, 6656, 60, 52, 52, 128, 17920, 2048),
    ("llama-65b", 32000, 8192, 80, 64, 64, 128, 22016, 2048),
    ("llama-2-7b", 32000, 4096, 32, 32, 32, 128, 11008, 4096),
    ("llama-2-13b", 32000, 5120, 40, 40, 40, 128, 13824, 4096),
    ("llama-2-70b", 32000, 8192, 80, 64, 8, 128, 28672, 4096),
    ("llama-3-8b", 128256, 4096, 32, 32, 8, 128, 14336, 8192),
    ("llama-3-70b", 128256, 8192, 80, 64, 8, 128, 28672, 8192),
    ("llama-3.1-8b", 128256, 4096, 32, 32, 8, 128, 14336, 131072),
    ("llama-3.1-70b", 128256, 8192, 80, 64, 8, 128, 28672, 131072),
    ("llama-3.1-405b", 128256, 16384, 126, 128, 8, 128, 53248, 131072),
    ("llama-3.2-1b", 128256, 2048, 16, 32, 8, 64, 8192, 131072),
    ("llama-3.2-3b", 128256, 3072, 28, 24, 8, 128, 8192, 131072),
    ("llama-3.3-70b", 128256, 8192, 80, 64, 8, 128, 28672, 131072),
    ("tinyllama-1.1b", 32000, 2048, 22, 32, 4, 64, 5632, 2048),
)
MISTRAL: tuple[Row, ...] = (
    ("mistral-7b", 32000, 4096, 32, 32, 8, 128, 14336, 32768),
    ("mixtral-8x7b", 32000, 4096, 32, 32, 8, 128, 14336, 32768),
    ("mistral-7b-v0.2", 32000, 4096, 32, 32, 8, 128, 14336, 32768),
    ("mistral-7b-v0.3", 32768, 4096, 32, 32, 8, 128, 14336, 32768),
    ("mixtral-8x22b", 32000, 6144, 56, 48, 8, 128, 16384, 65536),
    ("mixtral-8x22b-v0.3", 32768, 6144, 56, 48, 8, 128, 16384, 65536),
)
QWEN: tuple[Row, ...] = (
    ("qwen2-0.5b", 151936, 896, 24, 14, 2, 64, 4864, 131072),
    ("qwen2-1.5b", 151936, 1536, 28, 12, 2, 128, 8960, 131072),
    ("qwen2-7b", 152064, 3584, 28, 28, 4, 128, 18944, 131072),
    ("qwen2-72b", 152064, 8192, 80, 64, 8, 128, 29568, 131072),
    ("qwen2.5-0.5b", 151936, 896, 24, 14, 2, 64, 4864, 32768),
    ("qwen2.5-1.5b", 151936, 1536, 28, 12, 2, 128, 8960, 131072),
    ("qwen2.5-3b", 151936, 2048, 36, 16, 2, 128, 11008, 32768),
    ("qwen2.5-7b", 152064, 3584, 28, 28, 4, 128, 18944, 131072),
    ("qwen2.5-14b", 152064, 5120, 48, 40, 8, 128, 13824, 131072),
    ("qwen2.5-32b", 152064, 5120, 64, 40, 8, 128, 27648, 131072),
    ("qwen2.5-72b", 152064, 8192, 80, 64, 8, 128, 29568, 131072),
    ("qwen3-0.6b", 151936, 1024, 28, 16, 8, 128, 3072, 40960),
    ("qwen3-1.7b", 151936, 2048, 28, 16, 8, 128, 6144, 40960),
    ("qwen3-4b", 151936, 2560, 36, 32, 8, 128, 9728, 40960),
    ("qwen3-8b", 151936, 4096, 36, 32, 8, 128, 12288, 40960),
    ("qwen3-14b", 151936, 5120, 40, 40, 8, 128, 17408, 40960),
    ("qwen3-32b", 151936, 5120, 64, 64, 8, 128, 25600, 40960),
    ("qwen3-30b-a3b", 151936, 2048, 48, 32, 4, 128, 6144, 40960),
    ("qwen3-235b-a22b", 151936, 4096, 94, 64, 4, 128, 12288, 40960),
)
GEMMA: tuple[Row, ...] = (
    ("gemma-2b", 256000, 2048, 18, 8, 1, 256, 16384, 8192),
    ("gemma-7b", 256000, 3072, 28, 16, 16, 256, 24576, 8192),
    ("gemma-2-2b", 256000, 2304, 26, 8, 4, 256, 9216, 8192),
    ("gemma-2-9b", 256000, 3584, 42, 16, 8, 256, 14336, 8192),
    ("gemma-2-27b", 256000, 4608, 46, 32, 16, 128, 36864, 8192),
    ("gemma-3-270m", 262144, 640, 18, 4, 1, 256, 2048, 32768),
    ("gemma-3-1b", 262144, 1152, 26, 4, 1, 256, 6912, 32768),
    ("gemma-3-4b", 262208, 2560, 34, 8, 4, 256, 10240, 131072),
    ("gemma-3-12b", 262208, 3840, 48, 16, 8, 256, 15360, 131072),
    ("gemma-3-27b", 262208, 5376, 62, 32, 16, 128, 21504, 131072),
)
PYTHIA: tuple[Row, ...] = (  # the vocabulary is padded per model
    ("pythia-14m", 50304, 128, 6, 4, 4, 32, 512, 2048),
    ("pythia-31m", 50304, 256, 6, 8, 8, 32, 1024, 2048),
    ("pythia-70m", 50304, 512, 6, 8, 8, 64, 2048, 2048),
    ("pythia-160m", 50304, 768, 12, 12, 12, 64, 3072, 2048),
    ("pythia-410m", 50304, 1024, 24, 16, 16, 64, 4096, 2048),
    ("pythia-1b", 50304, 2048, 16, 8, 8, 256, 8192, 2048),
    ("pythia-1.4b", 50304, 2048, 24, 16, 16, 128, 8192, 2048),
    ("pythia-2.8b", 50304, 2560, 32, 32, 32, 80, 10240, 2048),
    ("pythia-6.9b", 50432, 4096, 32, 32, 32, 128, 16384, 2048),
    ("pythia-12b", 50688, 5120, 36, 40, 40, 128, 20480, 2048),
)
BERT: tuple[Row, ...] = (
    ("bert-base", 30522, 768, 12, 12, 12, 64, 3072, 512),
    ("bert-large", 30522, 1024, 24, 16, 16, 64, 4096, 512),
    ("bert-base-cased", 28996, 768, 12, 12, 12, 64, 3072, 512),
    ("bert-large-cased", 28996, 1024, 24, 16, 16, 64, 4096, 512),
)
TIED_LLAMAS = ("llama-3.2-1b", "llama-3.2-3b")
QWEN_TIED = ("qwen2-0.5b", "qwen2-1.5b", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen3-0.6b", "qwen3-1.7b",
             "qwen3-4b")  # fmt: skip
QWEN_EXPERTS = {"qwen3-30b-a3b": 768, "qwen3-235b-a22b": 1536}
"""Width of one of 128 experts, 8 of which each token is sent to."""
GEMMA_WINDOWS = {"gemma-2": (4096, 2), "gemma-3-270m": (512, 6), "gemma-3-1b": (512, 6), "gemma-3": (1024, 6)}
"""Window, and of how many layers the last sees everything."""
OTHER_NAMES = {
    "gpt2-small": "gpt2", "gpt2-124m": "gpt2", "gpt2-355m": "gpt2-medium", "gpt2-774m": "gpt2-large",
    "gpt2-1.5b": "gpt2-xl", "gpt3": "gpt3-175b", "gpt3-small": "gpt3-125m", "gpt3-medium": "gpt3-350m",
    "gpt3-large": "gpt3-760m", "gpt3-xl": "gpt3-1.3b", "llama-33b": "llama-30b", "tinyllama": "tinyllama-1.1b",
    "mixtral": "mixtral-8x7b", "mistral": "mistral-7b", "bert": "bert-base", "deepseek": "deepseek-v3",
    "mixtral-8x22b-instruct-v0.1": "mixtral-8x22b-v0.3",
}  # fmt: skip
ENDINGS = ("-hf", "-base", "-uncased", "-it", "-pt", "-v0.1", "-v1.0", "-deduped", "-text")

DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128, "n_shared_experts": 1,
    "n_routed_experts": 256, "num_experts_per_tok": 8, "kv_lora_rank": 512, "q_lora_rank": 1536,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "first_k_dense_replace": 3,
    "max_position_embeddings": 163840, "tie_word_embeddings": False,
}  # fmt: skip
GROUPS = {
    "gpt2": GPT2 + GPT3, "llama": LLAMA, "mistral": MISTRAL, "qwen2": QWEN, "gemma": GEMMA, "gpt_neox": PYTHIA,
    "bert": BERT,
}  # fmt: skip


def published_names() -> list[str]:
    """Every name that is known."""
    return [row[0] for rows in GROUPS.values() for row in rows] + ["deepseek-v3"]


def known(name: str) -> str | None:
    """The name in our list that a spelling stands for: Meta-Llama-3-8B, meta-llama/Llama-2-7b-hf, GPT-3 175B."""
    plain = name.lower().rpartition("/")[2].replace("_", "-").replace(" ", "-")
    plain = plain.removeprefix("meta-").replace("gpt-2", "gpt2").replace("gpt-3", "gpt3").replace("llama3", "llama-3")
    if plain in OTHER_NAMES:
        return OTHER_NAMES[plain]
    plain = plain.replace("-instruct", "").replace("-chat", "").replace("qwen-", "qwen")
    plain = plain.replace("llama2", "llama-2").replace("gemma2", "gemma-2").replace("gemma3", "gemma-3")
    names = published_names()
    while True:
        for candidate in (plain, plain.replace("llama-1-", "llama-"), OTHER_NAMES.get(plain, "")):
            if candidate in names:
                return candidate
        ending = next((ending for ending in ENDINGS if plain.endswith(ending)), None)
        if ending is None:
            return None
        plain = plain.removesuffix(ending)


def published(name: str) -> Architecture:
    """The architecture of a published model.

    Raises  ConfigError naming the closest names that are known
    """
    found = known(name)
    if found is None:
        raise ConfigError(f"{name!r} is no model that is known here: {suggestion(name)}")
    if found == "deepseek-v3":
        return of_their_config(DEEPSEEK_V3, found)
    group, row = next((group, row) for group, rows in GROUPS.items() for row in rows if row[0] == found)
    return of_their_config(_as_config(group, row), found)


def suggestion(name: str) -> str:
    """The closest known names, or some of them."""
    names = published_names()
    close = difflib.get_close_matches(name.lower().rpartition("/")[2], names, 3, 0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(names[::6])}, …"


def _as_config(group: str, row: Row) -> dict[str, Any]:
    """One row as its config.json."""
    name, vocab, width, layers, heads, kv_heads, head, mlp, context = row
    their = {
        "model_type": group, "vocab_size": vocab, "hidden_size": width, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head, "intermediate_size": mlp,
        "max_position_embeddings": context, "n_positions": context,
    }  # fmt: skip
    if name in QWEN_TIED + TIED_LLAMAS:
        their["tie_word_embeddings"] = True
    if name.startswith("qwen3"):
        their["model_type"] = "qwen3"
    if name in QWEN_EXPERTS:
        their |= {"model_type": "qwen3_moe", "num_experts": 128, "num_experts_per_tok": 8,
                  "moe_intermediate_size": QWEN_EXPERTS[name]}  # fmt: skip
    if name.startswith("mixtral"):
        their |= {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    if name == "mistral-7b":
        their["sliding_window"] = 4096
    if name.startswith(("gemma-2-", "gemma-3-")):
        their["model_type"] = "gemma2" if name.startswith("gemma-2-") else "gemma3_text"
        window, pattern = next(GEMMA_WINDOWS[key] for key in (name, name[:7]) if key in GEMMA_WINDOWS)
        their |= {"sliding_window": window, "sliding_window_pattern": pattern}
    return their
