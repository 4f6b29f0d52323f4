"""Samples kept with their step: when they are drawn, that they repeat, and that training does not notice."""

import io
import json
from functools import partial
from pathlib import Path

import limpid
import small
from limpid.cli import main
from limpid.console import Console
from limpid.reporter import Reporter

config = partial(small.config, doctor=False)

PROMPTS = ("the ", "dog ")


def test_samples_are_kept_with_their_step_and_are_the_same_again(data: Path) -> None:
    chosen = config(data, max_steps=7, sample_steps=3, sample_prompt=PROMPTS, model={"dropout": 0.2})
    run = limpid.train(chosen, "sampled")
    samples = run.read_samples()
    assert [(one.step, one.prompt) for one in samples] == [(step, prompt) for step in (3, 6, 7) for prompt in PROMPTS]
    again = limpid.train(chosen, "again")
    assert again.read_samples() == samples


def test_training_is_the_same_to_the_bit_with_and_without_samples(data: Path) -> None:
    with_samples, without = (
        limpid.train(config(data, max_steps=6, sample_steps=every, model={"dropout": 0.2}), f"every{every}")
        for every in (1, 0)
    )
    name = "model.safetensors"
    assert (with_samples.checkpoint(6) / name).read_bytes() == (without.checkpoint(6) / name).read_bytes()
    assert without.read_samples() == ()


def test_a_resumed_run_has_each_sample_once(data: Path) -> None:
    chosen = config(data, max_steps=6, save_steps=2, save_total_limit=0, sample_steps=2)
    whole = limpid.train(chosen, "whole").read_samples()
    run = limpid.train(chosen, "broken")
    limpid.resume(run.path)  # nothing is left to do
    assert run.read_samples() == whole
    limpid.resume(f"{run.path}@4")
    assert run.read_samples() == whole


def test_callbacks_and_the_overview_show_them(data: Path, capsys) -> None:
    class Heard(limpid.Callback):
        def __init__(self) -> None:
            self.samples = []

        def on_sample(self, run, sample) -> None:
            self.samples.append(sample)

    heard, shown = Heard(), io.StringIO()
    reporter = Reporter(console=Console(file=shown, width=200))
    run = limpid.train(config(data, max_steps=3, sample_prompt="the "), "seen", reporter, callbacks=[heard])
    assert tuple(heard.samples) == run.read_samples()  # one at the end, for somebody looks on
    assert "sample after step 3:\nthe " in shown.getvalue()
    assert main(["runs", "seen"]) == 0
    assert "after step 3: the " in capsys.readouterr().out
    assert main(["runs", "seen", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == [vars(one) for one in heard.samples]
