"""The planner's form, and its figures."""

from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.view.test_runs import fits

import limpid
from limpid.planning.options import Options

Ask = Callable[..., TestClient]


def test_the_plan_is_that_of_the_verb(tmp_path: Path, ask: Ask) -> None:
    client = ask(tmp_path)
    form = client.get("/api/plan/form").json()
    fits(form, "PlanForm")
    assert {one["name"] for one in form["options"]} == set(Options.__dataclass_fields__)
    assert "llama-3-8b" in form["names"]
    options = {"device": "h100", "devices": 8, "zero": 3, "tokens": 1e12}
    found = client.post("/api/plan", json={"what": "llama-3-8b", "options": options}).json()
    fits(found, "PlanDocument")
    plan = limpid.plan("llama-3-8b", **options)
    shown = {one["name"]: one for section in found["sections"] for one in section["figures"]}
    assert {name: one["value"] for name, one in shown.items()} == {one.name: one.value for one in plan.figures}
    assert shown["memory.total"]["why"] == plan.figure("memory.total").why()
    assert found["fits"] == plan.fits
    best = client.post("/api/plan", json={"what": None, "compute": 1e21}).json()
    assert best["sections"][0]["title"] == "scaling"


@pytest.mark.parametrize(
    "question",
    [
        {"what": "/etc/passwd"}, {"what": "../x"}, {"what": 3}, {"what": "no-such-model"}, {"options": 3},
        {"what": "gpt2", "options": {"nothing": 1}}, {"what": "gpt2", "options": {"devices": -1}},
        {"what": "gpt2", "options": {"devices": "__import__('os')"}}, {"what": "gpt2", "options": {"device": "here"}},
        {"what": "gpt2", "compute": 1e21}, {"compute": -1}, {"compute": "1e21"},
    ],
)  # fmt: skip
def test_plans_that_make_no_sense(tmp_path: Path, ask: Ask, question: dict) -> None:
    answer = ask(tmp_path).post("/api/plan", json=question)
    assert answer.status_code in (400, 404), answer.text
    fits(answer.json(), "ErrorDocument")


def test_a_name_that_is_neither_a_run_nor_a_model_is_told_what_there_is(tmp_path: Path, ask: Ask) -> None:
    said = ask(tmp_path).post("/api/plan", json={"what": "lama-3-8b"}).json()["error"]
    assert said.startswith("there is no run 'lama-3-8b' in ")
    assert "nor a published model of this name: did you mean llama-3-8b" in said
