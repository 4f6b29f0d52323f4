"""Which characters are learned: exactly the answers, each with what stops it, in templates that mark nothing."""

from collections.abc import Sequence
from typing import Any

import pytest
import tokenizers
import tokenizers.processors
from transformers import PreTrainedTokenizerFast

from data.tuning.templates import FAMILIES, GLM, QWEN3, Family, talk
from limpid.data.new_tokenizer import byte_tokenizer, train_bpe
from limpid.data.tokenizer import Tokenizer
from limpid.data.tuning.encoding import Answer, encoded
from limpid.data.tuning.shapes import Kind, exchanges_of
from limpid.data.tuning.written import Writer

SAID = ("Hi, naïve 🙂", "Hello \n there", "1 + 1?", "2", "Sure? ", "Yes: <b>2</b>")


def examples(record: Any, tokenizer: Tokenizer, kind: Kind = "answers") -> tuple[list[list[Answer]], Writer]:
    """The examples of one record, and who wrote them."""
    writer = Writer(tokenizer, tokenizer.chat_template)
    found = [
        encoded(texts, tokenizer, writer.counts)
        for exchange in exchanges_of(record, kind, "text", "x.jsonl:1")
        for texts in writer.examples(exchange, "x.jsonl:1")
    ]
    return found, writer


def learned(answer: Answer, tokenizer: Tokenizer) -> list[str]:
    """The text of each stretch of tokens that is learned."""
    parts: list[list[int]] = []
    before = False
    for token, is_learned in zip(answer.tokens.tolist(), answer.learned.tolist(), strict=True):
        if is_learned and not before:
            parts.append([])
        if is_learned:
            parts[-1].append(token)
        before = is_learned
    return [tokenizer.decode(part) for part in parts]


def text(answer: Answer, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(answer.tokens.tolist())


STOP = {
    "chatml": "<|im_end|>", "llama3": "<|eot|>", "gemma": "</turn>", "mistral": "</s>", "qwen3": "<|im_end|>",
    "glm": "<|user|>",
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_each_answer_is_learned_once_with_its_stop_and_nothing_else(name: str, system: str | None) -> None:
    family = FAMILIES[name]
    tokenizer = family.tokenizer()
    found, _ = examples({"messages": talk(*SAID, system=system if family.system else None)}, tokenizer)
    parts = [part for (answer,) in found for part in learned(answer, tokenizer)]
    thought = "<think>\n\n</think>\n\n" if family is QWEN3 else ""
    trimmed = [said.strip() if name in ("llama3", "gemma") else said for said in SAID[1::2]]
    assert parts == [thought + said + STOP[name] for said in trimmed]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_answer_follows_the_prompt_that_generating_would_have(name: str) -> None:
    family = FAMILIES[name]
    tokenizer = family.tokenizer()
    conversation = talk(*SAID, system="Be brief." if family.system else None)
    found, _ = examples({"messages": conversation}, tokenizer)
    whole = [text(answer, tokenizer) for (answer,) in found]
    for number, message in enumerate(conversation):
        if message["role"] == "assistant":
            prompt = tokenizer.decode(tokenizer.encode_chat(conversation[:number]))
            assert any(one.startswith(prompt) for one in whole)


def test_answers_that_later_turns_change_stand_alone_as_they_were() -> None:
    thinking = [f"<think>\nso {said}\n</think>\n\n{said}" for said in ("two", "four")]
    tokenizer = QWEN3.tokenizer()
    found, writer = examples({"messages": talk("1+1", thinking[0], "2+2", thinking[1])}, tokenizer)
    assert [learned(answer, tokenizer) for (answer,) in found] == [[thought + "<|im_end|>"] for thought in thinking]
    assert "so two" not in text(found[1][0], tokenizer)  # the second is asked for without the first's thoughts
    assert writer.counts["alone"] == 1


def test_steps_of_one_answer_share_a_row() -> None:
    turns = talk("weather?", "<think>\na\n</think>\n\ncalling")
    turns += [{"role": "tool", "content": "sun"}, {"role": "assistant", "content": "<think>\nb\n</think>\n\nsunny"}]
    found, _ = examples({"messages": turns}, QWEN3.tokenizer())
    assert len(found) == 1
    assert len(learned(found[0][0], QWEN3.tokenizer())) == 2


def test_a_call_of_tools_ends_with_the_mark_of_their_answer() -> None:
    calls = GLM.template.replace("m.content", "(m.tool_calls | tojson if m.tool_calls else m.content)")
    family = Family(
        calls.replace("<|' + m.role", "<|' + (m.role | replace('tool', 'observation'))"), GLM.special, GLM.ends
    )
    tokenizer = family.tokenizer()
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "sum"}]}
    found, _ = examples({"messages": [*talk("1+1"), call]}, tokenizer)
    assert learned(found[0][0], tokenizer) == ['[{"name": "sum"}]<|observation|>']


