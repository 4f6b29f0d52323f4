"""`limpid data tokenize`: the shards that are missing, made by several processes, and the folder's list of all."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from limpid.config import DataConfig
from limpid.config.arguments import checked
from limpid.config.domain import Count
from limpid.config.sections import BytesAndMore
from limpid.data.cache import Cache, hash_of
from limpid.data.documents import Corpus, Source, is_tokenized
from limpid.data.shards.folder import Contents, TokensFolder
from limpid.data.shards.shard import DOCUMENTS, SIDECAR, TOKENS, VERSION, Shard, Sidecar
from limpid.data.shards.workers import work
from limpid.data.shards.write import TOKENIZER, Job, make_shard
from limpid.data.split import CorpusStats, Split
from limpid.data.token_files import make_tokenizer
from limpid.data.tokenizer import read_tokenizer_file
from limpid.errors import DataError
from limpid.files import explained, user_path, write_atomically
from limpid.lock import hold, released_after
from limpid.machine import processors
from limpid.manifest import sha256
from limpid.reporter import SILENT, Reporter

SMALL = 16 << 20
"""Bytes of inputs up to which those that follow each other share a shard: ten thousand small files are a few shards."""
OURS = re.compile(r"\.?.*-[0-9a-f]{16}\.(tokens|documents|json)(\.[0-9a-f]{32}(\.writing)?|\.writing)?")
"""Names of files of shards, whole or half written; nothing else in a folder is removed."""


@dataclass(frozen=True, repr=False)
class Tokenized:
    """What a corpus became."""

    path: Path
    documents: int
    tokens: int
    bytes: int  # of text
    shards: int
    kept: int  # of them, from before
    inputs: int
    tokenizer: str
    notes: tuple[str, ...]
    seconds: float
    new_tokens: int

    @property
    def tokens_per_second(self) -> float:
        """Of those that were made now; 0 where none were."""
        return self.new_tokens / self.seconds if self.new_tokens else 0.0

    def document(self) -> dict[str, Any]:
        """Plain values."""
        plain = asdict(self) | {"path": str(self.path), "notes": list(self.notes)}
        plain.pop("new_tokens")
        return plain | {"tokens_per_second": self.tokens_per_second}

    def __repr__(self) -> str:
        return f"<{self.tokens:,} tokens of {self.documents:,} documents in {self.path}>"


@checked
def tokenize(
    paths: str | Sequence[str],
    output: str | Path,
    *,
    tokenizer: str = "bpe",
    tokenizer_vocab_size: BytesAndMore | None = None,
    text_field: str = "text",
    leave_out: str | None = None,
    processes: Count | None = None,
    reporter: Reporter = SILENT,
) -> Tokenized:
    """Tokenize a corpus once, into a folder that `train` reads without copying it.

    What is there already of the same inputs is kept, so that the same call goes on where another one was broken off.

    paths      files, folders, globs or hf:NAME:CONFIG:SPLIT
    tokenizer  as for training: bpe is trained on what a run would train on by default, and of the folder's from then on
    processes  all processors when left out; a script that asks for several needs `if __name__ == "__main__"`
    Raises     DataError for what cannot be read, or was tokenized otherwise before; CheckpointError for what cannot be
               written
    """
    given = (paths,) if isinstance(paths, str) else tuple(paths)
    data = DataConfig(given, text_field, tokenizer, tokenizer_vocab_size, leave_out=leave_out)
    folder = TokensFolder(user_path(output))
    with released_after():
        return _tokenized(data, folder, processes or processors(), reporter)


def _tokenized(data: DataConfig, folder: TokensFolder, processes: int, reporter: Reporter) -> Tokenized:
    if made := next((path for path in data.paths if path != "-" and is_tokenized(Path(path))), None):
        raise DataError(f"{made} holds tokens already: give the text that they were made of")
    if "-" in data.paths:
        raise DataError("standard input comes only once, and goes on nowhere after an interruption: put it into a file")
    with explained(f"cannot write {folder.path}"):
        folder.path.mkdir(parents=True, exist_ok=True)
    hold(folder.path)
    began = time.perf_counter()
    corpus = Corpus(data)
    if spooled := next((source.name for source in corpus.sources if source.spool is not None), None):
        raise DataError(f"{spooled} can be read only once: put what it gives into a file")
    contents, notes = _settled(folder, data, corpus, reporter)
    settings = hash_of(contents.settings)
    sources = {str(source.place): source for source in corpus.sources}
    known = dict(_known(folder, contents.tokenizer, settings, sources))
    shards = list(_shards(folder.path, corpus, known))
    missing = [(shard, corpus.part(inputs)) for shard, inputs, found in shards if found is None]
    jobs = [Job(shard, part, contents.tokenizer, settings) for shard, part in missing]
    if jobs:
        folder.write(replace(contents, complete=False))
    progress = Progress(reporter, {job.shard.name: _size(job.corpus.sources) for job in jobs})
    new: dict[str, Sidecar] = {}
    for name, sidecar in work(_named, jobs, processes, progress.advance):
        new[name] = sidecar
        progress.done(name, sidecar.text_bytes)
    reporter.close()
    listed = {shard.name: new.get(shard.name) or found for shard, _, found in shards}
    sidecars = {name: sidecar for name, sidecar in listed.items() if sidecar is not None}
    hashes = {name: hashlib.sha256(sidecar.to_json()).hexdigest() for name, sidecar in sidecars.items()}
    folder.write(replace(contents, complete=True, shards=hashes))
    _remove_others(folder.path, set(sidecars))
    whole = list(sidecars.values())
    corpus.judged |= {one.name: one.refusal for sidecar in whole for one in sidecar.inputs}
    documents, tokens = sum(one.documents for one in whole), sum(one.tokens for one in whole)
    if not documents:
        raise DataError(f"no text in {', '.join(data.paths)}: {_first_reason(whole)}")
    return Tokenized(
        folder.path, documents, tokens, sum(one.text_bytes for one in whole), len(whole), len(whole) - len(new),
        sum(len(one.inputs) for one in whole), contents.tokenizer, (*notes, *corpus.notes()),
        time.perf_counter() - began, sum(one.tokens for one in new.values()),
    )  # fmt: skip


def _named(job: Job, advance: Any) -> tuple[str, Sidecar]:
    return job.shard.name, make_shard(job, advance)


class Progress:
    """How much of the inputs is done, bytes: of shards that are not finished, as much as was read of their text."""

    def __init__(self, reporter: Reporter, sizes: Mapping[str, int]) -> None:
        self._reporter, self._sizes = reporter, sizes
        self._total = sum(sizes.values())
        self._finished = self._reading = 0

    def advance(self, more: int) -> None:
        """So many more bytes of text were read."""
        self._reading += more
        self._show()

    def done(self, name: str, read: int) -> None:
        """A shard is finished, of which so many bytes of text were read."""
        self._reading = max(0, self._reading - read)
        self._finished += self._sizes[name]
        self._show()

    def _show(self) -> None:
        done = min(self._finished + self._reading, self._total)  # compressed text is longer than its file
        self._reporter.progress("tokenizing", done, max(1, self._total))


def _settled(folder: TokensFolder, data: DataConfig, corpus: Corpus, reporter: Reporter) -> tuple[Contents, list[str]]:
    """The folder's list and tokenizer: those that are there, where they are as asked for; else made now."""
    settings = {"text_field": data.text_field, "leave_out": hash_of(sorted(corpus.leave_out))}
    words = ("bpe", "bytes", "characters")
    own = data.tokenizer in words
    asked = f"{data.tokenizer} {data.tokenizer_vocab_size or ''}".strip() if own else data.tokenizer
    if is_tokenized(folder.path):
        contents = folder.contents
        _ = folder.tokenizer  # is the one that made the tokens
        same = asked == contents.asked if own else _sha(read_tokenizer_file(data.tokenizer)) == contents.tokenizer
        if not same:
            raise DataError(
                f"{folder.path} holds tokens of another tokenizer ({contents.asked}), and {asked} was asked for: name "
                f"{folder.path / TOKENIZER}, or another output"
            )
        return replace(contents, settings=settings), []
    stats = CorpusStats(0, corpus.path_of, alphabet=set() if data.tokenizer == "characters" else None)
    if data.tokenizer in ("bpe", "characters"):
        total = _size(corpus.sources)
        for _ in stats.counted(corpus.chunks()):
            reporter.progress("reading the text", min(stats.bytes, total), max(1, total))
        corpus.require_text(stats.documents_of, each=False)
    split = Split(0, data.validation_fraction, stats)  # as a run holds out by default
    tokenizer, notes = make_tokenizer(data, corpus, split, reporter.progress)
    text = tokenizer.to_json()
    write_atomically(folder.path / TOKENIZER, text.encode())
    contents = Contents(VERSION, False, asked, _sha(text), settings, {})
    folder.write(contents)
    return contents, notes


