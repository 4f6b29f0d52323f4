"""Multiple-choice tasks: which answer does the model find likeliest?"""

from __future__ import annotations

import json
import math
import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from limpid.errors import DataError
from limpid.evaluation.blocks import FEWEST, MOST
from limpid.evaluation.intervals import Estimate, estimate
from limpid.evaluation.shares import wilson
from limpid.evaluation.token_scores import score_windows
from limpid.evaluation.windows import Window
from limpid.files import read_whole, user_path
from limpid.loaded import LoadedModel
from limpid.reporter import Reporter

Array = np.ndarray


@dataclass(frozen=True)
class Question:
    """A text, ways to continue it, and which of them is right."""

    query: str
    choices: tuple[str, ...]  # with the space that joins them to the query
    gold: int


class AnswerScore(NamedTuple):
    """What a model makes of one continuation."""

    nats: float  # -ln p of all its tokens
    greedy: bool  # whether every token was the likeliest
    tokens: int


@dataclass(frozen=True)
class TaskResult:
    """Share of questions answered right, when answers are ranked by their loss in one of three units."""

    name: str
    questions: int
    accuracy: dict[str, Estimate]  # sum, per token, per byte
    right: dict[str, Float[Array, " question"]]
    chance: float  # of guessing

    def as_dict(self) -> dict[str, object]:
        """As plain values, for JSON."""
        accuracy = {unit: share.as_dict() for unit, share in self.accuracy.items()}
        return {"task": self.name, "questions": self.questions, "guessing": self.chance, "accuracy": accuracy}


UNITS = ("sum", "per token", "per byte")


def read_task(file: str) -> list[Question]:
    """The questions of a JSONL file, in any of the formats that people use.

    Raises  DataError naming the line that is none
    """
    try:
        lines = read_whole(user_path(file)).decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise DataError(f"cannot read task {file} ({reason}): give a JSONL file, one question per line") from error
    questions = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                questions.append(question(json.loads(line)))
            except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
                raise DataError(f"{file}:{number} is no question: {_reason(error)}; {KNOWN}") from error
    if not questions:
        raise DataError(f"{file} holds no question: give a JSONL file, one question per line")
    return questions


def question(record: dict[str, Any]) -> Question:
    """One line as a question: its fields tell which format it is.

    Raises  ValueError, KeyError, TypeError for what is none
    """
    if not isinstance(record, dict):
        raise ValueError(f"{record!r:.40} is not an object")
    for fields, read in FORMATS:
        if set(fields) <= set(record):
            query, choices, gold = read(record)
            if not isinstance(query, str) or not all(isinstance(c, str) and c for c in choices) or len(choices) < 2:
                raise ValueError("expected a text and two or more choices of text")
            if isinstance(gold, float) and not gold.is_integer():
                raise ValueError(f"the right answer is {gold}, which lies between two")
            gold = int(gold)
            if not 0 <= gold < len(choices):
                raise ValueError(f"the right answer is number {gold} of {len(choices)}, counted from 0")
            return Question(query, tuple(_joined(query, choice) for choice in choices), gold)
    raise ValueError(f"its fields are {', '.join(record) or 'none'}")


Parts = tuple[str, Sequence[str], int | float | str]


def _query(record: dict[str, Any]) -> Parts:
    gold = record["gold"]
    return record["query"], record["choices"], gold[0] if isinstance(gold, list) else gold


def _labelled(record: dict[str, Any]) -> Parts:
    """ARC, OpenBookQA, CommonsenseQA: choices = {text, label}, answerKey is a label."""
    labels, key = record["choices"]["label"], record["answerKey"]
    question = record.get("question", record.get("question_stem"))
    return _as_question(str(question)), record["choices"]["text"], labels.index(key)


def _lettered(record: dict[str, Any]) -> Parts:
    """MMLU: choices is a list, answer its place or letter."""
    answer, choices = record["answer"], record["choices"]
    if isinstance(answer, str) and not answer.isdigit():
        answer = list(choices).index(answer) if answer in choices else string.ascii_uppercase.index(answer.upper())
    return _as_question(record["question"]), choices, answer


def _endings(record: dict[str, Any]) -> Parts:
    """HellaSwag, cleaned as lm-evaluation-harness does."""
    text = record["ctx"]
    if "ctx_a" in record and "ctx_b" in record:
        text = f"{record['ctx_a']} {record['ctx_b'].capitalize()}"
        text = f"{record['activity_label']}: {text}" if "activity_label" in record else text
        return _cleaned(text), [_cleaned(ending) for ending in record["endings"]], record["label"]
    return text, record["endings"], record["label"]


def _solutions(record: dict[str, Any]) -> Parts:
    """PIQA."""
    return f"Question: {record['goal']}\nAnswer:", [record["sol1"], record["sol2"]], record["label"]


