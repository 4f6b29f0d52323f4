"""Every objective of `limpid tune` on several processes held against one: python -m benchmarks.layouts.objectives.

Three steps and an evaluation of a small model with low-rank factors, from the command line as torchrun starts it. What
is printed is the largest relative distance of any logged loss, reward or evaluation from those of one process, where
answers are drawn alike; and whether the answers are.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import torch
import torch.distributed.checkpoint.hf_storage  # here, once: each forked process would import them anew
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel
import torch.multiprocessing as processes

import limpid
from limpid.cli import main as typed
from limpid.config.parallel import Parallel
from limpid.config.parallel import typed as words_of
from limpid.objectives.tuned import TUNED
from limpid.run import Run
from limpid.training.stored_batches import read_batch

LAYOUTS = ("shard=2", "tensor=2", "pipeline=2", "pipeline=2,tensor=2")
SUMS = [(a, b) for a in range(1, 9) for b in range(2, 7)]
RECORDS = {
    "answers": [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a, b in SUMS],
    "pairs": [{"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": str(a - b)} for a, b in SUMS],
    "judged": [{"prompt": f"{a}+{b}=", "completion": str(a + b - a % 2), "label": a % 2 == 0} for a, b in SUMS],
    "prompts": [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a, b in SUMS],
}
KIND = {"sft": "answers", "dpo": "pairs", "ipo": "pairs", "kto": "judged", "reward": "pairs"}
REWARD = (
    "def digits(completions):\n    return [sum(c.isdigit() for c in one) / max(1, len(one)) for one in completions]\n"
)
COMMON = [
    "--batch-size",
    "2",
    "--gradient-accumulation-steps",
    "2",
    "--max-steps",
    "3",
    "--eval-steps",
    "3",
    "--save-steps",
    "0",
    "--threads",
    "1",
    "--precision",
    "fp32",
    "--doctor",
    "no",
    "--lora-rank",
    "2",
]
LOGGED = ("loss", "eval_loss", "reward", "kl", "ratio/max", "eval_reward")


def asked(objective: str, name: str, parallel: str) -> list[str]:
    """The command line."""
    kind = KIND.get(objective, "prompts")
    words = ["tune", objective, "base", f"{kind}.jsonl", *COMMON, "--name", name, "--parallel", parallel]
    if kind != "prompts":
        return words
    words += ["--max-completion-length", "4", "--num-generations", "2"]
    return [*words, *(["--teacher", "teacher"] if objective == "distill" else ["--reward", "rewards.py:digits"])]


def _process(rank: int, words: Sequence[str], world: int, port: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}  # what torchrun sets
    with redirect_stdout(StringIO()):
        code = typed(list(words))
    assert code == 0, words


def run(words: Sequence[str], world: int) -> None:
    """The command on so many processes."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    processes.start_processes(_process, (words, world, port), nprocs=world, start_method="fork")


def apart(one: Run, other: Run) -> float:
    """The largest relative distance of what both logged."""
    logs = ([json.loads(line) for line in run.metrics_file.open()] for run in (one, other))
    return max(
        abs(theirs[name] - ours[name]) / max(abs(ours[name]), 1e-3)
        for ours, theirs in zip(*logs, strict=True)
        for name in LOGGED
        if name in ours
    )


def drawn_alike(one: Run, other: Run) -> bool:
    """Whether the tokens of every stored batch are those of one process."""
    files = sorted((one.path / "batches").glob("*.safetensors"))
    pairs = ((read_batch(file), read_batch(other.path / "batches" / file.name)) for file in files)
    return all(
        np.array_equal(ours["tokens"], theirs["tokens"])
        for first, second in pairs
        for ours, theirs in zip(first, second, strict=True)
    )


def main(layouts: Sequence[str], objectives: Sequence[str]) -> int:
    """Print a row for each objective; returns how many are off by more than 1e-5."""
    torch.set_num_threads(1)
    off = 0
    print("| objective | " + " | ".join(layouts) + " |\n|---|" + "---|" * len(layouts))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for kind, records in RECORDS.items():
            Path(f"{kind}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        Path("rewards.py").write_text(REWARD)
        Path("text.txt").write_text("\n".join(f"{a}+{b}={a + b}" for a, b in SUMS * 20))
        model = {"context_length": 16, "d_model": 24, "num_layers": 2, "num_heads": 2, "d_ff": 40}
        for name, seed in (("base", 0), ("teacher", 1)):
            options = {"max_steps": 30, "threads": 1, "precision": "fp32", "seed": seed, "doctor": False}
            data = {"paths": ["text.txt"], "tokenizer": "bytes"}
            limpid.train({"model": model, "data": data, "run": options}, name)
        for objective in objectives:
            run(asked(objective, f"{objective}-one", ""), 1)
            cells = []
            for number, text in enumerate(layouts):
                name = f"{objective}-{number}"
                run(asked(objective, name, text), Parallel(**words_of(text)).processes)
                pair = Run(Path("runs") / f"{objective}-one"), Run(Path("runs") / name)
                distance, alike = apart(*pair), drawn_alike(*pair)
                cells.append(f"{distance:.1g}" + ("" if alike else ", other answers"))
                off += distance > 1e-5 or not alike
            print(f"| {objective} | " + " | ".join(cells) + " |", flush=True)
    return off


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("objectives", nargs="*", metavar="OBJECTIVE", default=list(TUNED))
    raise SystemExit(1 if main(LAYOUTS, parser.parse_args().objectives) else 0)
