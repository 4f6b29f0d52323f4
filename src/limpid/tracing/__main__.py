"""`python -m limpid.tracing`: write the documents' JSON Schema anew."""

from limpid.tracing.schema import FILE, written

FILE.write_text(written(), encoding="utf-8")
