"""What curves of tuning say: a fault of each rule, and beside it the honest runs that look like it."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from doctor.bench import Decoder
from limpid.doctor.doctor import Doctor
from limpid.doctor.logs import read_record
from limpid.doctor.logs.table import Curves, fill
from limpid.doctor.report import diagnose
from limpid.doctor.trends import NOTHING, level, rise
from limpid.doctor.tuning import Tuning

STEPS = 120
Shape = Callable[[float], float]


def curves(steps: int = STEPS, tuning: Tuning | None = None, scatter: float = 0.03, **named: Shape) -> Curves:
    """Names of TRL's, / written as __, each a function of how much of the run is done, with noise in proportion."""
    noise, made = random.Random(0), Curves("", "log")
    made.tuning = tuning
    entries = []
    for step in range(1, steps + 1):
        done = (step - 1) / steps
        entry: dict[str, float] = {"step": step, "loss": math.log(2) * math.exp(-done) + 0.01 * noise.gauss(0, 1)}
        for name, shape in named.items():
            value = shape(done)
            entry[name.replace("__", "/")] = value * (1 + scatter * noise.gauss(0, 1)) if value else value
        entries.append(entry)
    fill(made, entries)
    return made


def alarms(made: Curves) -> list[str]:
    return [finding.rule for finding in diagnose(made) if finding.is_said]


def constant(value: float) -> Shape:
    return lambda _: value


def line(start: float, end: float) -> Shape:
    return lambda t: start + (end - start) * t


def saturating(end: float) -> Shape:
    return lambda t: end * (1 - math.exp(-6 * t)) + 1e-4


