"""What a user should know about how conversations became examples."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool

from limpid.data.tuning.shapes import Kind
from limpid.data.tuning.written import Writer


def notes_of(writer: Writer, kind: Kind) -> list[str]:
    """A line for each thing that happened, with its count."""
    own_row = "each learned in a row of its own, as a model is asked for it (one row with a template that keeps them)"
    by_itself = "left out" if kind == "pairs" else own_row
    template = writer.template
    lines = {
        "turns": "no chat template: conversations are written as lines of User: and Model:, as `limpid chat` writes "
        "them; give --chat-template for another form: {count:,}",
        "plain": "plain texts, which are learned without the model's chat template; give messages to use it: {count:,}",
        "spelled": "texts that spell special tokens, learned as the characters they are; give messages instead, and "
        "the chat template puts the tokens: {count:,}",
        "tools": "records whose tools the chat template does not write: {count:,}",
        "alone": f"answers that the chat template changes once later turns follow, {by_itself}: {{count:,}}",
        "opened otherwise": "answers before which the chat template writes, for generating alone, what the "
        "conversation does not hold (the begin of thoughts): that is not learned: {count:,}",
        "another prompt": "answers whose prompt the chat template writes otherwise once they are there (without the "
        "system message), learned behind the prompt as it is for generating: {count:,}",
        "altered": "answers that the chat template changes or shortens, learned as it writes them: {count:,}",
        "unclosed": "answers that no token ends, after which a model does not learn to stop: {count:,}",
        "stops elsewhere": "answers that end with a token at which generating does not stop (eos_token_id in "
        "generation_config.json names others): {count:,}",
        "straddling": "tokens that hold the end of a prompt and the begin of an answer, or the reverse; they are "
        "learned: {count:,}",
    }
    if template is None:
        del lines["plain"]
    found = [line.format(count=count) for what, line in lines.items() if (count := writer.counts[what])]
    if template is not None and template.writes_date:
        found.append("the chat template writes today's date; a field chat_template_kwargs gives another to a record")
    return found


def one_sided(desirable: Bool[np.ndarray, " record"] | None) -> list[str]:
    """A line where the judged answers to train on are all good, or all bad."""
    if desirable is None or not len(desirable) or desirable.any() != desirable.all():
        return []
    label, other = ("true", "false") if desirable.all() else ("false", "true")
    which, without = ("good", "bad") if desirable.all() else ("bad", "good")
    return [f"every label to train on is {label}: only {which} answers, and nothing says what a {without} one is; "
            f"give answers of label {other}, too"]  # fmt: skip
