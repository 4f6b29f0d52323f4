"""Every verb as its user sees it: at 80 and 160 columns of a real terminal, and in a pipe.

A tiny run is trained in a folder of its own, then each verb is run three times. What stood on the terminal is written
as text and as SVG, a picture while it worked beside it, and three rules are checked:

terminal   no line is written wider than the terminal, and what a narrow one leaves out is marked with …
pipe       no escape sequence, no carriage return, nothing left out, no box drawing

python benchmarks/photographs.py FOLDER [VERB …]      only these pictures; the run is kept between calls
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import random
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyte
from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.text import Text

from limpid.cli import VERBS

WIDTHS = (80, 160)
LINES = 40
TALL = 1500
"""Lines of the emulated screen: nothing scrolls away."""
LIMIT = 600
"""Seconds that a verb may take."""
SMALL = "--d-model 48 --num-layers 2 --num-heads 4 --context-length 64 --batch-size 8 --tokenizer bytes --threads 1"
PICTURES = {
    "help": "help",
    "train": f"train text.txt --max-steps 30 --logging-steps 10 {SMALL}",
    "tune": "tune sft tiny answers.jsonl --max-steps 4 --batch-size 8 --threads 1",
    "tune-dpo": "tune dpo tiny pairs.jsonl --lora --max-steps 4 --batch-size 8 --threads 1",
    "tune-grpo": "tune grpo tiny asked.jsonl --reward judge.py:short --max-completion-length 8 --max-steps 4",
    "help-tune-dpo": "tune dpo --help",
    "trace": "trace tiny",
    "trace-brief": "trace tiny --brief",
    "trace-rows": "trace tiny --rows",
    "trace-quantity": "trace tiny --quantity blocks.0.attention.scores",
    "trace-worked": "trace --worked --brief",
    "explain": "explain tiny blocks.0.attention.scores[0,1,5,3]",
    "compare": "compare tiny tiny:transformers",
    "inspect": "inspect tiny",
    "inspect-landscape": "inspect tiny --landscape",
    "evaluate": "evaluate tiny --against other",
    "doctor": "doctor tiny",
    "doctor-log": "doctor log.csv",
    "doctor-preflight": "doctor tiny --preflight",
    "doctor-rule": "doctor --explain loss-diverges",
    "doctor-rules": "doctor --explain all",
    "equations": "equations softmax",
    "equations-one": "equations RMSNorm --measure",
    "plan": "plan llama-3-8b --devices 8 --device h100 --zero 1 --tokens 1T",
    "plan-run": "plan tiny --device here",
    "plan-why": "plan gpt2 --why memory.activations",
    "plan-engine": "plan tiny --explain-engine",
    "plan-compute": "plan --compute 1e21",
    "plan-fit": "plan fit runs.csv --compute 1e16",
    "plan-sweep": "plan sweep text.txt --minutes 1 --budgets 2 --sizes 3 --compute 1e15",
    "plan-rate": f"plan rate text.txt --sweep-steps 60 {SMALL}",
    "generate": "generate tiny river -n 20",
    "generate-several": "generate tiny river stone -n 20",
    "chat": "chat tiny -n 20",
    "compress": "compress tiny small.txt -f",
    "decompress": "decompress small.txt.limpid -f",
    "runs-labelled": "runs tiny --tag baseline --tag narrow --note warm-up-twice-as-long-as-before",
    "runs": "runs",
    "runs-one": "runs tiny",
    "runs-two": "runs tiny other",
    "plot": "plot tiny other",
    "export": "export tiny exported",
    "completion": "completion bash",
    "error": "trace nowhere",
    **{f"help-{verb}": f"help {verb}" for verb in VERBS},
    "help-plan-fit": "plan fit --help",
    "help-plan-sweep": "plan sweep --help",
}  # fmt: skip
NOT_THERE = {"completion"}
"""What is written for a program, and looks the same everywhere."""
DRAWN = {"plot"}
"""What is drawn in letters, as wide as the terminal."""
SHORTER = {"train", "tune", "tune-dpo", "tune-grpo"}
"""What says less on a terminal by design: there a live line has the rest."""
ONE_LINE = {"error"}
"""What stays on one line, so that it can be searched for; the terminal breaks it where it must."""
ESCAPE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])")
BOXES = re.compile("[\u2500-\u257f]")


@dataclass(frozen=True)
class Photograph:
    """What a verb showed on a terminal."""

    raw: str
    screen: Text
    live: Text | None  # while it worked, where that showed more than its end does
    seconds: float
    silent: float  # seconds until the first letter


RECORDS: dict[str, Callable[[int], dict[str, object]]] = {
    "answers": lambda n: {"prompt": f"What is {n} + 1?", "completion": f" {n + 1}"},
    "pairs": lambda n: {"prompt": f"{n} + 1 =", "chosen": f" {n + 1}", "rejected": f" {n}"},
    "asked": lambda n: {"prompt": f"{n} + 1 ="},
}
"""What is tuned on."""


def main(folder: Path, wanted: list[str]) -> int:
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"TERM": "xterm-256color", "LIMPID_CACHE": str(folder / "cache"), "COLUMNS": ""}
    environment = {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    _prepare(folder, environment)
    complaints = 0
    for name, words in PICTURES.items():
        if wanted and name not in wanted:
            continue
        argv = [sys.executable, "-m", "limpid", *words.split()]
        shutil.rmtree(folder / "exported", ignore_errors=True)
        piped = subprocess.run(
            argv, cwd=folder, env=environment, input="hello\n", text=True, capture_output=True, timeout=LIMIT
        )
        (folder / f"{name}-pipe.txt").write_text(piped.stdout + piped.stderr)
        found = list(_in_a_pipe(piped.stdout, name) if name not in NOT_THERE | DRAWN else ())
        found += ["a traceback"] if "Traceback" in piped.stderr else []
        found += [f"standard error: {one}" for one in _in_a_pipe(piped.stderr, name)]
        for width in WIDTHS:
            shutil.rmtree(folder / "exported", ignore_errors=True)
            shown = photograph(argv, folder, environment, width)
            _keep(folder / f"{name}-{width}", shown, width)
            found += [f"{width}: {one}" for one in _on_a_terminal(shown, piped.stdout, width, name)]
            if shown.seconds > 4 and shown.silent > 0.6 * shown.seconds:
                found.append(f"{width}: {shown.silent:.1f} s of {shown.seconds:.1f} s are silent")
        print(f"{name:<20}{'ok' if not found else ''}", flush=True)
        for one in found:
            print(f"    {one}", flush=True)
        complaints += len(found)
    return 1 if complaints else 0


def _prepare(folder: Path, environment: dict[str, str]) -> None:
    """A text, two runs, another tool's log, and losses of runs that somebody else trained."""
    if (folder / "runs/other/model").is_dir():
        return
    for name, kind in RECORDS.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(kind(n)) + "\n" for n in range(60)))
    (folder / "judge.py").write_text("def short(completions):\n    return [-float(len(one)) for one in completions]\n")
    draw = random.Random(0)
    words = re.findall(r"\w+", "river stone the a of light and under water slowly turns grey bright falls over into")
    lines = [" ".join(draw.choices(words, k=9)) + "." for _ in range(6000)]
    (folder / "text.txt").write_text("\n".join(lines))
    (folder / "small.txt").write_text("\n".join(lines[:20]))
    losses = [f"{step},{4 - 2 * step / 400 + draw.gauss(0, 0.05) + max(0, step - 300) * 0.05}" for step in range(400)]
    (folder / "log.csv").write_text("\n".join(["step,loss", *losses]))
    rows = ["parameters,tokens,loss"]
    for parameters in (1e6, 3e6, 1e7, 3e7):
        for tokens in (3e7, 1e8, 3e8):
            loss = 1.7 + 400 / parameters**0.34 + 410 / tokens**0.28
            rows.append(f"{parameters:.0f},{tokens:.0f},{loss * draw.gauss(1, 0.003):.4f}")
    (folder / "runs.csv").write_text("\n".join(rows))
    for name, seed in (("other", 1), ("tiny", 0)):
        argv = f"train text.txt --name {name} --seed {seed} --max-steps 60 {SMALL}".split()
        subprocess.run([sys.executable, "-m", "limpid", *argv], cwd=folder, env=environment, check=True)


