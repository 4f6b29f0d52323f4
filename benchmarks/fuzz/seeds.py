"""What malformed inputs are made of: one tiny run, trained here, and what limpid and others write."""

import json
import os
import random
from collections.abc import Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

WORDS = ("the", "cat", "dog", "bird", "tree", "river", "sees", "likes", "near", "a")
SIZES = ["--context-length", "8", "--d-model", "8", "--num-layers", "1", "--num-heads", "2", "--d-ff", "8"]
SHORT = ["--batch-size", "2", "--warmup-steps", "0", "--precision", "fp32", "--threads", "1", "--compile", "off"]
QUIET = ["--eval-batches", "1", "--doctor", "no"]
HISTORY = [{"step": step, "loss": 6 - step / 10, "grad_norm": 1.0, "learning_rate": 1e-3} for step in range(1, 12)]
CHAT = [
    {"messages": [{"role": "user", "content": "the cat?"}, {"role": "assistant", "content": "a dog"}]},
    {"prompt": "the cat", "completion": " likes", "label": True},
    {"prompt": "the cat", "chosen": " likes", "rejected": " a"},
    {"instruction": "say", "input": "cat", "output": "cat"},
    {"text": "the cat likes the dog", "id": 3},
]


def make(folder: Path) -> Path:
    """Train the run `runs/a` in a folder, and lay the rest beside it."""
    rng = random.Random(0)
    with chdir(folder):
        Path("text.txt").write_text("\n".join(" ".join(rng.choices(WORDS, k=6)) for _ in range(60)))
        steps = ["--max-steps", "3", "--save-steps", "2", "--eval-steps", "2", "--record-steps", "2"]
        given = ["text.txt", "--tokenizer", "bytes", *SIZES, *SHORT, *QUIET, *steps]
        _limpid("train", *given, "--name", "a")
        _limpid(
            "train",
            "text.txt",
            *SHORT,
            *QUIET,
            "--max-steps",
            "1",
            "--init-from",
            "runs/a",
            "--lora-rank",
            "2",
            "--name",
            "b",
        )
        Path("packed").write_text("the cat sees a dog")
        _limpid("compress", "runs/a", "packed")
    return folder


def _limpid(*words: str) -> None:
    from limpid.cli import main

    said = StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = main(words)
    if code:
        raise SystemExit(f"limpid {' '.join(words)} failed, which the inputs need: {said.getvalue()}")


def lines(records: Sequence[object]) -> bytes:
    """One JSON document a line."""
    return "".join(json.dumps(one) + "\n" for one in records).encode()


def logs() -> list[bytes]:
    """The same curve as several tools write it."""
    table = "step,loss,grad_norm\n" + "".join(f"{one['step']},{one['loss']},1.0\n" for one in HISTORY)
    nano = "".join(f"iter {one['step']}: loss {one['loss']:.4f}, time 20.00ms, mfu 3.00%\n" for one in HISTORY)
    state = {"best_metric": None, "epoch": 2.0, "global_step": 11, "max_steps": 20, "log_history": HISTORY}
    return [table.encode(), nano.encode(), json.dumps(state).encode(), lines(HISTORY)]


def events(folder: Path) -> bytes:
    """TensorBoard's file."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for one in HISTORY:
            writer.add_scalar("train/loss", one["loss"], one["step"])
    return next(folder.iterdir()).read_bytes()


def law() -> bytes:
    """Runs as points of a scaling law."""
    points = [(n, t) for n in (1e6, 3e6, 1e7) for t in (1e8, 3e8, 1e9)]
    rows = (f"{n},{t},{1.69 + 406.4 / n**0.34 + 410.7 / t**0.28:.6f}\n" for n, t in points)
    return ("params,tokens,loss\n" + "".join(rows)).encode()


def isolated(folder: Path) -> None:
    """Caches of one's own, nothing from the network."""
    os.environ |= {"LIMPID_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
