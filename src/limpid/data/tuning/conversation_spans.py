"""Where the answers stand in a conversation as text: what is rendered up to each, and what comes when it is there.

A template says nowhere which of its words are an answer's. It is rendered up to where an answer begins, as for
generating one, and with the answer: what the second has more is what a model must write by itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from limpid.data.conversation import MODEL, USER, conversation_text
from limpid.data.tokenizer import Tokenizer
from limpid.data.tuning.shapes import Messages, common_size, learned_from
from limpid.errors import DataError

UNTOLD = "\ue000"
"""A character that nobody writes: it stands in for an answer where only its place is asked for."""
USER_TURN, TOOL_TURN = ({"role": role, "content": "."} for role in ("user", "tool"))
Spans = tuple[tuple[int, int], ...]


class Form(Protocol):
    """How a conversation becomes text."""

    def write(self, messages: Any, tools: Any, add_generation_prompt: bool, options: Mapping[str, Any] | None) -> str:
        """All of it; with add_generation_prompt up to where the next answer begins."""


class Turns:
    """The form for a model without a chat template: a line per turn, as it is talked to."""

    def write(self, messages: Any, tools: Any, add_generation_prompt: bool, options: Mapping[str, Any] | None) -> str:
        text = conversation_text(messages, "the conversation")
        return f"{text}\n{MODEL}:" if add_generation_prompt else text


@dataclass(frozen=True)
class Rendering:
    """A form, with what goes with every turn of one conversation."""

    form: Form
    tools: Any
    options: Mapping[str, Any]

    def text(self, messages: Sequence[Any]) -> str:
        return self.form.write(messages, self.tools, False, self.options)

    def prompt(self, messages: Sequence[Any]) -> str:
        return self.form.write(messages, self.tools, True, self.options)


class Stops:
    """What ends an answer: a token at which generating stops, or the words that begin the next turn."""

    def __init__(self, tokenizer: Tokenizer, by_template: bool) -> None:
        special = tokenizer.special_words if by_template else {}
        self.special = tuple(special)
        self.ids = {word: id for word, id in special.items() if id in tokenizer.ends}
        self.words = tuple(self.ids) if by_template else (f"\n{USER}:",)
        self.first_special, self.first_end = _any_of(self.special).search, _any_of(tuple(self.ids)).search
        self.following = _any_of(self.words, r"\s*").match
        self.end = tokenizer.end
        self.next_turns: dict[bool, int | None] = {}
        """The token that a turn after the last begins with, where it is an end: of an answer, of a call of tools."""


def _any_of(words: Sequence[str], before: str = "") -> re.Pattern[str]:
    """Matches any of some words; of none, nothing."""
    return re.compile(f"{before}({'|'.join(map(re.escape, words))})" if words else "(?!)")


def written_conversation(
    rendering: Rendering, stops: Stops, talk: Messages, first: int, counts: Counter[str]
) -> list[tuple[str, Spans, int | None]]:
    """Text, characters learned and the token put after it: of the whole conversation; then of what has to stand alone.

    An answer stands in the text that follows it as long as that repeats, to the letter, the text up to it.

    first  number of the first message that may be learned
    """
    found: list[tuple[str, Spans, int | None]] = []
    spans: list[tuple[int, int]] = []
    text, end = "", None
    for number in reversed(learned_from(talk, first)):
        upto = talk[: number + 1]
        here, begin = _begun(rendering, upto, counts)
        stop = _stop(here, begin, upto[-1], stops)
        if not text.startswith(here[:stop]):
            if text:
                found.append((text, tuple(reversed(spans)), end))
                counts["alone"] += 1
            text, spans, end = here, [], None
        if stop is None and (following := stops.following(text, len(here))):
            stop = following.end()
        closed = stop is not None
        if not closed and len(here) == len(text):
            end = _closing(rendering, upto, here, stops)
            closed = end is not None
        span = begin, len(here) if stop is None else stop
        spans.append(span)
        _count(text[slice(*span)], closed, stops, counts)
        if not _holds(text[slice(*span)], upto[-1]):
            _require_answer(rendering, upto)
            counts["altered"] += 1
    return [*found, (text, tuple(reversed(spans)), end)]


def _count(learned: str, closed: bool, stops: Stops, counts: Counter[str]) -> None:
    counts["answers"] += 1
    counts["unclosed"] += not closed
    counts["stops elsewhere"] += learned.endswith(stops.special) and not learned.endswith(stops.words)


def _holds(learned: str, message: Mapping[str, Any]) -> bool:
    """Whether a message is in what is learned, white space aside."""
    said = str(message.get("content", "")).strip()
    return said in learned or "".join(said.split()) in "".join(learned.split())


def _require_answer(rendering: Rendering, upto: Messages) -> None:
    if UNTOLD not in _untold(rendering, upto):
        raise DataError("the chat template writes nothing of an answer: give another")


def _untold(rendering: Rendering, upto: Messages) -> str:
    return rendering.text([*upto[:-1], {"role": upto[-1]["role"], "content": UNTOLD}])


def _begun(rendering: Rendering, upto: Messages, counts: Counter[str]) -> tuple[str, int]:
    """A conversation up to an answer, and where that begins: behind all that is there before a model writes it.

    What stands there for generating alone, such as a mark that begins its thoughts, is not part of the text. Where the
    template writes the whole prompt otherwise once there is an answer, the answer is put behind that for generating.

    Raises  DataError where the answer cannot be found
    """
    before, here = rendering.prompt(upto[:-1]), rendering.text(upto)
    if here.startswith(before):
        return here, len(before)
    untold = _untold(rendering, upto)
    context = rendering.text(upto[:-1]).rstrip()
    begin = min(common_size(before, untold), common_size(before, here))  # an answer may begin like the mark
    if begin >= len(context):
        counts["opened otherwise"] += 1
        return here, begin
    place = untold.find(UNTOLD)
    if place < 0 or not here.startswith(untold[:place]):
        raise DataError("the chat template writes an answer where it cannot be told from its prompt: give another")
    counts["another prompt"] += 1
    return before + here[place:], len(before)


def _stop(here: str, begin: int, message: Mapping[str, Any], stops: Stops) -> int | None:
    """Where the last answer ends: behind the first token after it at which generating stops; None where there is none.

    Where generating stops at none of them, it is the special token that ends the turn, else the first after the answer.
    """
    turn = here[begin:].rstrip()
    said = str(message.get("content", "")).strip()
    place = max(0, turn.rfind(said)) + len(said)
    if closed := stops.first_end(turn, place):
        return begin + closed.end()
    if stops.special and turn.endswith(stops.special):
        return begin + len(turn)
    closed = stops.first_special(turn, place)
    return begin + closed.end() if closed else None


def _closing(rendering: Rendering, upto: Messages, here: str, stops: Stops) -> int | None:
    """The token behind the last answer: what a next turn begins with, where that is an end; else an end of text."""
    calls = bool(upto[-1].get("tool_calls"))
    if calls not in stops.next_turns:
        stops.next_turns[calls] = _next_turn(rendering, upto, here, stops, TOOL_TURN if calls else USER_TURN)
    found = stops.next_turns[calls]
    return stops.end if found is None else found


def _next_turn(rendering: Rendering, upto: Messages, here: str, stops: Stops, turn: Mapping[str, Any]) -> int | None:
    try:
        more = rendering.text([*upto, turn])
    except DataError:
        return None
    following = stops.following(more, len(here)) if more.startswith(here) else None
    return stops.ids.get(following[1]) if following else None
