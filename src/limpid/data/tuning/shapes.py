"""What a record holds to learn from, recognised by its fields: a text, messages, a prompt and its answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from limpid.config.options import shown
from limpid.data.conversation import role_messages, text_of_message
from limpid.data.records import CONVERSATIONS
from limpid.data.tuning.bad_row import BadRow
from limpid.errors import DataError

Kind = Literal["answers", "pairs", "judged", "prompts"]
"""What is learned from: answers (sft); pairs (dpo, ipo, reward); judged answers (kto); prompts (grpo, ppo, distill)."""
Messages = list[dict[str, Any]]
Part = str | Messages
"""A text, or messages."""
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython", "observation")
ASSISTANT = "assistant"
TRUE, FALSE = (True, 1, "true", "1"), (False, 0, "false", "0")
FORMS = "text, messages, prompt with completion, prompt with completion and label, chosen with rejected, or prompt"


@dataclass(frozen=True)
class Exchange:
    """A prompt and the answers to it: one; of a pair the chosen, then the rejected; of a prompt alone none."""

    prompt: Part
    answers: tuple[Part, ...] = ()
    desirable: bool | None = None  # of a judged answer
    tools: Sequence[Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # of the chat template
    columns: Mapping[str, Any] = field(default_factory=dict)  # what a reward function may see: every field


@dataclass(frozen=True)
class Shape:
    """One form that records come in."""

    holds: str
    read: Callable[[Mapping[str, Any], str, str], Exchange]  # of a record, the field of text, its place
    kinds: tuple[Kind, ...]
    way_out: str  # where another kind is asked for


def exchanges_of(record: Any, kind: Kind, text_field: str, where: str) -> list[Exchange]:
    """What a record gives to learn from; a pair is two judged answers.

    Raises  BadRow for what it does not give
    """
    if isinstance(record, str):
        record = {text_field: record}
    if not isinstance(record, Mapping):
        raise BadRow("no object", f"{where} holds {shown(record)}, expected an object with fields {FORMS}")
    given = {str(name): value for name, value in record.items() if value is not None}
    read = {name: value for name, value in given.items() if kind != "prompts" or name != "label"}
    shape = SHAPES["prompt",] if kind == "prompts" and "prompt" in given else _shape_of(read, text_field)
    if shape is None or kind not in shape.kinds:
        _refuse_incomplete(record, kind, text_field, where)
    if shape is None:
        there = ", ".join([*given][:8]) + (", …" if len(given) > 8 else "") if given else "none"
        raise BadRow("no known fields", f"{where} has the fields {there}: expected {FORMS}")
    if kind not in shape.kinds:
        raise BadRow("of another form", f"{where} holds {shape.holds}, and {WANTED[kind]}: {shape.way_out}")
    tools = _list_of(given.get("tools"), "tools", where)
    found = replace(shape.read(read, text_field, where), tools=tools, options=_options(given, where), columns=given)
    if kind == "prompts":
        return [_asked(found, where)]
    _require_answers(found, where)
    if kind == "judged" and found.desirable is None:
        both = zip(found.answers, (True, False), strict=True)
        return [replace(found, answers=(answer,), desirable=good) for answer, good in both]
    return [found]


def learned_from(messages: Sequence[Mapping[str, Any]], first: int) -> list[int]:
    """Which messages are answers to learn, from number `first` on; not those of weight 0, as OpenAI's format has it."""
    places = range(first, len(messages))
    return [place for place in places if messages[place]["role"] == ASSISTANT and messages[place].get("weight") != 0]


def _shape_of(given: Mapping[str, Any], text_field: str) -> Shape | None:
    forms = ((_lacking(given, fields, text_field), shape) for fields, shape in SHAPES.items())
    return next((shape for lacking, shape in forms if not lacking), None)


def _lacking(record: Mapping[str, Any], fields: Sequence[str], text_field: str) -> list[str]:
    """Which fields of a form are not there, or null."""
    names = [text_field if name == "text" else name for name in fields]
    return [name for name in names if record.get(name) is None]


def _refuse_incomplete(record: Mapping[str, Any], kind: Kind, text_field: str, where: str) -> None:
    """Raise BadRow for a record that is of a form that is asked for but for one field: a null, or half of a pair."""
    for fields in (fields for fields, shape in SHAPES.items() if kind in shape.kinds):
        lacking = _lacking(record, fields, text_field)
        if len(lacking) == 1 and lacking[0] in record:
            raise BadRow(f"{lacking[0]} is null", f"{where}: {lacking[0]} is null: give it, or remove the row")
        if len(lacking) == 1 and fields == PAIR:
            has = next(name for name in fields if name not in lacking)
            raise BadRow("half a pair", f"{where} has {has} but no {lacking[0]}: give both, or remove the row")


def _text(given: Mapping[str, Any], text_field: str, where: str) -> Exchange:
    text = given[text_field]
    if isinstance(text, list):
        return Exchange([], (_messages(text, text_field, where),))
    return Exchange("", (_string(text, text_field, where),))


