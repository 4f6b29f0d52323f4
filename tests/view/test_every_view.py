"""What holds of every view that a server answers: who reads it how, on what."""

import pytest
from playwright.sync_api import Page, expect
from tests.view.canned import everybody_reads, opened
from tests.view.examples import ANSWERS

VIEWS = {
    "runs": ("#/", "table.runs tbody tr"),
    "run": ("#/001", ".curves canvas"),
    "runs over each other": ("#/001,002", ".curves canvas"),
    "play": ("#/play/001?prompt=a+b+c&with=002", ".distribution"),
    "plan": ("#/plan?what=llama-3-8b&device=h100&devices=8&zero=3&tokens=1T", ".iso svg"),
    "compare": ("#/compare/001%2F400/002%2F400", ".strip .cell"),
    "what if": ('#/what-if/001/400?changes=[{"kind":"rate","value":0.1}]', ".strip .cell"),
}
every_view = pytest.mark.parametrize(("address", "shown"), VIEWS.values(), ids=VIEWS)


@every_view
def test_everybody_can_read_it(page: Page, address: str, shown: str) -> None:
    opened(page, address, ANSWERS)
    expect(page.locator(shown).first).to_be_visible()
    everybody_reads(page, "input, select, textarea")
