"""A rule is one object: its card prints what decides, its needs schedule what is measured, its functions look."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import limpid
import limpid.doctor.rules
from doctor.bench import Decoder, Loop, batch, groups, mean_loss, rules
from doctor.loop_faults import FAULTS
from doctor.model_faults import MODEL_FAULTS
from limpid.doctor import RULES, Rule
from limpid.doctor.rule import ASKS, PHASES, Probe
from limpid.doctor.step_record import StepRecord
from limpid.errors import ConfigError

DOCTOR = Path(limpid.doctor.__file__).parent
each_rule = pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))


@each_rule
def test_a_card_prints_the_thresholds_that_decide(rule: Rule) -> None:
    printed = rule.card()["threshold"]
    assert "{" not in printed
    for name, value in rule.thresholds.items():
        assert f"{{{name}" in rule.threshold, name
        assert f"{value:g}: {value.why}" in printed
    assert min(map(len, (rule.detects, rule.equation, rule.source, printed, rule.cost))) > 3


@each_rule
def test_a_rule_looks_for_its_fault_with_what_it_needs(rule: Rule) -> None:
    assert any(rule.functions.values())
    assert set(rule.functions) <= set(PHASES)
    assert rule.needs
    assert set(rule.needs) <= set(Probe)
    assert (Probe.LOG in rule.needs) == bool(rule.functions.get("in_log"))
    assert Probe.REPLAY in rule.needs or not rule.functions.get("at_break")
    assert all(other in RULES for other in rule.explains)


@each_rule
def test_a_rule_and_its_functions_are_in_the_files_of_symptoms(rule: Rule) -> None:
    places = {function.__module__ for functions in rule.functions.values() for function in functions}
    home = f"limpid.doctor.rules.{rule.family}"
    assert rule in vars(sys.modules[home]).values()
    assert all(place.startswith("limpid.doctor.rules.") for place in places)


@functools.cache
def used() -> set[tuple[str, str]]:
    """(constant, name) of every threshold that a function of the doctor reads; name "" for a constant by itself."""
    found: set[tuple[str, str]] = set()
    for file in DOCTOR.rglob("*.py"):
        for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                aliases = dict(assigned(function))
                for node in ast.walk(function):
                    match node:
                        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(key))):
                            found.add((aliases.get(name, name), key))
                        case ast.Name(id=name):
                            found.add((name, ""))
    return found


def assigned(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Local names that stand for a constant: rule = LOSS_SPIKE, alone or among others."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            targets, values = node.targets[0], node.value
            pairs = [(targets, values)]
            if isinstance(targets, ast.Tuple) and isinstance(values, ast.Tuple):
                pairs = list(zip(targets.elts, values.elts, strict=True))
            for target, value in pairs:
                if isinstance(target, ast.Name) and isinstance(value, ast.Name):
                    yield target.id, value.id


@each_rule
def test_every_threshold_decides(rule: Rule) -> None:
    module = vars(sys.modules[f"limpid.doctor.rules.{rule.family}"])
    constant = next(name for name, value in module.items() if value is rule)
    for name, value in rule.thresholds.items():
        shared = [other for other, candidate in module.items() if candidate is value]
        several = [other for other, candidate in module.items() if candidate is rule.thresholds]
        read = any((other, "") in used() for other in shared) or any((other, name) in used() for other in several)
        assert (constant, name) in used() or read, name


def test_what_no_rule_needs_is_not_measured() -> None:
    _, doctor = Loop().run(12, rules=["loss-spike"])
    history = doctor.history
    assert doctor.recorder.probes == {Probe.LOSS, Probe.LOG}
    assert len(history.losses.all) == 12
    assert [history.updates, history.scores, history.levels, history.rows.count] == [[], [], [], 0]
    assert doctor.skipped == {}
    _, doctor = Loop().run(12, rules=["weights-never-change", "attention-scores-large"])
    assert doctor.history.updates
    assert doctor.history.scores
    assert [doctor.history.levels, doctor.history.rows.count] == [[], 0]


@pytest.mark.parametrize(
    ("number", "rule"), [(i, rule) for i, (_, rule, _, _) in enumerate(FAULTS)], ids=lambda value: str(value)
)
def test_a_rule_of_the_loop_needs_no_other(number: int, rule: str) -> None:
    break_it, _, k, by = FAULTS[number]
    loop = Loop(k=k)
    break_it(loop)
    _, doctor = loop.run(max(by + 2, 4), rules=[rule])
    assert rules(doctor.findings) == [rule]
    assert doctor.skipped == {}


@pytest.mark.parametrize(
    ("number", "rule"), [(i, rule) for i, (_, rule, _) in enumerate(MODEL_FAULTS)], ids=lambda value: str(value)
)
def test_a_rule_of_the_model_needs_no_other(number: int, rule: str) -> None:
    break_it, _, rotary = MODEL_FAULTS[number]
    model = Decoder(rotary)
    break_it(model)
    optimizer = torch.optim.AdamW(groups(model), lr=1e-3)
    with limpid.watch(model, optimizer, say=False, rules=[rule]) as doctor:
        assert rules(doctor.preflight(batch(0), loss=mean_loss)) == [rule]


def test_a_rule_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="there is no rule 'loss-spikes'"):
        limpid.watch(Decoder(), rules=["loss-spikes"])


def test_what_functions_ask_of_a_step_is_in_its_record() -> None:
    record = StepRecord(1)
    assert {asks for asks in ASKS.values() if asks and not hasattr(record, asks)} == set()
