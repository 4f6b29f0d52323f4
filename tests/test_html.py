"""What a notebook shows: valid, escaped, without script; short reprs that read back."""

import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

import limpid
import small
from limpid import plan
from limpid.config import DataConfig, ModelConfig, RunConfig, Sampling, TrainConfig, UpdateConfig
from limpid.html import curve, folded, table, titled
from limpid.metrics import Metrics
from limpid.run import Run


def parsed(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{html}</div>")


def test_texts_are_escaped() -> None:
    odd = "<script>alert('1')</script>&\x1b[31m"
    shown = parsed(titled(odd, table([(odd, 1)], (odd, "b")), folded(odd, table([[odd]]))))
    assert not list(shown.iter("script"))
    assert [cell.text for cell in shown.iter("td")] == [odd.replace("\x1b", "␛"), "1", odd.replace("\x1b", "␛")]


def test_a_curve_has_gaps_where_it_is_not_finite() -> None:
    drawn = parsed(curve([1, 2, 3, 4, 5], [3.0, 2.0, math.nan, 1.0, 0.5], "step", "nats"))
    assert [len(line.get("points").split()) for line in drawn.iter("polyline")] == [2, 2]
    assert [word.text for word in drawn.iter("text")] == ["3", "0.5", "step 1", "5", "nats"]
    assert curve([1, 2], [math.nan, math.inf], "step", "nats") == ""
    parsed(curve([7], [2.0], "step", "nats"))


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(),
        TrainConfig(
            ModelConfig(d_model=64, num_heads=4), DataConfig(paths=("a b",)), UpdateConfig(frozen=("embed.*",))
        ),
        TrainConfig(run=RunConfig(record_steps=(1, 2))),
        Sampling(temperature=0.5, stop=("\n",)),
    ],
)
def test_a_configuration_reads_back_from_its_repr(config: TrainConfig) -> None:
    assert eval(repr(config)) == config
    parsed(config._repr_html_())


def test_a_configuration_shows_what_is_not_the_default() -> None:
    config = TrainConfig(ModelConfig(d_model=64, num_heads=4))
    assert repr(config) == "TrainConfig(model=ModelConfig(d_model=64, num_heads=4))"
    cells = [cell.text for cell in parsed(config._repr_html_()).iter("td")]
    assert cells == ["model.d_model", "64", "192", "model.num_heads", "4", "6"]


def test_runs_metrics_and_plans_are_short_and_shown(tmp_path: Path) -> None:
    run = Run(tmp_path / "a")
    assert repr(run) == f"Run({str(run.path)!r})"
    run.path.mkdir()
    run.metrics_file.write_text('{"step": 1, "loss": 3.5, "train/loss": 3.5}\n{"step": 2, "loss": "nan"}\n')
    assert repr(run) == f"Run({str(run.path)!r}, 2 steps, loss nan)"
    for shown in (run, run.read_metrics(), Metrics(()), plan("gpt2", device="h100")):
        assert len(repr(shown)) < 300
        parsed(shown._repr_html_())


def test_the_version_is_that_of_the_package() -> None:
    assert limpid.__version__.count(".") == 2


def test_a_step_is_shown_whole(tmp_path: Path) -> None:
    run = limpid.train(
        small.config(small.corpus(tmp_path / "text"), update={"warmup_steps": 1}, max_steps=2), str(tmp_path / "run")
    )
    trace = limpid.trace(run)
    shown = parsed(trace._repr_html_())
    assert "verdict" in [cell.text for cell in shown.iter("td")]
    assert "blocks.0.attention.scores" in [cell.text for cell in shown.iter("td")]
    assert repr(trace).startswith("Trace(step 2 of run")
    assert repr(trace.step).startswith("StepDocument(step 2 of run: holds, loss ")
    entry = trace.explain("logits[0, 0, 7]")
    assert repr(entry).startswith("EntryDocument(logits[0, 0, 7] = ")
    assert "gradient" in [cell.text for cell in parsed(entry._repr_html_()).iter("td")]


def test_a_planned_number_shows_its_equation() -> None:
    figure = limpid.plan("gpt2").figure("parameters.total")
    assert repr(figure) == "Figure(parameters.total = 124.4M parameters)"
    assert any("=" in cell.text for cell in parsed(figure._repr_html_()).iter("td"))
