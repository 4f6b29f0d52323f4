"""A prompt, the distribution of the next token, and the sliders that move it."""

import re

import numpy as np
import pytest
import torch
from playwright.sync_api import Page, expect
from tests.view.canned import opened
from tests.view.examples import ANSWERS, VOCABULARY, logits

from limpid.config import Sampling
from limpid.generation.sampling import allowed

PROMPT = "#/play/001?prompt=a+b+c"


def shares(page: Page) -> dict[str, float]:
    """Tokens and their probabilities, as their bars say them; 0 for what is out."""
    labels = page.locator(".distribution").first.locator("[role=button]").all()
    form = re.compile(r"append (.+): (.+), the model says .+", re.DOTALL)
    found = [form.fullmatch(str(one.locator("title").text_content())) for one in labels]
    return {one[1]: float(one[2].strip("<% ")) / 100 for one in found if one}


def slide(page: Page, name: str, value: float) -> None:
    page.get_by_role("slider", name=name).fill(str(value))


@pytest.mark.parametrize(
    ("sliders", "sampling"),
    [
        ({}, Sampling(temperature=1.0)),
        ({"temperature": 0.5}, Sampling(temperature=0.5)),
        ({"top-k": 5}, Sampling(temperature=1.0, top_k=5)),
        ({"temperature": 1.5, "top-p": 0.6}, Sampling(temperature=1.5, top_p=0.6)),
        ({"top-k": 40, "top-p": 0.9, "min-p": 0.1}, Sampling(temperature=1.0, top_k=40, top_p=0.9, min_p=0.1)),
        ({"temperature": 0}, Sampling(temperature=1.0, top_k=1)),
    ],
)
def test_sliders_show_what_the_decoder_would_draw_from(
    page: Page, sliders: dict[str, float], sampling: Sampling
) -> None:
    asked = opened(page, PROMPT, ANSWERS)
    expect(page.locator(".distribution")).to_be_visible()
    before = len(asked)
    for name, value in sliders.items():
        slide(page, name, value)
    exact = allowed(torch.from_numpy(logits("001", 3).astype(np.float32))[None], sampling).softmax(-1)[0].numpy()
    kept = int((exact > 0).sum())
    expect(page.locator(".distribution figcaption")).to_contain_text(f"{kept} of {len(VOCABULARY)} tokens may be drawn")
    shown = shares(page)
    assert len(shown) == 16
    for at in np.argsort(-logits("001", 3), kind="stable")[:16]:
        word = VOCABULARY[at].replace(" ", "␣").replace("\n", "⏎")
        assert shown[word] == pytest.approx(exact[at], abs=6e-4)
    assert len(asked) == before, "a slider asks nothing of the server"


def test_a_bar_appends_its_token_and_a_token_goes_back(page: Page) -> None:
    opened(page, PROMPT, ANSWERS)
    tokens = page.locator(".tokens .piece")
    expect(tokens).to_have_count(3)
    bar = page.locator(".distribution [role=button]").nth(1)
    word = str(bar.locator("title").text_content()).removeprefix("append ").partition(":")[0]
    bar.press("Enter")
    expect(tokens).to_have_count(4)
    expect(tokens.nth(3)).to_have_text(word)
    tokens.nth(1).click()
    expect(tokens.nth(1)).to_have_attribute("aria-current", "true")
    expect(tokens).to_have_count(4)
    expect(page.get_by_text("2 of 64 positions")).to_be_visible()


def test_tokens_are_drawn_one_after_the_other(page: Page) -> None:
    opened(page, PROMPT, ANSWERS)
    page.get_by_role("button", name="draw one token").click()
    expect(page.locator(".tokens .piece")).to_have_count(4)
    page.get_by_role("button", name="draw 20").click()
    expect(page.locator(".tokens .piece")).to_have_count(24)


def test_a_head_colours_the_text_by_what_it_sees(page: Page) -> None:
    opened(page, PROMPT, ANSWERS)
    head = page.get_by_role("button", name="block 1, head 2")
    head.click()
    expect(head).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".tokens .piece").first).to_have_attribute("title", re.compile("attention"))


def test_two_models_stand_beside_each_other(page: Page) -> None:
    opened(page, "#/play/001?prompt=a+b&with=002%40200", ANSWERS)
    both = page.locator(".distribution")
    expect(both).to_have_count(2)
    first, second = (torch.from_numpy(logits(one, 2)).double().log_softmax(-1) for one in ("001", "002@200"))
    bits = float((first.exp() * (first - second)).sum()) / np.log(2)
    expect(both.nth(1)).to_contain_text(f"{bits:.3f} bits from the model beside it")
