"""`limpid data statistics`: what a corpus holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from limpid.config.flags import read
from limpid.config.sections import BytesAndMore


@dataclass(frozen=True)
class DataStatisticsFlags:
    """Count documents, lines, tokens, lengths, what is repeated, which tokens are frequent and which never occur.

    limpid data statistics texts/
    limpid data statistics tokens              a folder of tokens
    limpid data statistics new.jsonl --tokenizer runs/001/tokenizer.json
    """

    paths: tuple[str, ...] = field(default=(), metadata={"positional": "PATH"})
    """Files, folders, globs, hf:NAME:CONFIG:SPLIT or -; none is Python's standard library."""
    tokenizer: str = "bpe"
    """bpe (byte-level, trained on the corpus), bytes, characters, or the path of a tokenizer.json."""
    tokenizer_vocab_size: BytesAndMore | None = None
    """Vocabulary of a trained BPE, tokens; none chooses from the size of the corpus."""
    text_field: str = "text"
    """Field of a JSON record, or column of a table or parquet file, that holds the text or the messages of a chat."""
    leave_out: str | None = None
    """File of documents to pass over, as `limpid data duplicates` and `limpid data decontaminate` write it."""
    json: bool = False
    """Print one JSON document."""


def verb(argv: Sequence[str]) -> int:
    flags = read("data statistics", DataStatisticsFlags, argv)
    from limpid.data.survey.statistics import statistics
    from limpid.data.survey.terminal import statistics_lines
    from limpid.reporter import Reporter

    with Reporter(flags.json) as reporter:
        found = statistics(
            flags.paths, tokenizer=flags.tokenizer, tokenizer_vocab_size=flags.tokenizer_vocab_size,
            text_field=flags.text_field, leave_out=flags.leave_out, reporter=reporter,
        )  # fmt: skip
        for line in statistics_lines(found):
            reporter.line(line)
        reporter.document(found.document())
    return 0
