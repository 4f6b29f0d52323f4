"""What is learned of a conversation, beside TRL: every training template that it ships, and the time for many chats.

python benchmarks/answers.py          masks of limpid (found by rendering) and of TRL (marked in the template)
python benchmarks/answers.py time     chats per second of both, on one file

Needs `pip install trl==1.16.0`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedTokenizerFast

from limpid.config import DataConfig
from limpid.data.chat_template import ChatTemplate
from limpid.data.new_tokenizer import byte_tokenizer, train_bpe
from limpid.data.tokenizer import Tokenizer
from limpid.data.tuning.encoding import Answer, encoded
from limpid.data.tuning.examples import Wanted, prepare_examples
from limpid.data.tuning.shapes import exchanges_of
from limpid.data.tuning.written import Writer
from limpid.errors import DataError

CHATS = (
    ("Hi there", "Hello you", "Sum?\n", "Four 🙂 \n\n- a\n"),
    ("1", "2", "3", "4", "5", "6"),
)
SPECIAL = r"<[|｜][^>'\"\s]*[|｜]>|</?s>|<(?:start|end)_of_turn>|<end_of_utterance>|\[/?INST\]|<\|?turn\|?>"
STOPS = r"end|eot|/s|^<turn|return|END_OF_TURN"
MARKERS = r"|<\|user|<\|observation"
WORDS = ("the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "are", "as", "with", "his", "they")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("masks", "time"), default="masks")
    {"masks": compare_masks, "time": compare_time}[parser.parse_args().what]()


def compare_masks() -> None:
    table = Table("template", "rows", "the same", "TRL learns too")
    found = importlib.util.find_spec("trl")
    assert found is not None, "pip install trl==1.16.0"
    folder = Path(str(found.origin)).parent / "chat_templates"
    for file in sorted(folder.glob("*_training.jinja")):
        tokenizer, theirs = both(byte_tokenizer()._tokenizer, file.read_text(), file.stem)
        rows, same, extra = 0, 0, dict[str, None]()
        for chat in CHATS:
            messages = [
                {"role": ("user", "assistant")[number % 2], "content": said} for number, said in enumerate(chat)
            ]
            try:
                answers = ours(messages, tokenizer)
                marked = theirs.apply_chat_template(messages, return_assistant_tokens_mask=True, return_dict=True)
            except Exception as error:  # whatever a template for pictures and text comes to with text alone
                extra[f"refused: {error if isinstance(error, DataError) else type(error).__name__}"] = None
                continue
            rows += 1
            ids, mask = np.array(marked["input_ids"]), np.array(marked["assistant_masks"], bool)
            if len(answers) > 1 or answers[0].tokens.tolist() != ids.tolist():
                extra[f"{len(answers)} rows here, as generating would ask for them"] = None
                continue
            assert not (answers[0].learned & ~mask).any(), f"{file.stem}: TRL learns less"
            same += bool((answers[0].learned == mask).all())
            extra |= dict.fromkeys(stretches(ids, mask & ~answers[0].learned, tokenizer))
        table.add_row(file.stem.removesuffix("_training"), str(rows), str(same), " ".join(extra))
    Console(width=160).print(table)


def compare_time() -> None:
    rng = np.random.default_rng(0)
    chatml = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    trained = train_bpe([" ".join(rng.choice(WORDS, 5000))], 600)._tokenizer
    tokenizer, theirs = both(trained, chatml, "chatml")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LIMPID_CACHE"] = folder
        file = Path(folder, "chats.jsonl")
        chats = [
            [
                {"role": ("user", "assistant")[turn % 2], "content": " ".join(rng.choice(WORDS, rng.integers(5, 200)))}
                for turn in range(2 * int(rng.integers(1, 4)))
            ]
            for _ in range(4000)
        ]
        file.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
        table = Table("", "chats/s", "MB/s")
        began = time.perf_counter()
        prepare_examples(Wanted(DataConfig(paths=(str(file),)), "answers", tokenizer, 4096, 0))
        seconds = {"limpid, read twice and kept": time.perf_counter() - began}
        began = time.perf_counter()
        for chat in chats:
            theirs.apply_chat_template(chat, return_assistant_tokens_mask=True, return_dict=True)
        seconds["transformers, what TRL maps over each chat"] = time.perf_counter() - began
        for name, taken in seconds.items():
            table.add_row(name, f"{len(chats) / taken:,.0f}", f"{file.stat().st_size / taken / 1e6:.2f}")
    Console().print(table)


def both(tokenizer: tokenizers.Tokenizer, template: str, name: str) -> tuple[Tokenizer, Any]:
    """The same tokenizer with the same template, as limpid and as transformers have it."""
    special = sorted({*re.findall(SPECIAL, template), "<s>", "</s>"})
    tokenizer.add_special_tokens(special)
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", chat_template=template
    )
    own = Tokenizer(tokenizers.Tokenizer.from_str(tokenizer.to_str()))
    markers = "glm" in name  # turns that only the next one closes
    stops = [
        word for word in special if re.search(STOPS, word) and (markers or not word.startswith(("<|user", "<|obs")))
    ]
    own.ends = frozenset(id for word in stops if (id := own.special_id(word)) is not None)
    own.chat_template = ChatTemplate(template, name, {"bos_token": "<s>", "eos_token": "</s>"})
    return own, theirs


def ours(messages: Any, tokenizer: Tokenizer) -> list[Answer]:
    writer = Writer(tokenizer, tokenizer.chat_template)
    (exchange,) = exchanges_of({"messages": messages}, "answers", "text", "chat")
    return [encoded(texts, tokenizer, writer.counts)[0] for texts in writer.examples(exchange, "chat")]


def stretches(ids: np.ndarray, mask: np.ndarray, tokenizer: Tokenizer) -> list[str]:
    """The text of each stretch of tokens under a mask, escaped."""
    borders = np.flatnonzero(np.diff(mask, prepend=False, append=False)).reshape(-1, 2)
    return [repr(tokenizer.decode(ids[begin:end].tolist())) for begin, end in borders]


if __name__ == "__main__":
    main()