CASES: dict[str, tuple[str, Curves]] = {
    "KL beyond the entropy": ("kl-explodes", curves(kl=line(0.001, 9), entropy=line(1.5, 0.4), reward=constant(0.5))),
    "KL at a plateau beyond the entropy, for nothing": (
        "kl-explodes", curves(kl=saturating(4.0), entropy=line(1.5, 4.0), reward=constant(0.5)),
    ),
    "length was rewarded, and cut, at once": (
        "reward-hacked",
        curves(reward=lambda t: 12 if t > 0.03 else 2, completions__mean_length=lambda t: 12 if t > 0.03 else 2,
               completions__clipped_ratio=lambda t: 0.9 if t > 0.03 else 0.0),
    ),
    "KL at a plateau": ("", curves(kl=saturating(0.4), entropy=line(1.5, 1.2), reward=saturating(0.8))),
    "KL at a plateau beyond": ("", curves(kl=saturating(2.4), entropy=line(1.5, 1.2), reward=saturating(0.8))),
    "KL that pays": ("", curves(kl=line(0.001, 3), entropy=line(1.5, 0.4), reward=line(0.1, 0.9))),
    "KL by an exponential": ("kl-explodes", curves(kl=lambda t: 1e-3 * math.exp(9 * t), reward=constant(0.5))),
    "KL by a square": ("", curves(kl=lambda t: 1e-3 + t * t, reward=constant(0.5))),
    "a baseline that is called kl": (
        "", curves(kl=line(0.001, 9), entropy=line(1.5, 0.4), rewards__chosen=saturating(1.0),
               rewards__rejected=line(0, -1)),
    ),
    "groups alike": ("groups-without-variance", curves(frac_reward_zero_std=constant(0.8), scatter=0.1)),
    "a fifth of the groups alike": ("", curves(frac_reward_zero_std=constant(0.2), scatter=0.3)),
    "groups alike because they are solved": (
        "",
        curves(frac_reward_zero_std=lambda t: 0.8 + 0.15 * math.sin(400 * t),
               reward=lambda t: 0.9 + 0.08 * math.sin(400 * t)),
    ),
    "groups alike because they are hopeless": (
        "groups-without-variance",
        curves(frac_reward_zero_std=lambda t: 0.8 + 0.15 * math.sin(400 * t),
               reward=lambda t: 0.1 - 0.08 * math.sin(400 * t)),
    ),
    "few steps, all alike": ("", curves(8, frac_reward_zero_std=constant(1.0))),
    "length is rewarded, and cut": (
        "reward-hacked",
        curves(reward=line(1, 5), completions__mean_length=line(20, 90), kl=line(0.01, 0.6), entropy=line(1.5, 0.9),
               completions__clipped_ratio=line(0.02, 0.7)),
    ),
    "longer answers are better": (
        "",
        curves(reward=line(0.2, 0.9), completions__mean_length=line(20, 90), kl=line(0.01, 0.3), entropy=line(1.5, 1.1),
               completions__clipped_ratio=constant(0.01)),
    ),
    "another reward falls": (
        "reward-hacked",
        curves(reward=line(1, 5), completions__mean_length=line(20, 90), rewards__length__mean=line(0.5, 5),
               rewards__right__mean=line(0.5, 0.1)),
    ),
    "a reward of a thousand": (
        "reward-scale", curves(rewards__judge__std=constant(1000.0), rewards__form__std=constant(0.3), scatter=0.1),
    ),
    "rewards of two scales": (
        "", curves(rewards__judge__std=constant(3.0), rewards__form__std=constant(0.3), scatter=0.1),
    ),
    "one reward is always the same": (
        "", curves(rewards__judge__std=constant(3.0), rewards__form__std=constant(0.0), scatter=0.1),
    ),
    "rejected answers are preferred": (
        "preference-inverted",
        curves(rewards__accuracies=lambda t: 0.5 * math.exp(-3 * t), rewards__margins=line(0, -4),
               rewards__chosen=line(0, -3), rewards__rejected=line(0, 1)),
    ),
    "chosen answers are preferred": (
        "",
        curves(rewards__accuracies=lambda t: 1 - 0.5 * math.exp(-3 * t), rewards__margins=line(0, 4),
               rewards__chosen=line(0, 1), rewards__rejected=line(0, -3)),
    ),
    "both fall": (
        "likelihood-displaced",
        curves(rewards__chosen=line(0, -8), rewards__rejected=line(0, -11), rewards__margins=line(0, 3)),
    ),
    "both fall, the chosen slightly": (
        "", curves(rewards__chosen=line(0, -0.8), rewards__rejected=line(0, -5), rewards__margins=line(0, 4.2)),
    ),
    "both fall, by next to nothing": (
        "", curves(rewards__chosen=line(0, -0.3), rewards__rejected=line(0, -0.4), rewards__margins=line(0, 0.1)),
    ),
    "log-probabilities without a reference": (
        "", curves(rewards__chosen=line(-9, -9.5), rewards__rejected=line(-9, -14), rewards__margins=line(0.1, 4)),
    ),
    "the reference goes along": (
        "reference-not-fixed", curves(rewards__chosen=constant(0), rewards__rejected=constant(0)),
    ),
    "the first step is the reference": (
        "", curves(4, rewards__chosen=lambda t: 0.01 * t, rewards__rejected=lambda t: -0.01 * t),
    ),
    "another reference than the start": (
        "reference-is-another",
        curves(4, Tuning("dpo", reference_is_start=True), rewards__chosen=constant(0.4),
               rewards__rejected=constant(0.7)),
    ),
    "another reference, and it is meant": (
        "", curves(4, Tuning("dpo"), rewards__chosen=constant(0.4), rewards__rejected=constant(0.7)),
    ),
    "the first step on every second draw": (
        "ratio-not-one",
        curves(8, Tuning("grpo", updates_per_draw=1), scatter=0, ratio__min=constant(0.97),
               ratio__max=constant(1.04)),
    ),
    "several updates on a draw": (
        "",
        curves(8, Tuning("grpo", updates_per_draw=2), scatter=0, ratio__min=lambda t: 1 - 0.1 * (round(8 * t) % 2),
               ratio__max=lambda t: 1 + 0.1 * (round(8 * t) % 2)),
    ),
    "ratios rounded": (
        "", curves(8, Tuning("grpo", updates_per_draw=1), scatter=0, ratio__min=constant(1 - 2e-6),
                   ratio__max=constant(1)),
    ),
    "dropout in the trainer": (
        "", curves(8, Tuning("grpo", updates_per_draw=1, dropout=0.1), scatter=0, ratio__max=constant(1.3)),
    ),
    "broken off, and wrong for it": (
        "broken-off-counted",
        curves(completions__told_by_length=constant(0.8), completions__clipped_ratio=constant(0.6), scatter=0.1),
    ),
    "broken off now and then": (
        "", curves(completions__told_by_length=constant(0.1), completions__clipped_ratio=constant(0.05), scatter=0.3),
    ),
    "broken off and left out": (
        "", curves(tuning=Tuning("grpo", learns_from_broken_off=False), completions__told_by_length=constant(0.8)),
    ),
    "advantages cut off": ("advantages-clipped", curves(advantages__lost_order=constant(0.9), scatter=0.05)),
    "outliers cut off": ("", curves(advantages__lost_order=constant(0.03), scatter=0.5)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_found_and_its_look_alike_is_not(name: str) -> None:
    expected, made = CASES[name]
    assert alarms(made) == ([expected] if expected else []), [finding.says for finding in diagnose(made)]
    assert all("nan" not in finding.says and "inf " not in finding.says for finding in diagnose(made))


def sides(sign: float) -> Curves:
    """Pairs that hardly differ: margins of noise, with the loss that they have, -ln σ of what is minimised."""
    noise, made = random.Random(0), Curves("", "log")
    margins = [noise.gauss(0, 0.05) for _ in range(60)]
    losses = [math.log1p(math.exp(-sign * margin)) + 0.002 * noise.gauss(0, 1) for margin in margins]
    rows = zip(margins, losses, strict=True)
    fill(made, ({"step": i, "loss": loss, "rewards/margins": margin} for i, (margin, loss) in enumerate(rows, 1)))
    return made


def test_a_sign_shows_in_a_run_that_learns_nothing() -> None:
    assert alarms(sides(1)) == []
    assert alarms(sides(-1)) == ["preference-inverted"]


def test_a_loop_that_logs_is_judged_while_it_runs() -> None:
    import torch

    model = Decoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Doctor(model, optimizer, say=False, rules=["groups-without-variance", "reference-not-fixed"]) as doctor:
        for _ in range(40):
            loss = model(torch.arange(8)[None]).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            doctor.step(loss, metrics={"frac_reward_zero_std": 0.9, "rewards/chosen": 0.0, "rewards/rejected": 0.0})
    assert {finding.rule: finding.step for finding in doctor.findings} == {
        "groups-without-variance": 20,
        "reference-not-fixed": 6,
    }
    assert not doctor.skipped


def test_a_loss_of_answers_has_no_floor_and_begins_anywhere() -> None:
    """IPO begins at 25, a policy at 0, and a preference that is learned ends near 0."""
    for start in (25.0, 8.0, 0.69):
        made = Curves("", "log", vocab=256)
        entries = [{"step": i, "loss": start * math.exp(-i / 20), "rewards/margins": 0.1 * i} for i in range(1, 200)]
        fill(made, entries)
        assert alarms(made) == []
        for entry in entries:
            del entry["rewards/margins"]
        fill(plain := Curves("", "log", vocab=256), entries)
        assert "loss-below-floor" in alarms(plain)


def test_names_of_other_tools_are_known(tmp_path: Path) -> None:
    entry = {"step": 1, "loss": 0.5, "train/rewards/judge/std": 2.0, "train/kl": 0.1, "objective/kl": 9.0}
    (tmp_path / "log.jsonl").write_text(json.dumps(entry))
    assert {"kl", "answer_kl", "rewards/judge/std"} <= set(read_record(tmp_path).series)


def test_an_interval_holds_what_it_should() -> None:
    """Of a mean of 0 and a slope of 0, in autocorrelated noise too, at the promised rate."""
    noise, beyond = random.Random(1), 0
    for _ in range(400):
        value, values = 0.0, []
        for _ in range(200):
            value = 0.6 * value + noise.gauss(0, 1)
            values.append(value)
        beyond += sum(not one.low <= 0 <= one.high for one in (level(values), rise(values)))
    assert beyond <= 3  # of 800; autocorrelation leaves a little of itself between blocks
    assert level([1.0] * 19) is NOTHING
    assert level([1.0] * 20) == (1.0, 1.0)
    assert rise([float(i) for i in range(100)]).middle == pytest.approx(100)
