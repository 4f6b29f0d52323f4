"""Records in every form that people bring, and what is said of those that nothing can be learned from."""

import json
from typing import Any

import pytest

from data.reading import refusal
from data.tuning.templates import talk
from limpid.data.tuning.bad_row import BadRow
from limpid.data.tuning.shapes import Kind, exchanges_of

ASKED, GOOD, BAD = talk("q"), talk("", "good")[1:], talk("", "bad")[1:]


def read(record: Any, kind: Kind = "answers") -> list[tuple[Any, tuple[Any, ...], bool | None]]:
    return [(one.prompt, one.answers, one.desirable) for one in exchanges_of(record, kind, "text", "x.jsonl:7")]


@pytest.mark.parametrize(
    ("kind", "record", "expected"),
    [
        ("answers", {"text": "all"}, [("", ("all",), None)]),
        ("answers", "all", [("", ("all",), None)]),
        ("answers", {"messages": talk("q", "good")}, [([], (talk("q", "good"),), None)]),
        ("answers", {"messages": json.dumps(talk("q", "good"))}, [([], (talk("q", "good"),), None)]),
        (
            "answers",
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "good"}]},
            [([], (talk("q", "good"),), None)],
        ),
        ("answers", {"prompt": "q", "completion": "good", "tools": None}, [("q", ("good",), None)]),
        ("answers", {"prompt": ASKED, "completion": GOOD}, [(ASKED, (GOOD,), None)]),
        ("answers", {"prompt": "q", "completion": GOOD}, [(ASKED, (GOOD,), None)]),
        ("answers", {"prompt": ASKED, "completion": "good"}, [(ASKED, (GOOD,), None)]),
        (
            "answers",
            {"instruction": "q", "input": "", "output": "good", "text": "both in one"},
            [(ASKED, (GOOD,), None)],
        ),
        (
            "answers",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}, *GOOD]},
            [([], (talk("q", "good"),), None)],
        ),
        ("pairs", {"prompt": "q", "chosen": "good", "rejected": "bad"}, [("q", ("good", "bad"), None)]),
        ("pairs", {"prompt": ASKED, "chosen": GOOD, "rejected": BAD}, [(ASKED, (GOOD, BAD), None)]),
        ("pairs", {"chosen": ASKED + GOOD, "rejected": ASKED + BAD}, [(ASKED, (GOOD, BAD), None)]),
        ("pairs", {"prompt": "q", "chosen": ASKED + GOOD, "rejected": ASKED + BAD}, [(ASKED, (GOOD, BAD), None)]),
        (
            "pairs",
            {"chosen": "the sky is blue", "rejected": "the sky is black"},
            [("the sky is", (" blue", " black"), None)],
        ),
        ("pairs", {"chosen": "Q?\n yes", "rejected": "Q?\n no"}, [("Q?\n", (" yes", " no"), None)]),
        ("pairs", {"chosen": "yes", "rejected": "yes sir"}, [("", ("yes", "yes sir"), None)]),
        ("judged", {"prompt": "q", "completion": "good", "label": True}, [("q", ("good",), True)]),
        ("judged", {"prompt": "q", "completion": "good", "label": " False"}, [("q", ("good",), False)]),
        ("judged", {"messages": talk("q", "good"), "label": 1}, [([], (talk("q", "good"),), True)]),
        ("judged", {"conversations": talk("q", "good"), "label": 0}, [([], (talk("q", "good"),), False)]),
        (
            "judged",
            {"prompt": "q", "chosen": "good", "rejected": "bad"},
            [("q", ("good",), True), ("q", ("bad",), False)],
        ),
        ("prompts", {"prompt": "q", "solution": 3}, [("q", (), None)]),
        ("prompts", {"prompt": ASKED}, [(ASKED, (), None)]),
        ("prompts", {"prompt": "q", "messages": talk("a", "b"), "label": 0.7}, [("q", (), None)]),
        ("prompts", {"messages": talk("q", "good"), "label": 0.7}, [(ASKED, (), None)]),
        ("prompts", {"messages": talk("q", "good")}, [(ASKED, (), None)]),
        ("prompts", {"messages": ASKED}, [(ASKED, (), None)]),
        ("prompts", {"prompt": "q", "completion": "good"}, [("q", (), None)]),
        ("prompts", {"chosen": ASKED + GOOD, "rejected": ASKED + BAD}, [(ASKED, (), None)]),
    ],
)
def test_the_form_is_seen_from_the_fields(kind: Kind, record: Any, expected: list[Any]) -> None:
    assert read(record, kind) == expected


