"""The compiled arithmetic rounds in the order that is written, and nowhere else."""

import fcntl
import itertools
import math
import sys
from fractions import Fraction
from pathlib import Path
from threading import Timer

import numpy as np
import pytest

from limpid.config import ModelConfig
from limpid.generation.cpu import position
from limpid.generation.cpu.kernels.functions import exp
from limpid.generation.cpu.kernels.product import product
from limpid.generation.cpu.kernels.sharing import finish, finished, no_counters, take
from limpid.generation.cpu.packing import packed, unpacked
from limpid.model import Transformer, initialise

FORMATS = {
    "float64": lambda w: (w, w),
    "float32": lambda w: (w.astype(np.float32),) * 2,
    "int8": lambda w: ((9 * w).astype(np.int8), (9 * w).astype(np.int8).astype(np.float32)),
    "bf16": lambda w: (upper_half(w), (upper_half(w).astype(np.uint32) << 16).view(np.float32)),
}
"""How weights are stored, and what is read from that."""


def upper_half(w: np.ndarray) -> np.ndarray:
    return (w.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def fused(w: np.ndarray, x: np.ndarray, total: np.ndarray) -> np.ndarray:
    """w x + total of every entry, rounded once."""
    exact = (Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)) for a, b, c in zip(w, x, total, strict=True))
    return np.array([float(sum_) for sum_ in exact]).astype(x.dtype)


def in_order(w: np.ndarray, x: np.ndarray) -> float:
    """16 running sums, added in halves; what is left one by one."""
    whole, sums = len(x) // 16 * 16, np.zeros(16, x.dtype)
    for start in range(0, whole, 16):
        sums = fused(w[start : start + 16], x[start : start + 16], sums)
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    for place in range(whole, len(x)):
        sums = fused(w[place : place + 1], x[place : place + 1], sums)
    return sums[0]


@pytest.mark.parametrize("count", [1, 15, 16, 63, 64, 65, 203])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_sum_is_taken_in_one_order_however_many_rows_there_are(kind: str, count: int) -> None:
    draw = np.random.default_rng(count)
    stored, read = FORMATS[kind](draw.standard_normal((5, count)))
    x = draw.standard_normal((6, count)).astype(read.dtype)
    y, none = np.empty((6, 5), x.dtype), np.empty(0, x.dtype)
    weight = packed(stored[None])[0]
    product(x, weight, none, none, y, weight, no_counters(1, 1)[0], 0, 1)
    assert y.tolist() == [[in_order(w, row) for w in read] for row in x]


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 5, 15), (1, 8, 16), (2, 9, 47), (1, 16, 64), (3, 20, 203)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8, np.uint16])
def test_matrices_come_back_as_they_were(dtype: type, shape: tuple[int, int, int]) -> None:
    one, other = np.random.default_rng(0).integers(-128, 128, (2, *shape)).astype(dtype)
    np.testing.assert_array_equal(unpacked(packed(one), shape[1]), one)
    together = packed(one, other)
    np.testing.assert_array_equal(unpacked(together[:, ::2], shape[1]), one)
    np.testing.assert_array_equal(unpacked(together[:, 1::2], shape[1]), other)
    assert together.ctypes.data % 64 == 0


def test_large_matrices_lie_in_private_memory_which_alone_has_huge_pages() -> None:
    matrix = packed(np.zeros((1, 1024, 1024), np.float32))
    place = matrix.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(address, 16) for address in line.split()[0].split("-"))
        if begin <= place < end:
            assert line.split()[1] == "rw-p"
            assert place % (1 << 21) == 0
            return
    raise AssertionError("the matrix lies nowhere")


@pytest.mark.parametrize(("total", "least", "workers"), list(itertools.product((0, 1, 7, 96), (1, 4), (1, 2, 5))))
def test_every_piece_is_taken_once_whoever_comes_first(total: int, least: int, workers: int) -> None:
    draw, counters, taken = np.random.default_rng(total), no_counters(1, workers)[0], []
    waiting = set(range(workers))
    while waiting:
        worker = int(draw.choice(sorted(waiting)))
        first, last = take(counters, total, least, worker, workers)
        taken += range(first, last)
        if first == last:
            waiting.remove(worker)
        finish(counters, last - first, worker)
    assert sorted(taken) == list(range(total))
    assert finished(counters, workers) == total


def test_one_worker_alone_does_what_the_others_do_not_begin() -> None:
    counters = no_counters(1, 3)[0]
    pieces = iter(lambda: take(counters, 50, 1, 1, 3), (50, 50))
    assert sorted(place for first, last in pieces for place in range(first, last)) == list(range(50))


def test_exp_is_right_to_a_unit_in_the_last_place() -> None:
    for x in (*np.random.default_rng(0).uniform(-40, 40, 500), *np.linspace(-708, 708, 99), 0.0, 1e-9):
        assert abs(exp(x) - math.exp(x)) <= 2 * math.ulp(math.exp(x))


def test_exp_far_out_is_almost_zero_or_huge_and_of_no_number_is_none() -> None:
    assert 0 <= exp(-1e9) < 1e-300
    assert exp(1e9) > 1e300
    assert math.isnan(exp(math.nan))


@pytest.mark.parametrize("terminal", [True, False])
def test_a_wait_for_another_process_that_compiles_is_said_at_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    monkeypatch.setattr(position, "compile_lock", lambda: tmp_path / "lock")
    monkeypatch.setattr(position, "UNSAID_SECONDS", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    other = (tmp_path / "lock").open("w")
    fcntl.flock(other, fcntl.LOCK_EX)
    Timer(0.2, other.close).start()
    with position.alone_compiling():
        assert other.closed
    said = "waiting for another process that compiles the decoder: once per installation\n"
    assert capsys.readouterr().err == (said if terminal else "")
    with position.alone_compiling():
        pass
    assert capsys.readouterr().err == ""


def test_a_process_that_never_lets_go_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(position, "compile_lock", lambda: tmp_path / "lock")
    monkeypatch.setattr(position, "UNSAID_SECONDS", 0.0)
    monkeypatch.setattr(position, "MOST_SECONDS", 0.2)
    with (tmp_path / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with position.alone_compiling():
            assert not other.closed
        with pytest.raises(BlockingIOError), (tmp_path / "lock").open("w") as again:
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_who_has_the_kernels_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelConfig(vocab_size=16, context_length=8, d_model=8, num_layers=1, num_heads=2)
    model = initialise(Transformer(config), 0).eval()
    position.PositionDecoder(model, "fp32")

    def waited():
        raise AssertionError("a lock was asked for")

    monkeypatch.setattr(position, "alone_compiling", waited)
    position.PositionDecoder(model, "fp32")
