"""An exchange as text, and which of its characters are learned."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from limpid.data.chat_template import ChatTemplate, plain_values
from limpid.data.tokenizer import Tokenizer
from limpid.data.tuning.bad_row import BadRow
from limpid.data.tuning.conversation_spans import Form, Rendering, Stops, Turns, written_conversation
from limpid.data.tuning.shapes import Exchange, Messages
from limpid.errors import DataError


@dataclass(frozen=True)
class Written:
    """A text to learn from."""

    text: str
    spans: tuple[tuple[int, int], ...] = ()  # characters that are learned: begin, end
    end: int | None = None  # a token that is put after it, learned
    spelled: bool = False  # special tokens that it spells are meant


class Writer:
    """Exchanges as texts, and counts of what a user should know about them."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self.tokenizer, self.template = tokenizer, template
        self.form: Form = template or Turns()
        if template is not None:
            _ = template.compiled  # what cannot be read is no fault of a record
        self.stops = Stops(tokenizer, template is not None)
        self.counts: Counter[str] = Counter()
        self._special = tuple(tokenizer.special_words)
        starts = sorted({re.escape(word[:2]) for word in self._special})
        self._may_spell = re.compile("|".join(starts)) if starts else None

    def examples(self, exchange: Exchange, where: str) -> list[list[Written]]:
        """The examples that an exchange gives: each one text, of a pair two.

        Of a conversation it is one, and where the template writes an earlier answer otherwise once there are later
        turns, one more for each such answer, written as it was when it was the last. Of a pair such answers are left.

        Raises  BadRow for what the template refuses, and for messages that spell special tokens
        """
        if isinstance(exchange.prompt, str):
            return [self._texts(exchange, exchange.prompt)]
        talks = [self._plain([*exchange.prompt, *answer], where) for answer in exchange.answers or ([],)]
        tools = plain_values(exchange.tools) if exchange.tools else None
        self.counts["tools"] += tools is not None and (self.template is None or "tools" not in self.template.text)
        rendering = Rendering(self.form, tools, exchange.options)
        spelled = self.template is not None
        self.counts["turns"] += not spelled
        try:
            if not exchange.answers:
                return [[Written(rendering.prompt(talks[0]), spelled=spelled)]]
            first = len(exchange.prompt)
            found = [
                [
                    Written(*one, spelled)
                    for one in written_conversation(rendering, self.stops, talk, first, self.counts)
                ]
                for talk in talks
            ]
        except DataError as error:
            raise BadRow("the chat template refuses it", f"{where}: {error}") from error
        return [[one] for one in reversed(found[0])] if len(found) == 1 else [[one[0] for one in found]]

    def _texts(self, exchange: Exchange, prompt: str) -> list[Written]:
        texts = [prompt + str(answer) for answer in exchange.answers] or [prompt]
        self.counts["spelled"] += any(self._spells(text) is not None for text in texts)
        self.counts["plain"] += 1
        if not exchange.answers:
            return [Written(prompt)]
        return [Written(text, ((len(prompt), len(text)),), self.tokenizer.end) for text in texts]

    def _plain(self, messages: Messages, where: str) -> Any:
        """Messages in plain values, none of which spells a special token."""
        if self.template and (word := self._spells(json.dumps(messages, ensure_ascii=False, default=str))):
            raise BadRow(
                "spells a special token",
                f"{where}: a message spells {word}, which begins or ends a turn for this model: reword it",
            )
        return plain_values(messages)

    def _spells(self, text: str) -> str | None:
        """A special token that a text spells."""
        if self._may_spell is None or self._may_spell.search(text) is None:
            return None
        return next((word for word in self._special if word in text), None)
