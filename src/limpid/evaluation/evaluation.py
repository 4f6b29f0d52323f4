"""Everything that is config of a model at once: its reading of a text, its answers, and another model beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from limpid.config.domain import Count, Whole, Within
from limpid.config.options import Checked, require
from limpid.evaluation.blocks import Blocks
from limpid.evaluation.calibration import Calibration, calibration
from limpid.evaluation.inputs import EvaluatedModel, open_evaluated_model, read_documents, sample_documents
from limpid.evaluation.intervals import Estimate
from limpid.evaluation.metrics import Difference, Metric, difference, metrics
from limpid.evaluation.scored_text import ScoredText, encode_documents, score_text
from limpid.evaluation.tasks import UNITS, TaskResult, better_at, read_task, run_task
from limpid.evaluation.windows import Convention, Windows
from limpid.reporter import Reporter


@dataclass(frozen=True, repr=False)
class EvaluationConfig(Checked):
    """How a text is cut and scored."""

    context: Count | None = None  # tokens that a prediction may see; None is the model's
    stride: Count | None = None  # None is half the context
    convention: Convention = "sliding"
    max_tokens: Count | None = None
    confidence: Annotated[float, Within("[0.5, 1)", "for example 0.95")] = 0.95
    seed: Whole = 0
    text_field: str = "text"

    def windows(self, model: EvaluatedModel) -> Windows:
        """How this model's text is cut.

        Raises  ConfigError when more context is config for than the model has
        """
        most = model.transformer.config.context_length
        context = most if self.context is None else self.context
        require(
            1 <= context <= most,
            f"context is {context}: {model.name} holds 1 … {most} tokens",
        )
        stride = max(1, context // 2) if self.stride is None else self.stride
        return Windows(context, stride, self.convention, model.start)


@dataclass(frozen=True)
class TextResult:
    """A model's scores on a text, summed up."""

    text: ScoredText
    blocks: Blocks | None
    metrics: list[Metric]
    calibration: Calibration


@dataclass(frozen=True)
class Evaluation:
    """The outcome; the second of two entries belongs to the other model, where one is compared."""

    models: tuple[EvaluatedModel, ...]
    config: EvaluationConfig
    origin: str = ""
    notes: tuple[str, ...] = ()
    texts: tuple[TextResult, ...] = ()
    difference: Difference | None = None
    tasks: tuple[tuple[TaskResult, ...], ...] = ()  # of each task, one per model
    task_differences: tuple[dict[str, Estimate], ...] = ()


def evaluate(
    what: str,
    paths: Sequence[str] = (),
    *,
    against: str | None = None,
    tasks: Sequence[str] = (),
    config: EvaluationConfig | None = None,
    reporter: Reporter,
) -> Evaluation:
    """Read a text with one or two models, and have them answer the questions of task files.

    Without a path, a run reads the text that it held out; with tasks and no path, only the tasks are done.
    Raises  LimpidError for models, text or tasks that cannot be used
    """
    config = config or EvaluationConfig()
    questions = [(Path(file).stem, read_task(file)) for file in tasks]
    models = tuple(open_evaluated_model(name).on_device() for name in (what, *([] if against is None else [against])))
    evaluation = Evaluation(models, config)
    if paths or not tasks:
        evaluation = _read(evaluation, paths, config, reporter)
    answers = tuple(
        tuple(run_task(model, name, own, config.confidence, reporter) for model in models) for name, own in questions
    )
    between = tuple(
        {unit: better_at(one, two, unit, config.confidence, config.seed) for unit in UNITS}
        for one, two in (pair for pair in answers if len(pair) == 2)
    )
    return replace(evaluation, tasks=answers, task_differences=between)


def _read(evaluation: Evaluation, paths: Sequence[str], config: EvaluationConfig, reporter: Reporter) -> Evaluation:
    windows = [config.windows(model) for model in evaluation.models]
    source = read_documents(evaluation.models[0], paths, config.text_field)
    documents, notes = list(source.documents), [*source.notes, *_caveats(evaluation.models, paths)]
    tokens = [encode_documents(model, documents, reporter) for model in evaluation.models]
    chosen = list(range(len(documents)))
    if config.max_tokens is not None and sum(len(ids) for ids, _ in tokens[0]) > config.max_tokens:
        chosen = sample_documents(source, config.max_tokens, [len(ids) for ids, _ in tokens[0]], config.seed)
        if len(chosen) == 1:
            documents[chosen[0]] = _cut(documents[chosen[0]], tokens[0][chosen[0]], config.max_tokens)
            tokens = [encode_documents(model, documents, reporter) for model in evaluation.models]
        part = "the start of one" if len(chosen) == 1 else f"{len(chosen):,}"
        notes.append(f"{part} of {len(documents):,} documents, drawn at random for --max-tokens")
    texts = tuple(
        _result(score_text(model, [own[i] for i in chosen], window, reporter), config)
        for model, own, window in zip(evaluation.models, tokens, windows, strict=True)
    )
    between = None
    if len(texts) == 2:
        between = difference(texts[0].text, texts[1].text, config.confidence, config.seed)
    return replace(evaluation, origin=source.origin, notes=tuple(notes), texts=texts, difference=between)


def _cut(text: str, tokens: tuple[Any, Any], most: int) -> str:
    """The start of a document, about `most` tokens of it."""
    size = int(tokens[1][:most].sum())
    return text.encode()[:size].decode(errors="ignore")


def _result(text: ScoredText, config: EvaluationConfig) -> TextResult:
    blocks = text.blocks()
    measured = metrics(text, blocks, config.confidence, config.seed)
    return TextResult(text, blocks, measured, calibration(text, blocks, config.confidence, config.seed))


def _caveats(models: tuple[EvaluatedModel, ...], paths: Sequence[str]) -> list[str]:
    """What makes a comparison unfair."""
    if paths or len(models) < 2 or models[0].run is None:
        return []
    first, second = models
    if second.run is None:
        return [f"whether {second.name} was trained on this text is not known: it counts as held out for {first.name}"]
    config, other = models[0].run.read_config(), second.run.read_config()
    same = (config.data, config.run.seed) == (other.data, other.run.seed)
    if same or models[0].run.fingerprint() == second.run.fingerprint():
        return []
    return [f"{second.name} has other data, split or tokenizer: it may have been trained on text held out here"]
