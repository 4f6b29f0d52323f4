"""The models' own answers to the prompts of records: drawn, rewarded, and held against each other prompt by prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float64

from limpid.config import Sampling
from limpid.data.tuning.bad_row import BadRow
from limpid.data.tuning.shapes import exchanges_of
from limpid.errors import DataError
from limpid.evaluation.compared import Compared, Mean, Measure, mean_of
from limpid.evaluation.records.chosen import Records
from limpid.evaluation.records.divergence import divergences
from limpid.generation import complete
from limpid.loaded import LoadedModel
from limpid.reporter import Reporter
from limpid.training.tuning.rewards import Rewards
from limpid.training.tuning.rollouts import columns_of

Array = np.ndarray
Values = Float64[Array, "prompt answer"]
REWARDED_TOGETHER = 256
"""Answers that a reward is asked about at once."""


@dataclass(frozen=True)
class Asking:
    """How answers are drawn."""

    num_generations: int
    max_completion_length: int
    temperature: float
    seed: int

    def sampling(self, side: int) -> Sampling:
        """Of one of the two models, whose draws have nothing to do with the other's."""
        seed = np.random.SeedSequence((self.seed, side)).generate_state(1, np.uint32)[0] >> 1
        return Sampling(max_new_tokens=self.max_completion_length, temperature=self.temperature, seed=int(seed))


@dataclass(frozen=True)
class Drawn:
    """A model's answers to every prompt, and what they are worth."""

    ids: Sequence[tuple[int, ...]]  # prompt after prompt, with the token that ended each
    lengths: Values
    truncated: Values
    said: Mapping[str, Values] = field(default_factory=dict)  # of each reward
    total: Values | None = None


def of_prompts(
    models: Sequence[LoadedModel],
    reference: LoadedModel | None,
    teacher: LoadedModel | None,
    rewards: Rewards,
    records: Records,
    asking: Asking,
    measure: Measure,
    reporter: Reporter,
) -> Iterator[Compared]:
    """Rewards, who wins, how far each is from the reference (the first model, if none is named), and lengths."""
    sides = [drawn(model, side, rewards, records, asking, reporter) for side, model in enumerate(models)]
    before, after = sides
    if before.total is not None and after.total is not None:
        yield from _rewarded(before, after, measure)
        missing = [np.isnan(side).astype(np.float64) for side in (before.total, after.total)]
        if any(side.any() for side in missing):
            yield measure.compared("without a reward", "of answers", *map(mean_of, missing), share=True)
        yield from _won(before.total, after.total, "wins", measure)
        if (given := given_answers(records, rewards)) is not None:
            yield from _against_given(before.total, after.total, given, measure)
    far = _Distance(models, records, asking, reporter)
    if teacher is not None:
        yield from far.rows("teacher", sides, teacher, measure, of_both=True)
    named = reference is not None
    yield from far.rows("reference", sides, models[0] if reference is None else reference, measure, of_both=named)
    lengths = [mean_of(side.lengths) for side in sides]
    yield measure.compared("length", "tokens per answer", *lengths, least=0.0)
    ended = [mean_of(side.truncated) for side in sides]
    yield measure.compared("truncated", "of answers", *ended, share=True)


def drawn(
    model: LoadedModel, side: int, rewards: Rewards, records: Records, asking: Asking, reporter: Reporter
) -> Drawn:
    """So many answers to each prompt.

    Raises  DataError for a reward that fails
    """
    count, what = asking.num_generations, f"answering with {model.title}"
    each = [prompt for prompt in records.prompts() for _ in range(count)]
    answers = []
    reporter.progress(what, 0, len(each))
    for answer in complete(model.transformer, model.tokenizer, each, asking.sampling(side)):
        answers.append(answer)
        reporter.progress(what, len(answers), len(each))
    ids = [(*answer.tokens, *(() if answer.end is None else (answer.end,))) for answer in answers]
    shape = len(records), count
    found = Drawn(
        ids,
        np.array([len(answer.tokens) for answer in answers], np.float64).reshape(shape),
        np.array([answer.end is None for answer in answers], np.float64).reshape(shape),
    )
    if not rewards.functions:
        return found
    asked = np.repeat(np.arange(len(records)), count)
    said = rewarded(rewards, records, asked, [answer.text for answer in answers], ids, reporter)
    values = {name: one.reshape(shape) for name, one in zip(rewards.functions, said, strict=True)}
    return Drawn(ids, found.lengths, found.truncated, values, rewards.total(said).reshape(shape))


def rewarded(
    rewards: Rewards,
    records: Records,
    asked: Sequence[int] | Array,
    texts: Sequence[str],
    ids: Sequence[tuple[int, ...]],
    reporter: Reporter,
) -> Float64[Array, "reward answer"]:
    """What every reward says of answers to the prompts of these records."""
    prompts, fields = records.prompts(), records.columns()
    parts = []
    for first in range(0, len(texts), REWARDED_TOGETHER):
        some = slice(first, first + REWARDED_TOGETHER)
        numbers = [int(number) for number in asked[some]]
        columns = columns_of([fields[number] for number in numbers])
        words = columns.pop("prompt", [records.tokenizer.decode(prompts[number]) for number in numbers])
        parts.append(rewards(words, texts[some], ([prompts[number] for number in numbers], ids[some]), columns))
        reporter.progress("rewarding", first + len(numbers), len(texts))
    return np.concatenate(parts, 1)


