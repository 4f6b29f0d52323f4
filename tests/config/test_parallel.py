"""The text of --parallel: which axes it names, what it fills in, and what it refuses."""

import pytest

from limpid.config import ModelConfig, RunConfig
from limpid.config.parallel import Parallel, parallel_of, require_divides
from limpid.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "processes", "expected"),
    [
        ("", 1, Parallel()),
        ("", 4, Parallel(shard=4)),
        ("shard=4", 4, Parallel(shard=4)),
        ("tensor=2", 4, Parallel(shard=2, tensor=2)),
        ("tensor=2", 2, Parallel(tensor=2)),
        ("replicate=2,zero=2", 8, Parallel(replicate=2, shard=4, zero=2)),
        (" replicate=2, shard=2,tensor=2", 8, Parallel(replicate=2, shard=2, tensor=2)),
    ],
    ids=lambda value: str(value) or "nothing",
)
def test_the_axes_of_a_text(text: str, processes: int, expected: Parallel) -> None:
    found = parallel_of(text, processes)
    assert found == expected
    assert found.processes == processes
    assert parallel_of(str(found), processes) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tenser=2", r"parallel is tenser=2, and 'tenser' is no axis of it: did you mean tensor\?"),
        ("2", r"'2' is no axis of it: choose from replicate, shard, tensor"),
        ("shard=2,shard=2", "which says shard twice: leave one out"),
        ("shard=0", r"parallel is shard=0: shard is 0: it must be at least 1"),
        ("shard=", r"parallel is shard=: shard is '': expected a whole number"),
        ("tensor=two", "tensor is 'two': expected a whole number"),
        ("zero=4", "zero is 4: choose one of 1, 2, 3"),
    ],
    ids=lambda value: value if "=" in value else "message",
)
def test_a_text_that_names_no_axes_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig(parallel=text)


def test_axes_that_multiply_to_another_number_of_processes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"takes 4 processes, and this run has 1 process: start it with torchrun "):
        parallel_of("shard=2,tensor=2", 1)
    with pytest.raises(ConfigError, match=r"takes 3 processes, and this run has 4 processes: .* multiply to 4"):
        parallel_of("tensor=3", 4)


def test_heads_that_cannot_be_shared_are_refused() -> None:
    model = ModelConfig(num_heads=4, num_kv_heads=2)
    require_divides(model, Parallel(tensor=2))
    with pytest.raises(ConfigError, match=r"tensor is 4 and num_kv_heads 2: .* choose a divisor of 2"):
        require_divides(model, Parallel(tensor=4))
