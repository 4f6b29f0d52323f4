"""Answers that are given, under a model: their log-probabilities, or the scores of a reward model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from limpid.data.tuning.encoding import Answer
from limpid.errors import ConfigError
from limpid.evaluation.compared import Compared, Mean, Measure, changed, mean_of
from limpid.evaluation.metrics import perplexity
from limpid.evaluation.records.chosen import Records
from limpid.evaluation.token_scores import score_windows
from limpid.evaluation.windows import Window
from limpid.loaded import LoadedModel
from limpid.reporter import Reporter
from limpid.training.tuning.rewards import SCORED_TOGETHER, scores_of

Array = np.ndarray
Answers = Float64[Array, " answer"]


@dataclass(frozen=True)
class Read:
    """Answers as a model finds them."""

    nats: Answers
    """-ln p of each."""
    tokens: Answers
    """How many each has, with the one that stops it."""
    hits: Answers
    """Of them those that were the likeliest."""


def read_answers(model: LoadedModel, answers: Sequence[Answer], reporter: Reporter) -> Read:
    """Every token that is learned, by the prediction before it.

    Raises  ConfigError for a model of too little context
    """
    longest = max(len(answer.tokens) - 1 for answer in answers)
    require_context(model, longest)
    firsts = [int(np.argmax(answer.learned)) for answer in answers]
    windows = [
        Window(answer.tokens.astype(np.int64), len(answer.tokens) - first)
        for answer, first in zip(answers, firsts, strict=True)
    ]
    done, what, total = 0, f"reading with {model.title}", sum(window.scored for window in windows)

    def advance(count: int) -> None:
        nonlocal done
        done += count
        reporter.progress(what, done, total)

    reporter.progress(what, 0, total)
    rows = []
    for answer, first, scores in zip(answers, firsts, score_windows(model.transformer, windows, advance), strict=True):
        learned = answer.learned[first:]
        rows.append((scores.loss[learned].sum(dtype=np.float64), learned.sum(), scores.hit[learned].sum()))
    return Read(*np.array(rows, np.float64).T)


def require_context(model: LoadedModel, longest: int) -> None:
    """Raise ConfigError for a model that cannot hold so many tokens."""
    context = model.transformer.config.context_length
    if longest > context:
        raise ConfigError(
            f"a record has {longest} tokens, the context of {model.title} holds {context}: compare with another model"
        )


def of_answers(models: Sequence[LoadedModel], records: Records, measure: Measure, reporter: Reporter) -> list[Compared]:
    """Loss of the answers' tokens alone."""
    answers = list(records.answers())
    before, after = (read_answers(model, answers, reporter) for model in models)
    return [*_losses(before, after, "loss", measure), _hits(before, after, measure)]


def of_pairs(
    models: Sequence[LoadedModel],
    reference: LoadedModel | None,
    beta: float,
    records: Records,
    measure: Measure,
    reporter: Reporter,
) -> list[Compared]:
    """How often the chosen answer wins, and where both have gone; without a reference from the first model."""
    answers = list(records.answers())
    before, after = (read_answers(model, answers, reporter) for model in models)
    base = before if reference is None else read_answers(reference, answers, reporter)
    first = None if reference is None else _paired(beta * (base.nats - before.nats))
    rows = _rewarded(first, _paired(beta * (base.nats - after.nats)), measure, "implicit reward")
    likelier = [mean_of(wins(*_paired(-side.nats).T)[:, None]) for side in (before, after)]
    rows.append(measure.compared("chosen likelier than rejected", "of pairs", *likelier, share=True))
    for place, name in enumerate(("chosen", "rejected")):
        sides = [mean_of(-side.nats[place::2, None]) for side in (before, after)]
        rows.append(measure.compared(f"log-probability of {name}", "nats per answer", *sides))
    chosen = [Read(side.nats[::2], side.tokens[::2], side.hits[::2]) for side in (before, after)]
    return [*rows, *_losses(chosen[0], chosen[1], "loss of chosen", measure)]


def of_scores(models: Sequence[LoadedModel], records: Records, measure: Measure, reporter: Reporter) -> list[Compared]:
    """The same of reward models, by their scores."""
    answers = [answer.tokens.tolist() for answer in records.answers()]
    sides = []
    for model in models:
        require_context(model, max(map(len, answers)))
        scores: list[float] = []
        for first in range(0, len(answers), SCORED_TOGETHER):
            reporter.progress(f"scoring with {model.title}", first, len(answers))
            scores += scores_of(model.transformer, answers[first : first + SCORED_TOGETHER])
        sides.append(_paired(np.array(scores)))
    return _rewarded(sides[0], sides[1], measure, "score")


def of_judged(
    models: Sequence[LoadedModel],
    reference: LoadedModel | None,
    beta: float,
    records: Records,
    measure: Measure,
    reporter: Reporter,
) -> list[Compared]:
    """Where answers went that were judged good, and those that were judged bad."""
    answers, good = list(records.answers()), np.array(records.desirable())
    before, after = (read_answers(model, answers, reporter) for model in models)
    base = before if reference is None else read_answers(reference, answers, reporter)
    rows = []
    for name, these in (("good", good), ("bad", ~good)):
        if these.any():
            rewards = [mean_of(beta * (base.nats - side.nats)[these, None]) for side in (before, after)]
            first = 0.0 if reference is None else rewards[0]
            rows.append(measure.compared(f"implicit reward of {name} answers", "", first, rewards[1]))
            sides = [mean_of(-side.nats[these, None]) for side in (before, after)]
            rows.append(measure.compared(f"log-probability of {name} answers", "nats per answer", *sides))
    return rows


def wins(a: Float64[Array, " pair"], b: Float64[Array, " pair"]) -> Float64[Array, " pair"]:
    """1 where the first is larger, 1/2 where both are the same; not a number where one is missing."""
    known: Array = np.where(np.isnan(a) | np.isnan(b), np.nan, (np.sign(a - b) + 1) / 2)
    return known


def _rewarded(
    before: Float64[Array, "pair 2"] | None, after: Float64[Array, "pair 2"], measure: Measure, what: str
) -> list[Compared]:
    """A reference has no margin over itself, and each of its pairs is tied."""
    right, margin = _right_and_margin(after)
    first = (0.5, 0.0) if before is None else _right_and_margin(before)
    return [
        measure.compared(f"accuracy of the {what}", "of pairs", first[0], right, share=True),
        measure.compared(f"margin of the {what}", "", first[1], margin),
    ]


def _right_and_margin(pairs: Float64[Array, "pair 2"]) -> tuple[Mean, Mean]:
    return mean_of(wins(*pairs.T)[:, None]), mean_of((pairs[:, 0] - pairs[:, 1])[:, None])


def _losses(before: Read, after: Read, name: str, measure: Measure) -> list[Compared]:
    sides = [Mean(side.nats, side.tokens) for side in (before, after)]
    loss = measure.compared(name, "nats per token", *sides, least=0.0)
    return [loss, changed(loss, name.replace("loss", "perplexity"), "", perplexity)]


def _hits(before: Read, after: Read, measure: Measure) -> Compared:
    sides = [Mean(side.hits, side.tokens) for side in (before, after)]
    return measure.compared("token accuracy", "of tokens", *sides, share=True)


def _paired(answers: Answers) -> Float64[Array, "pair 2"]:
    return answers.reshape(-1, 2)
