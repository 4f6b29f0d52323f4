"""`limpid data tokenize` measured: memory against the size of the input, speed on one and two processes, kills.

python -m benchmarks.shards memory 50 500     peak memory for inputs of so many megabytes
python -m benchmarks.shards speed             tokens per second on 1 and 2 processes, in turn, ratio and spread
python -m benchmarks.shards kills 40          SIGKILL at random times until it is done; the files are those of one run
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

WORDS = 30_000
SEED = 7


def text(characters: int, seed: int) -> Iterator[str]:
    """Documents of words whose frequencies fall as in a language (Zipf)."""
    draw = random.Random(seed)
    vocabulary = ["".join(draw.choices("etaoinshrdlcumwfgypbvk", k=draw.randint(2, 10))) for _ in range(WORDS)]
    weights = [1 / (rank + 2) for rank in range(WORDS)]
    while characters > 0:
        document = " ".join(draw.choices(vocabulary, weights, k=draw.randint(50, 900)))
        characters -= len(document)
        yield document


def written(folder: Path, files: int, megabytes: float) -> Path:
    """Files of JSON lines that hold so much together: five megabytes of documents over and over."""
    folder.mkdir(parents=True)
    lines = "".join(json.dumps({"text": document}) + "\n" for document in text(5_000_000, SEED))
    for number in range(files):
        with (folder / f"{number:03d}.jsonl").open("w") as stream:
            left = int(megabytes * 1e6 / files)
            while left > 0:
                left -= stream.write(lines)
    return folder


def tokenized(source: Path, output: Path, processes: int, *options: str) -> dict[str, float]:
    """What the command says, and the most memory that it and any of its processes held, bytes."""
    words = ["data", "tokenize", str(source), "-o", str(output), "--processes", str(processes), "--json", *options]
    code = (
        "import resource, sys; from limpid.cli import main; code = main(sys.argv[1:]);"
        "print(max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)));"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    said, memory = done.stdout.splitlines()
    return json.loads(said) | {"memory": 1024 * int(memory)}


def memory(place: Path, sizes: list[int]) -> None:
    tokenizer = vocabulary(place)
    for files in (1, 4):
        for megabytes in sizes:
            source = written(place / f"{files}x{megabytes}", files, megabytes)
            said = tokenized(source, place / "out", 2, "--tokenizer", tokenizer)
            print(
                f"{megabytes} MB in {files} files: {said['memory'] / 1e6:.0f} MB at most in a process, "
                f"{said['tokens']:,} tokens, {said['tokens_per_second']:,.0f} tokens/s",
                flush=True,
            )
            subprocess.run(["rm", "-r", source, place / "out"], check=True)


def vocabulary(place: Path) -> str:
    """A BPE of 8,192 tokens of such text."""
    tokenized(written(place / "sample", 1, 5), place / "sampled", 1, "--tokenizer-vocab-size", "8192")
    return str(place / "sampled/tokenizer.json")


def speed(place: Path, rounds: int = 5) -> None:
    tokenizer, source = vocabulary(place), written(place / "text", 8, 160)
    found: dict[int, list[float]] = {1: [], 2: []}
    for number in range(rounds):
        for processes in found:
            output = place / f"{processes}-{number}"
            found[processes].append(tokenized(source, output, processes, "--tokenizer", tokenizer)["tokens_per_second"])
            subprocess.run(["rm", "-r", output], check=True)
    for processes, speeds in found.items():
        print(f"{processes}: median {statistics.median(speeds):,.0f} tokens/s, {min(speeds):,.0f} … {max(speeds):,.0f}")
    ratios = [two / one for one, two in zip(*found.values(), strict=True)]
    print(f"ratio: median {statistics.median(ratios):.2f}, {min(ratios):.2f} … {max(ratios):.2f}", flush=True)


def kills(place: Path, times: int) -> None:
    draw = random.Random(SEED)
    source = written(place / "text", 60, 70)
    tokenizer = vocabulary(place)
    began = time.perf_counter()
    tokenized(source, place / "whole", 2, "--tokenizer", tokenizer)
    longest, expected, killed = time.perf_counter() - began, hashes(place / "whole"), 0
    words = [
        sys.executable,
        "-m",
        "limpid",
        "data",
        "tokenize",
        str(source),
        "--tokenizer",
        tokenizer,
        "--processes",
        "2",
    ]
    runs = 0
    while killed < times:
        output = place / f"killed-{runs}"
        runs += 1
        while True:
            process = subprocess.Popen(
                [*words, "-o", str(output)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            try:
                process.wait(draw.uniform(0.3, longest))
                break
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                killed += 1
        assert process.returncode == 0, process.returncode
        assert hashes(output) == expected, "the files differ"
        subprocess.run(["rm", "-r", output], check=True)
    print(f"{killed} kills in {runs} runs: every run ended with the files of one that was left alone", flush=True)


def hashes(folder: Path) -> dict[str, str]:
    """Every file in a folder, but for the lock."""
    files = (file for file in folder.iterdir() if file.name != ".limpid-lock")
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("memory", "speed", "kills"), default="speed")
    parser.add_argument("numbers", nargs="*", type=int, help="megabytes of inputs, or how many kills")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        os.environ["LIMPID_CACHE"] = str(place / "cache")
        if given.what == "kills":
            kills(place, *given.numbers[:1] or [40])
        elif given.what == "memory":
            memory(place, given.numbers or [50, 500])
        else:
            speed(place)


if __name__ == "__main__":
    main()
