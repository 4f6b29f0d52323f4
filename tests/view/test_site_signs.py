"""Signs of the documentation site, by pointer and by keyboard."""

from pathlib import Path

from playwright.sync_api import Page, expect
from tests.view.canned import ROOT, serious

from limpid.primer.chapter import chapter
from limpid.primer.html import html


def test_a_sign_says_what_it_means_to_pointer_and_keyboard(page: Page, tmp_path: Path) -> None:
    site = ROOT / "docs/site"
    parts = "".join(html(chapter("vectors")))
    (tmp_path / "page.html").write_text(
        f"<!doctype html><html lang='en'><title>Vectors</title><style>{(site / 'extra.css').read_text()}</style>"
        f"<script>{(site / 'signs.js').read_text()}</script><main><h1>Vectors</h1>{parts}</main></html>",
        encoding="utf-8",
    )
    page.goto((tmp_path / "page.html").as_uri())
    note = page.locator("#sign-says")
    page.locator("[data-says='the first entry of the vector v']").first.hover()
    expect(note).to_contain_text("the first entry of the vector v")
    page.keyboard.press("Escape")
    expect(note).to_be_hidden()
    page.mouse.move(0, 0)
    page.keyboard.press("Tab")
    expect(page.locator("math:focus")).to_have_attribute("aria-describedby", "sign-says")
    expect(note).to_contain_text("a vector: a list of numbers in an order")
    assert serious(page) == []
    page.keyboard.press("Escape")
    expect(note).to_be_hidden()
    reached = page.locator("math[tabindex='0']")
    told = set(reached.locator("[data-says]").evaluate_all("all => all.map((one) => one.getAttribute('data-says'))"))
    every = page.locator("math [data-says]").evaluate_all("all => all.map((one) => one.getAttribute('data-says'))")
    assert told == set(every)
