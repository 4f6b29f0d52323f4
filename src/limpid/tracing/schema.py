"""Documents as JSON: their JSON Schema from the dataclasses, and the way there and back.

python -m limpid.tracing.schema     writes step.schema.json beside this file
"""

from __future__ import annotations

import json
import types
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from limpid.jsonable import FINITE, hints
from limpid.jsonable import from_json as from_json
from limpid.jsonable import to_json as to_json
from limpid.tracing.document import VERSION, ArrayDocument, EntryDocument, StepDocument

FILE = Path(__file__).with_name("step.schema.json")
DOCUMENTS = (StepDocument, EntryDocument, ArrayDocument)
PLAIN = {str: {"type": "string"}, int: {"type": "integer"}, bool: {"type": "boolean"}, type(None): {"type": "null"}}
NUMBER = {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}


class Question:
    """Base of documents that are asked: what has a default may be left out."""


def json_schema(
    documents: Sequence[type] = DOCUMENTS, title: str = "A training step of limpid", version: int = VERSION
) -> dict[str, Any]:
    """The JSON Schema of every document; the first is the root."""
    definitions: dict[str, Any] = {}
    for document in documents:
        _schema(document, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "version": version,
        "$ref": f"#/$defs/{documents[0].__name__}",
        "$defs": dict(sorted(definitions.items())),
    }


def _schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type; dataclasses go to the definitions."""
    if kind is Any:
        return {}
    if kind is float:
        return NUMBER
    if kind in PLAIN:
        return PLAIN[kind]
    if isinstance(kind, type) and is_dataclass(kind):
        name = kind.__name__
        if name not in definitions:
            definitions[name] = {}
            definitions[name] = _object(kind, definitions)
        return {"$ref": f"#/$defs/{name}"}
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return {"type": "number"} if FINITE in inner else _schema(inner[0], definitions)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(one, definitions) for one in inner]}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(inner[1], definitions)}
    if inner[-1] is Ellipsis:
        return {"type": "array", "items": _schema(inner[0], definitions)}
    return {"type": "array", "prefixItems": [_schema(one, definitions) for one in inner],
            "minItems": len(inner), "maxItems": len(inner)}  # fmt: skip


def _object(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    properties = {name: _schema(hint, definitions) for name, hint in hints(kind).items()}
    about = {"description": kind.__doc__} if kind.__doc__ else {}
    asked = issubclass(kind, Question)
    required = [one.name for one in fields(kind) if not asked or one.default is MISSING]
    return {
        "type": "object", **about, "properties": properties, "required": required, "additionalProperties": False,
    }  # fmt: skip


def written() -> str:
    """The text of the schema file."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"
