"""Published models by name: their sizes as their config.json states them, read from published.csv."""

from __future__ import annotations

import csv
import difflib
import json
from functools import cache
from importlib.resources import files
from typing import Any

from limpid.errors import ConfigError
from limpid.planning.architecture import Architecture
from limpid.planning.huggingface import read_config

OTHER_NAMES = {
    "gpt2-small": "gpt2", "gpt2-124m": "gpt2", "gpt2-355m": "gpt2-medium", "gpt2-774m": "gpt2-large",
    "gpt2-1.5b": "gpt2-xl", "gpt3": "gpt3-175b", "gpt3-small": "gpt3-125m", "gpt3-medium": "gpt3-350m",
    "gpt3-large": "gpt3-760m", "gpt3-xl": "gpt3-1.3b", "llama-33b": "llama-30b", "tinyllama": "tinyllama-1.1b",
    "mixtral": "mixtral-8x7b", "mistral": "mistral-7b", "bert": "bert-base", "deepseek": "deepseek-v3",
    "mixtral-8x22b-instruct-v0.1": "mixtral-8x22b-v0.3",
}  # fmt: skip
ENDINGS = ("-hf", "-base", "-uncased", "-it", "-pt", "-v0.1", "-v1.0", "-deduped", "-text")


@cache
def table() -> dict[str, dict[str, Any]]:
    """Every published model as its config.json, by name."""
    lines = files("limpid.planning").joinpath("published.csv").read_text("utf-8").splitlines()
    configs = {}
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        name, other_keys = row.pop("name"), row.pop("other_keys")
        config: dict[str, Any] = {"model_type": row.pop("model_type")}
        config |= {key: int(value) for key, value in row.items() if value}
        config |= {key: json.loads(value) for key, _, value in (pair.partition("=") for pair in other_keys.split())}
        configs[name] = config
    return configs


def known(name: str) -> str | None:
    """The name in the table that a spelling stands for: Meta-Llama-3-8B, meta-llama/Llama-2-7b-hf, GPT-3 175B."""
    plain = name.lower().rpartition("/")[2].replace("_", "-").replace(" ", "-")
    plain = plain.removeprefix("meta-").replace("gpt-2", "gpt2").replace("gpt-3", "gpt3").replace("llama3", "llama-3")
    if plain in OTHER_NAMES:
        return OTHER_NAMES[plain]
    plain = plain.replace("-instruct", "").replace("-chat", "").replace("qwen-", "qwen")
    plain = plain.replace("llama2", "llama-2").replace("gemma2", "gemma-2").replace("gemma3", "gemma-3")
    while True:
        for candidate in (plain, plain.replace("llama-1-", "llama-"), OTHER_NAMES.get(plain, "")):
            if candidate in table():
                return candidate
        ending = next((ending for ending in ENDINGS if plain.endswith(ending)), None)
        if ending is None:
            return None
        plain = plain.removesuffix(ending)


def published(name: str) -> Architecture:
    """The architecture of a published model.

    Raises  ConfigError naming the closest names that are known
    """
    listed = known(name)
    if listed is None:
        raise ConfigError(f"{name!r} is no model that is known here: {suggestion(name)}")
    return read_config(table()[listed], listed)


def suggestion(name: str) -> str:
    """The closest known names, or some of them."""
    names = list(table())
    close = difflib.get_close_matches(name.lower().rpartition("/")[2], names, 3, 0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(names[::6])}, …"
