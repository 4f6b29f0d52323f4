"""The plan of a model: what fits, what to change, why; and the command line around it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from limpid import plan
from limpid.cli import main
from limpid.config import ModelConfig, RunConfig, TrainConfig
from limpid.config.files import write_config
from limpid.errors import ConfigError
from limpid.planning import parameters
from limpid.planning.figure import evaluate
from limpid.planning.subject import subject


def test_every_figure_is_what_its_equation_gives() -> None:
    found = plan("mixtral-8x7b", devices=64, device="h100", zero=2, tensor=4, pipeline=2, tokens=1e12, price=2.0)
    for one in found.figures:
        if one.equation != one.name:
            assert evaluate(one.equation, one.numbers) == one.value
        assert one.why()[0].startswith(one.name)


OWN = TrainConfig(model=ModelConfig(vocab_size=8192, d_model=256, num_heads=8), run=RunConfig(batch_size=64))


MODELS = ("gpt2", "mixtral-8x7b", "deepseek-v3", "gemma-3-4b", "bert-base", "qwen2.5-72b")


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_never_contradicts_itself(name: str) -> None:
    """What is shown as parts adds up to what is shown as their sum, in every section."""
    found = plan(name, devices=16, tensor=2, zero=2, recompute="full", device="h100", tokens=1e12)
    values = {one.name: one.value for one in found.figures}
    pieces = [key for key in values if key.startswith("parameters.") and key.count(".") > 1]
    assert (
        sum(values[key] for key in pieces) == values["parameters.total"] == parameters.count(subject(name).architecture)
    )
    for component in {key.split(".")[1] for key in pieces}:
        own = [key for key in pieces if key.split(".")[1] == component]
        assert sum(values[key] for key in own) == values[f"parameters.{component}"]
    met = values.get("parameters.active", values["parameters.total"])
    assert values["flops.six_n"] == 6 * met
    kinds = ("embedding", "attention", "recurrence", "mlp", "logits", "scores_and_mixing", "states")
    assert sum(values.get(f"flops.{kind}", 0) for kind in kinds) == values["flops.forward"]
    parts = ("weights", "gradients", "optimizer", "activations", "recomputed", "logits")
    assert sum(values.get(f"memory.{part}", 0) for part in parts) == pytest.approx(values["memory.total"])
    if "decoding.total" in values:
        assert values["decoding.weights"] + values["decoding.cache"] == values["decoding.total"]
        assert values["decoding.weights"] == 2 * values["memory.parameters_here"]
    done = values["flops.step"] + found.figure("time.compute").numbers["recomputed"]
    assert values["time.compute"] == 1e12 * done
    busy = values["time.working"] / values["time.step"]
    assert values["time.mfu"] == pytest.approx(0.4 * values["flops.step"] / done * busy)


def test_a_shared_expert_is_counted_beside_its_gate(tmp_path: Path) -> None:
    """Qwen1.5-MoE-A2.7B, whose published count is 14,315,784,192."""
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "qwen2_moe", "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 24,
        "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 5632, "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632, "num_experts": 60, "num_experts_per_tok": 4,
        "max_position_embeddings": 8192, "tie_word_embeddings": False,
    }))  # fmt: skip
    found = plan(tmp_path)
    assert found.figure("parameters.total").value == 14_315_784_192
    assert found.figure("parameters.active").value == 2_689_173_504


@pytest.mark.parametrize(
    ("what", "options"),
    [
        ("llama-3-8b", {"devices": 8, "device": "h100"}),
        ("gpt2", {"device": "rtx-4090", "batch_size": 64}),
        ("llama-3-8b", {"memory": 10.0}),
        ("gemma-3-27b", {"memory": 80.0, "context_length": 32768}),
        ("mistral-7b", {"memory": 24.0, "context_length": 100_000}),
        ("llama-3-70b", {"devices": 8, "device": "h200", "batch_size": 4}),
        (OWN, {"memory": 0.5, "precision": "fp32"}),
    ],
    ids=str,
)
def test_advice_fits(what: str | TrainConfig, options: dict) -> None:
    found = plan(what, **options)
    assert found.fits is False
    assert found.advice
    for line in found.advice:
        assert "tokens" in line.partition(":")[2], "the micro-batch is said"
        words = line.partition(":")[0].split()
        changes = {
            flag.removeprefix("--").replace("-", "_"): value
            for flag, value in zip(words[::2], words[1::2], strict=True)
        }
        typed = {key: value if key in ("recompute", "precision") else int(value) for key, value in changes.items()}
        assert plan(what, **{**options, **typed}).fits, line


def test_a_configuration_and_a_folder_are_planned_as_limpid_trains_them(tmp_path: Path) -> None:
    config = TrainConfig(model=ModelConfig(vocab_size=512, d_model=64, num_heads=4), run=RunConfig(precision="bf16"))
    write_config(tmp_path / "small.toml", config)
    found = plan(tmp_path / "small.toml")
    assert found.figure("memory.saved.mlp_activation").value > 0
    assert found.figure("memory.total").value == plan(config).figure("memory.total").value
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "llama", "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
        "intermediate_size": 192, "max_position_embeddings": 128, "tie_word_embeddings": True,
    }))  # fmt: skip
    assert plan(tmp_path).figure("parameters.total").value == found.figure("parameters.total").value


def test_a_format_to_generate_in_is_judged_by_generating() -> None:
    assert plan("llama-3-8b", precision="int4", memory=24.0).fits
    assert plan("llama-3-8b", precision="int4", memory=4.0).fits is False
    assert plan("llama-3-8b", precision="bf16", memory=24.0).fits is False
    assert plan("llama-3.1-405b", precision="fp8", devices=8, tensor=8, device="h100", context_length=8192).fits
    shared = plan("llama-3-70b", precision="int4", devices=2, device="rtx-5090", context_length=4096)
    assert shared.fits is False
    assert shared.advice[0].startswith("--devices 2 --tensor 2: 18.31 GB")


def test_levers_are_combined_where_one_is_not_enough() -> None:
    found = plan("llama-3-8b", devices=4, device="h100", batch_size=8)
    assert any(line.count("--") > 1 for line in found.advice)
    assert any("1.3" in line and "× the FLOPs" in line for line in found.advice if "recompute full" in line)


def test_an_unknown_figure_is_answered_with_the_closest() -> None:
    with pytest.raises(ConfigError, match=r"memory\.activations"):
        plan("gpt2").figure("memory.activation")
    assert plan("gpt2").figure("six_n").name == "flops.six_n"


def test_the_command_line_prints_a_plan(capsys: pytest.CaptureFixture) -> None:
    assert main(["plan", "gpt2", "--tokens", "10B", "--device", "h100", "--price", "2"]) == 0
    told = capsys.readouterr().out
    assert "124,439,808 parameters" in told
    assert "fits: training takes" in told
    assert main(["plan", "llama-3-8b", "--memory", "10", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["fits"] is False
    assert document["advice"]
    assert main(["plan", "gpt2", "--why", "memory.activations"]) == 0
    assert "ceil(mlp_layers / p)" in capsys.readouterr().out
    assert main(["plan", "--compute", "5.76e23", "--json"]) == 0
    found = {one["name"]: one["value"] for one in json.loads(capsys.readouterr().out)["scaling"]}
    assert found["scaling.approach_1.parameters"] == pytest.approx(67e9, rel=0.1)
    assert main(["plan", "--params", "70B", "--tokens", "1.4T"]) == 0
    assert "about right" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gpt22"], "did you mean gpt2"),
        (["gpt2", "--zero", "4"], "stages are 0, 1, 2, 3"),
        (["gpt2", "--devices", "3", "--tensor", "2"], "do not divide into tensor 2"),
        (["gpt2", "--devices", "5", "--tensor", "5"], "does not divide the 12 heads"),
        (["gpt2", "--device", "h1000"], "did you mean h100"),
        (["gpt2", "--precision", "bf8"], "choose one of"),
        (["gpt2", "--recompute", "some"], "none, selective, full"),
        (["gpt2", "--tokens", "-1"], "above 0"),
        (["gpt2", "--utilisation", "1.5", "--device", "h100", "--tokens", "1B"], "share of the peak"),
        (["gpt2", "--price", "2"], "price is 2.0, but nothing here takes time: give --tokens"),
        (["gpt2", "--utilisation", "0.5", "--device", "h100"], "give --tokens"),
        (["gpt2", "--link", "5"], "link is 5.0, but no device here sends to another"),
        (["gpt2", "--network", "5", "--device", "h100"], "give --devices, and --device or --flops"),
        (["gpt2", "--step-spread", "0.1", "--devices", "8"], "no device here sends to another or waits for it"),
        (["gpt2", "--price", "2", "--devices", "8", "--device", "h100"], "give --tokens"),
        (["gpt2", "--explain-engine", "--zero", "3"], "--explain-engine decides for this machine"),
        (["--explain-engine", "--why", "flops"], "--why and --explain-engine ask for different things"),
        (["gpt2", "--context-length", "1e15"], "no device addresses"),
        (["--compute", "1e300"], "parameters, more than 64 bits can address"),
        (["--params", "4e20"], "parameters, more than 64 bits can address"),
        (["gpt2", "--compute", "1e20"], "leave gpt2 out"),
        (["--compute", "1e20", "--tokens", "1e9"], "no choice"),
        (["--compute", "0"], "above 0"),
        (["--params", "inf"], "a finite number"),
        (["--compute", "many"], "number"),
        (["gpt2", "--batch-size", "0"], "at least 1"),
        (["gpt2", "--memory", "0"], "above 0"),
        (["fit"], "takes runs"),
        (["sweep", "--minutes", "0"], "above 0"),
        (["sweep", "--sizes", "2"], "at least 3"),
    ],
)
def test_mistakes_are_answered_in_one_line(capsys: pytest.CaptureFixture, words: list[str], message: str) -> None:
    assert main(["plan", *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
