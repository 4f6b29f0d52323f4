"""What `make docs` adds to written pages: README as the start, chapters, equations, Python, the command line."""

from __future__ import annotations

import ast
import posixpath
import re
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import command_pages
import equation_pages
import primer_pages
import reference_pages
from limpid.cli import VERBS, main
from limpid.primer.chapter import CHAPTERS

ROOT = Path(__file__).parents[2]
REPOSITORY = re.compile(r"\]\(((?:\.\./)+)((?:examples|CONTRIBUTING|CHANGELOG)[^)\s]*)\)")
"""A link from a page to a file outside of docs/."""
PUBLISHED = {"examples": "examples.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Navigation of what is generated."""
    sections: dict[str, list[Any]] = {
        "learn": [f"learn/{name}.md" for name in CHAPTERS],
        "equations": [f"equations/{stage}.md" for stage in equation_pages.stages()],
        "api": [f"api/{page}.md" for page in reference_pages.PAGES],
        "cli": [{f"limpid {verb}": f"cli/{verb}.md"} for verb in VERBS],
    }
    assert config.nav is not None
    _fill(config.nav, sections)
    return config


def _fill(nav: list[Any], sections: dict[str, list[Any]]) -> None:
    """Put generated pages behind the index of their folder."""
    for entry in nav:
        for title, below in entry.items() if isinstance(entry, dict) else ():
            if isinstance(below, list):
                _fill(below, sections)
                for folder, pages in sections.items():
                    if f"{folder}/index.md" in below:
                        entry[title] = [f"{folder}/index.md", *pages, *(x for x in below if x != f"{folder}/index.md")]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The generated pages, and the files of examples/ that pages lead to."""
    made = {
        "index.md": _rooted((ROOT / "README.md").read_text(encoding="utf-8")),
        "contributing.md": (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"),
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
        "examples.md": _examples(),
        "worked/step.html": _worked(),
        **primer_pages.pages(),
        **equation_pages.pages(),
        **reference_pages.pages(),
        **command_pages.pages(),
    }
    for address, text in made.items():
        files.append(File.generated(config, address, content=text))
    for one in sorted((ROOT / "examples").rglob("*.*")):
        if one.suffix in (".sh", ".sbatch", ".yaml", ".ipynb") or one.parent.name == "functions":
            files.append(File.generated(config, str(one.relative_to(ROOT)), abs_src_path=str(one)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links out of docs/ lead to the copies that the site has."""
    here = posixpath.dirname(page.file.src_uri)

    def copied(found: re.Match[str]) -> str:
        target = found[2].rstrip("/")
        if target.endswith(".py"):
            target = f"examples.md#{Path(target).stem}"
        return f"]({posixpath.relpath(PUBLISHED.get(target, target), here or '.')})"

    return REPOSITORY.sub(copied, markdown)


def _rooted(readme: str) -> str:
    """README as a page of docs/: its links lead there from the repository's root."""
    readme = re.sub(r"\]\((examples|CONTRIBUTING|CHANGELOG)", r"](../\1", readme)
    return f"---\ntitle: limpid\n---\n\n{readme.replace('](docs/', '](')}"


def _examples() -> str:
    """The scripts as they stand, each under the first line of its docstring."""
    parts = [
        "---\nsearch:\n  boost: 0.3\n---\n\n# Examples\n\nEach runs as it stands, in an empty folder, and is a test.\n"
    ]
    for script in sorted((ROOT / "examples").glob("*.py")):
        text = script.read_text(encoding="utf-8")
        said = (ast.get_docstring(ast.parse(text)) or script.stem).split("\n")[0].rstrip(".")
        parts.append(f"## {said} {{ #{script.stem} }}\n\n`examples/{script.name}`\n\n```python\n{text}```\n")
    books = sorted((ROOT / "examples").glob("*.ipynb"))
    parts.append("## Notebooks\n\n" + "\n".join(f"- [{book.name}](examples/{book.name})" for book in books) + "\n")
    parts.append(
        "## A recipe\n\n[examples/functions](examples/functions/README.md) trains and tunes a model whose functions\n"
        "compile, know their names and use their arguments.\n"
    )
    return "\n".join(parts)


def _worked() -> str:
    """The worked model's page, as `limpid trace --worked --html` writes it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "step.html"
        if main(["trace", "--worked", "--html", str(file)]) != 0:
            raise RuntimeError("limpid trace --worked --html failed: see what it said above")
        return file.read_text(encoding="utf-8")
