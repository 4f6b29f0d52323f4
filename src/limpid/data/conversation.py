"""A conversation as text, the same where a model learns it and where it is talked to."""

from __future__ import annotations

from typing import Any

from limpid.errors import DataError

USER, MODEL = "User", "Model"
SPEAKERS = {"user": USER, "human": USER, "assistant": MODEL, "gpt": MODEL, "model": MODEL, "system": "System"}
"""Names of who speaks, as OpenAI's messages and ShareGPT's conversations have them; another is capitalised."""
KEYS = (("role", "content"), ("from", "value"))


def conversation_text(messages: list[Any], where: str) -> str:
    """Messages as one document: a line that says who speaks, with what is said, for each.

    Raises  DataError for what is no message
    """
    return "\n".join(_turn(message, where) for message in messages)


def turn(speaker: str, said: str) -> str:
    """One turn of a conversation."""
    return f"{speaker}: {said}"


def _turn(message: Any, where: str) -> str:
    for role, content in KEYS:
        if isinstance(message, dict) and isinstance(message.get(role), str) and content in message:
            said = _said(message[content])
            if said is not None:
                return turn(SPEAKERS.get(message[role], message[role].capitalize()), said)
    raise DataError(
        f"{where}: {message!r:.60} is no message: expected {{'role': …, 'content': text}} or "
        "{'from': …, 'value': text}; remove the record, or choose another --text-field"
    )


def _said(content: Any) -> str | None:
    """The text of a message, which may come in parts; None when it is none."""
    if isinstance(content, str):
        return content
    parts = [part.get("text") for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    texts = [text for text in parts if isinstance(text, str)]
    return "".join(texts) if texts and len(texts) == len(parts) else None
