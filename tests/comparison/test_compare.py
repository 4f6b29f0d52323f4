"""Rounding or bug: correct variants agree, every fault is found, placed and named."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from recorded import SMALL, VARIANTS
from tests.comparison.compared import PUBLISHED, a_folder, compared

import small
from limpid.cli import main
from limpid.comparison.hypotheses import FaultyChain, hypotheses
from limpid.comparison.observed import Observed
from limpid.comparison.run import run
from limpid.comparison.variant import Variant, batch_for, parse_variant
from limpid.comparison.verdict import judge
from limpid.config import ModelConfig
from limpid.maths.rounding import FORMATS
from limpid.maths.step import forward
from limpid.model import Transformer, initialise
from limpid.model.export import save_folder
from limpid.source import ModelFolder
from limpid.training.loop import finish, loop
from limpid.training.start import start


@pytest.fixture(params=PUBLISHED)
def folder(request, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    PUBLISHED[request.param]().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(
    "words",
    ["transformers", "cached", "sampler", "fast", "fp64", "bf16", "fp16", "transformers,bf16", "transformers,fp64"],
)
def test_correct_variants_agree_up_to_rounding(folder: Path, words: str) -> None:
    verdict = compared(str(folder), f"{folder}:{words}")
    assert verdict.agrees, verdict.first_disagreement
    assert len(verdict.differences) >= 2
    assert not verdict.bitwise or words == "fast"


def test_processes_that_share_a_batch_agree_with_one_that_has_it_whole(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "a", "llama")
    verdict = compared(str(folder), f"{folder}:processes=3")
    assert verdict.agrees, verdict.first_disagreement
    assert len([one for one in verdict.differences if one.kind == "backward"]) == len(verdict.first.parameters)
    assert not verdict.bitwise or any(one.worst > 0 for one in verdict.differences)


def test_the_same_variant_twice_is_identical_to_the_last_bit(folder: Path) -> None:
    verdict = compared(str(folder), str(folder))
    assert verdict.agrees
    assert verdict.bitwise


def test_every_quantity_of_transformers_is_seen_backward_too(folder: Path) -> None:
    verdict = compared(str(folder), f"{folder}:transformers")
    names = {(one.name, one.kind) for one in verdict.differences}
    for name in ("attention.query", "attention.weights", "mlp.hidden", "mlp.output", "residual2"):
        assert (f"blocks.1.{name}", "forward") in names
        assert (f"blocks.1.{name}", "backward") in names
    assert set(verdict.first.parameters) <= {name for name, kind in names if kind == "backward"}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("rope_parameters", {"rope_type": "default", "rope_theta": 500000.0}, "the rotary base is 500,000, not 10,000"),
        ("hidden_act", "gelu", "the activation is gelu, not silu"),
        ("rms_norm_eps", 1e-3, "the norm's epsilon is 0.001, not 1e-06"),
    ],
)
def test_another_configuration_of_the_same_weights_is_named(key: str, value: object, words: str, tmp_path) -> None:
    torch.manual_seed(0)
    model = PUBLISHED["llama"]()
    for name in ("one", "other"):
        model.save_pretrained(tmp_path / name)
    file = tmp_path / "other" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    verdict = compared(str(tmp_path / "one"), f"{tmp_path / 'other'}:transformers")
    assert not verdict.agrees
    assert verdict.options
    assert verdict.outlier == 1
    assert words in [explanation.words for explanation in verdict.explanations]


def test_a_runs_folder_that_is_stale_or_missing_is_written_anew(tmp_path: Path, monkeypatch) -> None:
    """As after a kill, a Ctrl-C in older versions, or for an earlier checkpoint: nobody is accused of other weights."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIMPID_CACHE", str(tmp_path / "cache"))
    training = start(small.config(small.corpus(tmp_path / "corpus"), max_steps=4), "run")
    loop(training, small.quiet(), lambda *_: "")
    assert compared("run", "run:transformers").agrees
    finish(training)
    assert parse_variant("run:transformers").source.path == Path("runs/run/model")
    assert parse_variant("run@3:transformers").source.path != Path("runs/run/model")
    assert compared("run@3", "run@3:transformers").agrees


def faulty(one: Variant, fault, tokens: np.ndarray, targets: np.ndarray) -> Observed:
    """What an engine with the fault would show in float32."""
    parameters = {name: tensor.double().numpy() for name, tensor in one.weights.items()}
    chain = FaultyChain({**parameters, "tokens": tokens, "targets": targets}, fault)
    forward(chain, one.config)
    seen = {link.name: chain.values[link.name].astype(np.float32).astype(np.float64) for link in chain.links}
    single = FORMATS["fp32"]
    stored = dict.fromkeys(seen, single)
    return Observed("faulty", "plain, fp32", parameters, tokens, targets, seen, {}, stored, single, single, single)


