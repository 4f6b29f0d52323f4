"""One thread or all: what was faster when both were last tried."""

import subprocess
import sys

import numba
import numpy as np
import pytest
import torch

from limpid.generation.cpu.pace import FIRST_REST, LONGEST_REST, Pace, in_pool_of


def run(pace: Pace, seconds: dict[int, float], positions: int) -> list[int]:
    """The threads that each position is given on a machine where a position takes so long."""
    taken = []
    for _ in range(positions):
        taken.append(pace.threads)
        pace.learn(taken[-1], seconds[taken[-1]])
    return taken


def test_threads_that_wait_for_each_other_are_left_out_and_come_back() -> None:
    pace = Pace(4)
    busy = run(pace, {1: 1.0, 4: 30.0}, 1000)
    assert busy[:4] == [4, 4, 1, 1]
    assert busy.count(4) <= 0.02 * len(busy)
    idle = run(pace, {1: 1.0, 4: 0.3}, 4 * LONGEST_REST)
    assert idle[-1] == 4
    assert idle.count(1) < 2.5 * FIRST_REST * 2**5


def test_trials_become_rare_where_nothing_changes() -> None:
    taken = run(Pace(2), {1: 1.0, 2: 0.6}, 20_000)
    assert taken.count(1) < 0.005 * len(taken)


def test_one_pause_of_the_system_decides_nothing() -> None:
    pace = Pace(2)
    for seconds in (0.6, 50.0, 1.0, 1.0):  # the second trial of both threads was interrupted
        pace.learn(pace.threads, seconds)
    assert pace.threads == 2


def test_with_one_thread_there_is_nothing_to_try() -> None:
    assert set(run(Pace(1), {1: 1.0}, 100)) == {1}


def test_it_takes_no_more_threads_than_pytorch_and_gives_numba_back_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert Pace.here().most == 1
    before = numba.get_num_threads()
    assert in_pool_of(1, lambda: np.array(numba.get_num_threads()), ()) == 1
    assert numba.get_num_threads() == before


STARTS_THE_POOL = """
import torch
torch.set_num_threads(1)
from limpid.config import ModelConfig
from limpid.generation import Decoder
from limpid.model import Transformer, initialise
sizes = ModelConfig(vocab_size=9, d_model=8, num_heads=2, num_layers=1)
Decoder(initialise(Transformer(sizes), 0), "fp32")
print(torch.get_num_threads())
"""


def test_decoding_leaves_pytorch_its_number_of_threads() -> None:
    """Numba's pool sets OpenMP's number as it starts: a run on one thread would go on with all, and to other bits."""
    done = subprocess.run([sys.executable, "-c", STARTS_THE_POOL], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"]
