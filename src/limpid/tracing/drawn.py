"""What a batch of drawn answers holds beside them, derived a second time: advantages, from the rewards stored with it.

`limpid.training.tuning.advantages` is the engine's derivation. The two are written apart, so that a slip in either is
found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from limpid.config.tuning import RolloutConfig
from limpid.maths import alignment as maths
from limpid.maths.chain import Link
from limpid.maths.formula import Formula, FormulaOperation
from limpid.maths.operation import Array
from limpid.maths.rounding import bound
from limpid.objectives.tuned import TUNED
from limpid.tracing.comparison import Expected, Range, compare
from limpid.tracing.record import Record
from limpid.tracing.verdict import Check

Method = Literal["group", "group_mean", "leave_one_out", "global", "generalised", "returns"]
EPS = 1e-4
"""Added to the deviation of a group."""
WHITENING_EPS = 1e-8
"""Added to the variance of all tokens."""
FORMULAS: dict[Method, tuple[Formula[Any], dict[str, Any]]] = {
    "group": (maths.group_advantages, {"eps": EPS}),
    "group_mean": (maths.group_advantages, {"scale": "none"}),
    "leave_one_out": (maths.leave_one_out_advantages, {}),
    "global": (maths.global_advantages, {}),
    "generalised": (maths.generalised_advantages, {}),
    "returns": (maths.generalised_advantages, {}),
}


@dataclass(frozen=True)
class FromRewards(FormulaOperation):
    """What the rewards of a step's answers make of each of their tokens.

    Takes   rewards                                           (answer,)           groups of `count` in a row
            mask                                              (answer, position)  1 where a token is learned from
            old_log_probabilities, reference_log_probabilities  (answer, position)  nats; with a price alone
            old_values                                        (answer, position)  with a value function alone
    Gives   advantages, or returns                            (answer, position)  0 outside the answers
    """

    method: Method = "group"
    count: int = 1
    """Answers to a prompt."""
    price: float = 0.0
    """β of the price for leaving the reference, where it is in the rewards; per nat."""
    gamma: float = 1.0
    lam: float = 1.0

    def forward(self, *inputs: Array) -> tuple[Array, tuple[Array, ...]]:
        rewards, mask, prices, values = self._given(inputs)
        if self.method in ("group", "group_mean", "leave_one_out"):
            total = rewards - prices.sum(-1)
            groups = [self._of_group(total[first : first + self.count]) for first in range(0, len(total), self.count)]
            return np.concatenate(groups)[:, None] * mask, inputs
        of_tokens = self._looking_back(rewards, mask, prices, values)
        if self.method == "returns":
            return (of_tokens + values) * (mask > 0), inputs
        return _whitened(of_tokens, mask), inputs

    def backward(self, y_bar: Array, saved: tuple[Array, ...]) -> tuple[None, ...]:
        return (None,) * len(saved)

    def rounding(self, *inputs: Array) -> Array:
        """Of a group analysed, since answers that are alike stay so however they are rounded."""
        if self.method in ("global", "generalised", "returns"):
            return super().rounding(*inputs)
        rewards, mask, prices, _ = self._given(inputs)
        scale = self.price * sum((np.abs(scores) for scores in inputs[2:4]), np.zeros(mask.shape)) * mask
        off = np.abs(rewards) + (mask.shape[1] + 3) * scale.sum(-1)
        total = rewards - prices.sum(-1)
        parts = [slice(first, first + self.count) for first in range(0, len(total), self.count)]
        reach: Array = np.concatenate([self._reach(total[part], off[part]) for part in parts])
        return reach[:, None] * mask

    def _given(self, inputs: tuple[Array, ...]) -> tuple[Array, Array, Array, Array]:
        """Rewards, mask, the price of each token, and values, zeros where there are none."""
        rewards, mask, *rest = inputs
        prices = self.price * (rest[0] - rest[1]) * mask if self.price else np.zeros(mask.shape)
        return rewards, mask, prices, rest[-1] if self.method in ("generalised", "returns") else np.zeros(mask.shape)

    def _of_group(self, r: Float[Array, " answer"]) -> Float[Array, " answer"]:
        n = self.count
        if not r.max() > r.min():
            return np.zeros(n)
        if self.method == "leave_one_out":
            return r - (r.sum() - r) / (n - 1)
        from_mean = r - r.sum() / n
        if self.method == "group_mean":
            return from_mean
        return from_mean / (np.sqrt((from_mean * from_mean).sum() / (n - 1)) + EPS)

    def _reach(self, r: Float[Array, " answer"], off: Float[Array, " answer"]) -> Float[Array, " answer"]:
        """How far advantages of a group may be off, whose rewards are off by so much, in units of u."""
        n, found = self.count, np.abs(self._of_group(r))
        if not r.max() > r.min():
            return np.zeros(n)
        each = off + off.sum() / (n - 1) + np.abs(r).max()
        if self.method != "group":
            return each + found
        deviation = float(np.std(r, ddof=1)) + EPS
        return (each + found * np.sqrt((each * each).sum() / (n - 1))) / deviation + 2 * found

    def _looking_back(self, rewards: Array, mask: Array, prices: Array, values: Array) -> Float[Array, "answer token"]:
        """From the last token of each answer to its first: what is still to come beyond what was expected."""
        answers, found = len(mask), np.zeros(mask.shape)
        later, after, ahead = np.zeros(answers), np.zeros(answers), np.ones(answers, bool)
        for t in reversed(range(mask.shape[1])):
            here = mask[:, t] > 0
            earned = np.where(ahead, rewards, 0.0) - prices[:, t]
            now = earned + self.gamma * after - values[:, t] + self.gamma * self.lam * later
            later, after, ahead = np.where(here, now, later), np.where(here, values[:, t], after), ahead & ~here
            found[:, t] = np.where(here, now, 0.0)
        return found


def _whitened(x: Float[Array, "answer token"], mask: Float[Array, "answer token"]) -> Float[Array, "answer token"]:
    """Over all tokens of the answers; one alone has nothing to be compared with."""
    there = mask > 0
    count = int(there.sum())
    if count < 2:
        return x
    from_mean = x[there] - x[there].sum() / count
    found = np.zeros(mask.shape)
    found[there] = from_mean / np.sqrt((from_mean * from_mean).sum() / (count - 1) + WHITENING_EPS)
    return found


def drawn_links(record: Record) -> list[Link]:
    """How arrays of the batch follow from others of it, where answers were drawn."""
    tune = record.config.tune
    if tune is None or "batch/advantages" not in record.names:
        return []
    method = TUNED[tune.objective].policy
    scores = ("old_log_probabilities", "reference_log_probabilities")
    if method is None:  # what a teacher would rather have said
        return [Link("advantages", maths.log_ratios.operation(level="token"), (*scores[::-1], "mask"), None)]
    price = float(tune.options.get("beta", 0.0)) if method.kl_in_reward else 0.0
    reads = ["rewards", "mask", *(scores if price else ())]
    options: dict[str, Any] = {"price": price, "count": (tune.rollouts or RolloutConfig()).num_generations}
    names: list[tuple[str, Method]] = [("advantages", method.advantage)]
    if method.advantage == "generalised":
        options |= {"gamma": getattr(record.objective, "gamma", 1.0), "lam": getattr(record.objective, "lam", 1.0)}
        names.append(("returns", "returns"))
        reads.append("old_values")
    found = []
    for name, how in names:
        formula, said = FORMULAS[how]
        operation = FromRewards(formula, tuple(sorted(said.items())), how, **options)
        found.append(Link(name, operation, tuple(reads), None))
    return [link for link in found if {f"batch/{one}" for one in (link.name, *link.inputs)} <= record.names]


def check_drawn(record: Record) -> Iterator[Check]:
    """Every array of the batch that follows from others of it, against the mathematics."""
    for link in drawn_links(record):
        inputs = [record.exact(f"batch/{name}") for name in link.inputs]
        engine = record.stored(f"batch/{link.name}")
        value, _ = link.operation.forward(*inputs)
        reach = bound(value, link.operation.rounding(*inputs), stored=engine.dtype)
        yield compare(link.name, "given", engine, Expected(value, reach, Range(engine.dtype)))
