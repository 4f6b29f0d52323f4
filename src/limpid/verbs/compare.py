"""`limpid compare`: two variants of the same computation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from limpid.config.flags import read
from limpid.config.threads import Threads
from limpid.errors import ConfigError


@dataclass(frozen=True)
class CompareFlags(Threads):
    """Rounding or bug? Compare two variants of the same computation, quantity by quantity, within computed bounds.

    A variant is a model, then `:` and words for how it runs. Paths: plain (every quantity formed), fast (as it trains),
    compiled, cached (one position at a time), sampler (as it generates, and each kernel redone by itself), int8 (the
    same, matrices read as int8), transformers, trl (the first step of a tuned run, by TRL's own loss). Precisions:
    fp64, fp32, fp16, bf16. Adapters: lora=DIR beside the weights, merged=DIR added in. Processes that take the step
    together, by the axes of --parallel: shard=2,tensor=2, or processes=N. So `limpid compare last last:transformers`,
    `limpid compare last:fp32 last:bf16`, `limpid compare tuned tuned:trl`.

    Two recordings of any PyTorch step, as `limpid trace … --keep FOLDER` writes them, are compared call by call.
    """

    words: tuple[str, ...] = field(default=(), metadata={"positional": "A B"})
    """Two variants; each a run, `last`, a Hugging Face folder or ORG/NAME, with :WORDS for path and precision."""
    text: str | None = None
    """Compare on this text instead of random tokens."""
    backward: bool = True
    """Compare gradients too."""
    json: bool = False
    """Print one JSON document."""


def verb(argv: Sequence[str]) -> int:
    flags = read("compare", CompareFlags, argv)
    if len(flags.words) != 2:
        raise ConfigError("compare takes two variants, as in: limpid compare last last:transformers")
    if (code := _recordings(flags)) is not None:
        return code
    from limpid.comparison.compare import compare
    from limpid.comparison.report import lines
    from limpid.reporter import Reporter

    with Reporter(flags.json) as reporter:
        comparison = compare(*flags.words, text=flags.text, backward=flags.backward, reporter=reporter)
        reporter.document(comparison.document())
        for line in lines(comparison):
            reporter.line(line)
    if not flags.json:
        _tell_page(*flags.words)
    return 0 if comparison.agrees else 1


def _recordings(flags: CompareFlags) -> int | None:
    """Compare two recordings of calls; None where neither is one."""
    from limpid.source import KeptRecording, find_source

    sources = [find_source(_model(word)) for word in flags.words]
    kept = [one for one in sources if isinstance(one, KeptRecording)]
    if not kept:
        return None
    if len(kept) == 1:
        other = next(word for word, one in zip(flags.words, sources, strict=True) if one is not kept[0])
        raise ConfigError(f"{kept[0]} is a recording of calls, and {other} is none: compare two of them")
    if flags.text is not None:
        raise ConfigError("recordings have been taken already: leave out --text")
    from limpid.operations import compare
    from limpid.operations.compared_terminal import lines
    from limpid.reporter import Reporter
    from limpid.tracing.schema import to_json

    found = compare(kept[0].path, kept[1].path)
    document = found.document()
    with Reporter(flags.json) as reporter:
        reporter.document(to_json(document))
        for line in lines(document):
            reporter.line(line)
    return 0 if found.agrees else 1


def _model(word: str) -> str:
    """What stands before the words that say how it runs; a path may hold a colon."""
    return word if os.path.exists(word) else word.partition(":")[0]


def _tell_page(a: str, b: str) -> None:
    """Where the page shows two runs, or checkpoints, of one folder beside each other."""
    from limpid.run import Run
    from limpid.source import Checkpoint, find_source
    from limpid.view.addresses import of_pair
    from limpid.view.alive import tell

    sources = [find_source(_model(word)) for word in (a, b)]
    runs = [one.run if isinstance(one, Checkpoint) else one if isinstance(one, Run) else None for one in sources]
    one, other = runs
    if one is None or other is None or one.path.absolute().parent != other.path.absolute().parent:
        return
    names = []
    for word, run, source in zip((a, b), (one, other), sources, strict=True):
        step = source.step if isinstance(source, Checkpoint) else run.latest_checkpoint()
        _, colon, words = word.partition(":")
        names.append(f"{run.path.absolute().name}@{step}{colon}{words}")
    if names[0] != names[1] and "=" not in "".join(names):
        tell(one, of_pair(*names))
