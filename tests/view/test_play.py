"""What a checkpoint says of the next token."""

import base64
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from tests.view.test_runs import fits

import limpid

Ask = Callable[..., TestClient]


def test_a_model_says_what_comes_next(trained: tuple[Path, bytes], ask: Ask) -> None:
    folder, _ = trained
    client = ask(folder)
    said = client.post("/api/play", json={"model": "001@20", "prompt": "the cat"}).json()
    fits(said, "PlayDocument")
    model, tokenizer = limpid.load(f"{folder / '001'}@20")
    ids = tokenizer.encode_prompt("the cat")
    assert [one["id"] for one in said["prompt"]] == ids
    with torch.inference_mode():
        logits = model(torch.tensor([ids]))[0]
    got = np.frombuffer(base64.b64decode(said["logits"]), "<f4")
    np.testing.assert_allclose(got, logits[-1].numpy(), rtol=1e-4, atol=1e-4)
    chances = logits.double().softmax(-1)
    assert said["next"][0]["id"] == int(logits[-1].argmax())
    assert said["next"][0]["probability"] == pytest.approx(float(chances[-1].max()), rel=1e-4)
    assert sum(one["probability"] for one in said["next"]) + said["rest"] == pytest.approx(1)
    assert [one["probability"] for one in said["prompt"][1:]] == pytest.approx(
        [float(chances[place, token]) for place, token in enumerate(ids[1:])], rel=1e-3
    )
    attention = np.array(said["attention"])
    assert attention.shape == (2, 3, len(ids))
    np.testing.assert_allclose(attention.sum(-1), 1, rtol=1e-5)
    again = client.post("/api/play", json={"model": "001@20", "tokens": ids, "attention": False}).json()
    assert again["logits"] == said["logits"]
    assert again["attention"] is None


@pytest.mark.parametrize(
    "question",
    [
        {"model": "../text"}, {"model": "001@7"}, {"model": "001@x"}, {"model": 3}, {"model": "nothing"},
        {"model": "001", "tokens": [10**9]}, {"model": "001", "tokens": ["a"]}, {"model": "001", "tokens": [True]},
        {"model": "001", "tokens": []},
        {"model": "001", "prompt": "a" * 200}, {"model": "001", "prompt": "a" * 200_000},
        {"model": "/etc/passwd"}, {"model": "001@999999999999999999999"}, {"model": "001@ema"},
    ],
)  # fmt: skip
def test_questions_to_models_that_make_no_sense(trained: tuple[Path, bytes], ask: Ask, question: dict) -> None:
    answer = ask(trained[0]).post("/api/play", json=question)
    assert answer.status_code in (400, 404)
    fits(answer.json(), "ErrorDocument")
