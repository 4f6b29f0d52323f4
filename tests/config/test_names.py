"""What was probably meant by a name that does not exist."""

import pytest

from limpid.config.names import probably_meant

INSPECT = ("what", "text", "position", "token", "word", "landscape", "adapter", "output", "json", "threads")
GENERATE = ("prompts", "weights", "output", "json", "temperature", "top_k", "top_p", "stop", "seed", "threads")
RUNS = ("sort", "tag", "untag", "note", "delete", "yes", "json")


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("head", INSPECT, None),
        ("layers", RUNS, None),
        ("count", RUNS, None),
        ("format", RUNS, None),
        ("tokne", INSPECT, "token"),
        ("tokens", INSPECT, "token"),
        ("output_file", INSPECT, "output"),
        ("out", INSPECT, "output"),
        ("top", GENERATE, "top_p"),
        ("prompt", GENERATE, "prompts"),
        ("sed", GENERATE, "seed"),
        ("temprature", GENERATE, "temperature"),
        ("untga", RUNS, "untag"),
        ("", RUNS, None),
        ("anything", (), None),
    ],
)
def test_letters_in_common_are_no_meaning(name: str, known: tuple[str, ...], meant: str | None) -> None:
    assert probably_meant(name, known) == meant
