"""All that is asked of a model at once: its reading of a text, its answers, and another model beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from limpid.config.arguments import checked
from limpid.config.domain import Count, Positive, Whole, Within
from limpid.config.options import Checked, from_dict, require
from limpid.config.sampling import GAMMA, WatermarkGamma, WatermarkKey
from limpid.evaluation.blocks import Blocks
from limpid.evaluation.calibration import Calibration, calibration
from limpid.evaluation.document import document
from limpid.evaluation.inputs import open_evaluated_model, read_documents, sample_documents
from limpid.evaluation.intervals import Estimate
from limpid.evaluation.metrics import Difference, Metric, difference, metrics
from limpid.evaluation.notebook import page
from limpid.evaluation.plots import reliability
from limpid.evaluation.records.judge import Asked, Judged, judge
from limpid.evaluation.scored_text import ScoredText, encode_documents, score_text
from limpid.evaluation.tasks import UNITS, TaskResult, better_at, read_task, run_task
from limpid.evaluation.windows import Convention, Windows
from limpid.files import user_path
from limpid.generation.watermark import Detection, detect_all
from limpid.loaded import LoadedModel
from limpid.reporter import SILENT, Reporter
from limpid.run import Run
from limpid.source import Checkpoint

if TYPE_CHECKING:
    from limpid.data.tokenizer import Tokenizer
    from limpid.model import Transformer


ON_RECORDS = ("num_generations", "max_completion_length", "temperature", "max_records")
"""Options that say how models are judged on records."""


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
    num_generations: Count | None = None  # answers to each prompt; None is as the run was tuned
    max_completion_length: Count | None = None
    temperature: Positive | None = None
    max_records: Count | None = None
    watermark: WatermarkKey | None = None  # key of a watermark to look for
    watermark_gamma: WatermarkGamma = GAMMA

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.watermark is not None or self.watermark_gamma == GAMMA,
            f"watermark_gamma is {self.watermark_gamma:g}, and no watermark is looked for: give --watermark KEY too",
        )

    def windows(self, model: LoadedModel) -> Windows:
        """How this model's text is cut.

        Raises  ConfigError when more context is asked for than the model has
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
    watermark: Detection | None = None


@dataclass(frozen=True, repr=False)
class Evaluation:
    """What came of it; the second of two entries belongs to the other model, where one is compared.

    On records the other model is the one before, and the first the one after.
    """

    models: tuple[LoadedModel, ...]
    config: EvaluationConfig
    origin: str = ""
    notes: tuple[str, ...] = ()
    texts: tuple[TextResult, ...] = ()
    difference: Difference | None = None
    tasks: tuple[tuple[TaskResult, ...], ...] = ()  # of each task, one per model
    task_differences: tuple[dict[str, Estimate], ...] = ()
    records: Judged | None = None

    @checked
    def metric(self, name: str, model: int = 0) -> Metric:
        """One of a model's metrics on the text or the records, such as loss, perplexity, bits per byte or accuracy.

        Raises  ConfigError for a name that there is not
        """
        require(model in range(len(self.models)), f"model is {model}: there are {len(self.models)}, counted from 0")
        found = {} if self.records is None else self.records.metrics("before" if model else "after")
        found |= {one.name: one for one in self.texts[model].metrics} if self.texts else {}
        key = name if name in found else name.replace("_", " ")
        require(key in found, f"no metric is called {name!r}: there are {', '.join(found) or 'none without a text'}")
        return found[key]

    def __repr__(self) -> str:
        named = ("loss", "bits per byte", "accuracy")
        values = [f"{one.name} {one.value:.4g}" for text in self.texts[:1] for one in text.metrics if one.name in named]
        values += [] if self.difference is None else [self.difference.sentence()]
        on_records = None if self.records is None else self.records.difference
        values += [] if on_records is None else [on_records.sentence()]
        values += [f"{results[0].name} {results[0].accuracy[UNITS[0]].value:.1%}" for results in self.tasks]
        return f"Evaluation({self.models[0].title}: {', '.join(values)})"

    def _repr_html_(self) -> str:
        return page(self)

    def document(self) -> dict[str, Any]:
        """As plain values: what `limpid evaluate --json` prints."""
        return document(self)

    @checked
    def draw(self, folder: str | Path) -> Path:
        """The reliability plot, as reliability.png in a folder.

        Raises  ConfigError where no text was read, or matplotlib is not installed
        """
        require(bool(self.texts), "no text was read, so there is nothing to draw: give one")
        return reliability(self.texts, user_path(folder) / "reliability.png")


