"""How often the intervals of `limpid evaluate` on a tuned run hold the truth, where the truth is counted.

Eight prompts of one token, 4,096 answers to each; before and after are two models whose every answer's probability is
known. Records draw a prompt each, and both models answer it a few times.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from benchmarks.alignment.world import ANSWERS, LENGTH, VOCAB, answer_log_probabilities, config
from jaxtyping import Float, Int

from limpid.evaluation.compared import Mean, Measure, mean_of
from limpid.evaluation.intervals import Estimate
from limpid.evaluation.records.divergence import divergences
from limpid.evaluation.records.drawn import win_rates
from limpid.model import Transformer
from limpid.training.state import fresh_state

REPEATS = 500
SIZES = ((15, 8), (40, 4), (150, 1))
"""Records, and answers of each model to each."""

Array = np.ndarray


@dataclass(frozen=True)
class Told:
    """All there is to know of one model."""

    model: Transformer

    @cached_property
    def log_probabilities(self) -> Float[Array, "prompt answer"]:
        with torch.no_grad():
            each = [answer_log_probabilities(self.model, prompt).double().sum(1) for prompt in range(VOCAB)]
        return torch.stack(each).numpy()

    @cached_property
    def probabilities(self) -> Float[Array, "prompt answer"]:
        p = np.exp(self.log_probabilities)
        return p / p.sum(1, keepdims=True)

    def draws(self, prompts: Int[Array, " record"], count: int, rng: np.random.Generator) -> Int[Array, "record draw"]:
        """Answers to each of these prompts."""
        edges = self.probabilities.cumsum(1)[prompts]
        drawn = (rng.random((len(prompts), count, 1)) > edges[:, None, :-1]).sum(-1)
        return np.asarray(drawn)


def rewards() -> Float[Array, "prompt answer"]:
    """The share of the steps that go up, of four with the one from the prompt."""
    rows = np.stack([np.column_stack([np.full(len(ANSWERS), prompt), ANSWERS]) for prompt in range(VOCAB)])
    return np.asarray((np.diff(rows, axis=-1) > 0).mean(-1))


def models() -> tuple[Told, Told]:
    """Before, and after some of its weights have moved."""
    before = fresh_state(config(1, 0.0)).model.eval()
    after = fresh_state(config(1, 0.0)).model.eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in after.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return Told(before), Told(after)


def won(p: Array, q: Array, r: Array) -> float:
    """How often an answer of p has the larger reward than one of q, ties as half; the mean over prompts."""
    values = np.unique(r)
    shares = []
    for prompt in range(VOCAB):
        ours, theirs = (np.array([side[prompt][r[prompt] == v].sum() for v in values]) for side in (p, q))
        shares.append(ours @ (np.cumsum(theirs) - theirs / 2))
    return float(np.mean(shares))


def main(words: list[str]) -> None:
    """A table: of each quantity how often its interval held the truth."""
    torch.set_num_threads(1)
    repeats = int(words[0]) if words else REPEATS
    (before, after), r = models(), rewards()
    passed = (r >= 0.75).astype(float)
    everything = [tuple(answer) for answer in ANSWERS.tolist()]
    apart = np.stack([
        divergences(after.model, before.model, [(prompt,)] * len(everything), everything, 1.0, lambda done: None)
        for prompt in range(VOCAB)
    ])  # fmt: skip
    p, q = after.probabilities, before.probabilities
    kl = float((p * (after.log_probabilities - before.log_probabilities)).sum(1).mean())

    def expected(values: Array, side: Array) -> float:
        return float((side * values).sum(1).mean())

    truths = {
        "reward before": expected(r, q), "reward after": expected(r, p),
        "reward difference": expected(r, p) - expected(r, q),
        "pass rate after": expected(passed, p), "pass rate difference": expected(passed, p) - expected(passed, q),
        "wins": won(p, q, r), "KL per answer": kl, "KL per token": kl / LENGTH,
    }  # fmt: skip
    print(f"truth: {', '.join(f'{name} {value:.4f}' for name, value in truths.items())}")
    print(f"share of {repeats} intervals of 95% that hold it")
    print(f"{'records × answers':24}", *(f"{name:>20}" for name in truths))
    for records, count in SIZES:
        held = dict.fromkeys(truths, 0)
        for repeat in range(repeats):
            rng = np.random.default_rng((repeat, records))
            prompts = rng.integers(0, VOCAB, records)
            first, second = before.draws(prompts, count, rng), after.draws(prompts, count, rng)
            row = prompts[:, None]
            measure = Measure(0.95, repeat)
            reward = measure.compared("", "", mean_of(r[row, first]), mean_of(r[row, second]))
            rate = measure.compared("", "", mean_of(passed[row, first]), mean_of(passed[row, second]), share=True)
            far = apart[row, second]
            found: dict[str, Estimate | None] = {
                "reward before": reward.before and reward.before.estimate,
                "reward after": reward.after.estimate,
                "reward difference": reward.difference and reward.difference.estimate,
                "pass rate after": rate.after.estimate,
                "pass rate difference": rate.difference and rate.difference.estimate,
                "wins": measure.of("", "", mean_of(win_rates(r[row, second], r[row, first])[0]), share=True).estimate,
                "KL per answer": measure.of("", "", mean_of(far), least=0.0).estimate,
                "KL per token": measure.of("", "", Mean(far.sum(1), np.full(records, LENGTH * count * 1.0))).estimate,
            }
            for name, truth in truths.items():
                estimate = found[name]
                assert estimate is not None
                held[name] += estimate.low <= truth <= estimate.high
        print(f"{f'{records} × {count}':24}", *(f"{times / repeats:20.1%}" for times in held.values()), flush=True)
