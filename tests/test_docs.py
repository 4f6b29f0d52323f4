"""README and docs/ lead somewhere: links, pictures and files exist; commands in them and in helps are understood."""

import dataclasses
import inspect
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from limpid.cli import VERBS
from limpid.config import TrainConfig
from limpid.config.flags import given
from limpid.config.options import from_dict
from limpid.config.spelling import flags_of
from limpid.config.tuning import KINDS
from limpid.verbs import tune

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MADE = re.compile(r"(index|examples|contributing|changelog)\.md|(equations|learn|api|cli)/[\w-]+\.md|worked/step\.html")
"""What `make docs` makes: see docs/site/hooks.py, whose build is strict."""
LINK = re.compile(r"\]\(<?([^)\s>]+)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"(?<![\w/.])((?:tests|benchmarks|examples|src|docs)/[\w/.-]*\w)")
SUBVERBS = {"data": ("tokenize", "statistics", "duplicates", "decontaminate"), "plan": ("fit", "rate", "sweep")}
AS_PARTS = {"train", "tune"}
"""Their options are read in parts, with a file's and a recipe's between."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """Of headings, as mkdocs and GitHub make them."""
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", one.lower()).strip() for one in headings]
    return {re.sub(r"[-\s]+", "-", one) for one in plain}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_pictures_are_there(page: Path) -> None:
    lost = []
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        address, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (page.parent / address).resolve() if address else page
        inside = target.relative_to(ROOT / "docs").as_posix() if target.is_relative_to(ROOT / "docs") else ""
        if MADE.fullmatch(inside):
            continue
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_are_named_are_there(page: Path) -> None:
    code = re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))
    named = {found for one in code for found in FILE.findall(one)}
    assert sorted(one for one in named if not (ROOT / one).exists() and one not in ("src/code", "docs/site")) == []


def test_a_benchmark_that_is_named_knows_its_help() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    modules = {found.rstrip(".").replace(".", "/") for found in re.findall(r"python -m (benchmarks\.[\w.]+)", pages)}
    modules |= set(re.findall(r"python (benchmarks/[\w/]+)\.py", pages))
    files = [ROOT / one / "__main__.py" if (ROOT / one).is_dir() else ROOT / f"{one}.py" for one in modules]
    assert len(files) > 30
    assert [str(one) for one in files if "parse_args(" not in one.read_text("utf-8")] == []


def commands(page: Path) -> Iterator[list[str]]:
    """Every `limpid …` of a page's blocks of shell, a list of words each."""
    for kind, block in FENCE.findall(page.read_text(encoding="utf-8")):
        if kind not in ("sh", ""):
            continue
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            if re.match(r"(\$ )?(limpid|torchrun|cat|OMP_NUM_THREADS)\b", line):
                yield from _of_line(line)


def _of_line(line: str) -> Iterator[list[str]]:
    words: list[str] = []
    for word in [*shlex.split(line.removeprefix("$ "), comments=True), ";"]:
        if word not in (";", "&&", "|", ">", ">>"):
            words.append(word)
            continue
        if "limpid" in words:
            yield words[words.index("limpid") + 1 :]
        words = ["after"] if word in (">", ">>") else []


def examples(verb: str) -> Iterator[list[str]]:
    """Every `limpid …` of a verb's help; what is said of it stands two blanks further."""
    for line in (inspect.getdoc(flags_of(import_module(f"limpid.verbs.{verb}"))) or "").splitlines():
        if re.match(r"(limpid|cat)\b", line):
            yield from _of_line(line.partition("  ")[0])


EVERY_VERB = (*VERBS, *(f"{verb}_{below}" for verb, words in SUBVERBS.items() for below in words))
SAID = sorted(
    {tuple(words) for page in PAGES for words in commands(page) if words}
    | {tuple(words) for verb in EVERY_VERB for words in examples(verb)}
)


def test_there_are_commands_of_every_verb() -> None:
    assert {words[0] for words in SAID} >= set(VERBS)


@pytest.mark.parametrize("words", SAID, ids=" ".join)
def test_a_command_is_understood(words: tuple[str, ...]) -> None:
    verb, rest = words[0], list(words[1:])
    if verb == "help" or "--help" in rest or "--help-all" in rest:
        assert set(words) & set(VERBS)
        return
    assert verb in VERBS
    if rest and rest[0] in SUBVERBS.get(verb, ()):
        verb = f"{verb}_{rest.pop(0)}"
    objective = rest.pop(0) if verb == "tune" and rest and rest[0] in KINDS else None
    kind = tune.flags_of(objective) if verb == "tune" else flags_of(import_module(f"limpid.verbs.{verb}"))
    typed = given(verb.replace("_", " "), kind, rest)
    if verb in AS_PARTS:
        sections = {field.name for field in dataclasses.fields(TrainConfig)}
        kind, typed = TrainConfig, {name: value for name, value in typed.items() if name in sections}
    from_dict(kind, typed)


def test_every_public_name_stands_on_a_page_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "site")
    assert "api/index.md" in import_module("reference_pages").pages()
