"""Texts that cannot be read, or hold nothing, or are not what their name says."""

import gzip
import io
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.robustness.bad.case import Cases, Expect, Step, change, have, put
from benchmarks.robustness.bad.damage import DISK, SLIGHT, damage, void
from benchmarks.robustness.bad.sandbox import aside
from benchmarks.robustness.bad.stock import train

GOOD = "The river runs over stone and light. " * 120

PLAIN: list[tuple[str, bytes, Expect]] = [
    ("nothing", b"", "refuse"),
    ("only spaces", b" \n\t" * 400, "any"),
    ("one character", b"x", "refuse"),
    ("sixteen characters", b"sixteen of them.", "any"),
    ("random bytes", random.Random(1).randbytes(6000), "any"),
    ("Latin-1", "Größe, Maß, Füße und überhaupt. ".encode("latin-1") * 100, "any"),
    ("UTF-16", GOOD.encode("utf-16"), "any"),
    ("UTF-32", GOOD.encode("utf-32"), "any"),
    ("only NUL", bytes(4000), "any"),
    ("a character cut in two at the end", (GOOD + "é").encode()[:-1], "any"),
    ("surrogates as UTF-8", GOOD.encode() + b"\xed\xa0\x80" * 20, "any"),
    ("an executable", Path("/bin/true").resolve().read_bytes()[:20000], "any"),
    ("a PNG", b"\x89PNG\r\n\x1a\n" + random.Random(2).randbytes(3000), "any"),
    ("one line of a megabyte", b"ab" * 500_000, "any"),
    ("the same byte over and over", b"a" * 5000, "any"),
    ("right-to-left marks", ("\u202e\u2066" + GOOD).encode() * 2, "any"),
    ("a thousand combining marks", ("a" + "\u0301" * 1000 + GOOD).encode(), "any"),
]


def line(value: Any) -> str:
    return json.dumps(value) + "\n"


GOOD_LINES = [line({"text": GOOD[:400] + str(k)}) for k in range(10)]
LINES: list[tuple[str, str, Expect]] = [
    ("nothing", "", "refuse"),
    ("blank lines", "\n\n\n", "refuse"),
    ("lines without the field", line({"body": "x"}) * 9, "refuse"),
    ("one line without the field", "".join(GOOD_LINES) + line({"body": "x"}), "any"),
    ("fields that are numbers", line({"text": 5}) * 9, "refuse"),
    ("a field that is null", "".join(GOOD_LINES) + line({"text": None}), "any"),
    ("a field that is a list", "".join(GOOD_LINES) + line({"text": ["a", "b"]}), "refuse"),
    ("a field that is an object", "".join(GOOD_LINES) + line({"text": {"text": "a"}}), "refuse"),
    ("empty fields", line({"text": ""}) * 20, "refuse"),
    ("lists", line(["text", "x"]) * 9, "refuse"),
    ("bare strings", line("text") * 9, "refuse"),
    ("numbers", "1\n2\n3\n", "refuse"),
    ("one JSON array", json.dumps([{"text": GOOD}]), "any"),
    ("a broken line in the middle", "".join(GOOD_LINES[:5]) + '{"text": "a\n' + "".join(GOOD_LINES[5:]), "refuse"),
    ("a last line cut off", "".join(GOOD_LINES) + '{"text": "cut of', "any"),
    ("a field given twice", '{"text": "first", "text": ' + json.dumps(GOOD) + "}\n", "any"),
    ("NaN beside it", '{"text": ' + json.dumps(GOOD) + ', "score": NaN}\n', "any"),
    ("single quotes", "{'text': 'x'}\n" * 9, "refuse"),
    ("lone surrogates", '{"text": "\\ud800' + GOOD + '"}\n', "any"),
    ("NUL in the text", '{"text": "\\u0000' + GOOD + '"}\n', "any"),
    ("nested a hundred thousand deep", "".join(GOOD_LINES) + "[" * 100_000 + "\n", "refuse"),
    ("a number of a million digits", "".join(GOOD_LINES) + '{"text": "a", "n": ' + "9" * 1_000_000 + "}\n", "any"),
    ("control characters unescaped", '{"text": "a\tb\x01c' + GOOD + '"}\n', "any"),
    ("a UTF-8 mark at the beginning", "\ufeff" + "".join(GOOD_LINES), "any"),
]