@pytest.mark.parametrize("variant", ["llama", "gpt-2", "shared keys in a window", "qwen3"])
def test_every_fault_that_changes_the_numbers_is_found_and_named(variant: str, tmp_path: Path) -> None:
    config = dataclasses.replace(ModelConfig(**(SMALL | VARIANTS[variant])), dropout=0.0)
    model = initialise(Transformer(config), 3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    one = Variant("correct", ModelFolder(tmp_path), config, model.state_dict(), "plain", "fp32")
    tokens, targets = batch_for((one, one), None)
    correct = run(one, tokens, targets, backward=False)
    tried = 0
    for words, fault in hypotheses(config):
        try:
            broken = faulty(one, fault, tokens, targets)
        except ValueError:  # does not fit this model
            continue
        away = max(np.abs(broken.values[n] - correct.values[n]).max() for n in ("logits", "blocks.0.residual1"))
        if away < 1e-3:  # does not bite here: no such operation, or an epsilon among large numbers
            continue
        tried += 1
        verdict = judge(config, correct, broken)
        assert not verdict.agrees, words
        assert verdict.outlier == 1
        assert words in [explanation.words for explanation in verdict.explanations]
    assert tried >= 8


def test_interleaved_pairs_are_their_reordered_export(tmp_path: Path) -> None:
    config = ModelConfig(**(SMALL | {"rotary_layout": "interleaved", "num_kv_heads": 1, "qk_norm": False}))
    model = initialise(Transformer(config), 3)
    save_folder(tmp_path / "half", config, model.state_dict(), tokenizer_json=None, end_of_text=None)
    ours = Variant("ours", ModelFolder(tmp_path), config, model.state_dict(), "plain", "fp32")
    theirs = parse_variant(f"{tmp_path / 'half'}:transformers")
    observed = [run(one, *batch_for((ours, theirs), None), backward=True) for one in (ours, theirs)]
    verdict = judge(config, *observed, theirs.config)
    assert verdict.agrees, verdict.first_disagreement
    assert not verdict.options
    same = dataclasses.replace(ours, config=dataclasses.replace(config, rotary_layout="half"))
    wrong = judge(config, observed[0], run(same, observed[0].tokens, observed[0].targets, backward=True), same.config)
    assert not wrong.agrees
    assert any(option.startswith("rotary_layout") for option in wrong.options)
    assert any(explanation.words.startswith("the rotary layout differs") for explanation in wrong.explanations)


def test_a_relu_that_rounding_opens_is_no_bug(tmp_path: Path) -> None:
    changes = VARIANTS["the paper's"] | {"d_model": 48, "d_ff": 96}
    config = ModelConfig(**(SMALL | changes))
    weights = initialise(Transformer(config), 3).state_dict()
    ours = Variant("ours", ModelFolder(tmp_path), config, weights, "plain", "fp32")
    half = dataclasses.replace(ours, label="half", precision="bf16")
    observed = [run(one, *batch_for((ours, half), None), backward=True) for one in (ours, half)]
    assert judge(config, *observed).agrees


def test_different_weights_are_no_rounding(tmp_path: Path) -> None:
    a, b = a_folder(tmp_path / "a", "llama"), a_folder(tmp_path / "b", "llama")
    from safetensors.torch import load_file, save_file

    weights = load_file(b / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][0, 0] += 1e-2
    save_file(weights, b / "model.safetensors", metadata={"format": "pt"})
    verdict = compared(str(a), str(b))
    assert not verdict.agrees
    assert verdict.weights.differing == ("blocks.1.mlp.up.weight",)
    assert verdict.first_disagreement is not None
    assert verdict.first_disagreement.name == "blocks.1.mlp.up"


def test_a_fault_at_one_position_is_placed(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "a", "llama")
    one = parse_variant(str(folder))
    tokens, targets = batch_for((one, one), None)
    correct, broken = (run(one, tokens, targets, backward=False) for _ in range(2))
    broken.values["blocks.1.mlp.hidden"] = broken.values["blocks.1.mlp.hidden"].copy()
    broken.values["blocks.1.mlp.hidden"][0, 7:] += 1e-3
    verdict = judge(one.config, correct, broken)
    where = verdict.first_disagreement
    assert where is not None
    assert where.name == "blocks.1.mlp.hidden"
    assert where.positions == tuple(range(7, tokens.shape[1]))
    assert verdict.outlier == 1


def test_in_the_terminal_and_as_json(tmp_path: Path, capsys) -> None:
    folder = a_folder(tmp_path / "a", "llama")
    assert main(["compare", str(folder), f"{folder}:transformers"]) == 0
    assert "identical up to rounding: worst 0." in capsys.readouterr().out
    other = a_folder(tmp_path / "b", "llama", norm_eps=1e-2)
    assert main(["compare", str(folder), f"{other}:transformers", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["explanations"] or document["options"]
    assert document["outlier"].endswith(":transformers")
    assert main(["compare", str(folder), str(other)]) == 1
    text = capsys.readouterr().out
    assert "their configurations differ: norm_eps" in text
    assert "not rounding: blocks.0.norm1" in text


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["compare"], "two variants"),
        (["compare", "a"], "two variants"),
        (["compare", "{a}", "{a}:quick"], "quick"),
        (["compare", "{a}", "{a}:processes=9"], "processes=9"),
        (["compare", "{a}", "nowhere"], "nowhere"),
        (["compare", "{a}", "{wide}"], "d_model"),
        (["compare", "{a}", "{a}", "--text", "x"], "tokenizer.json"),
    ],
)
def test_wrong_use_is_one_line(words: list[str], named: str, tmp_path: Path, capsys) -> None:
    places = {"a": a_folder(tmp_path / "a", "llama"), "wide": a_folder(tmp_path / "wide", "llama", d_model=18)}
    assert main([word.format(**places) for word in words]) == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1
