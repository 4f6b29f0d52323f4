"""What runs on several cores at once comes out in its order, and stops where something breaks."""

import threading
import time
import warnings

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from limpid.tracing.cores import AHEAD, in_order, one_thread_each


@pytest.fixture(params=[1, 2, 3])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("limpid.tracing.cores.processors", lambda: request.param)
    return request.param


def test_results_keep_their_order_and_few_are_begun_ahead(cores: int) -> None:
    begun, taken = [], 0
    lock = threading.Lock()

    def work(number: int) -> int:
        with lock:
            begun.append(number)
            assert len(begun) <= taken + AHEAD * cores
        time.sleep(0.02 * (number % 3))  # later ones end first
        return number * number

    for result in in_order(work, range(12)):
        assert result == taken * taken
        taken += 1
    assert taken == 12


def test_a_long_last_one_is_begun_half_way(cores: int) -> None:
    begun, lock = [], threading.Lock()

    def work(number: int) -> int:
        with lock:
            begun.append(number)
        time.sleep(0.01)
        return -number

    assert list(in_order(work, range(30), last_early=True)) == [-number for number in range(30)]
    assert sorted(begun) == list(range(30))
    assert cores == 1 or begun.index(29) < 15 + AHEAD * cores
    assert list(in_order(work, [], last_early=True)) == []
    assert list(in_order(work, [1], last_early=True)) == [-1]


def test_an_error_is_raised_at_its_place_and_nothing_is_begun_after(cores: int) -> None:
    begun = []

    def work(number: int) -> int:
        begun.append(number)
        if number == 3:
            raise ValueError("three")
        return number

    results = in_order(work, range(100))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)
    assert len(begun) <= 4 + AHEAD * cores


def test_numpy_is_quiet_in_each_thread(cores: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = list(in_order(lambda number: np.float64(number) / np.float64(0.0), [1.0, -1.0]))
    assert made == [np.inf, -np.inf]


def blas_threads() -> list[int]:
    return [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]


def test_products_of_several_threads_take_one_each_and_then_as_many_as_before() -> None:
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        with one_thread_each():
            assert set(blas_threads()) == {1}
        assert blas_threads() == before
