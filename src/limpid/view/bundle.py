"""The page's script and style as the package carries them, and the document around them."""

from __future__ import annotations

import re
from pathlib import Path

from limpid.errors import ConfigError

STATIC = Path(__file__).parent / "static"
IMPORTED = re.compile(r"""(?:from|import)["']\./([A-Za-z0-9-]+\.js)["']""")


def script(of: str = "limpid") -> str:
    """The script of the page: what a server sends first, `cell` of a notebook's; of one in a file `step`, `primer` or
    `recording`.

    Raises  ConfigError where the page was not built
    """
    return _read(f"{of}.js")


def style(of: str = "limpid") -> str:
    """Its one style sheet."""
    return _read(f"{of}.css")


def parts() -> list[Path]:
    """Every script and style sheet, those among them that limpid.js loads when they are asked for."""
    return sorted(one for one in STATIC.glob("*") if one.suffix in (".js", ".css"))


def _read(name: str) -> str:
    try:
        return (STATIC / name).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(
            "the page was not built: run `python web/bundle.py`, which needs Node, or install a wheel of limpid"
        ) from error


def document(head: str, body: str, *, title: str = "limpid", inside: str = "") -> str:
    """The HTML document: what stands in its head, in the place where the page is drawn, and after that."""
    from limpid.html import text

    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title>{head}</head>"
        f'<body><div id="limpid">{inside}</div>{body}</body></html>\n'
    )


def served() -> str:
    """The document that a server sends; script and style lie beside it in static/, named so that they come together."""
    no_icon = '<link rel="icon" href="data:,">'  # which a browser would ask for
    needed = "".join(f'<link rel="modulepreload" href="static/{name}">' for name in IMPORTED.findall(script()))
    head = f'{no_icon}<link rel="stylesheet" href="static/limpid.css">{needed}'
    return document(head, '<script type="module" src="static/limpid.js"></script>')
