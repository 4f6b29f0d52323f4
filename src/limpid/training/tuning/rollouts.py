"""Batches of the model's own answers: drawn by the state before their step, rewarded, and stored with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64

from limpid.config import Sampling, TrainConfig
from limpid.config.tuning import RolloutConfig
from limpid.data.batches import MicroBatch
from limpid.data.tokenizer import Tokenizer
from limpid.data.tuning.example_split import ExampleSplit
from limpid.data.tuning.examples import Examples
from limpid.data.tuning.rows import spread
from limpid.model import Transformer
from limpid.objectives.named import Named
from limpid.objectives.policy import OLD, Policy
from limpid.objectives.ppo import PPO
from limpid.quantities import NO_LABEL
from limpid.training.state import State
from limpid.training.tuning.advantages import Drawn, advantages
from limpid.training.tuning.examples import order_of, pad_of
from limpid.training.tuning.measured import Answer, explained_variance, measured
from limpid.training.tuning.reference import Reference, predicted_by_policy
from limpid.training.tuning.rewards import Rewards, find_rewards

Array = np.ndarray


Answerer = Callable[[Transformer, Tokenizer, Sequence[tuple[int, ...]], Sampling], Sequence[Answer]]
"""Answers to prompts, in their order; drawn as the sampling's seed has it."""


