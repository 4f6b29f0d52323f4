"""`limpid data tokenize`: a corpus tokenized once, for many runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from limpid.config.domain import Count
from limpid.config.flags import read
from limpid.config.sections import BytesAndMore
from limpid.errors import ConfigError


@dataclass(frozen=True)
class DataTokenizeFlags:
    """Tokenize a corpus once, into a folder that limpid train reads without copying it.

    Broken off at any point, the same command goes on; what was made is kept, and inputs that changed are read again.

    limpid data tokenize books/ 'web/*.jsonl.zst' -o tokens
    limpid data tokenize more/ -o more_tokens --tokenizer tokens/tokenizer.json
    limpid train tokens more_tokens --weights 3,1
    """

    paths: tuple[str, ...] = field(default=(), metadata={"positional": "PATH"})
    """Files, folders, globs or hf:NAME:CONFIG:SPLIT; none is Python's standard library."""
    output: str | None = field(default=None, metadata={"short": "o"})
    """Folder to write."""
    tokenizer: str = "bpe"
    """bpe (byte-level, trained on the corpus), bytes, characters, or the path of a tokenizer.json."""
    tokenizer_vocab_size: BytesAndMore | None = None
    """Vocabulary of a trained BPE, tokens; none chooses from the size of the corpus."""
    text_field: str = "text"
    """Field of a JSON record, or column of a table or parquet file, that holds the text or the messages of a chat."""
    leave_out: str | None = None
    """File of documents to pass over, as `limpid data duplicates` and `limpid data decontaminate` write it."""
    processes: Count | None = None
    """Processes that share the inputs; none is one per processor."""
    json: bool = False
    """Print one JSON document."""


def verb(argv: Sequence[str]) -> int:
    flags = read("data tokenize", DataTokenizeFlags, argv)
    if flags.output is None:
        raise ConfigError("output is missing: name the folder to write with -o FOLDER")
    from limpid.data.shards.make import tokenize
    from limpid.data.terminal import tokenized_lines
    from limpid.reporter import Reporter

    with Reporter(flags.json) as reporter:
        made = tokenize(
            flags.paths, flags.output, tokenizer=flags.tokenizer, tokenizer_vocab_size=flags.tokenizer_vocab_size,
            text_field=flags.text_field, leave_out=flags.leave_out, processes=flags.processes, reporter=reporter,
        )  # fmt: skip
        for line in tokenized_lines(made):
            reporter.line(line)
        reporter.document(made.document())
    return 0
