"""Chat templates in the shapes of well-known families, and tokenizers that have their special tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

from limpid.data.chat_template import ChatTemplate
from limpid.data.new_tokenizer import byte_tokenizer
from limpid.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class Family:
    """A template, the special tokens that it spells, and those at which generating stops."""

    template: str
    special: tuple[str, ...]
    ends: tuple[str, ...]
    system: bool = True  # whether it knows that role

    def tokenizer(self) -> Tokenizer:
        tokenizer = byte_tokenizer()
        tokenizer._tokenizer.add_special_tokens(list(self.special))
        tokenizer = Tokenizer(tokenizer._tokenizer)
        ids = [tokenizer.special_id(word) for word in self.ends]
        tokenizer.ends = frozenset(id for id in ids if id is not None)
        tokenizer.end = ids[0]
        words = {"bos_token": "<s>", "eos_token": self.ends[0]}
        tokenizer.chat_template = ChatTemplate(self.template, "chat_template.jinja", words)
        return tokenizer


CHATML = Family(
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    ("<|im_start|>", "<|im_end|>"),
    ("<|im_end|>",),
)
LLAMA3 = Family(
    "{{- bos_token }}{%- for m in messages %}{{- '<|head|>' + m.role + '<|/head|>\n\n' + m.content | trim "
    "+ '<|eot|>' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|head|>assistant<|/head|>\n\n' }}{%- endif %}",
    ("<s>", "<|head|>", "<|/head|>", "<|eot|>", "<|end|>"),
    ("<|end|>", "<|eot|>"),
)
GEMMA = Family(
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ '<turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim "
    "+ '</turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<turn>model\n' }}{% endif %}",
    ("<s>", "<eos>", "<turn>", "</turn>"),
    ("<eos>", "</turn>"),
    system=False,
)
MISTRAL = Family(
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"
    "{% set messages = messages[1:] %}{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% if loop.last and system is defined %}"
    "{{ '[INST]' + system + '\n\n' + m.content + '[/INST]' }}{% else %}"
    "{{ '[INST]' + m.content + '[/INST]' }}{% endif %}{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}",
    ("<s>", "</s>", "[INST]", "[/INST]"),
    ("</s>",),
)
QWEN3 = Family(
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}{% set said = m.content %}{% if m.role == 'assistant' %}"
    "{% set thought = '' %}{% if '</think>' in said %}"
    "{% set thought = said.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if loop.index0 > ns.last %}"
    "{% set said = '<think>\n' + thought + '\n</think>\n\n' + said %}{% endif %}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + said + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    ("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    ("<|im_end|>", "<|endoftext|>"),
)
GLM = Family(
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
    ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"),
    ("<|endoftext|>", "<|user|>", "<|observation|>"),
)
FAMILIES = {
    "chatml": CHATML, "llama3": LLAMA3, "gemma": GEMMA, "mistral": MISTRAL, "qwen3": QWEN3, "glm": GLM,
}  # fmt: skip


def talk(*contents: str, system: str | None = None) -> list[dict[str, str]]:
    """A conversation: what the user and the assistant say, by turns."""
    roles: Sequence[str] = ("user", "assistant") * len(contents)
    head = [] if system is None else [{"role": "system", "content": system}]
    return head + [{"role": role, "content": said} for role, said in zip(roles, contents, strict=False)]
