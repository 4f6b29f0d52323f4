"""What is shown before the first step."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from data.tuning.templates import CHATML, talk
from limpid.config import DataConfig
from limpid.data.tuning.examples import Examples, Wanted, prepare_examples
from limpid.data.tuning.rows import Order
from limpid.data.tuning.terminal import examples_table, shown_rows


@pytest.fixture
def examples(tmp_path: Path) -> Examples:
    records = [{"messages": talk("[red]q[/red]\n", "é" * 9)} for _ in range(20)]
    records.append({"messages": talk("q", "long " * 100)})
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    data = DataConfig(paths=(str(tmp_path / "x.jsonl"),))
    return prepare_examples(Wanted(data, "answers", CHATML.tokenizer(), 300, 0, too_long="skip"))


def printed(*contents: object, colours: bool = False) -> str:
    console = Console(file=io.StringIO(), width=200, force_terminal=colours, color_system="256" if colours else None)
    for content in contents:
        console.print(content)
    return console.file.getvalue()


def test_learned_stretches_stand_in_brackets_and_in_colour(examples: Examples) -> None:
    plain = printed(*shown_rows(examples, 1))
    assert f"assistant\\n⟦{'é' * 9}<|im_end|>⟧\\n" in plain
    assert "[red]q[/red]" in plain
    assert "19 learned" in plain  # 9 letters of 2 bytes, and the stop
    coloured = printed(*shown_rows(examples, 1), colours=True)
    assert f"\x1b[38;5;32m⟦{'é' * 9}<|im_end|>⟧\x1b[0m" in coloured


def test_the_table_counts_what_is_there(examples: Examples) -> None:
    table = printed(examples_table(examples, Order(examples.train.lengths, 2, 1, 0)))
    learned = examples.train.records * 19
    assert f"{learned} ({learned / len(examples.train.tokens):.1%})" in table
    assert table.splitlines()[-1].split() == ["padding", "0.0%"]
    assert any("longer than the context: 1, for example" in note for note in examples.notes)