class Rollouts:
    """Several answers to each prompt, their rewards, and what follows from them: a batch per draw."""

    def __init__(
        self,
        examples: Examples,
        config: TrainConfig,
        settings: RolloutConfig,
        objective: Policy,
        method: Named | None,
        price: float,
        answerer: Answerer,
        reference: Reference | None,
    ) -> None:
        """`method` says what advantages are, none imitates the reference; `price` is β where rewards have it."""
        self.examples, self.run, self.settings, self.objective = examples, config.run, settings, objective
        self.method, self.price = method, price
        self.answerer, self.reference = answerer, reference
        self.order, self.pad = order_of(examples, config), pad_of(examples)

    @cached_property
    def rewards(self) -> Rewards:
        """The user's own: a step that is stored is opened without them."""
        return find_rewards(self.settings.reward, self.settings.reward_weights)

    def batch(self, step: int, state: State) -> tuple[MicroBatch, ...]:
        """Answers drawn before step `step`, from 1, in micro-batches of whole groups.

        The steps of one draw have the same prompts: `step` is the first of them.
        """
        records, parts = self.order.step(self._draw(step)).ravel(), self.run.gradient_accumulation_steps
        count = self.settings.num_generations
        return self._drawn(self.examples.train, records, count, parts, step, state, learned_from=True)

    def held_out(self, state: State) -> Sequence[MicroBatch]:
        """One answer to each of the prompts to validate on, always the same ones, drawn alike at every step."""
        split, size = self.examples.validation, self.run.batch_size
        records = spread(split.records, size * self.run.eval_batches)
        parts = max(1, -(-len(records) // size))
        return self._drawn(split, records, 1, parts, 0, state, learned_from=False) if len(records) else ()

    def epoch(self, step: int) -> float:
        return self.order.epoch(self._draw(step))

    def _draw(self, step: int) -> int:
        """How often answers were drawn when step `step` is taken."""
        return 1 + (step - 1) // self.settings.num_iterations

    def _drawn(
        self,
        split: ExampleSplit,
        records: Array,
        count: int,
        parts: int,
        step: int,
        state: State,
        *,
        learned_from: bool,
    ) -> tuple[MicroBatch, ...]:
        """So many answers to each of these prompts, in so many micro-batches."""
        each = [int(record) for record in records for _ in range(count)]
        prompts = [split.prompt(record) for record in each]
        answers = self._answered(prompts, state, step)
        columns = columns_of([split.columns[record] for record in each])
        asked = columns.pop("prompt", [self.examples.tokenizer.decode(prompt) for prompt in prompts])
        ids = prompts, [(*answer.tokens, *_end(answer)) for answer in answers]
        texts = [answer.text for answer in answers]
        said = state.mesh.decided(lambda: self.rewards(asked, texts, ids, columns))  # the user's function is asked once
        total = self.rewards.total(said) if len(said) else np.zeros(len(answers))
        arrays = padded(prompts, answers, self.pad)
        learned = np.isfinite(total) & self._counted(answers)
        arrays["mask"] = arrays["mask"] * learned[:, None].astype(np.float32)
        places = np.array_split(np.arange(len(each)), parts)
        arrays |= self._scored([MicroBatch(one) for one in cut(arrays, places)], state)
        rewards = without_gaps(total.reshape(-1, count)).astype(np.float32).astype(np.float64)  # as they are stored
        if learned_from:
            reference, values = arrays.get("reference_log_probabilities"), arrays.get("old_values")
            drawn = Drawn(rewards, arrays["mask"], arrays.get(OLD), reference, values)
            found = advantages(drawn, self.method, self.price, self.objective)
            arrays |= {name: array.astype(np.float32) for name, array in found.items()}
        arrays["rewards"] = rewards.reshape(-1).astype(np.float32)
        starts = np.array([int(split.starts[record]) for record in each])
        of_step = explained_variance(arrays) if learned_from else {}
        return tuple(
            MicroBatch(
                one,
                tuple(starts[part].tolist()),
                measured(self.rewards.functions, said[:, part], total[part], count, [answers[i] for i in part], one)
                | of_step,
            )
            for part, one in zip(places, cut(arrays, places), strict=True)
        )

    def _scored(self, micros: Sequence[MicroBatch], state: State) -> dict[str, Array]:
        """What the policy that drew the answers gives to their tokens, and the reference, where there is one; nats.

        Nothing of a draw that serves one step: the policy that drew it is the one of the step, but for dropout.
        """
        asked = self.reference is not None or isinstance(self.objective, PPO) or state.model.config.drops
        if self.settings.num_iterations == 1 and not asked:
            return {}
        heat = self.objective.temperature
        old = [predicted_by_policy(state, micro, heat) for micro in micros]
        found = {f"old_{name}": np.concatenate([one[name] for one in old]) for name in old[0]}
        if self.reference is not None:
            before = [self.reference.token_log_probabilities(micro, state, heat) for micro in micros]
            found["reference_log_probabilities"] = np.concatenate(before)
        return found

    def _answered(self, prompts: Sequence[tuple[int, ...]], state: State, step: int) -> Sequence[Answer]:
        seed = int(np.random.SeedSequence((self.run.seed, step)).generate_state(1, np.uint32)[0] >> 1)
        most, temperature = self.objective.max_completion_length, self.objective.temperature
        sampling = Sampling(max_new_tokens=most, temperature=temperature, seed=seed)
        was = state.model.training
        answers = state.by_one(lambda model: self.answerer(model, self.examples.tokenizer, prompts, sampling))
        state.model.train(was)
        return answers

    def _counted(self, answers: Sequence[Answer]) -> Array:
        """Which answers are learned from: those that were broken off may be left out."""
        kept = not self.settings.mask_truncated_completions
        return np.array([kept or answer.end is not None for answer in answers])


def without_gaps(rewards: Float64[Array, "prompt answer"]) -> Float64[Array, "prompt answer"]:
    """Answers without a reward at the mean of their group, so that they move nothing; a group of them at 0."""
    known = np.isfinite(rewards)
    means = np.where(known, rewards, 0.0).sum(1, keepdims=True) / np.maximum(1, known.sum(1, keepdims=True))
    filled: Array = np.where(known, rewards, means)
    return filled


def cut(arrays: Mapping[str, Array], places: Sequence[Array]) -> list[dict[str, Array]]:
    """The rows at each of some places."""
    return [{name: array[part] for name, array in arrays.items()} for part in places]


def columns_of(records: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Fields of records, each as a list; None where a record lacks one."""
    names = dict.fromkeys(name for record in records for name in record)
    return {name: [record.get(name) for record in records] for name in names}


def padded(prompts: Sequence[tuple[int, ...]], answers: Sequence[Answer], pad: int) -> dict[str, Array]:
    """Prompts with their answers as rows of one length: tokens, targets, and a mask of the answers' targets."""
    whole = [(*prompt, *answer.tokens, *_end(answer)) for prompt, answer in zip(prompts, answers, strict=True)]
    length = max(map(len, whole)) - 1
    tokens = np.full((len(whole), length), pad, np.int64)
    targets = np.full((len(whole), length), NO_LABEL, np.int64)
    mask: Float32[Array, "answer position"] = np.zeros((len(whole), length), np.float32)
    for row, (prompt, ids) in enumerate(zip(prompts, whole, strict=True)):
        tokens[row, : len(ids) - 1] = ids[:-1]
        targets[row, len(prompt) - 1 : len(ids) - 1] = ids[len(prompt) :]
        mask[row, len(prompt) - 1 : len(ids) - 1] = 1
    return {"tokens": tokens, "targets": targets, "mask": mask}


def _end(answer: Answer) -> tuple[int, ...]:
    return () if answer.end is None else (answer.end,)
