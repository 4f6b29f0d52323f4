"""Tuning runs that two processes share: the same answers, rewards, rows and losses as of one."""

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch.multiprocessing import start_processes

from limpid.cli import main
from limpid.run import Run
from limpid.training.stored_batches import read_batch

WORLD = 2
RECORDS = {"sft": "answers", "grpo": "prompts"}
DRAWN = ["--reward", "rewards.py:digits", "--num-generations", "2", "--max-completion-length", "4", "--beta", "0.1"]


def _typed(rank: int, words: list[str], port: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}  # what torchrun sets
    assert main(words) == 0


@pytest.mark.parametrize("objective", RECORDS)
def test_a_run_of_two_processes_is_that_of_one(tuned: Callable[..., Run], here: Path, objective: str) -> None:
    tune = {"rollouts": {"reward": ["rewards.py:digits"], "num_generations": 2}, "options": {"beta": 0.1}}
    whole = tuned(
        objective, "one", tune=tune if objective == "grpo" else None, model={"lora_rank": 2},
        run={"batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 2, "eval_steps": 2},
    )  # fmt: skip
    words = (
        "--batch-size 4 --max-steps 2 --eval-steps 2 --save-steps 1 --save-total-limit 0 --threads 1 --precision fp32 "
        "--doctor no --lora-rank 2 --name two"
    )
    asked = [objective, "base", f"{RECORDS[objective]}.jsonl", *words.split(), *(DRAWN if objective == "grpo" else ())]
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