def _known(
    folder: TokensFolder, tokenizer: str, settings: str, sources: Mapping[str, Source]
) -> Iterator[tuple[str, tuple[str, Sidecar]]]:
    """Shards that are there, whole, and of inputs that are as they were, by their first input."""
    cache = Cache()
    for file in folder.path.glob(f"*{SIDECAR}"):
        if not OURS.fullmatch(file.name):
            continue
        shard = Shard(folder.path, file.name.removesuffix(SIDECAR))
        try:
            sidecar = shard.read()
            shard.require_whole(sidecar, cache)
        except DataError:  # it is made again
            continue
        if (sidecar.tokenizer, sidecar.settings) == (tokenizer, settings) and _unchanged(sidecar, sources):
            yield sidecar.inputs[0].place, (shard.name, sidecar)


def _unchanged(sidecar: Sidecar, sources: Mapping[str, Source]) -> bool:
    """Whether its inputs are still to be read, and the same as they were."""
    for one in sidecar.inputs:
        source = sources.get(one.place)
        if source is None or source.name != one.name:
            return False
        if source.path is not None:
            state = source.path.stat()
            if (state.st_size, state.st_mtime_ns) != (one.bytes, one.changed) and sha256(source.path) != one.sha256:
                return False
    return True


def _shards(
    folder: Path, corpus: Corpus, known: Mapping[str, tuple[str, Sidecar]]
) -> Iterator[tuple[Shard, list[Source], Sidecar | None]]:
    """The inputs in order as shards: those that are there, and between them large inputs and groups of small ones."""
    waiting: list[Source] = []
    place, size, sources = 0, 0, corpus.sources
    while place < len(sources):
        name, sidecar = known.get(str(sources[place].place), ("", None))
        count = 1 if sidecar is None else len(sidecar.inputs)
        here = sources[place : place + count]
        if sidecar is not None and [str(one.place) for one in here] == [one.place for one in sidecar.inputs]:
            if waiting:
                yield _new(folder, waiting)
            yield Shard(folder, name), here, sidecar
            waiting, place, size = [], place + count, 0
            continue
        own = _size(here)
        if waiting and size + own > SMALL:
            yield _new(folder, waiting)
            waiting, size = [], 0
        waiting.append(sources[place])
        place, size = place + 1, size + own
    if waiting:
        yield _new(folder, waiting)


def _new(folder: Path, sources: list[Source]) -> tuple[Shard, list[Source], None]:
    """A shard of these inputs, named after the first of them and, so that no two share a name, after all."""
    first = re.sub(r"[^\w.-]", "_", Path(sources[0].name).name, flags=re.ASCII)[:60].lstrip(".") or "input"
    return Shard(folder, f"{first}-{hash_of([str(source.place) for source in sources])[:16]}"), sources, None


def _size(sources: Iterable[Source]) -> int:
    """Bytes of files, as they lie there."""
    return sum(source.path.stat().st_size for source in sources if source.path is not None)


def _remove_others(folder: Path, names: set[str]) -> None:
    """Remove what is left of processes that were killed, and shards of inputs that are none any more."""
    for file in folder.iterdir():
        if OURS.fullmatch(file.name) and file.name not in {name + end for name in names for end in ENDINGS}:
            file.unlink(missing_ok=True)


ENDINGS = (TOKENS, DOCUMENTS, SIDECAR)


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _first_reason(sidecars: Sequence[Sidecar]) -> str:
    reasons = (str(one.refusal) for sidecar in sidecars for one in sidecar.inputs if one.refusal)
    return next(reasons, "give files, folders or globs that hold some")
