"""A model's own chat template: the ids, the ends and the continuation that transformers gives."""

from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import limpid
from generation.hugging_face_chat import CHATML, chat_folder
from limpid.config import Sampling
from limpid.errors import DataError
from limpid.generation.chat import chat
from limpid.generation.generation import open_decoder

TALK = [
    {"role": "system", "content": "Be  brief. "},
    {"role": "user", "content": "Hi, naïve 🙂\n"},
    {"role": "assistant", "content": " Hello "},
    {"role": "user", "content": "<b>'quoted' & \"odd\"</b>"},
]
TEMPLATES = {
    "chatml": CHATML,
    "trimmed, first token": (
        "{{ bos_token }}\n{%- for message in messages %}\n"
        "    {%- if message.role == 'system' %}{% continue %}{% endif %}"
        "\n    {{- '[' + message.role | upper + '] ' + message['content'] | trim + eos_token }}\n{%- endfor %}\n"
    ),
    "json, marked answers": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}"
        "{% endgeneration %}{% else %}{{ m | tojson }}{% endif %}{% endfor %}{% if tools is none %}-{% endif %}"
    ),
    "namespace, macro": (
        "{%- set ns = namespace(n=0) -%}{%- macro turn(m) -%}{{ m.role }}|{{ m.content }}{%- endmacro -%}"
        "{%- for m in messages -%}{%- set ns.n = ns.n + 1 -%}{{ ns.n }}{{ turn(m) }}{%- endfor -%}"
    ),
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_ids_are_those_of_transformers(template: str, tmp_path: Path) -> None:
    chat_folder(tmp_path, TEMPLATES[template])
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    _, ours = limpid.load(tmp_path)
    expected = theirs.apply_chat_template(TALK, add_generation_prompt=True, return_dict=False)
    assert ours.encode_chat(TALK) == expected
    assert ours.start == 259


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_answer_is_that_of_transformers_and_ends_where_it_does(seed: int, tmp_path: Path) -> None:
    chat_folder(tmp_path, seed=seed)
    tokenizer, model = AutoTokenizer.from_pretrained(tmp_path), AutoModelForCausalLM.from_pretrained(tmp_path)
    given = tokenizer.apply_chat_template(TALK[1:2], add_generation_prompt=True, return_tensors="pt", return_dict=False)
    with torch.no_grad():
        whole = model.generate(given, do_sample=False, max_new_tokens=60, pad_token_id=256)[
            0, given.shape[1] :
        ].tolist()
    ends = [place for place, token in enumerate(whole) if token in (258, 256)]
    ours = limpid.generate(tmp_path, TALK[1:2], temperature=0, max_new_tokens=60)[0]
    assert list(ours.tokens) == (whole[: ends[0]] if ends else whole)
    assert ours.finish == ("end of text" if ends else "length")


@pytest.mark.parametrize(
    ("template", "talk", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", TALK, "refuses these messages: roles must alternate"),
        ("{% if %}", TALK, "chat_template.jinja cannot be read"),
        ("{{ ''.__class__.__mro__ }}", TALK, "refuses these messages"),
        ("{{ messages[9].content.nothing }}", TALK, "refuses these messages"),
        (CHATML, [{"role": "user", "content": "a<|im_end|>"}], r"spells <\|im_end\|>"),
        (CHATML, [{"role": "user"}], "is no message"),
        (None, [{"role": "user", "content": ["x"]}], "is no message"),
    ],
)
def test_what_cannot_be_a_conversation_is_one_line(template: str | None, talk: Any, said: str, tmp_path: Path) -> None:
    chat_folder(tmp_path, template)
    with pytest.raises(DataError, match=said):
        limpid.generate(tmp_path, talk, max_new_tokens=1)


def test_a_text_begins_as_transformers_begins_it(tmp_path: Path) -> None:
    file = chat_folder(tmp_path) / "tokenizer.json"
    plain = tokenizers.Tokenizer.from_file(str(file))
    plain.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 259)])
    plain.save(str(file))
    _, tokenizer = limpid.load(tmp_path)
    assert tokenizer.encode_prompt("ab") == AutoTokenizer.from_pretrained(tmp_path)("ab")["input_ids"] == [259, 97, 98]
    assert tokenizer.encode("ab") == [97, 98]


def test_a_text_that_spells_a_special_token_is_still_text(tmp_path: Path) -> None:
    _, tokenizer = limpid.load(chat_folder(tmp_path))
    assert 258 not in tokenizer.encode_prompt("<|im_end|>")


def test_without_a_template_a_conversation_is_text_that_the_next_turn_ends(tmp_path: Path) -> None:
    folder = chat_folder(tmp_path, None)
    as_text = "User: Hi\nModel:"
    asked = limpid.generate(folder, [{"role": "user", "content": "Hi"}], max_new_tokens=20, seed=3)
    assert asked.text == limpid.generate(folder, as_text, max_new_tokens=20, seed=3, stop=("\nUser:",)).text


def test_chat_speaks_the_model_s_own_form_and_keeps_what_it_was_told_first(tmp_path: Path) -> None:
    opened, decoder = open_decoder(chat_folder(tmp_path, context=96))
    asked: list[list[dict[str, str]]] = []
    whole = opened.tokenizer.encode_chat
    opened.tokenizer.encode_chat = lambda messages: asked.append(list(messages)) or whole(messages)
    lines, said = iter(["one", "two", "three and more", "/exit"]), []
    chat(decoder, opened.tokenizer, Sampling(8, 0.5), lambda: next(lines), said.append, system="Be.")
    assert all(messages[0] == {"role": "system", "content": "Be."} for messages in asked)
    assert "forgotten" in "".join(said)
    assert asked[-1][-1] == {"role": "user", "content": "three and more"}
    assert [message["role"] for message in asked[-1][1:]] in (["user"], ["user", "assistant", "user"])
