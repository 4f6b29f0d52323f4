"""What a user types: options of a tiny run, and commands that are refused."""

import pytest

from limpid.cli import main

TINY = (  # noqa: SIM905
    "--tokenizer bytes --context-length 16 --d-model 24 --num-layers 2 --num-heads 3 --batch-size 3 --precision fp32 "
    "--threads 1 --eval-steps 5 --save-steps 4 --warmup-steps 2"
).split()


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a wrong command answers with."""
    assert main(list(words)) == 2
    shown = capsys.readouterr()
    lines = shown.err.strip().splitlines()
    assert len(lines) == 1, shown.err
    assert lines[0].startswith("limpid: error: ")
    assert "Traceback" not in shown.out
    return lines[0]
