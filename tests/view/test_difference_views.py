"""Two steps beside each other, and one step with something of it changed."""

import json
from typing import Any
from urllib.parse import unquote

from playwright.sync_api import Page, expect
from tests.view.canned import opened
from tests.view.examples import ANSWERS, changed


def test_the_first_station_beyond_rounding_is_named_and_painted(page: Page) -> None:
    opened(page, "#/compare/001%2F400/002%2F400", ANSWERS)
    expect(page.locator(".outcome.not")).to_have_text("not rounding")
    said = "blocks.1.attention.scores (forward): 1.25000 against 1.26000 at [1, 3, 5]"
    expect(page.locator("h2 + p").first).to_contain_text(said)
    assert page.locator("button.cell.beyond").count() == 3
    expect(page.get_by_role("button", name="block 1 attention, forward: 40 of the bound")).to_have_class("cell beyond")
    expect(page.get_by_role("row", name="update.learning_rate 0.001 0.002")).to_be_visible()


def test_a_cell_shows_its_quantities_and_their_worst_entries(page: Page) -> None:
    opened(page, "#/compare/001%2F400/002%2F400", ANSWERS)
    page.get_by_role("button", name="block 1 mlp, backward").click()
    rows = page.locator("table.differences tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.get_by_role("link").first).to_have_attribute("href", "#/001/400/blocks.1.mlp.up[1,3,5]")


def test_two_are_named_in_a_form(page: Page) -> None:
    opened(page, "#/compare", ANSWERS)
    page.get_by_label("first").fill("001/400")
    page.get_by_label("second").fill("002/400")
    page.get_by_role("button", name="compare").click()
    expect(page.get_by_role("heading", name="001/400 against 002/400")).to_be_visible()


def test_a_change_is_asked_for_kept_in_the_address_and_taken_back(page: Page) -> None:
    posted: list[Any] = []

    def answer(request: Any) -> Any:
        posted.append(request)
        return changed()

    opened(page, "#/what-if/001/400", ANSWERS | {"what-if": answer})
    page.get_by_label("entry").fill("blocks.1.mlp.up.weight[3, 5]")
    page.get_by_label("its value").fill("0.25")
    page.get_by_role("button", name="change it").click()
    expect(page.get_by_role("button", name="block 1 mlp, forward: changed by 25 % of its size")).to_be_visible()
    expect(page.get_by_role("button", name="block 0 mlp, forward: unchanged")).to_be_visible()
    change = {"kind": "weight", "entry": "blocks.1.mlp.up.weight[3, 5]", "value": 0.25}
    assert posted == [{"run": "001", "step": 400, "changes": [change]}]
    assert json.loads(unquote(page.url.partition("changes=")[2]).replace("+", " ")) == [change]
    page.get_by_role("button", name="take back").click()
    expect(page.locator(".strip")).to_have_count(0)


def test_what_is_no_number_is_not_asked(page: Page) -> None:
    opened(page, "#/what-if/001/400", ANSWERS)
    page.get_by_label("its value").fill("much")
    expect(page.get_by_role("button", name="change it")).to_be_disabled()
