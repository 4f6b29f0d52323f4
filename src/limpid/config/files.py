"""Configurations in files: TOML, JSON, YAML, every key checked; a run keeps what was asked beside what it came to."""

from __future__ import annotations

import contextlib
import hashlib
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import tomli_w

from limpid.config.options import from_dict, to_dict
from limpid.config.sections import TrainConfig
from limpid.errors import ConfigError
from limpid.files import one_line, parse_json, read_whole, write_atomically

RESOLVED = "resolved"
"""Table of config.toml: what options that were left open came to."""

SEAL = b"# SHA-256 of the lines above: "
"""How the last line of a run's own file begins."""


def read_config(file: Path) -> TrainConfig:
    """A configuration from TOML, JSON or YAML (by its ending), every key checked; a run's as it was resolved."""
    asked, resolved = _read_tables(file)
    return from_dict(TrainConfig, merged(asked, resolved))


def read_options(file: Path) -> dict[str, Any]:
    """The options that a file of TOML, JSON or YAML asks for, section by section; what they were resolved to is not."""
    return _read_tables(file)[0]


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Both tables of options, section by section; `over` wins."""
    sections = {**base, **over}
    return {
        key: {**base[key], **over[key]} if key in base and key in over else section for key, section in sections.items()
    }


def _read_tables(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of a file, every one checked: what was asked for, and what it came to."""
    try:
        text = read_whole(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text: {error}") from error
    except OSError as error:
        raise ConfigError(
            f"cannot read {file}: {error.strerror}; give a file of options in TOML, JSON or YAML"
        ) from error
    try:
        plain = _parse(text, file.suffix)
    except (ValueError, RecursionError) as error:  # each parser's error for text that is not its format is a ValueError
        raise ConfigError(f"{file} is not valid {file.suffix.lstrip('.') or 'TOML'}: {one_line(error)}") from error
    if not isinstance(plain, dict):
        raise ConfigError(f"{file} holds {type(plain).__name__}, expected tables of options: [model], [data], …")
    resolved = plain.pop(RESOLVED, {})
    try:
        from_dict(TrainConfig, plain)
        from_dict(TrainConfig, merged(plain, resolved))
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    return plain, resolved


def _parse(text: str, ending: str) -> Any:
    if ending == ".json":
        return parse_json(text)
    if ending in (".yaml", ".yml"):
        try:
            import yaml
        except ImportError as error:
            raise ConfigError("YAML needs an extra: pip install 'limpid[yaml]', or use TOML or JSON") from error
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from error
    return tomllib.loads(text)


def write_config(file: Path, asked: TrainConfig, resolved: TrainConfig | None = None) -> None:
    """Write a configuration as TOML, whole or not at all: what was asked for, then what else it was resolved to."""
    plain = to_dict(asked)
    follow = (resolved or asked).model.sizes
    said = [f"# What was asked for. In this model, d_head is {follow.d_head}, num_kv_heads {follow.num_kv_heads}, "
            f"d_ff {follow.d_ff}."]  # fmt: skip
    if resolved is not None:
        came_to = {
            section: {name: value for name, value in options.items() if plain[section].get(name, "none") != value}
            for section, options in _spelled_out(resolved).items()
        }
        plain[RESOLVED] = {section: options for section, options in came_to.items() if options}
        said.append(f"# What was left open came to what stands under {RESOLVED}; another run decides that anew.")
    content = ("\n".join(said) + "\n\n" + tomli_w.dumps(plain)).encode()
    write_atomically(file, content if resolved is None else content + SEAL + _digest(content) + b"\n")


def require_as_written(file: Path) -> bool:
    """Whether a run's file says by its hash that it is whole; one without, as one cut short, does not say.

    Raises  ConfigError for a file that is not as it was written
    """
    with contextlib.suppress(OSError):
        content, sealed, digest = file.read_bytes().rpartition(SEAL)
        if sealed and digest.strip() != _digest(content):
            raise ConfigError(
                f"{file} is not as limpid wrote it, by the hash in its last line: bring the run's own back, or delete "
                "that line if you changed it yourself"
            )
        return bool(sealed)
    return False


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _spelled_out(config: TrainConfig) -> dict[str, dict[str, Any]]:
    """Every option of every section, `none` where it is none."""
    sections: dict[str, dict[str, Any]] = to_dict(config)
    return {
        section: {field.name: options.get(field.name, "none") for field in fields(getattr(config, section))}
        for section, options in sections.items()
    }