def photograph(argv: list[str], folder: Path, environment: dict[str, str], width: int) -> Photograph:
    """Run a command on a terminal of so many columns."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, width, 0, 0))
    began = time.perf_counter()
    process = subprocess.Popen(
        argv, cwd=folder, env=environment, stdin=follower, stdout=follower, stderr=follower, start_new_session=True
    )
    os.close(follower)
    screen, stream = _screen(width)
    pieces, silent, live = [], None, None
    asked = "chat" not in argv
    while time.perf_counter() - began < LIMIT:
        if not select.select([leader], [], [], 1)[0]:
            if process.poll() is not None:
                break
            if not asked:  # it waits for its user
                os.write(leader, b"hello\n\x04")
                asked = True
            continue
        try:
            read = os.read(leader, 1 << 16)
        except OSError:  # the other side closed it
            break
        silent = time.perf_counter() - began if silent is None else silent
        piece = read.decode("utf-8", "replace")
        pieces.append(piece)
        stream.feed(piece)
        if "\x1b[2K" in piece or "\r\x1b" in piece:
            live = _rendered(screen)
    process.wait()
    os.close(leader)
    seconds = time.perf_counter() - began
    return Photograph("".join(pieces), _rendered(screen), live, seconds, silent or seconds)


def _screen(width: int) -> tuple[pyte.Screen, pyte.Stream]:
    screen = pyte.Screen(width, TALL)
    screen.set_mode(pyte.modes.LNM)
    return screen, pyte.Stream(screen)


def _rendered(screen: pyte.Screen) -> Text:
    """What stands on a screen, with its colours."""
    lines = []
    for row in range(screen.lines):
        cells, line = screen.buffer[row], Text()
        for column in range(screen.columns):
            cell = cells[column]
            colour = cell.fg if cell.fg != "default" else None
            ground = cell.bg if cell.bg != "default" else None
            names = {"brown": "yellow", "brightbrown": "bright_yellow"}
            colour, ground = ((names.get(one, _hexadecimal(one)) if one else None) for one in (colour, ground))
            line.append(cell.data, Style(color=colour, bgcolor=ground, bold=cell.bold, italic=cell.italics))
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain:
        lines.pop()
    return Text("\n").join(lines)


def _hexadecimal(colour: str) -> str:
    if re.fullmatch("[0-9a-f]{6}", colour):
        return f"#{colour}"
    return colour.replace("bright", "bright_", 1) if colour.startswith("bright") else colour


def _keep(stem: Path, shown: Photograph, width: int) -> None:
    """Write a photograph as text and SVG, and one of its live lines beside it."""
    stem.with_suffix(".txt").write_text(shown.screen.plain + "\n")
    for suffix, text in (("", shown.screen), ("-live", shown.live)):
        if text is None:
            continue
        console = Console(record=True, width=width, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
        console.print(text, soft_wrap=True, highlight=False)
        file = stem.with_name(f"{stem.name}{suffix}.svg")
        console.save_svg(str(file), title=stem.name)


def _in_a_pipe(written: str, name: str) -> Iterator[str]:
    for what, pattern in (("an escape sequence", "\x1b"), ("a carriage return", "\r")):
        if pattern in written:
            yield f"pipe: {what} in {_around(written, pattern)!r}"
    if found := BOXES.search(written):
        yield f"pipe: box drawing in {_around(written, found[0])!r}"


def _around(written: str, pattern: str) -> str:
    at = written.index(pattern)
    return written[max(0, at - 30) : at + 30]


def _on_a_terminal(shown: Photograph, piped: str, width: int, name: str) -> Iterator[str]:
    if name in NOT_THERE:
        return
    for line in re.split("[\r\n]+", ESCAPE.sub("", shown.raw)) if name not in ONE_LINE else ():
        if cell_len(line) > width:
            yield f"{cell_len(line)} columns: {line[:100]!r}"
            break
    if name in DRAWN | SHORTER:
        return
    seen = shown.screen.plain
    there = set(_words(seen.replace("\n", " ")))
    marked = [line for line in seen.splitlines() if "…" in line]
    for line in piped.splitlines():
        lost = [word for word in _words(line) if word not in there]
        if lost and not any(set(_words(line)) & set(_words(other)) for other in marked):
            yield f"cut without a sign: {' '.join(lost[:6])!r} of {line.strip()[:90]!r}"
            break


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]{4,}", text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("verbs", nargs="*", metavar="VERB")
    given = parser.parse_args()
    sys.exit(main(given.folder, given.verbs))