def parquet(columns: dict[str, Any]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream)
    return stream.getvalue()


TABLES: list[tuple[str, Callable[[], bytes], Expect]] = [
    ("no rows", lambda: parquet({"text": []}), "refuse"),
    ("no such column", lambda: parquet({"body": [GOOD] * 3}), "refuse"),
    ("numbers", lambda: parquet({"text": [1, 2, 3]}), "refuse"),
    ("bytes", lambda: parquet({"text": [GOOD.encode(), b"\xff\xfe"]}), "any"),
    ("only nulls", lambda: parquet({"text": [None, None]}), "refuse"),
    ("a null among texts", lambda: parquet({"text": [GOOD, None, GOOD]}), "any"),
    ("lists of texts", lambda: parquet({"text": [[GOOD], ["a", "b"]]}), "refuse"),
    ("empty texts", lambda: parquet({"text": ["", "", ""]}), "refuse"),
]


def _places() -> list[tuple[str, tuple[str, ...], tuple[Step, ...], Expect]]:
    """What stands in the place of a path."""

    def link(to: str, path: str) -> Step:
        def step(folder: Path, stock: Path) -> None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).symlink_to(to)

        return step

    def folder_step(path: str, mode: int = 0o755) -> Step:
        def step(folder: Path, stock: Path) -> None:
            (folder / path).mkdir(parents=True)
            (folder / path).chmod(mode)

        return step

    def fifo(folder: Path, stock: Path) -> None:
        os.mkfifo(folder / "pipe")

    text, latin = put("in/a.txt", GOOD), put("caf\udce9.txt", GOOD)
    return [
        ("an empty folder", ("in",), (folder_step("in"),), "refuse"),
        ("a folder that nobody may read", ("in",), (folder_step("in", 0),), "refuse"),
        ("a folder that contains itself", ("in",), (text, link("..", "in/loop")), "any"),
        ("a link to itself", ("in",), (link("in", "in"),), "refuse"),
        ("a link to nothing", ("in",), (link("nowhere", "in"),), "refuse"),
        ("a folder with only a broken link", ("in",), (link("nowhere", "in/a.txt"),), "refuse"),
        ("a folder with a broken link beside a text", ("in",), (text, link("nowhere", "in/b.txt")), "any"),
        ("a pipe that nobody writes to", ("pipe",), (fifo,), "any"),
        ("a folder with a pipe", (".",), (fifo, text), "any"),
        ("zeros without end", ("/dev/zero",), (), "refuse"),
        ("randomness without end", ("/dev/urandom",), (), "refuse"),
        ("the null device", ("/dev/null",), (), "refuse"),
        ("a folder of hidden files", ("in",), (put("in/.a.txt", GOOD),), "any"),
        ("a folder of folders", ("in",), (folder_step("in/a/b/c"),), "refuse"),
        ("a pattern that matches nothing", ("in/*.txt",), (folder_step("in"),), "refuse"),
        ("a pattern that is none", ("in/[.txt",), (text,), "refuse"),
        ("everything below", ("**/*",), (text, put("b/c.txt", GOOD)), "any"),
        ("a name that is empty", ("",), (), "refuse"),
        ("a name of a megabyte", ("x" * 100_000,), (), "refuse"),
        ("a name of bytes that are no UTF-8", ("caf\udce9.txt",), (latin,), "any"),
        ("a name of bytes that is not there", ("none\udcff.txt",), (), "refuse"),
        ("a file taken for a folder", ("in/a.txt/",), (text,), "any"),
        ("a home that does not exist", ("~nobodyatall/text.txt",), (), "refuse"),
        ("a data set that does not exist", ("hf:nobody-at-all/no-such-data",), (), "refuse"),
        ("a data set without a name", ("hf:",), (), "refuse"),
        ("an address", ("https://example.invalid/text.txt",), (), "refuse"),
        ("the same text twice", ("in/a.txt", "in/a.txt"), (text,), "any"),
        ("a text and one that is not there", ("in/a.txt", "in/b.txt"), (text,), "refuse"),
    ]


