"""A conversation: its messages, and the text of them that a model learns and is talked to in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from limpid.config.options import shown
from limpid.errors import DataError

USER, MODEL = "User", "Model"
ROLES = {"human": "user", "gpt": "assistant", "model": "assistant"}
"""OpenAI's words for who speaks, of ShareGPT's and Gemma's."""
SPEAKERS = {"user": USER, "assistant": MODEL, "model": MODEL, "system": "System"}
"""How they are written in a text; another is capitalised."""
KEYS = (("role", "content"), ("from", "value"))


def conversation_text(messages: list[Any], where: str) -> str:
    """Messages as one document: a line that says who speaks, with what is said, for each.

    Raises  DataError for what is no message
    """
    return "\n".join(_turn(message, where) for message in messages)


def role_messages(messages: Sequence[Any], where: str) -> list[dict[str, Any]]:
    """Messages as chat templates take them, each with a role and its content.

    Raises  DataError for what is no message
    """
    return [_role_message(message, where) for message in messages]


def asked_of_assistant(messages: Sequence[Any], where: str) -> list[dict[str, Any]]:
    """Messages to which the assistant's answer is the next.

    Raises  DataError for what is no message, and where the last is an answer already
    """
    asked = role_messages(messages, where)
    if asked and asked[-1]["role"] == "assistant":
        raise DataError(f"{where} ends with an answer of the assistant: leave that message out, and another comes")
    return asked


def turn(speaker: str, said: str) -> str:
    """One turn of a conversation."""
    return f"{speaker}: {said}"


def _role_message(message: Any, where: str) -> dict[str, Any]:
    for role, content in KEYS:
        spoken = isinstance(message, Mapping) and isinstance(message.get(role), str)
        if spoken and text_of_message(message.get(content)) is not None:
            return _plain(message, role, content)
        if spoken and message.get("tool_calls") and message.get(content) is None:
            return _plain({**message, content: ""}, role, content)
    raise DataError(
        f"{where}: {shown(message)} is no message: expected {{'role': …, 'content': text}} or "
        "{'from': …, 'value': text}"
    )


def _plain(message: Mapping[str, Any], role: str, content: str) -> dict[str, Any]:
    others = {key: value for key, value in message.items() if key not in (role, content)}
    return {"role": ROLES.get(message[role], message[role]), "content": message[content], **others}


def _turn(message: Any, where: str) -> str:
    try:
        plain = _role_message(message, where)
    except DataError as error:
        raise DataError(f"{error}; remove the record, or choose another --text-field") from error
    said = text_of_message(plain["content"])
    return turn(SPEAKERS.get(plain["role"], plain["role"].capitalize()), said or "")


def text_of_message(content: Any) -> str | None:
    """The text of a message, which may come in parts; None when it is none."""
    if isinstance(content, str):
        return content
    parts = [part.get("text") for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    texts = [text for text in parts if isinstance(text, str)]
    return "".join(texts) if texts and len(texts) == len(parts) else None
