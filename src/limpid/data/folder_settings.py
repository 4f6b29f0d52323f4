"""What a Hugging Face folder says beside its tokenizer.json: the first token, the last ones, the chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limpid.data.chat_template import ChatTemplate
from limpid.files import parse_json


@dataclass(frozen=True)
class FolderSettings:
    """What was said; None or nothing where it says nothing."""

    starts: tuple[str | int, ...]  # the token before a text's first, as text or id: the first that there is
    ends: tuple[int, ...] | None  # ids that end a text
    end: str | None  # the one of them that is put at the end of a text to learn
    chat_template: ChatTemplate | None


SETTINGS, GENERATION, TEMPLATE = "tokenizer_config.json", "generation_config.json", "chat_template.jinja"


def read_settings(*folders: Path) -> FolderSettings:
    """What the JSON files and chat_template.jinja say, each in the first folder that has it; what cannot be read says
    nothing.
    """
    own, config, generation = (_read_json(_first(folders, name)) for name in (SETTINGS, "config.json", GENERATION))
    words = {name: word for name in own if name.endswith("_token") and (word := _word(own[name])) is not None}
    starts = words.get("bos_token"), config.get("bos_token_id"), generation.get("bos_token_id")
    ends = generation.get("eos_token_id", config.get("eos_token_id"))
    ends = ends if isinstance(ends, list) else [ends]
    return FolderSettings(
        tuple(start for start in starts if isinstance(start, str | int)),
        tuple(id for id in ends if type(id) is int) or None,
        words.get("eos_token"),
        _template(folders, own, words),
    )


def _first(folders: Sequence[Path], name: str) -> Path:
    """A file in the first folder that has it."""
    return next((folder / name for folder in folders if (folder / name).is_file()), folders[0] / name)


def _template(folders: Sequence[Path], settings: dict[str, Any], words: dict[str, str]) -> ChatTemplate | None:
    """The template of a file of its own, else the one among the tokenizer's settings, of several the default."""
    file = _first(folders, TEMPLATE)
    try:
        return ChatTemplate(file.read_text(encoding="utf-8"), str(file), words)
    except (OSError, ValueError):
        pass
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    where = str(_first(folders, SETTINGS))
    return ChatTemplate(found, where, words) if isinstance(found, str) else None


def _word(token: Any) -> str | None:
    """A token as text, which may come with its properties."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _read_json(file: Path) -> dict[str, Any]:
    """An object in a file; empty where there is none."""
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
