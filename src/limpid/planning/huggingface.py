"""A config.json of Hugging Face as an Architecture, whether limpid can train the model or not."""

from __future__ import annotations

import difflib
from pathlib import Path

from limpid.errors import ConfigError
from limpid.files import MALFORMED, parse_json
from limpid.planning.architecture import Architecture, architecture
from limpid.planning.families import FAMILIES
from limpid.planning.families.dense import windows
from limpid.planning.families.keys import SPELLINGS, Fields, size_of


def read_file(file: Path) -> Architecture:
    """The architecture that a config.json describes.

    Raises  ConfigError for a file that is not one, a family that is not known, a size that is missing
    """
    try:
        config = parse_json(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"cannot read {file} as JSON: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{file} holds {type(config).__name__}, expected an object with model_type and sizes")
    name = file.parent.resolve().name if file.name == "config.json" else file.stem
    return read_config(config, name, str(file))


def read_config(config: Fields, name: str = "model", where: str = "config.json") -> Architecture:
    """The architecture of one config.json, already read; of a model with several parts, its text part."""
    config = {key: value for key, value in config.items() if value is not None}
    for part in ("text_config", "llm_config", "language_config"):
        if isinstance(config.get(part), dict):
            model_type = str(config.get("model_type", "")) + "_text"
            return read_config({"model_type": model_type, **config[part]}, name, f"{where}: {part}")
    kind = str(config.get("model_type", ""))
    if kind not in FAMILIES:
        close = difflib.get_close_matches(kind, FAMILIES, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        said = f"model_type {kind!r}" if kind else "no model_type"
        raise ConfigError(f"{where} says {said}: {hint}known are {', '.join(sorted(FAMILIES))}")
    family = FAMILIES[kind]
    config = {**family.defaults, **config}
    try:
        sizes = {size: int(size_of(config, size)) for size in SPELLINGS if size not in ("d_ff", "context_length")}
        sizes["d_ff"] = int(size_of(config, "d_ff", 4 * sizes["d_model"]))
        sizes["context_length"] = int(size_of(config, "context_length", 0))
        sizes |= {"num_kv_heads": int(config.get("num_key_value_heads", 0)), "d_head": int(config.get("head_dim", 0))}
        fields = {**family.fixed, **sizes, **windows(config), **family.more(config)}
    except KeyError as error:
        raise ConfigError(f"{where} has no {error.args[0]}, which a model of type {kind} needs") from error
    except MALFORMED as error:
        raise ConfigError(f"{where}: {' '.join(str(error).split())}: expected whole numbers as sizes") from error
    return architecture(name, **fields, tied=bool(config.get("tie_word_embeddings", True)))
