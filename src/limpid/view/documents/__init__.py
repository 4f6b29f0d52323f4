"""What the page is sent, as typed documents; `python -m limpid.view` writes their JSON Schema and TypeScript's types.

Numbers that are not finite are the words nan, inf and -inf.
"""
