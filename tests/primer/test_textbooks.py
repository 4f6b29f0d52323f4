"""Each topic of the documentation's table has its chapter, its module and its test."""

import importlib
import re
from pathlib import Path

import pytest

from limpid.primer.chapter import CHAPTERS

PAGE = Path(__file__).parents[2] / "docs" / "textbooks.md"
ROW = re.compile(r"^\| ([^|]+) \| `([a-z-]+)` \| `(limpid\.[\w.]+)` \| `(test_\w+\.py)::(test_\w+)` \|$", re.MULTILINE)
ROWS = ROW.findall(PAGE.read_text(encoding="utf-8"))


def test_every_row_of_the_table_is_read() -> None:
    section = PAGE.read_text(encoding="utf-8").split("## Where each topic is")[1].split("## ")[0]
    assert len(ROWS) == section.count("\n| ") - 1


@pytest.mark.parametrize(("topic", "chapter", "module", "file", "test"), ROWS, ids=[row[0] for row in ROWS])
def test_a_topic_is_where_the_table_says(topic: str, chapter: str, module: str, file: str, test: str) -> None:
    assert chapter in CHAPTERS
    assert importlib.import_module(module).__doc__
    assert f"def {test}(" in (Path(__file__).parent / file).read_text(encoding="utf-8")