def given_answers(records: Records, rewards: Rewards) -> Values | None:
    """What the answers are worth that records hold, one of each that has one; None where no record does."""
    texts = [_given(one) for one in records.columns()]
    have = [number for number, text in enumerate(texts) if text is not None]
    if not have:
        return None
    answers, tokenizer = [text for text in texts if text is not None], records.tokenizer
    end = () if tokenizer.end is None else (tokenizer.end,)
    ids = [(*tokenizer.encode(text), *end) for text in answers]
    total = np.full((len(texts), 1), np.nan)
    total[have, 0] = rewards.total(rewarded(rewards, records, have, answers, ids, Reporter(as_json=True)))
    return total


def _given(columns: Mapping[str, Any]) -> str | None:
    """The answer of a record that holds one: the chosen one of a pair."""
    for kind in ("pairs", "answers"):
        try:
            (answer, *_) = exchanges_of(columns, kind, "text", "the record")[0].answers
        except (BadRow, DataError):
            continue
        return answer if isinstance(answer, str) else str(answer[-1].get("content") or "")
    return None


def _rewarded(before: Drawn, after: Drawn, measure: Measure) -> Iterator[Compared]:
    for name in after.said if len(after.said) > 1 else ():
        yield from _reward(f"reward {name}", before.said[name], after.said[name], measure)
    assert before.total is not None
    assert after.total is not None
    yield from _reward("reward", before.total, after.total, measure)


def _reward(name: str, before: Values, after: Values, measure: Measure) -> Iterator[Compared]:
    """The mean; a pass rate where every reward is 0 or 1."""
    sides = [mean_of(before), mean_of(after)]
    if not all(side.known for side in sides):
        return
    every = np.concatenate([before.ravel(), after.ravel()])
    passed = bool(np.isin(every[np.isfinite(every)], (0.0, 1.0)).all())
    unit = "of answers" if passed else ""
    yield measure.compared(name, unit, *sides, share=passed)


def win_rates(a: Values, b: Values) -> tuple[Values, Values]:
    """Of each prompt: how often an answer of the first has the larger reward than one of the second, over all pairs of
    them, ties as half; and how many pairs are tied. Not a number where no pair has a reward.
    """
    apart = np.sign(a[:, :, None] - b[:, None, :]).reshape(len(a), -1)
    known = np.isfinite(apart)
    pairs = np.where(known.any(1), known.sum(1), np.nan)
    won = np.where(known, (apart + 1) / 2, 0.0).sum(1) / pairs
    return won[:, None], ((apart == 0).sum(1) / pairs)[:, None]


def _won(before: Values, after: Values, name: str, measure: Measure) -> Iterator[Compared]:
    """The two shares add up to 1."""
    won, tied = win_rates(after, before)
    if np.isfinite(won).any():
        unit = f"of pairs, {np.nanmean(tied):.0%} tied"
        yield measure.compared(name, unit, mean_of(1 - won), mean_of(won), share=True)


def _against_given(before: Values, after: Values, given: Values, measure: Measure) -> Iterator[Compared]:
    won = [win_rates(side, given)[0] for side in (before, after)]
    tied = float(np.nanmean(win_rates(after, given)[1])) if np.isfinite(won[1]).any() else np.nan
    if np.isfinite(tied):
        unit = f"of pairs, {tied:.0%} tied after"
        yield measure.compared("wins against given answers", unit, *map(mean_of, won), share=True)


@dataclass(frozen=True)
class _Distance:
    """How far models are from others on their own answers."""

    models: Sequence[LoadedModel]
    records: Records
    asking: Asking
    reporter: Reporter

    def rows(
        self, name: str, sides: Sequence[Drawn], other: LoadedModel, measure: Measure, *, of_both: bool
    ) -> Iterator[Compared]:
        """Nats per answer and per token; of the second model alone, unless the first is another one than this."""
        wanted = (0, 1) if of_both else (1,)
        apart = [self._apart(side, sides[side], other) for side in wanted]
        counts = [np.array([len(ids) for ids in sides[side].ids], np.float64).reshape(apart[0].shape)
                  for side in wanted]  # fmt: skip
        per_answer = [mean_of(one) for one in apart]
        per_token = [Mean(one.sum(1), count.sum(1)) for one, count in zip(apart, counts, strict=True)]
        for row, unit, means in (
            (f"KL to the {name}", "nats per answer", per_answer), (f"KL to the {name}, per token", "nats", per_token),
        ):  # fmt: skip
            yield measure.compared(row, unit, means[0] if of_both else None, means[-1], least=0.0)

    def _apart(self, side: int, answers: Drawn, other: LoadedModel) -> Values:
        count = self.asking.num_generations
        prompts = [prompt for prompt in self.records.prompts() for _ in range(count)]

        def advance(done: int) -> None:
            self.reporter.progress(f"reading with {other.title}", done, len(prompts))

        found = divergences(
            self.models[side].transformer, other.transformer, prompts, answers.ids, self.asking.temperature, advance
        )
        return found.reshape(-1, count)
