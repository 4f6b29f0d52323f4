"""Any entry of any step explained: every line is arithmetic that ends at the engine's number."""

import json
import re

import numpy as np
import pytest
from recorded import VARIANTS, configuration, record

from limpid.cli import main
from limpid.errors import ConfigError
from limpid.tracing.explain import explain
from limpid.tracing.record import Record
from limpid.tracing.recorded import Recorded
from limpid.tracing.worked import record as record_worked


@pytest.fixture(scope="module")
def worked(tmp_path_factory) -> Recorded:
    return Recorded(Record(record_worked(tmp_path_factory.mktemp("worked") / "step.safetensors")))


def entries(step, rng):
    """An entry of every array of the step."""
    for name in step.names():
        if not name.startswith("kept("):
            shape = step.value(name).shape
            yield name, tuple(int(rng.integers(size)) for size in shape)


def largest(step, name):
    return float(np.abs(np.asarray(step.gradient(name)).astype(np.float64)).max()) * step.gradient_scale(name)


def spelled(name, index):
    return f"{name}[{', '.join(map(str, index))}]" if index else name


def test_every_entry_of_the_worked_model_is_its_derivation(worked) -> None:
    for name, index in entries(worked, np.random.default_rng(0)):
        found = explain(worked, spelled(name, index))
        assert found.value == worked.value(name)[index]
        if found.made is not None:
            assert found.made.value == pytest.approx(found.value, rel=1e-12, abs=1e-15)
        if found.gradient is not None and found.passed:
            total = sum(passed.value for passed in found.passed)
            assert total == pytest.approx(found.gradient, rel=1e-9, abs=1e-15)
        if found.update:
            engine, written = (float(line.split()[-1]) for line in (found.update[-1], found.update[-2]))
            assert written == pytest.approx(engine, rel=1e-6)


@pytest.mark.parametrize(
    ("variant", "precision"),
    [*((variant, "fp32") for variant in VARIANTS), ("llama", "bf16"), ("gpt-2", "fp16"), ("qwen3", "fp16")],
)
def test_every_entry_of_a_recorded_step_ends_at_the_engine_s_number(variant: str, precision: str, tmp_path) -> None:
    step = Recorded(Record(record(tmp_path, configuration(variant, precision))))
    unit = {"fp32": 2**-24, "bf16": 2**-8, "fp16": 2**-11}[precision]
    for name, index in entries(step, np.random.default_rng(1)):
        found = explain(step, spelled(name, index))
        if found.made is not None:
            size = float(np.abs(np.asarray(step.value(name)).astype(np.float64)).max())
            assert found.made.value == pytest.approx(found.value, abs=16 * unit * size + 1e-30)
        if name == "loss":  # a sum of float32, recorded in float64
            assert abs(found.roundings_off) < 16
        bars = step.gradient(name)
        if bars is not None and found.passed and name != "loss":
            size = max(largest(step, one) for one in (name, *(passed.quantity for passed in found.passed)))
            total = sum(passed.value for passed in found.passed)
            assert total == pytest.approx(found.gradient, abs=24 * unit * size + 1e-30)
        if found.update:
            engine, written = (float(line.split()[-1]) for line in (found.update[-1], found.update[-2]))
            assert written == pytest.approx(engine, rel=1e-5, abs=1e-7)


def test_the_walk_ends_at_the_tokens_and_at_the_loss(tmp_path) -> None:
    step = Recorded(Record(record(tmp_path, configuration("llama", "fp32"))))
    found = explain(step, "blocks.1.attention.scores[0, 1, 5, 3]")
    assert found.to_tokens[-1].name == "embed.tokens.weight"
    assert found.to_tokens[-1].note.startswith("the vector of")
    assert found.to_loss[-1].name == "grad(loss)"
    assert found.to_loss[-1].value == 1
    assert found.went_to == ("blocks.1.attention.weights",)


