"""Tuning runs that two processes share: the same answers, rewards, rows and losses as of one."""

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch.multiprocessing import start_processes

import limpid
import small
from limpid.cli import main
from limpid.run import Run
from limpid.training.stored_batches import read_batch

WORLD = 2
RECORDS = {"sft": "answers", "dpo": "pairs", "grpo": "prompts"}
RANK = 2
"""Of low-rank factors."""
DRAWN = ["--reward", "rewards.py:digits", "--num-generations", "2", "--max-completion-length", "4", "--beta", "0.1"]


def _typed(rank: int, words: list[str], port: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}  # what torchrun sets
    assert main(words) == 0


@pytest.mark.parametrize(
    ("objective", "parallel"),
    [
        ("sft", "shard=2"),
        ("grpo", "shard=2"),
        ("dpo", "tensor=2"),
        ("grpo", "tensor=2"),
        ("dpo", "pipeline=2"),
        ("grpo", "pipeline=2"),
    ],
    ids=lambda value: value,
)
def test_a_run_of_two_processes_is_that_of_one(
    tuned: Callable[..., Run], data: Path, here: Path, objective: str, parallel: str
) -> None:
    even = limpid.train(small.config(data, model={"num_heads": 2}, max_steps=3, doctor=False), "even")
    tune = {"rollouts": {"reward": ["rewards.py:digits"], "num_generations": 2}, "options": {"beta": 0.1}}
    whole = tuned(
        objective, "one", tune=tune if objective == "grpo" else None, model={"lora_rank": RANK}, base=even,
        run={"batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 2, "eval_steps": 2},
    )  # fmt: skip
    words = (
        "--batch-size 4 --max-steps 2 --eval-steps 2 --save-steps 1 --save-total-limit 0 --threads 1 --precision fp32 "
        f"--doctor no --name two --lora-rank {RANK} --parallel {parallel}"
    )
    asked = [objective, "even", f"{RECORDS[objective]}.jsonl", *words.split(), *(DRAWN if objective == "grpo" else ())]
    if parallel == "tensor=2":  # nothing divides the rows: micro-batches are as of one process
        asked += ["--batch-size", "2", "--gradient-accumulation-steps", "2"]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    start_processes(_typed, (["tune", *asked], port), nprocs=WORLD, start_method="fork")
    shared = Run(here / "runs" / "two")
    one, two = ([json.loads(line) for line in run.metrics_file.open()] for run in (whole, shared))
    assert len(one) == len(two) == 3
    for first, second in zip(one, two, strict=True):
        for name in {"loss", "eval_loss", "reward", "kl", "ratio/max"} & first.keys():
            assert second[name] == pytest.approx(first[name], rel=1e-6, abs=1e-7), name
    if objective == "grpo":
        batches = (read_batch(run.path / "batches" / "000001.safetensors") for run in (whole, shared))
        for ours, theirs in zip(*batches, strict=True):
            for name in ("tokens", "targets", "mask", "rewards", "advantages"):
                assert np.array_equal(ours[name], theirs[name]), name
