"""`python -m limpid.trace`: write the documents' JSON Schema anew."""

from limpid.trace.schema import FILE, written

FILE.write_text(written(), encoding="utf-8")
