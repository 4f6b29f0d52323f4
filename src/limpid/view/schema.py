"""The JSON Schema of what the page is sent, which its TypeScript types are made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from limpid.tracing.document import VERSION
from limpid.tracing.schema import json_schema
from limpid.view.document import DOCUMENTS
from limpid.view.learn_documents import LEARN_DOCUMENTS
from limpid.view.questions import QUESTIONS

FILE = Path(__file__).with_name("view.schema.json")


def view_schema() -> dict[str, Any]:
    """The schema of every document and question; the list of runs is the root."""
    return json_schema((*DOCUMENTS, *LEARN_DOCUMENTS, *QUESTIONS), "What limpid serve sends, and is asked", VERSION)


def written() -> str:
    """The text of the schema file."""
    return json.dumps(view_schema(), indent=1, ensure_ascii=False) + "\n"