def _conversation(given: Mapping[str, Any], text_field: str, where: str) -> Exchange:
    name = next(name for name in CONVERSATIONS if name in given)
    return Exchange([], (_messages(given[name], name, where),), _label(given, where) if "label" in given else None)


def _completion(given: Mapping[str, Any], text_field: str, where: str) -> Exchange:
    prompt, answer = _alike(_part(given["prompt"], "prompt", where), _part(given["completion"], "completion", where))
    return Exchange(prompt, (answer,))


def _judged(given: Mapping[str, Any], text_field: str, where: str) -> Exchange:
    found = _completion(given, text_field, where)
    return Exchange(found.prompt, found.answers, _label(given, where))


def _instruction(given: Mapping[str, Any], text_field: str, where: str) -> Exchange:
    asked = [_string(given[name], name, where) for name in ("instruction", "input") if given.get(name)]
    prompt = [{"role": "user", "content": "\n\n".join(asked)}]
    return Exchange(prompt, ([{"role": ASSISTANT, "content": _string(given["output"], "output", where)}],))


def _pair(given: Mapping[str, Any], text_field: str, where: str) -> Exchange:
    chosen, rejected = (_part(given[name], name, where) for name in ("chosen", "rejected"))
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise BadRow(
            "chosen and rejected unlike", f"{where}: chosen and rejected are a text and messages: give both alike"
        )
    if chosen == rejected:
        raise BadRow("chosen = rejected", f"{where}: chosen and rejected are the same: there is nothing to prefer")
    _require_one_prompt(chosen, rejected, where)
    common = _common(chosen, rejected)
    given_prompt = _part(given["prompt"], "prompt", where) if "prompt" in given else None
    if given_prompt is None or (isinstance(given_prompt, str) and not isinstance(chosen, str) and common):
        size = len(common)  # the answers repeat the prompt
        return Exchange(chosen[:size], (chosen[size:], rejected[size:]))
    prompt, chosen = _alike(given_prompt, chosen)
    return Exchange(prompt, (chosen, _alike(given_prompt, rejected)[1]))


def _require_one_prompt(chosen: Part, rejected: Part, where: str) -> None:
    """Raise BadRow for conversations that differ before an answer of the assistant does."""
    place = common_size(chosen, rejected)
    for name, part in (("chosen", chosen), ("rejected", rejected)):
        if not isinstance(part, str) and place < len(part) and part[place]["role"] != ASSISTANT:
            raise BadRow(
                "different prompts",
                f"{where}: chosen and rejected answer different prompts: message {place + 1} of {name}, of role "
                f"{part[place]['role']}, is not in the other; give both the same messages up to the answer",
            )


def _prompt(given: Mapping[str, Any], text_field: str, where: str) -> Exchange:
    return Exchange(_part(given["prompt"], "prompt", where))


PAIR = ("chosen", "rejected")
EVERY: tuple[Kind, ...] = ("answers", "prompts")
SHAPES: dict[tuple[str, ...], Shape] = {
    PAIR: Shape(
        "a pair, chosen and rejected", _pair, ("pairs", "judged", "prompts"),
        "use limpid tune dpo, or rename chosen to completion and drop rejected to learn the chosen answers alone"),
    ("prompt", "completion", "label"): Shape(
        "a judged answer, a completion with a label", _judged, ("judged", "prompts"),
        "use limpid tune kto, or drop label to learn every answer"),
    ("prompt", "completion"): Shape(
        "a prompt and its answer", _completion, EVERY, "use limpid tune sft, or add what is missing"),
    ("messages", "label"): Shape(
        "a judged conversation", _conversation, ("judged", "prompts"),
        "use limpid tune kto, or drop label to learn every answer"),
    ("conversations", "label"): Shape(
        "a judged conversation", _conversation, ("judged", "prompts"),
        "use limpid tune kto, or drop label to learn every answer"),
    ("messages",): Shape("a conversation", _conversation, EVERY, "use limpid tune sft, or add what is missing"),
    ("conversations",): Shape("a conversation", _conversation, EVERY, "use limpid tune sft, or add what is missing"),
    ("instruction", "output"): Shape(
        "an instruction and its answer", _instruction, EVERY, "use limpid tune sft, or add what is missing"),
    ("prompt",): Shape(
        "a prompt without an answer", _prompt, ("prompts",),
        "give completion too, or use limpid tune grpo, whose answers a reward function judges"),
    ("text",): Shape("a text", _text, ("answers",), "use limpid tune sft, or divide it into prompt and completion"),
}  # fmt: skip
"""By the fields that show it; the first that fits is taken."""
WANTED: dict[Kind, str] = {
    "answers": "answers are asked for",
    "pairs": "pairs are asked for, chosen with rejected",
    "judged": "judged answers are asked for, prompt with completion and label",
    "prompts": "prompts are asked for",
}


