"""The planner as a form."""

import re

import pytest
from playwright.sync_api import Page, expect
from tests.view.canned import opened
from tests.view.examples import ANSWERS

import limpid

ADDRESS = "#/plan?what=gpt2&device=a100&devices=4&tokens=10B"


def test_the_stack_holds_the_parts_of_the_memory(page: Page) -> None:
    opened(page, ADDRESS, ANSWERS)
    plan = limpid.plan("gpt2", device="a100", devices=4, tokens=1e10)
    parts = page.locator("ul.parts li")
    expect(parts).to_have_count(len(plan.figure("memory.total").put_in))
    widths = [float(str(one.get_attribute("width"))) + 1 for one in page.locator(".stack rect").all()]
    for width, value in zip(widths, plan.figure("memory.total").put_in.values(), strict=True):
        assert width / sum(widths) == pytest.approx(value / plan.figure("memory.total").value, abs=2e-3)


def test_every_figure_says_why_and_leads_to_those_it_is_made_of(page: Page) -> None:
    opened(page, ADDRESS, ANSWERS)
    page.locator("ul.parts li", has_text="activations").get_by_role("button").click()
    why = page.locator(".why")
    figure = limpid.plan("gpt2", device="a100", devices=4, tokens=1e10).figure("memory.activations")
    expect(why).to_contain_text("memory.activations")
    for number in figure.put_in:
        expect(why.locator("dt", has_text=re.compile(f"^{re.escape(number)}$"))).to_have_count(1)
    page.locator(".figures summary", has_text="memory").click()
    page.get_by_role("button", name=re.compile("why memory.total is")).click()
    why.get_by_role("button", name=re.compile("GB|MB")).first.click()
    expect(why).to_contain_text("memory.weights")


def test_a_field_changes_the_plan_and_the_address(page: Page) -> None:
    opened(page, ADDRESS, ANSWERS)
    expect(page.locator(".outcome.fits")).to_be_visible()
    page.get_by_label("batch size").fill("4k")
    expect(page.locator(".outcome.not")).to_be_visible()
    expect(page.get_by_role("heading", name="What would make it fit")).to_be_visible()
    expect(page).to_have_url(re.compile(re.escape("batch_size=4k")))


def test_layouts_are_the_planners_own_and_are_asked_for_when_they_are_looked_at(page: Page) -> None:
    asked = opened(page, ADDRESS, ANSWERS)
    expect(page.locator(".outcome")).to_be_visible()
    assert asked.count("plan/layouts") == 0
    page.get_by_role("heading", name="Ways to divide it among 4 devices").click()
    rows = page.locator(".layouts tbody tr")
    ways = limpid.plan("gpt2", device="a100", devices=4, tokens=1e10).ways()
    expect(rows).to_have_count(min(24, len(ways)))
    best = ways[0].options
    expect(rows.first).to_contain_text(f"{best.zero}{best.tensor}{best.pipeline}{ways[0].replicas}")
    assert asked.count("plan/layouts") == 1
    rows.nth(1).get_by_role("button").click()
    expect(page).to_have_url(re.compile(re.escape("recompute=")))
    taken = ways[1].options
    assert f"zero={taken.zero}&tensor={taken.tensor}&pipeline={taken.pipeline}" in page.url


def test_the_best_size_lies_on_the_curves_where_the_law_says(page: Page) -> None:
    opened(page, ADDRESS, ANSWERS)
    plan = limpid.plan("gpt2", device="a100", devices=4, tokens=1e10)
    keys = page.locator(".iso .keys")
    expect(keys).to_contain_text(f"this plan, loss {plan.figure('scaling.approach_3.loss').value:.3f}")
    expect(keys).to_contain_text(f"loss {plan.figure('scaling.approach_3.best_loss').value:.3f}")
