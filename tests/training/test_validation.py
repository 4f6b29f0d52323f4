"""Losses on several held-out texts while a run trains, and with averaged weights."""

import dataclasses
import io
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import limpid
import small
from limpid.config import DataConfig
from limpid.console import Console
from limpid.data.batches import validation_batches
from limpid.errors import ConfigError, DataError
from limpid.history.curves import curves
from limpid.history.picture import draw
from limpid.model.weights import load_model
from limpid.objectives.losses import log_probabilities
from limpid.reporter import Reporter
from limpid.source import find_model

config = partial(small.config, doctor=False)


@pytest.fixture
def texts(here: Path) -> tuple[Path, Path]:
    first, second = here / "news.txt", here / "odd.txt"
    first.write_text("the cat sees the dog and the bird\n" * 60)
    second.write_text("zyx wvu tsr qpo nml kji hgf edc ba\n" * 90)
    return first, second


def with_sets(data: Path, *given: str, **options):
    chosen = config(data, **options)
    return dataclasses.replace(chosen, data=dataclasses.replace(chosen.data, validation=given))


def test_names_are_told_from_paths() -> None:
    data = DataConfig(validation=("news=a.txt", "./x=b.txt", "plain.txt", "odd=c.txt", "news=d.txt"))
    assert data.validation_paths == ("a.txt", "./x=b.txt", "plain.txt", "c.txt", "d.txt")
    assert data.validation_sets == {"news": (0, 4), "": (1, 2), "odd": (3,)}
    for name in ("ema", "web_ema"):
        with pytest.raises(ConfigError, match=f"validation names a set {name}, .* rename it"):
            DataConfig(validation=(f"{name}=a.txt",))


def test_every_set_has_the_loss_of_its_own_text(data: Path, texts: tuple[Path, Path]) -> None:
    """Against each text by itself, through the model that was written."""
    chosen = with_sets(data, f"news={texts[0]}", f"odd={texts[1]}", max_steps=4, eval_steps=2, eval_batches=2)
    run = limpid.train(chosen, "several")
    assert [line["step"] for line in run.read_metrics().evaluations] == [2, 4]
    last = run.read_metrics().evaluations[-1]
    assert last["eval_loss"] == last["eval_news_loss"] != last["eval_odd_loss"]
    model, tokenizer = load_model(find_model(run.path)), limpid.load(run.path)[1]
    for name, file in zip(("news", "odd"), texts, strict=True):
        tokens = np.array([*tokenizer.encode(file.read_text()), tokenizer.end_of_text])
        (micro,) = validation_batches(tokens, 16, 6, 6)
        with torch.no_grad():
            logs = log_probabilities(model(torch.as_tensor(micro["tokens"])))
        mean = -logs.gather(-1, torch.as_tensor(micro["targets"])[..., None]).double().mean().item()
        assert last[f"eval_{name}_loss"] == pytest.approx(mean, rel=1e-6)
        per_byte = mean / np.log(2) * len(tokens) / len(file.read_bytes())
        assert last[f"eval_{name}_bits_per_byte"] == pytest.approx(per_byte, rel=1e-6)


def test_one_text_has_the_same_loss_with_a_name_and_without(data: Path, texts: tuple[Path, Path]) -> None:
    losses = [
        limpid.train(with_sets(data, given, max_steps=3), name).read_metrics().evaluations[-1]
        for name, given in (("plain", str(texts[0])), ("named", f"news={texts[0]}"))
    ]
    assert losses[0]["eval_loss"] == losses[1]["eval_loss"] == losses[1]["eval_news_loss"]
    assert "eval_news_loss" not in losses[0]


def test_names_change_no_number_of_training_and_resume_goes_on_with_them(data: Path, texts: tuple[Path, Path]) -> None:
    chosen = with_sets(data, f"news={texts[0]}", f"odd={texts[1]}", max_steps=6, eval_steps=3, save_steps=3)
    run = limpid.train(chosen, "run")
    before = run.metrics_file.read_text()
    limpid.resume(f"{run.path}@3")

    def said(text: str) -> list[dict]:
        return [{k: v for k, v in json.loads(line).items() if "eval" in k} for line in text.splitlines()]

    assert said(run.metrics_file.read_text()) == said(before)


def test_callbacks_curves_and_the_console_know_each_set(
    data: Path, texts: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("limpid.generation.continue_text", lambda *about: "")  # what somebody who looks on is shown

    class Heard(limpid.Callback):
        def on_evaluation(self, run, evaluation) -> None:
            self.heard = evaluation

    heard, shown = Heard(), io.StringIO()
    chosen = with_sets(
        data, f"news={texts[0]}", f"odd={texts[1]}", max_steps=4, eval_steps=2, update={"ema_decay": 0.9}
    )
    run = limpid.train(chosen, "run", Reporter(console=Console(file=shown, width=200)), callbacks=[heard])
    assert list(heard.heard.sets) == list(heard.heard.averaged) == ["news", "odd"]
    assert heard.heard.loss == heard.heard.sets["news"].loss
    drawn = curves(run)
    assert list(drawn.other_evals) == ["news", "news ema", "odd", "odd ema"]
    assert drawn.other_evals["odd"].x.tolist() == [2, 4]
    assert draw([drawn], "step", Path("curves.svg")).is_file()
    assert "validation loss of odd" in shown.getvalue()
    assert "with averaged weights" in shown.getvalue()
    assert "news 384 of" in shown.getvalue()
    assert "held-out tokens, spread evenly; the first decides which checkpoint is best" in shown.getvalue()


def test_averaged_weights_are_judged_as_the_model_that_has_their_name(data: Path) -> None:
    run = limpid.train(config(data, max_steps=4, update={"ema_decay": 0.5}), "run")
    last = run.read_metrics().evaluations[-1]
    assert last["eval_ema_loss"] != last["eval_loss"]
    limpid.export("run@ema", "averaged")
    again = limpid.train(config(data, max_steps=3, init_from="averaged", update={"learning_rate": 0.0}), "again")
    assert again.read_metrics().evaluations[-1]["eval_loss"] == pytest.approx(last["eval_ema_loss"], rel=1e-6)


def test_a_set_without_a_row_is_refused(data: Path, texts: tuple[Path, Path]) -> None:
    texts[1].write_text("short")
    with pytest.raises(DataError, match="validation set odd has 6 tokens, expected at least 17"):
        limpid.train(with_sets(data, f"news={texts[0]}", f"odd={texts[1]}"), "run")
    with pytest.raises(DataError, match="validation set odd has 0 tokens"):
        limpid.train(with_sets(data, f"news={texts[0]}", f"odd={texts[0]}"), "run")