def cases(rng: random.Random) -> Cases:
    found = Cases("texts")

    def both(name: str, what: str, path: str, lay: tuple[Step, ...], expect: Expect, verbs: int = 2) -> None:
        for verb in rng.sample(("train", "evaluate"), verbs):
            argv = (*train()[:1], path, *train()[2:]) if verb == "train" else ("evaluate", "runs/a", path)
            needs = () if verb == "train" else (have("runs/a"),)
            sought = (path[:60], Path(path).name[:60] or "path", "text", "token", "character", "document")
            found.add(f"{verb}-{name}", what, *argv, lay=(*lay, *needs), expect=expect, names=sought)

    for what, content, expect in PLAIN:
        both("plain-" + what, f"a text: {what}", "in.txt", (put("in.txt", content),), expect)
        both(
            "gz-" + what, f"a gzipped text: {what}", "in.txt.gz", (put("in.txt.gz", gzip.compress(content)),), expect, 1
        )
    for what, text, expect in LINES:
        both("jsonl-" + what, f"JSON lines: {what}", "in.jsonl", (put("in.jsonl", text),), expect)
    for what, make, expect in TABLES:
        both("parquet-" + what, f"parquet: {what}", "in.parquet", (put("in.parquet", aside(make)),), expect)
    for name in ("text.txt", "text.jsonl", "text.parquet", "text.jsonl.gz", "text.jsonl.zst", "text.txt.gz"):
        for how in (*DISK, *SLIGHT):
            sure = how in ("empty", "folder", "loop", "dangling", "sealed", "gone", "endless")
            sure |= how in ("noise", "zeros", "prose", "half") and not name.endswith((".txt", ".jsonl"))
            sure |= how in ("noise", "zeros", "prose") and name.endswith(".jsonl")
            hurt = change(name, damage(how, rng.randrange(99)))
            both(f"{name}-{how}", f"{name}, {how}", name, (have(name), hurt), "refuse" if sure else "any", 1)
        wrong = name.replace("text", "named").replace(".jsonl", ".parquet" if "gz" not in name else ".txt")
        rename = change(name, lambda path, to=wrong: void(path.rename(path.with_name(to))))  # type: ignore[misc]
        both(f"{name}-as-{wrong}", f"{name} called {wrong}", wrong, (have(name), rename), "any", 1)
    bomb = gzip.compress(bytes(64 << 20), 9)
    both("bomb", "zeros that gzip made a thousandth of", "in.txt.gz", (put("in.txt.gz", bomb * 300),), "any", 1)
    for what, paths, lay, expect in _places():
        argv = ("train", *paths, *train()[2:])
        found.add("place-" + what, f"in the place of a text, {what}", *argv, lay=lay, expect=expect)
        if rng.random() < 0.6:
            needs = (*lay, have("runs/a"))
            found.add(
                "evaluated-" + what, f"to evaluate: {what}", "evaluate", "runs/a", *paths, lay=needs, expect=expect
            )
    standard = ("train", "-", *train()[2:])
    for what, given, expect in PLAIN[:10]:
        found.add("stdin-" + what, f"standard input: {what}", *standard, stdin=given, expect=expect)
    found.add("stdin-twice", "standard input twice", "train", "-", "-", *train()[2:], stdin=GOOD.encode(), expect="any")
    found.add("stdin-closed", "standard input is closed", *standard, closed=(0,))
    found.add("decompress-closed", "standard input is closed", "decompress", closed=(0,))
    chat = ("chat", "runs/a", "-n", "3")
    found.add("chat-closed", "standard input is closed", *chat, closed=(0,), lay=(have("runs/a"),), expect="any")
    found.add(
        "stdout-closed", "standard output is closed", *train(), closed=(1,), lay=(have("text.txt"),), expect="any"
    )
    found.add("stderr-closed", "standard error is closed", *train(), closed=(2,), lay=(have("text.txt"),), expect="any")
    fields = ("nope", "", "id", "text.0", "\x1b[2J")
    for number, name in enumerate(fields):
        argv = ("train", "text.jsonl", *train(text_field=name)[2:])
        found.add(f"field-{number}", "a field that is not there, or no text", *argv, lay=(have("text.jsonl"),),
                  names=(name or "field", "field"))  # fmt: skip
    return found
