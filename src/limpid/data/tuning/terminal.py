"""What a model is tuned on, for a terminal: how much there is, and some rows with what is learned of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.table import Table
from rich.text import Text

from limpid.data.token_spelling import printable
from limpid.data.tokenizer import Tokenizer
from limpid.data.tuning.encoding import Answer
from limpid.data.tuning.example_split import ExampleSplit
from limpid.data.tuning.examples import Examples
from limpid.data.tuning.rows import Order, padding
from limpid.theme import FORWARD, HEADING, QUIET

OPENS, CLOSES = "⟦", "⟧"
"""Around what is learned: colour alone says nothing in a pipe."""
HEAD, TAIL = 160, 60
"""Characters of a stretch that are shown when it is longer."""
NAMES = {"answers": "answers", "pairs": "pairs", "judged": "judged answers", "prompts": "prompts"}


def examples_table(examples: Examples, order: Order) -> Table:
    """What is trained on and what is held out: records, tokens, what is learned of them, padding in this order."""
    table = Table(box=None, pad_edge=False, header_style=QUIET)
    table.add_column(NAMES[examples.kind], no_wrap=True)
    for column in ("trained on", "held out"):
        table.add_column(column, justify="right", no_wrap=True)
    train, held_out = examples.tallies
    table.add_row("records", f"{train.records:,}", f"{held_out.records:,}")
    if train.cut or held_out.cut:
        table.add_row("cut to the context", f"{train.cut:,}", f"{held_out.cut:,}")
    table.add_row("tokens", f"{train.tokens:,}", f"{held_out.tokens:,}")
    if examples.kind != "prompts":
        table.add_row("learned", _share(train.learned, train.tokens), _share(held_out.learned, held_out.tokens))
    table.add_row("longest", f"{train.longest:,}", f"{held_out.longest:,}")
    table.add_row("median", f"{_median(examples.train):,}", f"{_median(examples.validation):,}")
    table.add_row("padding", f"{padding(examples.train, order):.1%}", "")
    return table


def shown_rows(examples: Examples, count: int = 3) -> Iterator[Text]:
    """The first records with their places, one answer a line; what is learned is coloured, and stands in brackets."""
    split = examples.train
    for record in range(min(count, split.records)):
        judged = "" if split.desirable is None else f", {'desirable' if split.desirable[record] else 'undesirable'}"
        names = ("chosen", "rejected") if split.pairs else ("",)
        for number, name in enumerate(names):
            answer = split.answer(record * len(names) + number)
            head = f"{split.where[record]}{f', {name}' if name else ''}{judged}"
            counts = f"  {len(answer.tokens):,} tokens"
            if examples.kind != "prompts":
                counts += f", {int(answer.learned.sum()):,} learned"
            yield Text.assemble((head, HEADING), (counts, QUIET), "\n  ", learned_text(answer, examples.tokenizer))


def learned_text(answer: Answer, tokenizer: Tokenizer) -> Text:
    """One answer with its prompt in printable characters, long stretches shortened in the middle."""
    text = Text()
    borders = np.flatnonzero(np.diff(answer.learned)) + 1
    for begin, end in zip([0, *borders], [*borders, len(answer.tokens)], strict=True):
        if begin == end:
            continue
        stretch = "".join(map(printable, tokenizer.decode(answer.tokens[begin:end].tolist())))
        if len(stretch) > HEAD + TAIL + 20:
            stretch = f"{stretch[:HEAD]} … {len(stretch) - HEAD - TAIL:,} characters … {stretch[-TAIL:]}"
        if answer.learned[begin]:
            text.append(f"{OPENS}{stretch}{CLOSES}", FORWARD)
        else:
            text.append(stretch)
    return text


def _share(part: int, whole: int) -> str:
    return f"{part:,} ({part / whole:.1%})" if whole else "0"


def _median(split: ExampleSplit) -> int:
    return int(np.median(split.lengths)) if split.records else 0
