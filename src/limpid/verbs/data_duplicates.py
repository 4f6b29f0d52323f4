"""`limpid data duplicates`: documents that are in a corpus more than once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from limpid.config.domain import Count, Similarity
from limpid.config.flags import read


@dataclass(frozen=True)
class DataDuplicatesFlags:
    """Find documents that are equal, or nearly: MinHash proposes pairs, and each of them is measured.

    Words count without case and punctuation. Of documents that are alike the first is kept.

    limpid data duplicates texts/ -o twice.jsonl
    limpid train texts/ --leave-out twice.jsonl
    """

    paths: tuple[str, ...] = field(default=(), metadata={"positional": "PATH"})
    """Files, folders, globs or hf:NAME:CONFIG:SPLIT; none is Python's standard library."""
    threshold: Similarity = 0.8
    """Share of the n-grams of either document that both have (Jaccard), from which on they are alike."""
    ngram: Count = 5
    """Words in a row that are compared."""
    text_field: str = "text"
    """Field of a JSON record, or column of a table or parquet file, that holds the text or the messages of a chat."""
    output: str | None = field(default=None, metadata={"short": "o"})
    """File for the list of what to leave out."""
    json: bool = False
    """Print one JSON document."""


def verb(argv: Sequence[str]) -> int:
    flags = read("data duplicates", DataDuplicatesFlags, argv)
    from limpid.data.survey.duplicates import duplicates
    from limpid.data.survey.terminal import duplicates_lines
    from limpid.reporter import Reporter

    with Reporter(flags.json) as reporter:
        found = duplicates(
            flags.paths, threshold=flags.threshold, ngram=flags.ngram, text_field=flags.text_field,
            output=flags.output, reporter=reporter,
        )  # fmt: skip
        for line in duplicates_lines(found):
            reporter.line(line)
        if flags.output is not None:
            reporter.line(f"written {flags.output}: limpid train … --leave-out {flags.output}")
        reporter.document(found.document())
    return 0
