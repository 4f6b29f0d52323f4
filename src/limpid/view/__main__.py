"""`python -m limpid.view`: write the JSON Schema of what the page is sent, and TypeScript's types of it, anew."""

from limpid.view import schema, typescript

schema.FILE.write_text(schema.written(), encoding="utf-8")
typescript.FILE.write_text(typescript.written(), encoding="utf-8")