@pytest.mark.parametrize(
    ("kind", "record", "said"),
    [
        ("answers", 7, "expected an object"),
        ("answers", {}, "has the fields none"),
        ("answers", {"question": "q", "answer": "a"}, "has the fields question, answer: expected text, messages"),
        ("answers", {"text": None}, "text is null: give it"),
        ("answers", {"text": 3}, "field 'text' is 3"),
        ("answers", {"text": "  "}, "the answer is empty"),
        ("answers", {"prompt": "q", "completion": ""}, "the answer is empty"),
        ("answers", {"prompt": 3, "completion": "a"}, "field 'prompt' is 3, expected text or messages"),
        ("answers", {"messages": []}, "holds no message"),
        ("answers", {"messages": {"role": "user"}}, "expected a list"),
        ("answers", {"messages": "hello"}, "expected a list"),
        ("answers", {"messages": [{"role": "user"}]}, "is no message"),
        ("answers", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "is no message"),
        ("answers", {"messages": [{"role": "narrator", "content": "x"}]}, "role 'narrator' is unknown"),
        ("answers", {"messages": ASKED}, "no message is the assistant's"),
        ("answers", {"messages": talk("q", "a", "q")}, "ends with a message of role user"),
        ("answers", {"messages": talk("q", " ")}, "an answer of the assistant is empty"),
        (
            "answers",
            {"messages": [*ASKED, GOOD[0] | {"weight": 0}]},
            "no message is the assistant's, of a weight but 0",
        ),
        ("answers", {"messages": talk("q", "a"), "tools": "get"}, "field 'tools' is 'get'"),
        ("answers", {"messages": talk("q", "a"), "chat_template_kwargs": 3}, "chat_template_kwargs is 3"),
        ("answers", {"prompt": "q"}, "holds a prompt without an answer, and answers are asked for: give completion"),
        (
            "answers",
            {"chosen": "a", "rejected": "b"},
            "holds a pair, chosen and rejected, and answers are asked for: use",
        ),
        ("answers", {"prompt": "q", "completion": "a", "label": True}, "use limpid tune kto"),
        ("pairs", {"text": "all"}, "holds a text, and pairs are asked for"),
        ("pairs", {"messages": talk("q", "a")}, "holds a conversation, and pairs are asked for"),
        ("pairs", {"prompt": "q", "chosen": "a", "rejected": "a"}, "are the same"),
        ("pairs", {"prompt": "q", "chosen": "a", "rejected": BAD}, "give both alike"),
        ("pairs", {"prompt": "q", "chosen": "a", "rejected": " "}, "the answer is empty"),
        ("pairs", {"chosen": ASKED + GOOD, "rejected": ASKED}, "no message is the assistant's"),
        ("pairs", {"prompt": "q", "chosen": "a"}, "has chosen but no rejected: give both"),
        ("judged", {"rejected": "a"}, "has rejected but no chosen"),
        ("pairs", {"chosen": "a", "rejected": None}, "rejected is null"),
        (
            "pairs",
            {"chosen": talk("q3", "a"), "rejected": talk("other", "b")},
            "answer different prompts: message 1 of chosen, of role user",
        ),
        ("pairs", {"prompt": "q", "chosen": talk("q3", "a"), "rejected": talk("other", "b")}, "different prompts"),
        ("pairs", {"chosen": talk("q", "a"), "rejected": talk("q", "a", "q", "b")[:3]}, "message 3 of rejected"),
        ("judged", {"prompt": "q", "completion": "a", "label": None}, "label is null"),
        ("judged", {"messages": talk("q", "a"), "label": None}, "label is null"),
        ("judged", {"prompt": "q", "completion": "a"}, "judged answers are asked for"),
        ("judged", {"prompt": "q", "completion": "a", "label": 0.7}, "label is 0.7, expected true or false"),
        ("judged", {"prompt": "q", "completion": "a", "label": "good"}, "label is 'good'"),
        ("prompts", {"text": "all"}, "prompts are asked for"),
        ("prompts", {"prompt": " "}, "the prompt is empty"),
        ("prompts", {"prompt": talk("q", "a")}, "ends with an answer of the assistant"),
        ("prompts", {"messages": talk("q", "a")[1:]}, "the prompt is empty"),
    ],
)
def test_what_cannot_be_learned_from_is_one_line_with_its_place(kind: Kind, record: Any, said: str) -> None:
    line = refusal(lambda: read(record, kind))
    assert line.startswith("x.jsonl:7")
    assert said in line
    with pytest.raises(BadRow) as caught:
        read(record, kind)
    assert caught.value.reason
