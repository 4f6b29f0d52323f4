"""`limpid data decontaminate`: which rows of tests stand in a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from limpid.config.domain import Count
from limpid.config.flags import read
from limpid.errors import ConfigError


@dataclass(frozen=True)
class DataDecontaminateFlags:
    """Look for rows of tests in a corpus: any n words in a row that both have, without case and punctuation.

    Of rows, n is the 5th percentile of the rows' lengths, at least 8 and at most 13 (Brown et al. 2020, appendix C).
    The exit code is 1 where some are found.

    limpid data decontaminate texts/ test.jsonl -o found.jsonl
    limpid train texts/ --leave-out found.jsonl
    """

    corpus: str = field(metadata={"positional": "CORPUS"})
    """File, folder, glob or hf:NAME:CONFIG:SPLIT that is trained on."""
    tests: tuple[str, ...] = field(default=(), metadata={"positional": "TEST"})
    """Files of records, all of whose texts count; of plain text each line is a row."""
    ngram: Count | None = None
    """Words in a row that are compared; none follows from the rows' lengths."""
    text_field: str = "text"
    """Field of a JSON record, or column of a table or parquet file, that holds the text or the messages of a chat."""
    output: str | None = field(default=None, metadata={"short": "o"})
    """File for the list of documents of the corpus to leave out."""
    json: bool = False
    """Print one JSON document."""


def verb(argv: Sequence[str]) -> int:
    flags = read("data decontaminate", DataDecontaminateFlags, argv)
    if not flags.tests:
        raise ConfigError(f"tests are missing: name them after {flags.corpus}")
    from limpid.data.survey.decontaminate import decontaminate
    from limpid.data.survey.terminal import decontamination_lines
    from limpid.reporter import Reporter

    with Reporter(flags.json) as reporter:
        found = decontaminate(
            flags.corpus, flags.tests, ngram=flags.ngram, text_field=flags.text_field, output=flags.output,
            reporter=reporter,
        )  # fmt: skip
        for line in decontamination_lines(found):
            reporter.line(line)
        if flags.output is not None:
            reporter.line(f"written {flags.output}: limpid train … --leave-out {flags.output}")
        reporter.document(found.document())
    return 1 if found.contaminated else 0