def test_without_a_template_turns_are_lines_that_end_where_generating_stops() -> None:
    tokenizer = byte_tokenizer()
    found, writer = examples({"messages": talk("a", "b", "c", "d")}, tokenizer)
    assert text(found[0][0], tokenizer) == "User: a\nModel: b\nUser: c\nModel: d<|endoftext|>"
    assert learned(found[0][0], tokenizer) == [" b\nUser:", " d<|endoftext|>"]
    assert writer.counts["turns"] == 1


@pytest.mark.parametrize(
    ("record", "parts"),
    [
        ({"prompt": "2 + 2 =", "completion": " 4"}, [" 4<|endoftext|>"]),
        ({"text": "all of it"}, ["all of it<|endoftext|>"]),
        ({"prompt": "", "completion": "all"}, ["all<|endoftext|>"]),
    ],
)
def test_of_plain_texts_the_completion_is_learned_and_the_end(record: Any, parts: Sequence[str]) -> None:
    tokenizer = byte_tokenizer()
    found, _ = examples(record, tokenizer)
    assert learned(found[0][0], tokenizer) == parts


def test_what_templates_write_for_generating_alone_is_not_learned() -> None:
    chatml = FAMILIES["chatml"]
    thinking = chatml.template.replace("assistant\n' }}{% endif", "assistant\n<think>\n' }}{% endif")
    tokenizer = Family(thinking, chatml.special, chatml.ends).tokenizer()
    for said in ("<b>", "<think>b"):
        found, writer = examples({"messages": talk("a", said)}, tokenizer)
        assert learned(found[0][0], tokenizer) == [f"{said}<|im_end|>"]
        assert writer.counts["opened otherwise"] == 1
    forced = chatml.template.replace("assistant\n' }}{% endif", "assistant\n<think></think>' }}{% endif")
    forced = forced.replace(
        "m.content", "('' if '<think>' in m.content or m.role == 'user' else '<think></think>') + m.content"
    )
    tokenizer = Family(forced, chatml.special, chatml.ends).tokenizer()
    found, writer = examples({"messages": talk("a", "<think>so</think>b")}, tokenizer)
    assert learned(found[0][0], tokenizer) == ["so</think>b<|im_end|>"]


def test_a_template_that_always_goes_on_to_the_next_answer_teaches_the_first_alone() -> None:
    chatml = FAMILIES["chatml"]
    always = chatml.template.replace("{% if add_generation_prompt %}", "").replace("{% endif %}", "")
    tokenizer = Family(always, chatml.special, chatml.ends).tokenizer()
    found, _ = examples({"messages": talk("a", "b")}, tokenizer)
    assert learned(found[0][0], tokenizer)[-1].endswith("b<|im_end|>")


def test_a_pair_has_one_prompt_and_two_answers() -> None:
    tokenizer = FAMILIES["chatml"].tokenizer()
    chosen, rejected = talk("a", "good"), talk("a", "bad")
    found, _ = examples({"chosen": chosen, "rejected": rejected}, tokenizer, "pairs")
    assert [learned(answer, tokenizer) for answer in found[0]] == [["good<|im_end|>"], ["bad<|im_end|>"]]


def test_a_prompt_goes_up_to_where_its_answer_begins() -> None:
    tokenizer = FAMILIES["chatml"].tokenizer()
    ((answer,),), _ = examples({"prompt": talk("a"), "solution": 3}, tokenizer, "prompts")
    assert answer.tokens.tolist() == tokenizer.encode_chat(talk("a"))
    assert not answer.learned.any()


MARKED = {
    "chatml": (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "mistral": (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content + eos_token }}{% endgeneration %}{% else %}{{ '[INST]' + m.content + '[/INST]' }}{% endif %}"
        "{% endfor %}"
    ),
}


