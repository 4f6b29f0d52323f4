"""Published merges of a tokenizer."""

from __future__ import annotations

from typing import Any

from limpid.equations.answers.kinds import Inputs, kind


@kind("bpe.train")
def _bpe(x: Inputs) -> Any:
    from limpid.data.new_tokenizer import merges

    return [[first + second, times] for first, second, times in merges(x["words"], x["merges"])]
