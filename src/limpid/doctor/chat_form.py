"""How a model is talked to, as its tokenizer says: which tokens stop an answer, what begins a turn, which are marks.

Tokenizers are limpid's or transformers'; neither is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any

ASKED = ("alpha", "Zulu")
"""Two messages that share nothing: what stands before both is the template's."""
ANSWER = {"role": "assistant", "content": "beta"}


class ChatForm:
    """What is known of a tokenizer, or of a model's own configuration where there is none; each asked once."""

    def __init__(self, tokenizer: Any, declared: Sequence[Any]) -> None:
        """`declared` are end tokens by the model's own configurations, ids or lists of them."""
        self.tokenizer, self.declared = tokenizer, declared

    @cached_property
    def ends(self) -> frozenset[int]:
        """Tokens at which generating stops."""
        own = getattr(self.tokenizer, "ends", None), getattr(self.tokenizer, "eos_token_id", None)
        return frozenset(_numbers((*self.declared, *own)))

    @cached_property
    def start(self) -> int | None:
        """The token that begins a text."""
        return next(iter(_numbers([getattr(self.tokenizer, name, None) for name in ("start", "bos_token_id")])), None)

    @property
    def has_template(self) -> bool:
        return getattr(self.tokenizer, "chat_template", None) is not None

    @cached_property
    def conversation(self) -> list[int]:
        """A short conversation in the model's own form; empty without one."""
        return self._written([{"role": "user", "content": ASKED[0]}, ANSWER])

    @cached_property
    def opening(self) -> list[int]:
        """What begins a user's turn: from the last special token before what is said, else all that is before it."""
        first, second = (self._written([{"role": "user", "content": said}]) for said in ASKED)
        before = [a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))]
        special = [place for place, id in enumerate(before) if id in self.special.values()]
        return before[special[-1] :] if special else before

    @cached_property
    def special(self) -> dict[str, int]:
        """Marks by their text."""
        ours = getattr(self.tokenizer, "special_words", None)
        if ours is not None:
            return dict(ours)
        known = getattr(self.tokenizer, "added_tokens_decoder", {})
        return {str(token): int(id) for id, token in known.items() if getattr(token, "special", True)}

    @property
    def marks(self) -> dict[str, int]:
        """Those of them that the template writes."""
        return {word: id for word, id in self.special.items() if id in set(self.conversation)}

    def text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids)))

    def _written(self, messages: list[dict[str, str]]) -> list[int]:
        tokenizer = self.tokenizer
        if not self.has_template:
            return []
        if hasattr(tokenizer, "apply_chat_template"):
            text = tokenizer.apply_chat_template(messages, tokenize=False)
            return [int(id) for id in tokenizer.encode(text, add_special_tokens=False)]
        text = tokenizer.chat_template.render(messages, add_generation_prompt=False)
        return [int(id) for id in tokenizer.encode_with_places([text], True)[0].ids]


def _numbers(given: Iterable[Any]) -> Iterable[int]:
    for one in given:
        if isinstance(one, list | tuple | set | frozenset):
            yield from _numbers(one)
        elif isinstance(one, int) and not isinstance(one, bool):
            yield one