@pytest.mark.parametrize("name", MARKED)
@pytest.mark.parametrize("merged", [False, True])
def test_masks_are_those_of_transformers_where_a_template_marks_its_answers(name: str, merged: bool) -> None:
    family = Family(MARKED[name], FAMILIES[name].special, FAMILIES[name].ends)
    tokenizer = family.tokenizer()
    if merged:
        tokenizer = merging(family)
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(tokenizer.to_json()),
        bos_token="<s>",
        eos_token=family.ends[0],
        chat_template=MARKED[name],
    )
    conversation = talk(*SAID)
    expected = theirs.apply_chat_template(
        conversation, return_assistant_tokens_mask=True, return_dict=True, add_generation_prompt=False
    )
    ((answer,),), _ = examples({"messages": conversation}, tokenizer)
    assert answer.tokens.tolist() == expected["input_ids"]
    assert answer.learned.astype(int).tolist() == expected["assistant_masks"]


def merging(family: Family) -> Tokenizer:
    """A tokenizer of the family whose tokens hold several characters, blanks among them, and that trims offsets."""
    trained = train_bpe([" ".join(SAID)] * 3 + ["Hello there\n\n"] * 3, 300)._tokenizer
    trained.add_special_tokens(list(family.special))
    trained.post_processor = tokenizers.processors.ByteLevel(trim_offsets=True)
    tokenizer, plain = Tokenizer(trained), family.tokenizer()
    ids = [tokenizer.special_id(word) for word in family.ends]
    tokenizer.ends, tokenizer.end = frozenset(id for id in ids if id is not None), ids[0]
    tokenizer.chat_template = plain.chat_template
    return tokenizer


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_of_several_characters_are_learned_where_they_hold_any_of_an_answer(name: str) -> None:
    tokenizer = merging(FAMILIES[name])
    conversation = talk(*SAID)
    bytewise = FAMILIES[name].tokenizer()
    found, writer = examples({"messages": conversation}, tokenizer)
    exact, _ = examples({"messages": conversation}, bytewise)
    for (merged,), (single,) in zip(found, exact, strict=True):
        for part, said in zip(learned(merged, tokenizer), learned(single, bytewise), strict=True):
            assert said in part
            assert part == said or writer.counts["straddling"]


def test_the_first_token_of_a_text_is_put_once() -> None:
    family = FAMILIES["llama3"]
    tokenizer = family.tokenizer()
    tokenizer._tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.special_id("<s>"))]
    )
    with_template, _ = examples({"messages": talk("a", "b")}, tokenizer)
    plain, _ = examples({"prompt": "a", "completion": "b"}, tokenizer)
    first = tokenizer.special_id("<s>")
    for ((answer,),) in (with_template, plain):
        assert answer.tokens.tolist()[0] == first
        assert answer.tokens.tolist().count(first) == 1


def test_an_answer_of_weight_0_is_read_and_not_learned() -> None:
    tokenizer = FAMILIES["chatml"].tokenizer()
    turns = talk("a", "wrong", "b", "right")
    turns[1] |= {"weight": 0}
    ((answer,),), _ = examples({"messages": turns}, tokenizer)
    assert learned(answer, tokenizer) == ["right<|im_end|>"]
    assert "wrong" in text(answer, tokenizer)


def test_tools_and_options_reach_the_template() -> None:
    template = "{{ tools[0].name }}{{ mode }}{% for m in messages %}{{ m.content }}{% endfor %}<|im_end|>"
    tokenizer = Family(template, ("<|im_end|>",), ("<|im_end|>",)).tokenizer()
    record = {"messages": talk("a", "b"), "tools": '[{"name": "sum", "default": null}]'}
    ((answer,),), writer = examples(record | {"chat_template_kwargs": {"mode": "fast"}}, tokenizer)
    assert text(answer, tokenizer).startswith("sumfasta")
    assert not writer.counts["tools"]
    _, writer = examples(record, FAMILIES["chatml"].tokenizer())
    assert writer.counts["tools"] == 1


def test_a_stop_at_which_generating_goes_on_is_counted() -> None:
    chatml = FAMILIES["chatml"]
    tokenizer = Family(chatml.template, (*chatml.special, "<eos>"), ("<eos>",)).tokenizer()
    ((answer,),), writer = examples({"messages": talk("a", "b")}, tokenizer)
    assert learned(answer, tokenizer) == ["b<|im_end|>"]
    assert writer.counts["stops elsewhere"] == 1
    words = Family(chatml.template, ("<eos>",), ("<eos>",)).tokenizer()  # its marks are no tokens
    ((answer,),), writer = examples({"messages": talk("a", "b", "c", "d")}, words)
    assert learned(answer, words)[-1] == "d<|im_end|>\n<eos>"
    assert writer.counts["unclosed"] == 1