FORMATS: tuple[tuple[tuple[str, ...], Callable[[dict[str, Any]], Parts]], ...] = (
    (("query", "choices", "gold"), _query),
    (("question", "choices", "answerKey"), _labelled),
    (("question_stem", "choices", "answerKey"), _labelled),
    (("question", "choices", "answer"), _lettered),
    (("ctx", "endings", "label"), _endings),
    (("goal", "sol1", "sol2", "label"), _solutions),
)
KNOWN = "expected the fields " + ", or ".join(" ".join(fields) for fields, _ in FORMATS)


def _as_question(text: str) -> str:
    return f"Question: {text}\nAnswer:"


def _cleaned(text: str) -> str:
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def _joined(query: str, choice: str) -> str:
    """A choice with one space before it, unless either side has white space there."""
    return choice if not query or query[-1].isspace() or choice[0].isspace() else f" {choice}"


def _reason(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())


def pair_tokens(model: LoadedModel, before: str, after: str) -> tuple[list[int], list[int]]:
    """Tokens of a text and of its continuation, cut where the text's own tokens would end; spaces go to what follows.

    The cut of lm-evaluation-harness, so that numbers agree. An empty text becomes the start token.
    """
    spaces = len(before) - len(before.rstrip())
    before, after = before[: len(before) - spaces], before[len(before) - spaces :] + after
    encode = model.tokenizer.encode
    if not before:
        if model.start is None:
            raise DataError(f"a question is empty, and {model.name} has no token to start a text with: add a query")
        return [model.start], encode(after)
    first, whole = encode(before), encode(before + after)
    return first, whole[len(first) :]


def score_answers(
    model: LoadedModel, pairs: Sequence[tuple[list[int], list[int]]], reporter: Reporter, what: str
) -> list[AnswerScore]:
    """What the model makes of each continuation; of a text that is too long, its end is read."""
    context, rows = model.transformer.config.context_length, []
    for before, after in pairs:
        if not after:
            raise DataError("a continuation has no tokens: each choice needs at least one of its own")
        if len(after) > context:
            raise DataError(f"a continuation has {len(after)} tokens, the model's context holds {context}: shorten it")
        rows.append(Window(np.array([*before, *after][-(context + 1) :], np.int64), len(after)))
    done, total = 0, sum(row.scored for row in rows)

    def advance(count: int) -> None:
        nonlocal done
        done += count
        reporter.progress(what, done, total)

    return [
        AnswerScore(float(scores.loss.sum(dtype=np.float64)), bool(scores.hit.all()), len(scores.hit))
        for scores in score_windows(model.transformer, rows, advance)
    ]


def run_task(
    model: LoadedModel, name: str, questions: Sequence[Question], confidence: float, reporter: Reporter
) -> TaskResult:
    """Answer every question in three ways: by the sum of losses, by their mean per token, per byte."""
    pairs = [pair_tokens(model, q.query, choice) for q in questions for choice in q.choices]
    scores = iter(score_answers(model, pairs, reporter, f"{name} with {model.name}"))
    right: dict[str, list[bool]] = {unit: [] for unit in UNITS}
    for q in questions:
        own = [next(scores) for _ in q.choices]
        sizes = {
            "sum": [1] * len(own),
            "per token": [s.tokens for s in own],
            "per byte": [len(choice.strip().encode()) or 1 for choice in q.choices],
        }
        for unit, by in sizes.items():
            right[unit].append(int(np.argmin([s.nats / size for s, size in zip(own, by, strict=True)])) == q.gold)
    chance = float(np.mean([1 / len(q.choices) for q in questions]))
    arrays = {unit: np.array(answers, np.float64) for unit, answers in right.items()}
    accuracy = {unit: wilson(float(answers.mean()), len(answers), confidence) for unit, answers in arrays.items()}
    return TaskResult(name, len(questions), accuracy, arrays, chance)


def better_at(first: TaskResult, second: TaskResult, unit: str, confidence: float, seed: int) -> Estimate:
    """Difference of two models' shares on the same questions, its interval, and its exact p-value.

    Only questions that one of them alone gets right tell (McNemar 1947, doi:10.1007/BF02295996).
    """
    from scipy.stats import binomtest

    a, b = first.right[unit], second.right[unit]
    differing = int((a != b).sum())
    p = float(binomtest(int((a > b).sum()), differing).pvalue) if differing else 1.0
    borders = np.unique(np.arange(min(len(a), MOST)) * len(a) // min(len(a), MOST))
    pairs = np.add.reduceat(np.stack([a - b, np.ones(len(a))], 1), borders)
    if len(pairs) < FEWEST:
        return Estimate(float((a - b).mean()), -1.0, 1.0, math.nan, p)
    return replace(estimate(pairs, confidence=confidence, seed=seed).within(-1.0, 1.0), p=p)
