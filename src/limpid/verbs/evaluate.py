"""`limpid evaluate`: how good a model is, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from limpid.config.flags import read
from limpid.config.threads import Threads
from limpid.files import user_path

if TYPE_CHECKING:
    from limpid.evaluation.evaluation import Evaluation
    from limpid.reporter import Reporter


@dataclass(frozen=True)
class EvaluateFlags(Threads):
    """Loss, perplexity, bits per byte, accuracy and calibration on a text, each with an interval; or answers to tasks.

    Intervals respect that tokens which follow each other are alike. Without a text, a run reads what it held out.
    `limpid evaluate A TEXT --against B` says which model is better, by how much, and how sure that is.

    A tuned run is judged on the records that it held out, before and after: its rewards, or given answers.

    limpid evaluate last                       on what the run held out
    limpid evaluate tuned --reward judge.py:correct --num-generations 4
    limpid evaluate models/gpt2 book.txt --against last
    limpid evaluate last --tasks questions.jsonl
    limpid evaluate last letter.txt --watermark 7654321
    """

    what: str = field(metadata={"positional": "MODEL"})
    """Run, name under runs/, `last`, Hugging Face folder or ORG/NAME; an adapter, or MODEL+ADAPTER."""
    paths: tuple[str, ...] = field(default=(), metadata={"positional": "TEXT"})
    """Files, folders, globs, or - for standard input; plain text, JSON lines, parquet."""
    text: str | None = None
    """A text to read instead."""
    against: str | None = None
    """Another model, compared in pairs; on a text its tokenizer may differ. None is what a tuned run started from."""
    tasks: tuple[str, ...] = ()
    """JSONL file of questions (may be given several times): query choices gold, ARC, MMLU, HellaSwag, PIQA."""
    records: tuple[str, ...] = ()
    """File of records to judge both models on (several times), instead of those that a tuned run held out."""
    reward: tuple[str, ...] = ()
    """module:function, file.py:function or a reward model, of answers to their prompts; the run's when left out."""
    num_generations: int | None = None
    """Answers to each prompt from each model; as the run was tuned when left out, else 8."""
    max_completion_length: int | None = None
    """Tokens of an answer at most; as the run was tuned when left out, else 512."""
    temperature: float | None = field(default=None, metadata={"short": "t"})
    """Of the answers; as the run was tuned when left out, else 1."""
    max_records: int | None = None
    """Take at most so many records, spread evenly over all."""
    context: int | None = None
    """Tokens that a prediction may see; the model's context when left out."""
    stride: int | None = None
    """Tokens that each window adds; half the context when left out, the context is fastest."""
    convention: Literal["sliding", "transformers"] = "sliding"
    """sliding scores every token; transformers cuts as Hugging Face's guide to perplexity does."""
    max_tokens: int | None = None
    """Read about this many tokens, in documents drawn at random."""
    text_field: str = "text"
    """Field of a JSON record, or column of a table or parquet file, that holds the text."""
    confidence: float = 0.95
    """How often intervals are to hold the truth."""
    watermark: int | None = None
    """Key of a watermark to look for in the text, as given to `limpid generate --watermark`."""
    watermark_gamma: float = 0.25
    """Its share of green tokens, as it was written with."""
    seed: int = 0
    """Resampling, --max-tokens and answers draw from it."""
    output: str | None = field(default=None, metadata={"short": "o"})
    """Folder for reliability.png; evaluate/ inside a run when left out, none for a Hugging Face folder."""
    json: bool = False
    """Print one JSON document."""


def verb(argv: Sequence[str]) -> int:
    flags = read("evaluate", EvaluateFlags, argv)
    from limpid.reporter import Reporter

    how = ("context", "stride", "convention", "max_tokens", "confidence", "seed", "text_field", "num_generations",
           "max_completion_length", "temperature", "max_records", "watermark", "watermark_gamma")  # fmt: skip
    with Reporter(flags.json) as reporter:
        reporter.progress("loading the model", 0)
        from limpid.evaluation.evaluation import evaluate
        from limpid.evaluation.report import lines
        from limpid.training.allocator import keep_freed_memory

        keep_freed_memory()
        evaluation = evaluate(
            flags.what,
            flags.paths,
            text=flags.text,
            against=flags.against,
            tasks=flags.tasks,
            records=flags.records,
            reward=flags.reward,
            reporter=reporter,
            **{name: getattr(flags, name) for name in how},
        )
        reporter.document(evaluation.document())
        for line in lines(evaluation):
            reporter.line(line)
        _draw(evaluation, None if flags.output is None else user_path(flags.output), reporter)
    return 0


def _draw(evaluation: Evaluation, output: Path | None, reporter: Reporter) -> None:
    """The reliability plot, where it was asked for, else in the run's folder."""
    from rich.text import Text

    from limpid.plots import left_out_where_refused
    from limpid.theme import HEADING

    run = evaluation.models[0].run
    folder = run.path / "evaluate" if output is None and run is not None else output
    if evaluation.texts and folder is not None:
        with left_out_where_refused(output, reporter):
            reporter.line(Text.assemble(("\nwritten", HEADING), f"  {evaluation.draw(folder)}"))