@checked
def evaluate(
    what: str | Path | Run | tuple[Transformer, Tokenizer],
    paths: tuple[str, ...] = (),
    *,
    text: str | None = None,
    against: str | Path | Run | tuple[Transformer, Tokenizer] | None = None,
    tasks: tuple[str, ...] = (),
    records: tuple[str, ...] = (),
    reward: tuple[str, ...] = (),
    reporter: Reporter = SILENT,
    **config: Any,
) -> Evaluation:
    """Loss, bits per byte and calibration on a text, each with an interval; answers to tasks; who is better.

    what     run, RUN@STEP, Hugging Face folder, or a model and its tokenizer
    paths    files, folders, globs, or "-"; without them and a text, a run reads what it held out, text or records
    against  another model, read on the same text and compared in pairs; None is what a tuned run started from
    tasks    JSON lines of questions; with them and no text, only they are done
    records  files to judge both models on, instead of the records that a tuned run held out
    reward   module:function, file.py:function or a reward model, of answers to the prompts of records
    config   of `limpid evaluate --help`: context, stride, convention, max_tokens, confidence, seed, text_field,
             num_generations, max_completion_length, temperature, max_records, watermark, watermark_gamma
    Raises   LimpidError for models, text, tasks, records or rewards that cannot be used
    """
    how = from_dict(EvaluationConfig, config)
    questions = [(Path(file).stem, read_task(file)) for file in tasks]
    given, asked = bool(paths) or text is not None, bool(records or reward)
    first = open_evaluated_model(what, head="any")
    tuned = first.run is not None and first.run.read_config().tune is not None
    judged = asked or (tuned and not given and not tasks)
    reads = given or not (tasks or judged)
    _require_effect(how, judged, reads)
    other = Checkpoint(first.run, 0) if tuned and against is None and first.run is not None else against
    models = (first,) if other is None else (first, open_evaluated_model(other, head="any"))
    evaluation = Evaluation(models, how)
    if judged:
        evaluation = replace(evaluation, records=_judge(evaluation, records, reward, reporter))
    for model in models if reads or tasks else ():
        model.transformer.require_vocabulary()
    if reads:
        evaluation = _read(evaluation, paths, text, how, reporter)
    answers = tuple(
        tuple(run_task(model, name, own, how.confidence, reporter) for model in models) for name, own in questions
    )
    between = tuple(
        {unit: better_at(one, two, unit, how.confidence, how.seed) for unit in UNITS}
        for one, two in (pair for pair in answers if len(pair) == 2)
    )
    reporter.close()
    return replace(evaluation, tasks=answers, task_differences=between)


def _judge(evaluation: Evaluation, records: tuple[str, ...], reward: tuple[str, ...], reporter: Reporter) -> Judged:
    """Both models on records: the first is the one after."""
    after, how = evaluation.models[0], evaluation.config
    require(
        len(evaluation.models) == 2,
        f"{after.name} was not tuned here, so it started from no model that is known: name one with --against",
    )
    chosen = {name: getattr(how, name) for name in ON_RECORDS}
    asked = Asked(records, reward, text_field=how.text_field, **chosen)
    return judge(evaluation.models[::-1], asked, how.confidence, how.seed, reporter)


def _require_effect(config: EvaluationConfig, judged: bool, reads: bool) -> None:
    """Raise ConfigError for options of records where none are judged, and of a text where none is read."""
    require(
        config.watermark is None or reads,
        f"watermark is {config.watermark}, and no text is read to look for it in: give one",
    )
    for name in ON_RECORDS if not judged else ():
        value = getattr(config, name)
        require(
            value is None,
            f"{name} is {value}, which does nothing on a text: give --records or --reward too, or leave it out",
        )


def _read(
    evaluation: Evaluation, paths: Sequence[str], text: str | None, config: EvaluationConfig, reporter: Reporter
) -> Evaluation:
    windows = [config.windows(model) for model in evaluation.models]
    source = read_documents(evaluation.models[0], paths, text, config.text_field)
    documents, notes = (
        list(source.documents),
        [*source.notes, *_caveats(evaluation.models, own=not paths and text is None)],
    )
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
        _result(model, [each[i] for i in chosen], window, config, reporter)
        for model, each, window in zip(evaluation.models, tokens, windows, strict=True)
    )
    between = None
    if len(texts) == 2:
        between = difference(texts[0].text, texts[1].text, config.confidence, config.seed)
    return replace(evaluation, origin=source.origin, notes=tuple(notes), texts=texts, difference=between)


def _cut(text: str, tokens: tuple[Any, Any], most: int) -> str:
    """The start of a document, about `most` tokens of it."""
    size = int(tokens[1][:most].sum())
    return text.encode()[:size].decode(errors="ignore")


def _result(
    model: LoadedModel,
    documents: Sequence[tuple[Any, Any]],
    windows: Windows,
    config: EvaluationConfig,
    reporter: Reporter,
) -> TextResult:
    text = score_text(model, documents, windows, reporter)
    blocks = text.blocks()
    measured = metrics(text, blocks, config.confidence, config.seed)
    calibrated = calibration(text, blocks, config.confidence, config.seed)
    found = None
    if config.watermark is not None:
        vocab = model.transformer.config.vocab_size
        found = detect_all((ids for ids, _ in documents), vocab, config.watermark, config.watermark_gamma)
    return TextResult(text, blocks, measured, calibrated, found)


def _caveats(models: tuple[LoadedModel, ...], own: bool) -> list[str]:
    """What makes a comparison unfair where the text is the first model's own."""
    if not own or len(models) < 2 or models[0].run is None:
        return []
    first, second = models
    if second.run is None:
        return [f"whether {second.name} was trained on this text is not known: it counts as held out for {first.name}"]
    config, other = models[0].run.read_config(), second.run.read_config()
    same = (config.data, config.run.seed) == (other.data, other.run.seed)
    if same or models[0].run.fingerprint() == second.run.fingerprint():
        return []
    return [f"{second.name} has other data, split or tokenizer: it may have been trained on text held out here"]