def _asked(found: Exchange, where: str) -> Exchange:
    """The prompt alone: of a conversation all that comes before its last answer."""
    prompt = found.prompt
    if not prompt and found.answers and isinstance(found.answers[0], list):
        prompt = found.answers[0]
        prompt = prompt[:-1] if prompt[-1]["role"] == ASSISTANT else prompt
    if not prompt or (isinstance(prompt, str) and not prompt.strip()):
        raise BadRow("no prompt", f"{where}: the prompt is empty: give one, or remove the row")
    if isinstance(prompt, list) and prompt[-1]["role"] == ASSISTANT:
        raise BadRow("no prompt", f"{where}: the prompt ends with an answer of the assistant: leave that message out")
    return replace(found, prompt=prompt, answers=(), desirable=None)


def _require_answers(found: Exchange, where: str) -> None:
    for answer in found.answers:
        if isinstance(answer, str):
            if not answer.strip():
                raise BadRow("no answer", f"{where}: the answer is empty: give one, or remove the row")
            continue
        if not learned_from(answer, 0):
            raise BadRow(
                "no answer",
                f"{where}: no message is the assistant's, of a weight but 0: nothing to learn",
            )
        if answer[-1]["role"] != ASSISTANT:
            raise BadRow(
                "no answer at the end",
                f"{where} ends with a message of role {answer[-1]['role']}: end with the assistant's answer, or leave "
                "the last messages out",
            )
        if any(not _says(one) for one in answer if one["role"] == ASSISTANT):
            raise BadRow("no answer", f"{where}: an answer of the assistant is empty: give one, or remove the row")


def _says(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return bool(content.strip() if isinstance(content, str) else content) or bool(message.get("tool_calls"))


def _part(value: Any, name: str, where: str) -> Part:
    if isinstance(value, str) and not value.lstrip().startswith("[{"):
        return value
    if isinstance(value, str):  # a table's cell may hold messages, as JSON
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return str(value)
    if not isinstance(value, Mapping | list):
        raise BadRow("no text", f"{where}: field {name!r} is {shown(value)}, expected text or messages")
    return _messages([value] if isinstance(value, Mapping) else value, name, where)


def _string(value: Any, name: str, where: str) -> str:
    if not isinstance(value, str):
        raise BadRow("no text", f"{where}: field {name!r} is {shown(value)}, expected text")
    return value


def _messages(value: Any, name: str, where: str) -> Messages:
    given = _list_of(value, name, where)
    try:
        messages = role_messages(given or [], f"{where}, {name}")
    except DataError as error:
        raise BadRow("no message", str(error)) from error
    if not messages:
        raise BadRow("no message", f"{where}: field {name!r} holds no message: remove the row")
    unknown = next((one["role"] for one in messages if one["role"] not in ROLES), None)
    if unknown is not None:
        raise BadRow("unknown role", f"{where}, {name}: role {shown(unknown)} is unknown: expected {', '.join(ROLES)}")
    return [one | {"content": text_of_message(one["content"])} for one in messages]


def _list_of(value: Any, name: str, where: str) -> list[Any] | None:
    """A list, or the JSON of one, as tables hold it."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise BadRow("no list", f"{where}: field {name!r} is {shown(value)}, expected a list") from error
    if value is not None and not isinstance(value, list):
        raise BadRow("no list", f"{where}: field {name!r} is {shown(value)}, expected a list")
    return value


def _options(given: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    options = given.get("chat_template_kwargs", {})
    if not isinstance(options, Mapping):
        raise BadRow("no options", f"{where}: chat_template_kwargs is {shown(options)}, expected an object")
    return options


def _label(given: Mapping[str, Any], where: str) -> bool:
    label = given["label"]
    plain = label.strip().lower() if isinstance(label, str) else label
    for good, spellings in ((True, TRUE), (False, FALSE)):
        if isinstance(plain, bool | int | str) and plain in spellings:
            return good
    raise BadRow("no label", f"{where}: label is {shown(label)}, expected true or false")


def _alike(prompt: Part, answer: Part) -> tuple[Part, Part]:
    """Both as messages where one of them is."""
    if isinstance(prompt, str) and not isinstance(answer, str):
        return [{"role": "user", "content": prompt}], answer
    if isinstance(answer, str) and not isinstance(prompt, str):
        return prompt, [{"role": ASSISTANT, "content": answer}]
    return prompt, answer


def _common(a: Part, b: Part) -> Part:
    """How both begin: whole messages; of texts whole words, without the blank before the next."""
    size = common_size(a, b)
    if not isinstance(a, str) or not isinstance(b, str):
        return a[: min(size, len(a) - 1, len(b) - 1)]
    if not (a[size : size + 1].isspace() and b[size : size + 1].isspace()):
        size = max((place for place in range(size) if a[place].isspace()), default=0)
    return a[:size].rstrip(" ")


def common_size(a: Part, b: Part) -> int:
    """How many characters or messages both begin with."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(a), len(b)))
