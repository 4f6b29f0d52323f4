"""Runs of limpid: `limpid tune` with a mistake in its data, its options, or a function that is replaced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from benchmarks.doctor.tuning.case import Bench, fault, honest
from benchmarks.doctor.tuning.models import sums

from limpid.model.linear import LowRankLinear
from limpid.objectives.preference import DPO
from limpid.training.tuning import reference, rollouts
from limpid.training.tuning.reference import Reference

FAST = {"learning_rate": 2e-3, "warmup_steps": 0, "schedule": "constant"}
REWARDS = """
def right(completions, answer):
    return [float(c.strip() == a) for c, a in zip(completions, answer)]

def near(completions, answer):
    return [-min(100, abs(int(c) - int(a))) / 100 if c.isdigit() else -1.0 for c, a in zip(completions, answer)]

def digits(completions):
    return [sum(c.isdigit() for c in one) / max(1, len(one)) for one in completions]

def length(completions):
    return [float(len(one)) for one in completions]

def thousands(completions):
    return [1000.0 * sum(c in "02468" for c in one) for one in completions]

def noise(completions):
    return [float(hash((one, len(one))) % 997) / 997 for one in completions]

def never(completions):
    return [0.0 for _ in completions]
"""


def prompts(count: int = 200) -> list[Mapping[str, Any]]:
    return [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a, b in sums(count)]


def pairs(count: int = 300, off: int = 1) -> list[Mapping[str, Any]]:
    return [{"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": str(a + b + off)} for a, b in sums(count)]


def answers(count: int = 300) -> list[Mapping[str, Any]]:
    return [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a, b in sums(count)]


def policy(
    bench: Bench,
    rewards: tuple[str, ...],
    steps: int = 40,
    rate: float = 2e-4,
    patches: Mapping[str, Any] | None = None,
    length: int = 6,
    drawing: Mapping[str, Any] | None = None,
    **options: Any,
) -> None:
    """GRPO on sums with some of the rewards above."""
    file = bench.rewards(REWARDS)
    drawn = {"reward": [f"{file}:{name}" for name in rewards], "num_generations": 4, **(drawing or {})}
    tune = {"rollouts": drawn, "options": {"max_completion_length": length, "temperature": 1.5, **options}}
    sections = {"tune": tune, "update": {**FAST, "learning_rate": rate}, "run": {"max_steps": steps, "batch_size": 4}}
    bench.tune("grpo", prompts(), sections, patches)


class Moved(Reference):
    """Says a nat more of every token."""

    def token_log_probabilities(self, micro: Any, state: Any, temperature: float = 1.0) -> Any:
        said = super().token_log_probabilities(micro, state, temperature)
        return said + np.float32(1.0) * (said != 0)


class Along(Reference):
    """Is the policy of the moment."""

    def token_log_probabilities(self, micro: Any, state: Any, temperature: float = 1.0) -> Any:
        return reference.token_log_probabilities(state.model, micro, temperature)


@fault("another-reference", wanted=("reference",))
def _(bench: Bench, wrong: bool) -> None:
    """DPO against log-probabilities of another model."""
    patches = {"limpid.training.tuning.setting:Reference": Moved} if wrong else {}
    bench.tune("dpo", pairs(), {"update": FAST, "run": {"max_steps": 20}}, patches)


@fault("reference-goes-along", wanted=("reference",))
def _(bench: Bench, wrong: bool) -> None:
    """DPO whose reference is scored with the weights of the policy."""
    patches = {"limpid.training.tuning.setting:Reference": Along} if wrong else {}
    bench.tune("dpo", pairs(), {"update": FAST, "run": {"max_steps": 20}}, patches)


@fault("margin-negated", wanted=("chosen|prefer", "sign|rejected"))
def _(bench: Bench, wrong: bool) -> None:
    """The loss of a pair is that of its margin negated."""
    kept = DPO._pair_losses
    patches = (
        {"limpid.objectives.preference:DPO._pair_losses": lambda self, margin: kept(self, -margin)} if wrong else {}
    )
    bench.tune("dpo", pairs(), {"update": FAST}, patches)


@fault("drawn-at-another-temperature", wanted=("ratio|sampler|draw",))
def _(bench: Bench, wrong: bool) -> None:
    """Old log-probabilities are formed at a temperature of 0.7, the loss at 1."""
    kept = rollouts.predicted
    patches = {"limpid.training.tuning.rollouts:predicted": lambda model, micro, _: kept(model, micro, 0.7)}
    policy(bench, ("near",), 12, patches=patches if wrong else None)


@fault("a-reward-that-is-never-earned", wanted=("group|prompt", "alike|equal|nothing"))
def _(bench: Bench, wrong: bool) -> None:
    """All answers to all prompts are worth 0."""
    policy(bench, ("never",) if wrong else ("noise",), 40)


@fault("length-is-the-reward", wanted=("reward", "length|longer|broken off"))
def _(bench: Bench, wrong: bool) -> None:
    """The reward is the length of an answer: it grows until it is cut off. In the twin it is what is right."""
    policy(bench, ("length",) if wrong else ("near",), 50, rate=1e-3, length=12)


@fault("policy-runs-away", wanted=("KL|reference",))
def _(bench: Bench, wrong: bool) -> None:
    """A reward of noise, a rate fifty times too high and next to no β."""
    policy(bench, ("noise",), 60, rate=5e-3 if wrong else 1e-4, beta=1e-4 if wrong else 0.2)


@fault("thousands-beside-ones", wanted=("reward", "scale|weigh"))
def _(bench: Bench, wrong: bool) -> None:
    """A reward of thousands is added to one of 0 and 1; the twin weighs it."""
    policy(bench, ("near", "thousands"), 40, drawing={} if wrong else {"reward_weights": [1.0, 0.001]})


@fault("answers-cut-off", wanted=("broken off|truncat|length",))
def _(bench: Bench, wrong: bool) -> None:
    """Answers of two digits and their end are cut off after two tokens, and are wrong for it."""
    file = bench.rewards("def ended(completions, answer):\n    return [1.0 * (len(c) < 2) for c in completions]\n")
    sure = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a, b in sums(200, most=9)]
    tune = {
        "rollouts": {"reward": [f"{file}:ended"], "num_generations": 8, "mask_truncated_completions": not wrong},
        "options": {"max_completion_length": 2},
    }
    bench.tune("grpo", sure, {"tune": tune, "update": {**FAST, "learning_rate": 2e-5}, "run": {"max_steps": 40}})


@fault("factors-switched-off", wanted=("factor|adapter|low.rank",))
def _(bench: Bench, wrong: bool) -> None:
    """Low-rank factors whose share in the forward pass is scaled to 0."""
    kept = LowRankLinear.forward

    def scaled(self: LowRankLinear, input: Any, *mode: Any) -> Any:
        self.scale = 0.0
        return kept(self, input, *mode)

    patches = {"limpid.model.linear:LowRankLinear.forward": scaled} if wrong else {}
    bench.tune("sft", answers(), {"model": {"lora_rank": 4}, "update": FAST, "run": {"max_steps": 12}}, patches)


@fault("adapter-on-a-merged-base", wanted=("adapter|factor", "merged|already"))
def _(bench: Bench, wrong: bool) -> None:
    """An adapter goes on being trained over the model that it was merged into."""
    import limpid

    made = limpid.tune(
        "sft", bench.base, bench.records(answers(), "first"),
        {"model": {"lora_rank": 4}, "update": {**FAST, "learning_rate": 1e-2},
         "run": {"max_steps": 60, "doctor": False}},
        str(bench.folder / "first"),
    )  # fmt: skip
    adapter = limpid.export(made, str(bench.folder / "adapter"), adapter=True)
    over = limpid.export(made, str(bench.folder / "merged")) if wrong else bench.base.path
    bench.tune("sft", answers(), {"update": FAST, "run": {"max_steps": 12}}, base=f"{over}+{adapter}")


@honest("pairs-in-low-rank")
def _(bench: Bench) -> None:
    """DPO through factors of rank 2, three epochs."""
    bench.tune("dpo", pairs(160), {"model": {"lora_rank": 2}, "update": FAST, "run": {"max_steps": 60}})


@honest("a-policy-learns")
def _(bench: Bench) -> None:
    """GRPO on what is right, two updates on each draw, with a β."""
    policy(bench, ("near", "noise"), 40, drawing={"num_iterations": 2}, beta=0.04)


@honest("answers-are-to-be-longer")
def _(bench: Bench) -> None:
    """The reward wants eight characters, where the model says two: length, KL and reward rise, and stop."""
    file = bench.rewards("def eight(completions):\n    return [-abs(8 - len(c)) / 8 for c in completions]\n")
    tune = {"rollouts": {"reward": [f"{file}:eight"], "num_generations": 8}, "options": {"max_completion_length": 16}}
    tune["options"]["beta"] = 0.02
    bench.tune("grpo", prompts(), {"tune": tune, "update": {**FAST, "learning_rate": 5e-4}, "run": {"max_steps": 50}})


@honest("plain-text-goes-on")
def _(bench: Bench) -> None:
    """Tuning on plain text: every token is learned."""
    records = [{"text": f"{a}+{b}={a + b}\n{b}+{a}={a + b}"} for a, b in sums(300)]
    bench.tune("sft", records, {"update": FAST, "run": {"max_steps": 40}})


@honest("another-reference-is-meant")
def _(bench: Bench) -> None:
    """DPO that is held to another model, on purpose."""
    import limpid

    options = {"update": FAST, "run": {"max_steps": 20, "doctor": False}}
    other = limpid.tune("sft", bench.base, bench.records(answers(), "other"), options, str(bench.folder / "other"))
    asked = {"tune": {"reference": str(other.path)}, "update": {**FAST, "learning_rate": 2e-4}}
    bench.tune("dpo", pairs(), asked)


@honest("answers-judged")
def _(bench: Bench) -> None:
    """KTO, whose logged kl is a baseline."""
    records = [{"prompt": f"{a}+{b}=", "completion": str(a + b + i % 2), "label": i % 2 == 0}
               for i, (a, b) in enumerate(sums(300))]  # fmt: skip
    bench.tune("kto", records, {"update": {**FAST, "learning_rate": 5e-4}, "run": {"max_steps": 60}})


@honest("a-reward-model")
def _(bench: Bench) -> None:
    """A reward model that learns its pairs nearly by heart."""
    with torch.random.fork_rng():
        bench.tune("reward", pairs(160), {"update": FAST, "run": {"max_steps": 60}})