def test_terms_lead_to_where_they_come_from(worked) -> None:
    """Products of two entries have a term for each: the number, what it was multiplied by, what came of it."""
    found = explain(worked, "blocks.0.attention.scores[0, 1, 2, 1]")
    assert [term.source.address for term in found.made.terms][:2] == [
        "blocks.0.attention.query[0, 2, 1, 0]", "blocks.0.attention.key[0, 1, 1, 0]",
    ]  # fmt: skip
    for term in (*found.made.terms, *(term for passed in found.passed for term in passed.terms)):
        assert term.value == pytest.approx(term.factor * term.source.value, rel=1e-15)
    query, key = found.made.terms[:2]
    assert query.value == key.value
    assert query.factor == pytest.approx(key.source.value / 8**0.5, rel=1e-12)
    loss = explain(worked, "loss")
    assert [term.factor for term in loss.made.terms] == pytest.approx([-1.0] * 4)


def test_an_entry_may_be_named_in_many_ways(worked) -> None:
    ours = explain(worked, "attention.query.weight[3, 5]")
    for asked in (
        "grad(attention.query.weight)[3,5]",
        "m(attention.query.weight)[3, 5]",
        " attention.query.weight [-13, 5]",
    ):
        assert explain(worked, asked) == ours
    largest = explain(worked, "logits")
    assert abs(largest.value) == np.abs(worked.value("logits")).max()


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ("logits[0, 9, 0]", "(1, 4, 6)"),
        ("logits[0]", "give 3 indices"),
        ("logits[a, 0, 1]", "no index"),
        ("nothing[0]", "nothing"),
    ],
)
def test_a_wrong_entry_is_named(asked: str, named: str, worked) -> None:
    with pytest.raises(ConfigError) as caught:
        explain(worked, asked)
    assert named in str(caught.value)


def test_in_the_terminal_and_as_json(capsys) -> None:
    assert main(["explain", "--worked", "attention.scores[0, 1, 2, 1]"]) == 0
    text = capsys.readouterr().out
    (line,) = re.findall(r"    = (0\.\d+ · \(.*\))\n", text)
    value = float(re.search(r"scores\[0, 1, 2, 1\] = (\S+)", text).group(1))
    typed = re.sub(r"\[\d+ more: ([^\]]+)\]", r"(\1)", line).replace("·", "*")
    assert eval(typed) == pytest.approx(value, rel=1e-4)
    assert main(["explain", "--worked", "mlp.up.bias[7]", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["address"] == "blocks.0.mlp.up.bias[7]"
    assert found["gradient"] == pytest.approx(sum(one["value"] for one in found["passed"]), rel=1e-12)
    assert found["update"][-2].startswith("θ = ")


@pytest.mark.parametrize("words", [[], ["a", "b", "c"], ["--worked", "last", "loss"]])
def test_wrong_use_is_one_line(words: list[str], capsys) -> None:
    assert main(["explain", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_what_the_mask_hides_is_said(worked, capsys) -> None:
    assert "hidden by the mask" in explain(worked, "blocks.0.attention.scores[0, 1, 1, 2]").note
    assert "hidden" not in explain(worked, "blocks.0.attention.scores[0, 1, 2, 1]").note
    assert main(["trace", "--worked", "--quantity", "attention.scores"]) == 0
    shown = capsys.readouterr().out
    assert "batch 0, head 0, query down, key across" in shown
    size = worked.value("blocks.0.attention.scores").shape[-1]
    rows = shown[shown.index("[[") : shown.index("]]")]
    assert rows.count("·") == size * (size - 1) // 2


def test_a_token_that_is_not_in_the_batch_adds_nothing_to_its_vector(worked) -> None:
    absent = next(i for i in range(len(worked.value("embed.tokens.weight"))) if i not in worked.value("tokens"))
    found = explain(worked, f"embed.tokens.weight[{absent}, 0]")
    assert any("is not in the batch" in passed.symbols for passed in found.passed)
